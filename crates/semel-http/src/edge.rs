//! The listening side of the gateway: HTTP/1.1 and HTTP/2, with or without TLS, over hyper.
//!
//! [`serve`] takes a bound listener, a `tower` service and a signal to stop. The wire between the socket and hyper reads every HTTP/1
//! request strictly. It refuses requests that two servers could understand differently, before hyper repairs them; `docs/reference/gateway.md`
//! has the list. The listener answers a refused request with a problem document and closes its connection; the service does not see it.
//!
//! A client that disconnects does not cancel work on HTTP/1, unless [`EdgeOptions::on_disconnect`] says so. On HTTP/2 a reset drops the
//! service's future. Work that must not be cancelled has to run in a task of its own, as in the guard.

mod answer;
mod body;
mod call;
mod chunks;
mod connection;
mod eviction;
#[cfg(test)]
mod fuzz;
mod head;
mod link;
mod options;
mod refusal;
mod rules;
mod shortcut;
pub(crate) mod timer;
pub(crate) mod tls;
mod unsealed;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_service::Service;

pub use self::body::RequestBody;
pub use self::options::{ClientTimeouts, DisconnectPolicy, EdgeLimits, EdgeOptions, usually_trusted};
pub use self::refusal::Refusal;
pub use self::shortcut::{PlainRequest, Shortcut, Taken};
pub use self::tls::{Tls, TlsError};

use self::connection::ListenerShared;
use self::eviction::OpenConnections;
use self::link::ConnectionLink;
use self::rules::ListenerRules;
use crate::BoxError;

/// How long the listener waits before it tries again: after it failed to accept, mostly for lack of file descriptors, and when it can
/// close no connection for a new one.
const REST: Duration = Duration::from_millis(50);

/// The client of a request, in the extensions of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Address of the client.
    pub address: SocketAddr,
    /// True if the request came over TLS.
    pub tls: bool,
    /// The address as a header value, formatted once per connection instead of once per request.
    value: HeaderValue,
}

impl Peer {
    /// A client at this address, without TLS.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let value = HeaderValue::try_from(address.ip().to_string()).expect("addresses are visible ASCII");
        Self { address, tls: false, value }
    }

    pub(crate) fn address_value(&self) -> &HeaderValue {
        &self.value
    }
}

/// In the extensions of a request that may switch protocols: signals that the listener has ended, so that tunnels end too.
#[derive(Debug, Clone)]
pub(crate) struct ListenerEnd(watch::Receiver<()>);

impl ListenerEnd {
    /// Returns once the listener has ended.
    pub(crate) async fn ended(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainResult {
    /// Every connection ended by itself.
    Clean,
    /// This number of connections was closed when the drain time was over.
    Forced(usize),
}

/// Serves connections of `listener` with `service` until `shutdown` completes. Then it accepts no more connections and lets requests in
/// progress finish. It returns when all connections are closed or [`EdgeOptions::drain`] is over; at that point it closes the remaining
/// connections and tunnels.
///
/// If the service fails, the listener answers 502 or 504 with a problem document, according to its [`CallError`](crate::CallError). An
/// error on one connection ends that connection only. At [`EdgeLimits::connections`], a new connection takes the slot of the one that has
/// waited longest for its client; a connection with a call in progress keeps its slot, unless the call's body is late. Dropping the
/// future closes every connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: EdgeOptions,
    shutdown: impl Future<Output = ()>,
) -> DrainResult
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (drain, draining) = watch::channel(false);
    // Dropped on every return path.
    let (_ending, ended) = watch::channel(());
    let most = options.limits.connections.max(1);
    let places = Arc::new(Semaphore::new(most as usize));
    let limit = options.drain;
    let mut open = OpenConnections::new(Arc::clone(&options.closed_at_limit));
    let shared = Arc::new(ListenerShared {
        rules: Arc::new(ListenerRules::new(&options)),
        options,
        draining,
        ending: ListenerEnd(ended),
    });
    let mut connections = JoinSet::new();
    let mut newcomer = None;
    let mut shutdown = pin!(shutdown);
    loop {
        if newcomer.is_some() && places.available_permits() == 0 {
            open.evict_longest_waiting(most);
        }
        tokio::select! {
            biased;
            () = shutdown.as_mut() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if newcomer.is_none() => match accepted {
                Ok(accepted) => newcomer = Some(accepted),
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(REST).await;
                }
            },
            place = Arc::clone(&places).acquire_owned(), if newcomer.is_some() => {
                let (Ok(place), Some((stream, address))) = (place, newcomer.take()) else { continue };
                let peer = Peer::new(address);
                let link = Arc::new(ConnectionLink::new(place));
                open.add(&link);
                connections.spawn(connection::serve(Arc::clone(&shared), stream, peer, link, service.clone()));
            }
            // Connections that were busy when the new one arrived may be idle now.
            () = tokio::time::sleep(REST), if newcomer.is_some() => {}
        }
    }
    drop(newcomer);
    drop(listener);
    // Sending fails only if no connection is left.
    let _ = drain.send(true);
    let all_ended = async {
        while connections.join_next().await.is_some() {}
        // Tunnels outlive their connection; each holds a slot until it ends.
        let _ = places.acquire_many(most).await;
    };
    match tokio::time::timeout(limit, all_ended).await {
        Ok(()) => DrainResult::Clean,
        Err(_) => DrainResult::Forced(most as usize - places.available_permits()),
    }
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
