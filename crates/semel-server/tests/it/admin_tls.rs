//! TLS at the admin side: the commands that speak to it, what they say when that fails, and spans over TLS.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel, Upstream, semel};

// Self-contained: what the system's own configuration says must not matter.
const OPENSSL: &str = "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=localhost\n\
                       [authority]\nbasicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign\n\
                       subjectKeyIdentifier=hash\n[server]\nbasicConstraints=critical,CA:false\n";

/// An authority of its own, and a certificate that it signed: `ca.pem`, `cert.pem`, `key.pem`.
pub(crate) fn certificates(folder: &Path, names: &str) {
    let authority = folder.file_name().unwrap().display();
    let config = folder.join("openssl.cnf");
    std::fs::write(&config, format!("{OPENSSL}subjectAltName={names}\n")).unwrap();
    for line in [
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf -extensions authority \
         -subj /CN={authority} -days 2 -keyout ca.key -out ca.pem"
        ),
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf -keyout key.pem -out cert.csr",
        "x509 -req -in cert.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile openssl.cnf -extensions server \
         -out cert.pem",
    ] {
        let made = Command::new("openssl")
            .current_dir(folder)
            .env("OPENSSL_CONF", &config)
            .args(line.split_whitespace())
            .output()
            .expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}

/// A config file whose admin side has the folder's certificate.
fn config(folder: &Path, more: &str) -> PathBuf {
    let file = folder.join("semel.toml");
    let text = format!(
        "{more}\n[admin]\nlisten = \"127.0.0.1:0\"\ntls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}\n\
         [store]\nurl = \"memory:\"\n",
        path = folder.display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// Runs `semel keys list`, with these flags and variables.
fn list(admin: &str, flags: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let mut command = semel();
    command.args(["keys", "list", "--admin", admin]).args(flags);
    command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR").envs(env.iter().copied());
    let output = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), said)
}

fn curl(ca: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("curl");
    let output = command.args(["-sS", "--noproxy", "*", "--cacert", ca]).args(args).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    (output.status.code(), said)
}

#[test]
fn commands_speak_tls_and_the_server_takes_a_new_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1");
    let semel = Semel::with_config(&config(folder.path(), ""), &[]);
    let url = semel.admin_url().to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{}", semel.ready);
    // Clients that never finish a handshake hold up nobody.
    let address = url.trim_start_matches("https://");
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let ca = folder.path().join("ca.pem").display().to_string();
    for (flags, env) in [
        (&["--admin-ca", ca.as_str()][..], &[][..]),
        (&[], &[("SEMEL_ADMIN_CA", ca.as_str())]),
        // What the machine trusts is trusted.
        (&[], &[("SSL_CERT_FILE", ca.as_str())]),
    ] {
        let (ok, said) = list(&url, flags, env);
        assert!(ok, "{flags:?} {env:?}: {said}");
    }

    // A pair that does not fit is refused, and the old one stays.
    let key = std::fs::read(folder.path().join("key.pem")).unwrap();
    std::fs::write(folder.path().join("key.pem"), "nonsense").unwrap();
    semel.signal(Signal::HUP);
    semel.logged("configuration reload refused");
    std::fs::write(folder.path().join("key.pem"), key).unwrap();
    assert!(list(&url, &["--admin-ca", &ca], &[]).0);

    // Another authority: only the new certificate is trusted by this client.
    certificates(folder.path(), "IP:127.0.0.1");
    semel.signal(Signal::HUP);
    wait::until("the new certificate", PATIENCE, || list(&url, &["--admin-ca", &ca], &[]).0).unwrap();
}

// rebinding: over HTTP/2 the name that is asked for stands elsewhere.
#[test]
fn http2_is_spoken_under_the_same_rules() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1, DNS:foreign.example");
    let semel = Semel::with_config(&config(folder.path(), ""), &[]);
    let ca = folder.path().join("ca.pem").display().to_string();
    let url = format!("{}/v1/claims", semel.admin_url());
    let ask = ["--http2", "-w", "\n%{http_version} %{http_code}", "-d", r#"{"namespace": "n", "key": "k"}"#];
    let (_, said) = curl(&ca, &[&ask[..], &[&url]].concat());
    assert!(said.contains("\"won\"") && said.ends_with("\n2 200"), "{said}");
    let port = url.split(':').nth(2).unwrap().split('/').next().unwrap();
    let (resolve, foreign) =
        (format!("foreign.example:{port}:127.0.0.1"), format!("https://foreign.example:{port}/v1/claims"));
    let (_, said) = curl(&ca, &[&ask[..], &["--resolve", &resolve, &foreign]].concat());
    assert!(said.contains("foreign_origin") && said.ends_with("\n2 403"), "{said}");
}

