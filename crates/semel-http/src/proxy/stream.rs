//! A plain or TLS connection to an upstream.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::Error;
use super::options::{ConnectionLimit, ConnectionPlace, Protocol, ProxyOptions};
use super::upstream::Upstream;
use crate::edge::tls::{TlsError, read_certificates};

/// Opens connections to one upstream.
pub(super) struct Connector {
    tls: Option<(TlsConnector, ServerName<'static>)>,
    protocol: Protocol,
    limit: Option<ConnectionLimit>,
}

/// The HTTP version of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

impl Connector {
    pub(super) fn new(upstream: &Upstream, options: &ProxyOptions) -> Result<Self, TlsError> {
        let tls = if upstream.is_tls() { Some(tls(upstream, options)?) } else { None };
        Ok(Self { tls, protocol: options.protocol, limit: options.connections.clone() })
    }

    /// The HTTP version, if it is known before the connection is open.
    pub(super) fn known(&self) -> Option<Spoken> {
        match (self.protocol, &self.tls) {
            (Protocol::Http2, _) => Some(Spoken::Http2),
            (Protocol::Http1, _) | (Protocol::Auto, None) => Some(Spoken::Http1),
            (Protocol::Auto, Some(_)) => None,
        }
    }

    pub(super) async fn connect(&self, upstream: &Upstream) -> Result<(UpstreamStream, Spoken), Error> {
        // The wait counts towards the connect timeout.
        let place = match &self.limit {
            Some(limit) => Some(limit.take().await),
            None => None,
        };
        let stream = match upstream.host.parse::<IpAddr>() {
            Ok(address) => TcpStream::connect((address, upstream.port)).await,
            Err(_) => TcpStream::connect((&*upstream.host, upstream.port)).await,
        };
        let stream = stream.map_err(Error::Connect)?;
        // Sends requests as soon as they are ready.
        let _ = stream.set_nodelay(true);
        let Some((connector, name)) = &self.tls else {
            let stream = UpstreamStream { link: StreamKind::Plain(stream), _place: place };
            return Ok((stream, self.known().unwrap_or(Spoken::Http1)));
        };
        let stream =
            connector.connect(name.clone(), stream).await.map_err(|error| Error::Handshake(error.into()))?;
        let spoken = match (self.protocol, stream.get_ref().1.alpn_protocol()) {
            (_, Some(b"h2")) => Spoken::Http2,
            (Protocol::Http2, _) => {
                return Err(Error::Handshake("the upstream does not speak HTTP/2".into()));
            }
            _ => Spoken::Http1,
        };
        Ok((UpstreamStream { link: StreamKind::Tls(Box::new(stream)), _place: place }, spoken))
    }
}

fn tls(upstream: &Upstream, options: &ProxyOptions) -> Result<(TlsConnector, ServerName<'static>), TlsError> {
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => {
            for certificate in read_certificates(path)? {
                roots.add(certificate)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = match options.protocol {
        Protocol::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    let name = ServerName::try_from(upstream.host.to_string())
        .map_err(|_| rustls::Error::General("the upstream's host is not a valid TLS server name".into()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// An open connection.
pub(super) struct UpstreamStream {
    link: StreamKind,
    /// Stays with the socket, also when it becomes a tunnel.
    _place: Option<ConnectionPlace>,
}

enum StreamKind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            StreamKind::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            StreamKind::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            StreamKind::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            StreamKind::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            StreamKind::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            StreamKind::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.link {
            StreamKind::Plain(stream) => stream.is_write_vectored(),
            StreamKind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            StreamKind::Plain(stream) => Pin::new(stream).poll_flush(context),
            StreamKind::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            StreamKind::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            StreamKind::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
