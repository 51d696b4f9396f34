//! A plain or TLS connection to an upstream.

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use semel_client::connect::{Connection, ServerTls, connect_tcp, tls_connector, web_roots};
use tokio::net::TcpStream;

use super::error::Error;
use super::options::{ConnectionLimit, ConnectionPlace, Protocol, ProxyOptions};
use super::upstream::Upstream;
use crate::edge::tls::{TlsError, read_certificates};

/// Opens connections to one upstream.
pub(super) struct Connector {
    tls: Option<ServerTls>,
    protocol: Protocol,
    limit: Option<ConnectionLimit>,
}

/// The HTTP version of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpokenVersion {
    Http1,
    Http2,
}

impl Connector {
    pub(super) fn new(upstream: &Upstream, options: &ProxyOptions) -> Result<Self, TlsError> {
        let tls = if upstream.is_tls() { Some(tls(upstream, options)?) } else { None };
        Ok(Self { tls, protocol: options.protocol, limit: options.connections.clone() })
    }

    /// The HTTP version, if it is known before the connection is open.
    pub(super) fn known(&self) -> Option<SpokenVersion> {
        match (self.protocol, &self.tls) {
            (Protocol::Http2, _) => Some(SpokenVersion::Http2),
            (Protocol::Http1, _) | (Protocol::Auto, None) => Some(SpokenVersion::Http1),
            (Protocol::Auto, Some(_)) => None,
        }
    }

    pub(super) async fn connect(
        &self,
        upstream: &Upstream,
    ) -> Result<(UpstreamStream, SpokenVersion), Error> {
        // The wait counts towards the connect timeout.
        let place = match &self.limit {
            Some(limit) => Some(limit.take().await),
            None => None,
        };
        let stream = connect_tcp((&*upstream.url.host, upstream.url.port)).await.map_err(Error::Connect)?;
        let opened = Connection::open(stream, self.tls.as_ref(), place).await;
        let stream = opened.map_err(|error| Error::Handshake(error.into()))?;
        let spoken = match (stream.protocol(), self.known()) {
            (Some(b"h2"), _) => SpokenVersion::Http2,
            (_, Some(SpokenVersion::Http2)) if self.tls.is_some() => {
                return Err(Error::Handshake("the upstream does not speak HTTP/2".into()));
            }
            (_, known) => known.unwrap_or(SpokenVersion::Http1),
        };
        Ok((stream, spoken))
    }
}

fn tls(upstream: &Upstream, options: &ProxyOptions) -> Result<ServerTls, TlsError> {
    let roots = match &options.ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                roots.add(certificate)?;
            }
            roots
        }
        None => web_roots(),
    };
    let protocols: &[&[u8]] = match options.protocol {
        Protocol::Auto => &[b"h2", b"http/1.1"],
        Protocol::Http1 => &[b"http/1.1"],
        Protocol::Http2 => &[b"h2"],
    };
    let name = ServerName::try_from(upstream.url.host.to_string())
        .map_err(|_| rustls::Error::General("the upstream's host is not a valid TLS server name".into()))?;
    Ok((tls_connector(roots, None, protocols)?, name))
}

/// An open connection. Its place stays with the socket, also when it becomes a tunnel.
pub(super) type UpstreamStream = Connection<TcpStream, Option<ConnectionPlace>>;
