//! Certificates of the listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// TLS for a listener: a certificate chain and its key, read from PEM files and read again by [`reload`](Self::reload). Clones share
/// the certificate.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Arc<Files>,
    /// Clients must present a certificate that one of these authorities signed.
    client_ca: Option<PathBuf>,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

#[derive(Debug)]
struct Files {
    chain: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// The file contains no certificate.
    #[error("{path} contains no certificate")]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// Key and certificate do not match, or have an unsupported type.
    #[error("cannot use certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Reads a certificate chain (the server's own first) and its private key.
    ///
    /// # Errors
    /// A file that cannot be read or is not PEM; a key that does not belong to the certificate.
    pub fn from_files(chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (chain, key) = (chain.into(), key.into());
        let current = RwLock::new(load(&chain, &key)?);
        let files = Arc::new(Files { chain, key, current });
        let config = Arc::new(RwLock::new(configure(&files, None)?));
        Ok(Self { files, client_ca: None, config })
    }

    /// Requires client certificates, signed by an authority of this PEM file. Other clients fail in the handshake.
    ///
    /// # Errors
    /// A file that cannot be read, is not PEM, or contains no authority.
    pub fn require_clients_of(self, authorities: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let client_ca = authorities.into();
        let config = configure(&self.files, Some(&client_ca))?;
        Ok(Self { files: self.files, client_ca: Some(client_ca), config: Arc::new(RwLock::new(config)) })
    }

    /// Reads the files again. Open connections keep their certificate. On an error nothing changes.
    ///
    /// # Errors
    /// As [`from_files`](Self::from_files) and [`require_clients_of`](Self::require_clients_of).
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = load(&self.files.chain, &self.files.key)?;
        if let Some(client_ca) = &self.client_ca {
            // A new configuration: sessions of clients that are no longer trusted cannot be resumed.
            let config = configure(&self.files, Some(client_ca))?;
            *self.config.write() = config;
        }
        *self.files.current.write() = fresh;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config.read()))
    }
}

fn configure(files: &Arc<Files>, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let config = match client_ca {
        None => config.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            config.with_client_cert_verifier(
                verifier.map_err(|error| rustls::Error::General(error.to_string()))?,
            )
        }
    };
    let mut config = config.with_cert_resolver(Arc::clone(files) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

fn load(chain: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let certificates = read_certificates(chain)?;
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File { path: key.into(), source })?;
    let provider = ring::default_provider();
    let certified = CertifiedKey::from_der(certificates, key, &provider)?;
    Ok(Arc::new(certified))
}

/// All certificates of a PEM file; at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let at = |source| TlsError::File { path: path.into(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(at)?.collect::<Result<_, _>>().map_err(at)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.into() });
    }
    Ok(certificates)
}
