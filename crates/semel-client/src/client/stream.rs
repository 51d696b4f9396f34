//! What the client adds to opening a connection: whom it trusts, which addresses it refuses, and the gate for writes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;

use super::builder::ClientBuildError;
use super::control::{Gated, SendGate};
use super::error::Lost;
use super::link_local::{is_local_address, is_local_host};
use crate::connect::{BaseUrl, ClientIdentity, Connection, ServerTls, connect_tcp, tls_connector, web_roots};

/// Whose word on a server's name is taken.
#[derive(Debug)]
pub(super) enum ServerTrust {
    /// The roots of the web.
    Web,
    /// The certificates of a PEM file.
    File(PathBuf),
    These(Vec<CertificateDer<'static>>),
}

impl ServerTrust {
    fn roots(&self) -> Result<RootCertStore, ClientBuildError> {
        let mut roots = RootCertStore::empty();
        match self {
            Self::Web => return Ok(web_roots()),
            Self::File(path) => {
                let unreadable =
                    |error| ClientBuildError::Ca { path: path.clone(), reason: format!("{error}") };
                let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
                for certificate in certificates {
                    roots.add(certificate.map_err(unreadable)?)?;
                }
                if roots.is_empty() {
                    return Err(ClientBuildError::Ca {
                        path: path.clone(),
                        reason: "it holds no certificate".into(),
                    });
                }
            }
            Self::These(certificates) => {
                roots.add_parsable_certificates(certificates.iter().cloned());
                if roots.is_empty() {
                    return Err(ClientBuildError::NoRoots);
                }
            }
        }
        Ok(roots)
    }
}

/// A certificate of our own, as PEM files.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
}

impl Identity {
    fn read(&self) -> Result<ClientIdentity, ClientBuildError> {
        let unreadable =
            |path: &PathBuf, reason: String| ClientBuildError::Identity { path: path.clone(), reason };
        let in_chain = |error: pem::Error| unreadable(&self.chain, error.to_string());
        let chain = CertificateDer::pem_file_iter(&self.chain).map_err(in_chain)?;
        let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(in_chain)?;
        if chain.is_empty() {
            return Err(unreadable(&self.chain, "it holds no certificate".into()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok((chain, key.map_err(|error| unreadable(&self.key, error.to_string()))?))
    }
}

/// Whether connections to link-local and metadata addresses are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLocal {
    Allow,
    Refuse,
}

/// How connections are opened.
#[derive(Debug)]
pub(super) struct Dialing {
    pub(super) trust: ServerTrust,
    pub(super) identity: Option<Identity>,
    pub(super) link_local: LinkLocal,
}

/// Opens connections to one service.
pub(super) struct ServiceConnector {
    tls: Option<ServerTls>,
    link_local: LinkLocal,
}

impl ServiceConnector {
    pub(super) fn new(address: &BaseUrl, dialing: &Dialing) -> Result<Self, ClientBuildError> {
        let link_local = dialing.link_local;
        if link_local == LinkLocal::Refuse && is_local_host(&address.host) {
            return Err(ClientBuildError::LinkLocal);
        }
        if !address.is_tls() {
            return Ok(Self { tls: None, link_local });
        }
        let roots = dialing.trust.roots()?;
        let identity = dialing.identity.as_ref().map(Identity::read).transpose()?;
        let connector = tls_connector(roots, identity, &[b"http/1.1"])?;
        let name = ServerName::try_from(address.host.to_string()).map_err(|_| ClientBuildError::Host)?;
        Ok(Self { tls: Some((connector, name)), link_local })
    }

    /// Opens a connection whose writes pass this gate.
    pub(super) async fn connect(
        &self,
        address: &BaseUrl,
        gate: &Arc<SendGate>,
    ) -> Result<Connection<Gated>, Lost> {
        let is_name = address.host.parse::<IpAddr>().is_err();
        let stream = if is_name && self.link_local == LinkLocal::Refuse {
            connect_checked(&address.host, address.port).await
        } else {
            // A literal address was checked when the client was built.
            connect_tcp((&*address.host, address.port)).await
        };
        let stream = Gated::new(stream.map_err(Lost::Connect)?, gate);
        Connection::open(stream, self.tls.as_ref(), ()).await.map_err(Lost::Tls)
    }
}

/// Connects to a name, but to none of its addresses that are link-local. Checked here and not earlier: a name can point elsewhere
/// every time it is asked for.
async fn connect_checked(host: &str, port: u16) -> io::Result<TcpStream> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let allowed: Vec<SocketAddr> =
        found.iter().copied().filter(|address| !is_local_address(address.ip())).collect();
    match (found.first(), allowed.is_empty()) {
        (Some(local), true) => {
            let why = format!(
                "the name leads to {}, a link-local or metadata address, which is refused",
                local.ip()
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
        _ => connect_tcp(&allowed[..]).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // ssrf: a name is checked by what it leads to, when it is used.
    #[tokio::test]
    async fn a_name_that_leads_to_the_local_link_is_not_called() {
        let refused = connect_checked("169.254.169.254", 80).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("169.254.169.254, a link-local"), "{refused}");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(connect_checked("127.0.0.1", port).await.is_ok());
    }
}
