//! A connection to a service, plain or TLS.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::Address;
use super::builder::BuildError;
use super::control::{Gate, Gated};
use super::error::Lost;

/// Whose word on a server's name is taken.
#[derive(Debug)]
pub(super) enum Trust {
    /// The roots of the web.
    Web,
    /// The certificates of a PEM file.
    File(PathBuf),
    These(Vec<CertificateDer<'static>>),
}

impl Trust {
    fn roots(&self) -> Result<RootCertStore, BuildError> {
        let mut roots = RootCertStore::empty();
        match self {
            Self::Web => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Self::File(path) => {
                let unreadable = |error| BuildError::Ca { path: path.clone(), reason: format!("{error}") };
                let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
                for certificate in certificates {
                    roots.add(certificate.map_err(unreadable)?)?;
                }
                if roots.is_empty() {
                    return Err(BuildError::Ca {
                        path: path.clone(),
                        reason: "it holds no certificate".into(),
                    });
                }
            }
            Self::These(certificates) => {
                roots.add_parsable_certificates(certificates.iter().cloned());
                if roots.is_empty() {
                    return Err(BuildError::NoRoots);
                }
            }
        }
        Ok(roots)
    }
}

/// Opens connections to one service.
pub(super) struct Connector {
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    pub(super) fn new(address: &Address, trust: &Trust) -> Result<Self, BuildError> {
        if !address.is_tls() {
            return Ok(Self { tls: None });
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trust.roots()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Early data can be replayed by whoever is between.
        config.enable_early_data = false;
        let name = ServerName::try_from(address.host.to_string()).map_err(|_| BuildError::Host)?;
        Ok(Self { tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }

    /// Opens a connection whose writes pass this gate.
    pub(super) async fn connect(&self, address: &Address, gate: &Arc<Gate>) -> Result<Stream, Lost> {
        let stream = match address.host.parse::<IpAddr>() {
            Ok(ip) => TcpStream::connect((ip, address.port)).await,
            Err(_) => TcpStream::connect((&*address.host, address.port)).await,
        };
        let stream = stream.map_err(Lost::Connect)?;
        // Requests go out when they are ready.
        let _ = stream.set_nodelay(true);
        let stream = Gated::new(stream, gate);
        match &self.tls {
            None => Ok(Stream::Plain(stream)),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(Lost::Tls)?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }
}

/// An open connection.
pub(super) enum Stream {
    Plain(Gated),
    Tls(Box<TlsStream<Gated>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
