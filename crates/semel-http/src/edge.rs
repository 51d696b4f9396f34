//! The listening side of the gateway: HTTP/1.1 and HTTP/2, with or without TLS, over hyper.
//!
//! [`serve`] takes a bound listener, a `tower` service and a signal to stop. Between the socket and hyper stands a wire
//! that reads every HTTP/1 request strictly and refuses what two servers could understand differently, before hyper
//! repairs it; see `docs/reference/gateway.md` for the list. A request that is refused is answered with a problem document, its
//! connection is closed, and the service never hears of it.
//!
//! A client that goes away does not cancel work on HTTP/1, unless [`Options::departed`] says so. On HTTP/2 a reset drops
//! the service's future: what must not be cut has to run in a task of its own, as the guard does.

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

pub use self::body::Body;
pub use self::options::{Departed, Limits, Options, Patience, usually_trusted};
pub use self::refusal::Refusal;
pub use self::shortcut::{Plain, Shortcut, Taken};
pub use self::tls::{Tls, TlsError};

use self::connection::Shared;
use self::eviction::OpenConnections;
use self::link::Link;
use self::rules::Rules;
use crate::BoxError;

/// How long the listener waits before it tries again: after it failed to accept, mostly for want of file descriptors, and when no
/// connection can be closed for a new one.
const REST: Duration = Duration::from_millis(50);

/// Who sent a request, among its extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Whether it came over TLS.
    pub tls: bool,
    /// The address as a header value: written once for a connection, not once for every request.
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

/// Among the extensions of a request that may become another protocol: tells when the listener has ended, and
/// whatever goes on in its name has to.
#[derive(Debug, Clone)]
pub(crate) struct Ending(watch::Receiver<()>);

impl Ending {
    /// Returns once the listener has ended.
    pub(crate) async fn ended(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every connection ended by itself.
    Clean,
    /// So many connections were cut when the time for draining was over.
    Forced(usize),
}

/// Serves connections of `listener` with `service` until `shutdown` completes; then accepts no more, lets what is in
/// flight finish, and returns when all connections are closed or [`Options::drain`] is over; then what is left is cut,
/// tunnels too.
///
/// A service that fails is answered for: 502 or 504 with a problem document, as its [`CallError`](crate::CallError) says.
/// Errors of a single connection end that connection only. At [`Limits::connections`], a new connection takes the slot of the one that
/// has waited longest for its client; a connection with a call in progress keeps its slot, unless the call's body is late. Dropping the future cuts every connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (drain, draining) = watch::channel(false);
    // Dropped at the end, whichever it is.
    let (_ending, ended) = watch::channel(());
    let most = options.limits.connections.max(1);
    let places = Arc::new(Semaphore::new(most as usize));
    let limit = options.drain;
    let shared =
        Arc::new(Shared { rules: Arc::new(Rules::new(&options)), options, draining, ending: Ending(ended) });
    let mut connections = JoinSet::new();
    let mut open = OpenConnections::default();
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
                let link = Arc::new(Link::new(place));
                open.add(&link);
                connections.spawn(connection::serve(Arc::clone(&shared), stream, peer, link, service.clone()));
            }
            // Connections that were busy when the newcomer came may be idle now.
            () = tokio::time::sleep(REST), if newcomer.is_some() => {}
        }
    }
    drop(newcomer);
    drop(listener);
    // Fails only where no connection is left to be told.
    let _ = drain.send(true);
    let all_ended = async {
        while connections.join_next().await.is_some() {}
        // Tunnels outlive the connection that opened them; their places tell when they are gone.
        let _ = places.acquire_many(most).await;
    };
    match tokio::time::timeout(limit, all_ended).await {
        Ok(()) => Drained::Clean,
        Err(_) => Drained::Forced(most as usize - places.available_permits()),
    }
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
