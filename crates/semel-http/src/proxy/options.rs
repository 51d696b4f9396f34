//! Settings for forwarding.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Settings for an upstream. The defaults suit an HTTP/1.1 server nearby.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The version of HTTP.
    pub protocol: Protocol,
    /// A PEM file with certificates that are trusted instead of the public roots.
    pub ca: Option<PathBuf>,
    /// Timeout for connecting, including TLS.
    pub connect: Duration,
    /// How long the upstream may send nothing, before and within its answer.
    pub read: Duration,
    /// Maximum total time of request and answer.
    pub total: Option<Duration>,
    /// How long an idle connection is kept.
    pub idle: Duration,
    /// How long a tunnel may be idle in both directions.
    pub tunnel: Duration,
    /// Maximum number of idle connections.
    pub idle_connections: usize,
    /// Maximum number of open connections, shared with all options that hold a clone. `None`: no limit.
    pub connections: Option<ConnectionLimit>,
    /// The `Host` header for the upstream.
    pub host: Host,
    /// What the upstream is told about the client.
    pub forwarded: Forwarded,
    /// A name to add to `Via`, in both directions.
    pub via: Option<String>,
}

impl Default for ProxyOptions {
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

/// Maximum number of open connections to upstreams: used, idle, and tunnels. Clones share the limit.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<Semaphore>);

/// A slot of a [`ConnectionLimit`].
pub(super) struct ConnectionPlace {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ConnectionLimit {
    /// A limit of this number of connections.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits for a slot.
    pub(super) async fn take(&self) -> ConnectionPlace {
        // The semaphore is never closed.
        ConnectionPlace { _permit: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

/// The version of HTTP for an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 in plain text; with TLS, the version that the upstream prefers.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, also in plain text.
    Http2,
}

/// The `Host` header for an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own; the client's is in `X-Forwarded-Host`.
    Upstream,
    /// The client's.
    Client,
}

/// Handling of `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `-Prefix`, of `Forwarded`, and of headers with the client's address:
/// `X-Real-IP`, `True-Client-IP`, `X-Client-IP`, `X-Cluster-Client-IP`, `CF-Connecting-IP`, `Fastly-Client-IP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// The first three are replaced and the others removed, because the client is not trusted.
    Replace,
    /// The received headers are kept and extended, because the client is a trusted proxy.
    Append,
    /// All are removed; the upstream gets no information about the client.
    Remove,
}
