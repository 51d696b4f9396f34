//! Certificates for one server, created by the `openssl` program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Result, error::Doing, process::run, programs};

// Self-contained, so that the system's own openssl.cnf has no effect.
const OPENSSL_CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
";

pub(super) fn ca_cert(folder: &Path) -> PathBuf {
    folder.join("ca.crt")
}

/// Creates an authority and a server certificate that it signs, valid for two days.
pub(super) fn make_certificates(folder: &Path) -> Result<()> {
    let config = folder.join("openssl.cnf");
    fs::write(&config, OPENSSL_CONFIG).doing(|| format!("writing {}", config.display()))?;
    let openssl = programs::on_path("openssl", "openssl")?;
    let call = |line: &str| {
        run(Command::new(&openssl).current_dir(folder).env("OPENSSL_CONF", &config).args(line.split(' ')))
            .map(drop)
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    call(&format!(
        "req -x509 {key} -config openssl.cnf -extensions authority -subj /CN=testbed -days 2 -keyout ca.key -out ca.crt"
    ))?;
    call(&format!("req {key} -config openssl.cnf -keyout server.key -out server.csr"))?;
    call(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile openssl.cnf -extensions server -out server.crt",
    )
}

pub(super) fn lines(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "tls-port {port}\ntls-cert-file {folder}/server.crt\ntls-key-file {folder}/server.key\n\
         tls-ca-cert-file {folder}/ca.crt\ntls-auth-clients no\n"
    )
}
