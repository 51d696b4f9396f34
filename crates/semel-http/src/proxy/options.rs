//! How requests are forwarded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How an upstream is spoken to. The defaults suit an HTTP/1.1 server nearby.
#[derive(Debug, Clone)]
pub struct Options {
    /// The version of HTTP.
    pub protocol: Protocol,
    /// Certificates that are trusted instead of the web's roots, as a PEM file.
    pub ca: Option<PathBuf>,
    /// How long connecting may take, TLS included.
    pub connect: Duration,
    /// How long the upstream may be silent: before its answer, and within it.
    pub read: Duration,
    /// How long request and answer may take together.
    pub total: Option<Duration>,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// How long a tunnel may be silent in both directions.
    pub tunnel: Duration,
    /// How many unused connections are kept.
    pub idle_connections: usize,
    /// How many connections may be open, shared with all options that have a clone of it. Without one there is no limit.
    pub connections: Option<ConnectionLimit>,
    /// Which `Host` the upstream sees.
    pub host: Host,
    /// What the upstream learns of the client.
    pub forwarded: Forwarded,
    /// A name to add to `Via`, both ways.
    pub via: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protocol: Protocol::Auto,
            ca: None,
            connect: Duration::from_secs(5),
            read: Duration::from_secs(60),
            total: None,
            idle: Duration::from_secs(30),
            tunnel: Duration::from_secs(5 * 60),
            idle_connections: 256,
            connections: None,
            host: Host::Upstream,
            forwarded: Forwarded::Replace,
            via: None,
        }
    }
}

/// How many connections to upstreams may be open at once, used and unused ones, tunnels too. Clones share it.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<Semaphore>);

/// A place of a [`ConnectionLimit`].
pub(super) struct ConnectionPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ConnectionLimit {
    /// At most this number of connections.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits for a place.
    pub(super) async fn take(&self) -> ConnectionPlace {
        // It is never closed.
        ConnectionPlace { _permit: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

/// The version of HTTP that an upstream is spoken to in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 in plain text; under TLS what the upstream prefers.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, in plain text too.
    Http2,
}

/// The `Host` that an upstream sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Its own; the client's is in `X-Forwarded-Host`.
    Upstream,
    /// The client's.
    Client,
}

/// What becomes of `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `-Prefix`, of `Forwarded`, and of the headers that name the
/// client's address alone: `X-Real-IP`, `True-Client-IP`, `X-Client-IP`, `X-Cluster-Client-IP`, `CF-Connecting-IP`, `Fastly-Client-IP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// The first three are replaced and the others removed: what the client says of itself is not believed.
    Replace,
    /// The client's is kept and extended: it is a proxy that can be trusted.
    Append,
    /// Removed; the upstream learns nothing.
    Remove,
}
