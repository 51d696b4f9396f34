//! Opening connections, for the client of this crate and for the proxy of `semel-http`: TCP, and TLS by rustls with ring.

mod address;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::address::{AddressError, BaseUrl};

/// The roots of the web.
#[must_use]
pub fn web_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// Connects to the first of these addresses that accepts the connection.
///
/// # Errors
/// None does, or a name is unknown.
pub async fn connect_tcp(addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addresses).await?;
    // Requests go out when they are ready.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// TLS for one server: the settings, and its name.
pub type ServerTls = (TlsConnector, ServerName<'static>);

/// A certificate of the client, with its chain and key.
pub type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Settings for TLS with servers whose certificates lead to `roots`. `protocols` are offered by ALPN.
///
/// # Errors
/// An unusable identity.
pub fn tls_connector(
    roots: RootCertStore,
    identity: Option<ClientIdentity>,
    protocols: &[&[u8]],
) -> Result<TlsConnector, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // An attacker on the network can send early data again.
    config.enable_early_data = false;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// An open connection, plain or TLS. It holds `H` until it is closed, for instance a permit.
pub struct Connection<S, H = ()> {
    stream: MaybeTls<S>,
    _held: H,
}

enum MaybeTls<S> {
    Plain(S),
    Tls(Box<TlsStream<S>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin, H> Connection<S, H> {
    /// A connection over `stream`, after the TLS handshake if there is one. Cancelling closes the stream.
    ///
    /// # Errors
    /// The handshake failed.
    pub async fn open(stream: S, tls: Option<&ServerTls>, held: H) -> io::Result<Self> {
        let stream = match tls {
            None => MaybeTls::Plain(stream),
            Some((tls, name)) => MaybeTls::Tls(Box::new(tls.connect(name.clone(), stream).await?)),
        };
        Ok(Self { stream, _held: held })
    }

    /// The protocol that the server chose by ALPN.
    pub fn protocol(&self) -> Option<&[u8]> {
        match &self.stream {
            MaybeTls::Plain(_) => None,
            MaybeTls::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

/// Calls a method of the stream, whichever it is.
macro_rules! forward {
    ($connection:expr, $stream:ident => $call:expr) => {
        match &mut $connection.get_mut().stream {
            MaybeTls::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            MaybeTls::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Unpin> AsyncRead for Connection<S, H> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_read(context, buffer))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Unpin> AsyncWrite for Connection<S, H> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            MaybeTls::Plain(stream) => stream.is_write_vectored(),
            MaybeTls::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_shutdown(context))
    }
}

impl<S, H> std::fmt::Debug for Connection<S, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tls = matches!(self.stream, MaybeTls::Tls(_));
        f.debug_struct("Connection").field("tls", &tls).finish_non_exhaustive()
    }
}
