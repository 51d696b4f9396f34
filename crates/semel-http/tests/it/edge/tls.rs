//! TLS on both sides.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use semel_http::CallFate;
use semel_http::edge::{self, Tls};
use semel_http::proxy::{Protocol, Proxy, ProxyOptions};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::edge_kit::{Gateway, Raw, Upstream, ok, small, status};

/// A self-signed certificate for `localhost` and its key.
struct Identity {
    _folder: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn identity() -> Identity {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    make(&certificate, &key);
    Identity { _folder: folder, certificate, key }
}

fn make(certificate: &Path, key: &Path) {
    let config = certificate.with_extension("cnf");
    // Self-contained: what the system's own configuration says must not matter.
    let text = "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=localhost\n[ext]\n\
                subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:false\n";
    std::fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -config".split(' '))
        .arg(config)
        .arg("-out")
        .arg(certificate)
        .arg("-keyout")
        .arg(key)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

async fn start(identity: &Identity, upstream: &Upstream) -> (Gateway, Tls) {
    let tls = Tls::from_files(&identity.certificate, &identity.key).unwrap();
    let options = edge::EdgeOptions { tls: Some(tls.clone()), ..small() };
    (Gateway::with(&upstream.url(), options, ProxyOptions::default()).await, tls)
}

async fn connect(
    gateway: &Gateway,
    trusted: &Path,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[tokio::test]
async fn tls_in() {
    let identity = identity();
    let upstream = Upstream::start(|_| ok()).await;
    let (gateway, _) = start(&identity, &upstream).await;
    // With a word about the protocol, and without.
    for protocols in [&["http/1.1"][..], &[]] {
        let mut client = Raw::new(connect(&gateway, &identity.certificate, protocols).await.unwrap());
        client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert_eq!(status(&client.rest().await), 200);
        // The same rules as in plain text.
        let mut client = Raw::new(connect(&gateway, &identity.certificate, protocols).await.unwrap());
        client.send("GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
        assert_eq!(status(&client.rest().await), 400);
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].values("x-forwarded-proto"), ["https"]);
}

#[tokio::test]
async fn http2_by_alpn() {
    let identity = identity();
    let upstream = Upstream::start(|_| ok()).await;
    let (gateway, _) = start(&identity, &upstream).await;
    let stream = connect(&gateway, &identity.certificate, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("https://a/x").body(Full::new(bytes::Bytes::from("abc"))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    assert_eq!(upstream.seen()[0].body, b"abc");
}

// A client that used the wrong scheme gets an answer that says so; the upstream sees nothing.
#[tokio::test]
async fn plain_http_at_a_tls_port_is_answered() {
    let identity = identity();
    let upstream = Upstream::start(|_| ok()).await;
    let (gateway, _) = start(&identity, &upstream).await;
    let long = format!("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n{}", "x".repeat(40_000));
    for request in ["GET /x HTTP/1.1\r\nHost: a\r\n\r\n", &long] {
        let answer = gateway.ask(request).await;
        assert_eq!(status(&answer), 400, "{answer}");
        assert!(answer.contains("\"code\":\"tls_required\"") && answer.contains("https://"), "{answer}");
    }
    assert!(upstream.seen().is_empty());
}

// The other way round too: a handshake has no line ends to wait for.
#[tokio::test]
async fn tls_at_a_plain_port_is_refused_at_once() {
    let upstream = Upstream::start(|_| ok()).await;
    let options = edge::EdgeOptions { timeouts: edge::ClientTimeouts::default(), ..small() };
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let error = connect(&gateway, &identity().certificate, &[]).await.unwrap_err();
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    assert_eq!(error, Some(&rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)));
}

// A client that never finishes its handshake holds up nobody, and is let go.
#[tokio::test]
async fn a_handshake_that_stops_blocks_nobody() {
    let identity = identity();
    let upstream = Upstream::start(|_| ok()).await;
    let (gateway, _) = start(&identity, &upstream).await;
    let mut silent = gateway.connect().await;
    let mut halting = gateway.connect().await;
    // The first bytes of a handshake.
    halting.send([0x16, 0x03, 0x01]).await;
    let mut client = Raw::new(connect(&gateway, &identity.certificate, &[]).await.unwrap());
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&client.rest().await), 200);
    assert_eq!((silent.rest().await, halting.rest().await), (String::new(), String::new()));
}

#[tokio::test]
async fn certificates_are_read_again() {
    let (identity, fresh) = (identity(), identity());
    let upstream = Upstream::start(|_| ok()).await;
    let (gateway, tls) = start(&identity, &upstream).await;
    assert!(connect(&gateway, &fresh.certificate, &[]).await.is_err(), "not yet");
    // A half-written pair changes nothing.
    std::fs::copy(&fresh.certificate, &identity.certificate).unwrap();
    assert!(tls.reload().is_err());
    assert!(connect(&gateway, &fresh.certificate, &[]).await.is_err(), "the old one still serves");
    std::fs::copy(&fresh.key, &identity.key).unwrap();
    tls.reload().unwrap();
    connect(&gateway, &fresh.certificate, &[]).await.unwrap();
}

#[tokio::test]
async fn tls_out() {
    let identity = identity();
    let upstream = Upstream::start(|_| ok()).await;
    // A gateway with TLS is the upstream.
    let (inner, _) = start(&identity, &upstream).await;
    let url = format!("https://localhost:{}", inner.address.port());
    for protocol in [Protocol::Auto, Protocol::Http1, Protocol::Http2] {
        let options =
            ProxyOptions { ca: Some(identity.certificate.clone()), protocol, ..ProxyOptions::default() };
        let outer = Gateway::with(&url, small(), options).await;
        for _ in 0..3 {
            let answer = outer
                .ask("POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
                .await;
            assert_eq!(status(&answer), 200, "{protocol:?}: {answer}");
        }
    }
    assert_eq!(upstream.seen().len(), 9);
    // Nobody vouches for it: nothing is sent.
    let proxy = Proxy::new(url.parse().unwrap(), ProxyOptions::default()).unwrap();
    let error = proxy
        .forward(Request::post("/x").body(Full::new(bytes::Bytes::from("abc"))).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.fate(), CallFate::Undelivered, "{error}");
    assert_eq!(upstream.seen().len(), 9);
}

#[test]
fn bad_files_are_named() {
    let identity = identity();
    let missing = Tls::from_files("/nowhere/cert.pem", &identity.key).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/cert.pem"), "{missing}");
    let empty = identity.certificate.with_extension("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(Tls::from_files(&empty, &identity.key).unwrap_err().to_string().contains("no certificate"));
}
