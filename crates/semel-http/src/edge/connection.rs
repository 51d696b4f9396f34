//! One connection, from its first byte to its last.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tower_service::Service;

use super::body::RequestBody;
use super::call::Calls;
use super::link::{ConnectionLink, RequestPart};
use super::options::{DisconnectPolicy, EdgeOptions};
use super::rules::ListenerRules;
use super::unsealed::{self, FirstByte};
use super::wire::{Wire, WireProtocol};
use super::{ListenerEnd, Peer};
use crate::BoxError;

/// hyper's own default for the maximum number of headers.
const HYPERS_HEADERS: usize = 100;

/// State shared by all connections of a listener.
pub(super) struct ListenerShared {
    pub(super) options: EdgeOptions,
    pub(super) rules: Arc<ListenerRules>,
    /// Turns true when the listener closes.
    pub(super) draining: watch::Receiver<bool>,
    /// For tunnels, which outlive their connection.
    pub(super) ending: ListenerEnd,
}

/// Serves a connection until it ends.
pub(super) async fn serve<S, B>(
    shared: Arc<ListenerShared>,
    stream: TcpStream,
    mut peer: Peer,
    link: Arc<ConnectionLink>,
    service: S,
) where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    // Sends answers as soon as they are ready. Otherwise small answers wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &shared.options.tls else {
        return speak(shared, stream, peer, link, service, None).await;
    };
    let timeouts = shared.options.timeouts;
    let handshake = async {
        match unsealed::peek_first_byte(&stream).await? {
            FirstByte::Tls => tls.acceptor().accept(stream).await.map(Ok),
            FirstByte::Http => Ok(Err(stream)),
        }
    };
    link.wait_since(Instant::now(), RequestPart::Head);
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(timeouts.head, handshake) => shaken,
        () = link.evicted() => return evicted(peer.address),
    };
    let stream = match shaken {
        Ok(Ok(Ok(stream))) => stream,
        Ok(Ok(Err(stream))) => return unsealed::answer(stream, timeouts.linger).await,
        Ok(Err(error)) => {
            tracing::debug!(peer = %peer.address, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(peer = %peer.address, "TLS handshake took too long");
            return;
        }
    };
    peer.tls = true;
    let known = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Some(WireProtocol::Http2),
        Some(_) => Some(WireProtocol::Http1),
        None => None,
    };
    speak(shared, stream, peer, link, service, known).await;
}

async fn speak<IO, S, B>(
    shared: Arc<ListenerShared>,
    io: IO,
    peer: Peer,
    link: Arc<ConnectionLink>,
    service: S,
    known: Option<WireProtocol>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (rules, timeouts) = (Arc::clone(&shared.rules), shared.options.timeouts);
    let mut draining = shared.draining.clone();
    let mut wire =
        Wire::new(io, Arc::clone(&link), Arc::clone(&rules), timeouts, shared.options.shortcut.clone());
    let protocol = match known {
        Some(WireProtocol::Http2) => {
            wire.speak_http2();
            Some(WireProtocol::Http2)
        }
        Some(WireProtocol::Http1) => Some(WireProtocol::Http1),
        None => tokio::select! {
            protocol = wire.sniff() => protocol,
            () = link.evicted() => return evicted(peer.address),
            () = wait_for_drain(&mut draining) => None,
        },
    };
    let address = peer.address;
    let ending = shared.ending.clone();
    let calls = Calls { service, link: Arc::clone(&link), rules, timeouts, peer, ending };
    let io = TokioIo::new(wire);
    let limits = shared.options.limits;
    let ended = match protocol {
        None => return,
        Some(WireProtocol::Http1) => {
            let mut builder = http1::Builder::new();
            // The wire enforces timeouts and limits. With `Finish`, a client that closes its side still gets its answer, and a client
            // that disconnects does not cancel a request in progress.
            let on_disconnect = shared.options.on_disconnect;
            builder.half_close(on_disconnect == DisconnectPolicy::Finish).header_read_timeout(None);
            if limits.headers > HYPERS_HEADERS {
                // Set only if it is not hyper's default: with an explicit number, hyper allocates that many headers for every request.
                builder.max_headers(limits.headers);
            }
            builder.max_buf_size((2 * limits.head_bytes).max(64 * 1024));
            let mut connection = pin!(builder.serve_connection(io, calls).with_upgrades());
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = link.evicted() => return evicted(address),
                () = wait_for_drain(&mut draining) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Some(WireProtocol::Http2) => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.streams)
                .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
                .max_pending_accept_reset_streams(limits.streams as usize)
                .keep_alive_interval(timeouts.idle / 2)
                .keep_alive_timeout(timeouts.head);
            let mut connection = pin!(builder.serve_connection(io, calls));
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = link.evicted() => return evicted(address),
                () = link.flooded() => {
                    tracing::warn!(peer = %address, "connection closed: too many streams abandoned");
                    return;
                }
                () = wait_for_drain(&mut draining) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %address, %error, "connection ended");
    }
}

/// A new connection gets the slot of this one.
fn evicted(address: SocketAddr) {
    tracing::debug!(peer = %address, "connection closed for a new one");
}

/// Returns when the listener closes.
async fn wait_for_drain(draining: &mut watch::Receiver<bool>) {
    // An error means that the listener was dropped.
    let _ = draining.wait_for(|draining| *draining).await;
}
