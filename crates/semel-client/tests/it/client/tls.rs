//! TLS: a given authority is trusted, a stranger is not, and a handshake that fails has sent nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use semel_client::client::{Client, ClientBuildError, Lost, Sent};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::server::answer;
use super::{bare, keyed};

fn identity(folder: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key, config) =
        (folder.join("cert.pem"), folder.join("key.pem"), folder.join("cert.cnf"));
    // Self-contained: what the system's own configuration says must not matter.
    let text = "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=localhost\n[ext]\n\
                subjectAltName=DNS:localhost\nbasicConstraints=critical,CA:false\n";
    std::fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -config".split(' '))
        .arg(config)
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

async fn serve(certificate: &Path, key: &Path) -> String {
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {
                    let _ = stream.write_all(answer(200, &[], "over tls").as_bytes()).await;
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn only_a_trusted_service_is_spoken_to() {
    let folder = TempDir::new().unwrap();
    let (certificate, key) = identity(folder.path());
    let url = serve(&certificate, &key).await;
    let trusting = Client::builder(&url).unwrap().ca(&certificate).build().unwrap();
    let answer = trusting.send(&keyed()).await.unwrap();
    assert_eq!(answer.body, "over tls");
    let given = CertificateDer::pem_file_iter(&certificate).unwrap().map(Result::unwrap);
    let given = Client::builder(&url).unwrap().roots(given).build().unwrap();
    assert_eq!(given.send(&keyed()).await.unwrap().body, "over tls");
    let stranger = Client::builder(&url).unwrap().build().unwrap();
    let sent = stranger.send_once(&bare()).await;
    assert!(matches!(sent, Sent::NotSent(Lost::Tls(_))), "{sent:?}");
    let by_address = Client::builder(&url.replace("localhost", "127.0.0.1")).unwrap().ca(&certificate);
    assert!(matches!(by_address.build().unwrap().send_once(&bare()).await, Sent::NotSent(Lost::Tls(_))));
}

#[test]
fn a_file_without_certificates_is_refused() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    for path in [empty, folder.path().join("missing.pem")] {
        let refused = Client::builder("https://localhost").unwrap().ca(&path).build().unwrap_err();
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    }
    let refused = Client::builder("https://localhost").unwrap().roots([]).build().unwrap_err();
    assert!(matches!(refused, ClientBuildError::NoRoots), "{refused}");
}
