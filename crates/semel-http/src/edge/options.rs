//! What the listening side allows.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::shortcut::Shortcut;
use super::tls::Tls;
use crate::policy::{ACCOUNT_HEADERS, METHOD_OVERRIDES};

/// How a listener behaves. The defaults suit an API on the open net.
#[derive(Debug, Clone)]
pub struct Options {
    /// TLS for every connection, or plain text.
    pub tls: Option<Tls>,
    /// What a client may ask of us at most.
    pub limits: Limits,
    /// How long a client may take.
    pub patience: Patience,
    /// The headers that carry keys. A request that is ambiguous about one of them is refused.
    pub key_headers: Vec<HeaderName>,
    /// Headers that the service trusts, beside those that decide about every request. `Connection` must not remove one of them, and
    /// none may come under a name that some servers fold into it (`X_User_Id`), or as a trailer.
    pub trusted_headers: Vec<HeaderName>,
    /// The hosts that requests may be for: a name or an address, with its port where only that one is meant. Empty: any.
    pub hosts: Vec<String>,
    /// The protocols that a connection may be upgraded to; requests for others are answered in HTTP.
    pub upgrades: Vec<String>,
    /// How long requests in flight may take to finish once the listener closes.
    pub drain: Duration,
    /// What becomes of a request whose client closes its connection, on HTTP/1.
    pub departed: Departed,
    /// Answers requests that need nobody else, before they are taken apart. None by default; the guard is one.
    pub shortcut: Option<Arc<dyn Shortcut>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tls: None,
            limits: Limits::default(),
            patience: Patience::default(),
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            trusted_headers: usually_trusted(),
            hosts: Vec::new(),
            upgrades: vec!["websocket".to_owned()],
            drain: Duration::from_secs(30),
            departed: Departed::Finish,
            shortcut: None,
        }
    }
}

/// Headers by which services are told who asks, for whom, and how: those that select an account, those that say that a request is
/// another, and those that proxies set after they have authenticated somebody.
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

/// What becomes of a request on HTTP/1 whose client closes its side of the connection before the answer. On HTTP/2 a
/// reset always drops the service's future.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Departed {
    /// It goes on to its end, and its answer is sent if anybody is left to read it.
    #[default]
    Finish,
    /// The service's future is dropped: nobody waits for a client that is gone.
    Drop,
}

/// Sizes and counts beyond which a request or a connection is refused.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections open at once. Beyond, a new one takes the slot of the connection that has waited longest for its client, or waits
    /// until a call has ended.
    pub connections: u32,
    /// Bytes of a request's head. 431 beyond; the same for more than 8 KiB of trailers.
    pub head_bytes: usize,
    /// Bytes of a request's target. 414 beyond.
    pub target_bytes: usize,
    /// Header lines of a request. 431 beyond.
    pub headers: usize,
    /// Bytes of a request's body. 413 beyond.
    pub body_bytes: u64,
    /// Streams open at once on one HTTP/2 connection.
    pub streams: u32,
    /// How many more streams of an HTTP/2 connection may be abandoned than finished.
    pub abandoned_streams: u32,
}

impl Default for Limits {
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

/// How long a client may take over what.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// From the first byte of a head to its last, and for the TLS handshake. 408 beyond.
    pub head: Duration,
    /// Time spent waiting for a body, all pauses together. 408 beyond. Every received
    /// [`body_rate`](Self::body_rate) bytes allow a second more, so that large bodies get their time and a trickle
    /// does not. Time in which we did not ask for more does not count.
    pub body: Duration,
    /// Bytes that buy a second more of [`body`](Self::body).
    pub body_rate: u32,
    /// How long a connection may stay open without a request.
    pub idle: Duration,
    /// How long a client may leave an answer unread.
    pub write: Duration,
    /// After a refusal: how long what the client still sends is read and thrown away, so that the answer is not lost
    /// to a reset.
    pub linger: Duration,
}

impl Default for Patience {
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