// A caller that waits for a claim and hangs up does not delay the end.
#[test]
fn a_client_that_hangs_up_does_not_go_on_waiting() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1");
    let mut semel = Semel::with_config(&config(folder.path(), "drain = \"4s\""), &[]);
    let ca = folder.path().join("ca.pem").display().to_string();
    let url = format!("{}/v1/claims", semel.admin_url());
    let claim = |more: &str| {
        format!(r#"{{"namespace": "n", "key": "k", "lease": "5m", "in_flight_max": "10m"{more}}}"#)
    };
    assert!(curl(&ca, &["-d", &claim(""), &url]).1.contains("\"won\""));
    let (code, said) = curl(&ca, &["--http1.1", "-m", "1", "-d", &claim(r#", "wait": "1m""#), &url]);
    assert_eq!(code, Some(28), "it waited until it lost patience: {said}");
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
    let log = semel.log();
    assert!(!log.contains("may end in doubt") && !log.contains("connections were closed"), "{log}");
}

#[test]
fn what_is_wrong_with_tls_is_said() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(folder.path(), "IP:127.0.0.1");
    certificates(other.path(), "IP:127.0.0.1");
    let sealed = Semel::with_config(&config(folder.path(), ""), &[]);
    let plain = Semel::start(&["--store", "memory:"]);
    let url = sealed.admin_url();
    let ca = folder.path().join("ca.pem").display().to_string();
    let foreign = other.path().join("ca.pem").display().to_string();
    let named = url.replace("127.0.0.1", "localhost");
    let unsealed = url.replace("https", "http");
    let mistaken = plain.admin_url().replace("http", "https");
    let missing = folder.path().join("missing.pem").display().to_string();
    let table: [(&str, &[&str], &[&str]); 8] = [
        (url, &[], &["an authority that this machine does not trust", "--admin-ca FILE", "SEMEL_ADMIN_CA"]),
        (url, &["--admin-ca", &foreign], &["not signed by any authority in", &foreign]),
        (&named, &["--admin-ca", &ca], &["is not for localhost, but for 127.0.0.1"]),
        (&unsealed, &[], &["this port speaks TLS: write https:// instead of http:// (400)"]),
        (&mistaken, &["--admin-ca", &ca], &["does not speak TLS; write http://127.0.0.1:"]),
        (url, &["--admin-ca", &missing], &["--admin-ca FILE", &missing]),
        ("https://127.0.0.1:1", &["--admin-ca", &ca], &["nothing answers at 127.0.0.1:1"]),
        ("ftp://127.0.0.1", &[], &["must begin with http:// or https://"]),
    ];
    for (url, flags, expected) in table {
        let (ok, said) = list(url, flags, &[("SSL_CERT_FILE", foreign.as_str())]);
        for expected in expected {
            assert!(!ok && said.contains(expected), "{url} {flags:?}: {expected:?} in {said}");
        }
    }
    let (ok, said) = list(url, &[], &[("SSL_CERT_FILE", missing.as_str())]);
    assert!(!ok && said.contains("this machine trusts no authority") && said.contains(&missing), "{said}");

    // A self-signed one, as `openssl req -x509` makes it by default.
    let folder = tempfile::tempdir().unwrap();
    crate::tls::certificate(folder.path(), "both");
    let semel = Semel::with_config(&config(folder.path(), ""), &[]);
    let own = folder.path().join("cert.pem").display().to_string();
    let (ok, said) = list(semel.admin_url(), &["--admin-ca", &own], &[]);
    assert!(!ok && said.contains("basicConstraints=CA:FALSE"), "{said}");
}

#[test]
fn spans_go_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "IP:127.0.0.1");
    let (collector, collected) = crate::trace::collector();
    let path = folder.path().display();
    // A gateway with a certificate makes the collector one that speaks TLS.
    let gateway = |upstream: &str, tls: &str| {
        format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\nscope = \"single-tenant\"\n{tls}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n"
        )
    };
    let file = folder.path().join("collector.toml");
    let tls = format!("tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}");
    std::fs::write(&file, gateway(&collector, &tls)).unwrap();
    let sealed = Semel::with_config(&file, &[]);

    let upstream = Upstream::start();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, gateway(&upstream.url(), "")).unwrap();
    let ca = format!("{path}/ca.pem");
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", sealed.gateway_url());
    let semel = Semel::with_config(&file, &[endpoint, ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca)]);
    assert_eq!(semel.gateway().with("idempotency-key", "k").post("/pay", "{}").status, 201);
    let body = collected.recv_timeout(PATIENCE).unwrap();
    assert!(body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"].is_string(), "{body}");

    // Without the authority nothing is sent, and the log says what to do.
    let semel = Semel::with_config(&file, &[endpoint]);
    assert_eq!(semel.gateway().with("idempotency-key", "k").post("/pay", "{}").status, 201);
    semel.logged("OTEL_EXPORTER_OTLP_CERTIFICATE");
}
