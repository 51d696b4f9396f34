//! Clients without a certificate.

use std::path::Path;
use std::process::Command;

use crate::admin_tls::certificates;
use crate::kit::{Semel, Upstream, semel};

fn config(folder: &Path, client_ca: &str) -> std::path::PathBuf {
    let file = folder.join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\", client_ca = \"{client_ca}\" }}\n\
         [store]\nurl = \"memory:\"\n",
        path = folder.display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn a_client_without_a_certificate_gets_nothing() {
    let (server, clients, strangers) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&server, &clients, &strangers] {
        certificates(folder.path(), "IP:127.0.0.1");
    }
    let path = |folder: &tempfile::TempDir, name: &str| folder.path().join(name).display().to_string();
    let semel_server = Semel::with_config(&config(server.path(), &path(&clients, "ca.pem")), &[]);
    let url = semel_server.admin_url();
    let list = |identity: Option<&tempfile::TempDir>| {
        let mut command = semel();
        command.args(["keys", "list", "--admin", url, "--admin-ca", &path(&server, "ca.pem")]);
        if let Some(folder) = identity {
            command.args([
                "--admin-cert",
                &path(folder, "cert.pem"),
                "--admin-key",
                &path(folder, "key.pem"),
            ]);
        }
        command.output().unwrap()
    };
    let known = list(Some(&clients));
    assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
    assert!(!list(None).status.success(), "no certificate");
    assert!(!list(Some(&strangers)).status.success(), "a certificate of another authority");
    let health = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "--cacert", &path(&server, "ca.pem"), &format!("{url}/healthz")])
        .output()
        .unwrap();
    assert!(!health.status.success() && health.stdout.is_empty(), "{health:?}");
    let half = semel().args(["keys", "list", "--admin-cert", "x.pem"]).output().unwrap();
    assert_eq!(half.status.code(), Some(2), "a certificate needs its key");
}

#[test]
fn a_client_without_a_certificate_does_not_reach_the_gateway() {
    let (server, clients, strangers) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&server, &clients, &strangers] {
        certificates(folder.path(), "IP:127.0.0.1");
    }
    let path = |folder: &tempfile::TempDir, name: &str| folder.path().join(name).display().to_string();
    let (upstream, file) = (Upstream::start(), server.path().join("semel.toml"));
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         tls = {{ cert = \"{}\", key = \"{}\", client_ca = \"{}\" }}\n",
        upstream.url(),
        path(&server, "cert.pem"),
        path(&server, "key.pem"),
        path(&clients, "ca.pem"),
    );
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let pay = |key: &str, identity: Option<&tempfile::TempDir>| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "-d", "{}"]);
        curl.args(["--cacert", &path(&server, "ca.pem"), "-H", &format!("Idempotency-Key: {key}")]);
        if let Some(folder) = identity {
            curl.args(["--cert", &path(folder, "cert.pem"), "--key", &path(folder, "key.pem")]);
        }
        let output = curl.arg(format!("{}/orders", semel.gateway_url())).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(pay("known", Some(&clients)), "201");
    assert_eq!(pay("none", None), "000", "no certificate");
    assert_eq!(pay("stranger", Some(&strangers)), "000", "a certificate of another authority");
    assert_eq!(["known", "none", "stranger"].map(|key| upstream.calls(key)), [1, 0, 0]);
}
