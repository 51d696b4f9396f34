//! Settings of the listener.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::HeaderName;

use super::shortcut::Shortcut;
use super::tls::Tls;
use crate::policy::{ACCOUNT_HEADERS, METHOD_OVERRIDES};

/// Settings of a listener. The defaults suit an API on the public internet.
#[derive(Debug, Clone)]
pub struct EdgeOptions {
    /// TLS for every connection; plain text if `None`.
    pub tls: Option<Tls>,
    /// Limits on requests and connections.
    pub limits: EdgeLimits,
    /// Timeouts for clients.
    pub timeouts: ClientTimeouts,
    /// The headers that carry keys. A request that is ambiguous about one of them is refused.
    pub key_headers: Vec<HeaderName>,
    /// Headers that the service trusts, in addition to the built-in ones. `Connection` must not remove them. They must not arrive as a
    /// trailer, or under a name that some servers normalise to theirs (`X_User_Id`).
    pub trusted_headers: Vec<HeaderName>,
    /// The hosts that are served: a name or an address, with a port if only that port is meant. Empty: any host.
    pub hosts: Vec<String>,
    /// The protocols that a connection may be upgraded to. Requests for other protocols are answered in HTTP.
    pub upgrades: Vec<String>,
    /// How long requests in progress may take to finish after the listener was told to stop.
    pub drain: Duration,
    /// Handling of an HTTP/1 request whose client closes its connection.
    pub on_disconnect: DisconnectPolicy,
    /// Counts the connections that were closed at [`EdgeLimits::connections`], for metrics.
    pub closed_at_limit: Arc<AtomicU64>,
    /// Answers some requests before they are parsed. `None` by default; the guard can be one.
    pub shortcut: Option<Arc<dyn Shortcut>>,
}

impl Default for EdgeOptions {
    fn default() -> Self {
        Self {
            tls: None,
            limits: EdgeLimits::default(),
            timeouts: ClientTimeouts::default(),
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            trusted_headers: usually_trusted(),
            hosts: Vec::new(),
            upgrades: vec!["websocket".to_owned()],
            drain: Duration::from_secs(30),
            on_disconnect: DisconnectPolicy::Finish,
            closed_at_limit: Arc::default(),
            shortcut: None,
        }
    }
}

/// Headers that tell services who the caller is, on whose behalf it acts, and which method or path is meant: account headers, override
/// headers, and headers that authenticating proxies set.
#[must_use]
pub fn usually_trusted() -> Vec<HeaderName> {
    let more = [
        "remote-user",
        "true-client-ip",
        "x-auth-request-email",
        "x-auth-request-groups",
        "x-auth-request-user",
        "x-authenticated-user",
        "x-authenticated-userid",
        "x-client-cert",
        "x-email",
        "x-forwarded-client-cert",
        "x-forwarded-email",
        "x-forwarded-groups",
        "x-forwarded-prefix",
        "x-forwarded-user",
        "x-groups",
        "x-original-url",
        "x-remote-user",
        "x-rewrite-url",
        "x-roles",
        "x-scope",
        "x-scopes",
        "x-ssl-client-dn",
        "x-ssl-client-verify",
        "x-user-email",
        "x-user-roles",
    ];
    let more = more.into_iter().map(HeaderName::from_static);
    ACCOUNT_HEADERS.iter().chain(&METHOD_OVERRIDES).cloned().chain(more).collect()
}

/// Handling of an HTTP/1 request whose client closes its side of the connection before the answer. On HTTP/2 a reset always drops the
/// service's future.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DisconnectPolicy {
    /// The request continues to its end, and the answer is sent if the client still reads.
    #[default]
    Finish,
    /// The service's future is dropped.
    Drop,
}

/// Limits on sizes and counts. A request or connection beyond them is refused.
#[derive(Debug, Clone, Copy)]
pub struct EdgeLimits {
    /// Maximum number of open connections. At the limit, a new one takes the slot of the connection that has waited longest for its
    /// client, or waits until a call has ended.
    pub connections: u32,
    /// Maximum size of a request's head, in bytes. Beyond it: 431, also for more than 8 KiB of trailers.
    pub head_bytes: usize,
    /// Maximum length of a request's target, in bytes. Beyond it: 414.
    pub target_bytes: usize,
    /// Maximum number of header lines of a request. Beyond it: 431.
    pub headers: usize,
    /// Maximum size of a request's body, in bytes. Beyond it: 413.
    pub body_bytes: u64,
    /// Maximum number of open streams per HTTP/2 connection.
    pub streams: u32,
    /// By how much the number of abandoned streams of an HTTP/2 connection may exceed that of finished ones.
    pub abandoned_streams: u32,
}

impl Default for EdgeLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head_bytes: 32 * 1024,
            target_bytes: 8 * 1024,
            headers: 100,
            body_bytes: 64 * 1024 * 1024,
            streams: 128,
            abandoned_streams: 200,
        }
    }
}

/// Timeouts for clients.
#[derive(Debug, Clone, Copy)]
pub struct ClientTimeouts {
    /// From the first byte of a head to its last, and for the TLS handshake. Beyond it: 408.
    pub head: Duration,
    /// Total time spent waiting for a body. Beyond it: 408. Every received [`body_rate`](Self::body_rate) bytes allow one more second,
    /// so that a large body has enough time and a trickle does not. Only time in which the listener reads counts.
    pub body: Duration,
    /// Bytes that allow one more second of [`body`](Self::body).
    pub body_rate: u32,
    /// How long a connection may stay open without a request.
    pub idle: Duration,
    /// How long a client may not read an answer.
    pub write: Duration,
    /// How long the listener reads and discards what the client still sends after a refusal, so that a reset does not destroy the
    /// answer.
    pub linger: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            body_rate: 1024,
            idle: Duration::from_secs(75),
            write: Duration::from_secs(60),
            linger: Duration::from_secs(1),
        }
    }
}
