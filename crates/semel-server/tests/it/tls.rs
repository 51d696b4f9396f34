//! TLS at the gateway, and a certificate that is changed while it runs.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel, Upstream};

/// A certificate for 127.0.0.1 that says of itself who it is.
pub(crate) fn certificate(folder: &Path, name: &str) {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1"])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(cert)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

fn curl(folder: &Path, url: &str) -> (bool, String) {
    let output = Command::new("curl")
        .args(["-sv", "-H", "Idempotency-Key: k", "-d", "{}", "--cacert"])
        .arg(folder.join("cert.pem"))
        .arg(format!("{url}/pay"))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), said)
}

#[test]
fn the_gateway_speaks_tls_and_takes_a_new_certificate() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path(), "first");
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
        upstream.url(),
        path = folder.path().display(),
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let url = semel.gateway_url().to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{}", semel.ready);
    let (ok, said) = curl(folder.path(), &url);
    assert!(ok && said.contains("{\"call\": 1}"), "{said}");

    // A pair that does not fit is refused, and the old one stays.
    let key = std::fs::read(folder.path().join("key.pem")).unwrap();
    std::fs::write(folder.path().join("key.pem"), "nonsense").unwrap();
    semel.signal(Signal::HUP);
    semel.logged("configuration reload refused");
    std::fs::write(folder.path().join("key.pem"), key).unwrap();
    assert!(curl(folder.path(), &url).0);

    certificate(folder.path(), "second");
    semel.signal(Signal::HUP);
    // Only the new one is trusted by this client now.
    wait::until("the new certificate", PATIENCE, || curl(folder.path(), &url).0).unwrap();
    let (_, said) = curl(folder.path(), &url);
    assert!(said.to_lowercase().contains("idempotent-replayed: true"), "{said}");
    assert_eq!(upstream.calls("k"), 1);
}
