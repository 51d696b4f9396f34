//! Translates errors of the Redis client for a caller.

use redis::RedisError;

use crate::store::{Error, ErrorKind};

/// Whether the call could have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallReach {
    /// Only read.
    Read,
    /// May have been executed, unless the server said that it was not.
    Write,
}

/// The meaning of each error reply: its code, the kind, and the remedy. After an error reply nothing was changed: the
/// script's first write is its last, and Redis refuses before it.
const REPLIES: &[(&str, ErrorKind, &str)] = &[
    (
        "NOSCRIPT",
        ErrorKind::Unavailable,
        "the server lost the script repeatedly: is something flushing scripts?",
    ),
    ("READONLY", ErrorKind::Unavailable, "the server is a replica now; the new primary is looked for"),
    ("LOADING", ErrorKind::Unavailable, "the server is still reading its data from disk"),
    ("MASTERDOWN", ErrorKind::Unavailable, "the server has lost its primary"),
    ("CLUSTERDOWN", ErrorKind::Unavailable, "the cluster does not serve this slot at present"),
    ("TRYAGAIN", ErrorKind::Unavailable, "the slot is being moved"),
    ("MOVED", ErrorKind::Unavailable, "the slot was moved; use a redis-cluster:// URL for a cluster"),
    ("ASK", ErrorKind::Unavailable, "the slot is being moved; use a redis-cluster:// URL for a cluster"),
    ("BUSY", ErrorKind::Unavailable, "another client's script blocks the server"),
    ("UNBLOCKED", ErrorKind::Unavailable, "the server became a replica while it waited"),
    (
        "NOREPLICAS",
        ErrorKind::Unavailable,
        "the server refuses writes until it has enough replicas (min-replicas-to-write)",
    ),
    (
        "MISCONF",
        ErrorKind::Unavailable,
        "the server refuses writes because it cannot save to disk: free its disk",
    ),
    ("OOM", ErrorKind::Full, "the server's memory is full: raise maxmemory or shorten the retention"),
    ("NOAUTH", ErrorKind::Setup, "the server requires a password: add it to the URL"),
    ("WRONGPASS", ErrorKind::Setup, "user or password is wrong: correct them in the URL"),
    ("NOPERM", ErrorKind::Setup, "the user lacks permissions: docs/reference/redis-store.md lists them"),
    ("WRONGTYPE", ErrorKind::Corrupt, "a key of Semel contains other data: give Semel its own prefix"),
    (
        "CROSSSLOT",
        ErrorKind::Setup,
        "keys of one call are on different shards: is there a proxy? Connect to the cluster directly",
    ),
    (
        "SEMELVERSION",
        ErrorKind::Incompatible,
        "the record was written by a newer version of Semel: upgrade this one",
    ),
    ("SEMELDAMAGED", ErrorKind::Corrupt, "the record is damaged"),
];

pub(super) fn of(error: RedisError, sent: CallReach) -> Error {
    let (kind, message) = describe(&error, sent);
    Error::new(kind, message).with_source(error)
}

/// True if the connection cannot be used any more, or leads to the wrong server.
pub(super) fn needs_new_connection(error: &RedisError) -> bool {
    let wrong_server =
        matches!(code(error), Some("READONLY" | "MASTERDOWN" | "LOADING" | "NOAUTH" | "UNBLOCKED"));
    // After a timeout the answer may still come: the client drops it, but the server may also be unreachable.
    wrong_server || error.is_unrecoverable_error() || error.is_io_error()
}

/// True if the server answered with an error, so it can be reached.
pub(super) fn is_reply(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(|error| error.code().is_some())
}

fn describe(error: &RedisError, sent: CallReach) -> (ErrorKind, String) {
    let known = code(error).and_then(|code| REPLIES.iter().find(|(known, ..)| *known == code));
    if let Some((code, kind, advice)) = known {
        return (*kind, format!("Redis answered {code}: {advice}"));
    }
    if let Some(code) = error.code() {
        let detail = error.detail().unwrap_or_default();
        return (ErrorKind::Setup, format!("Redis refused the call: {code} {detail}"));
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return (ErrorKind::Setup, "Redis refused the user or password: correct them in the URL".to_owned());
    }
    if error.is_connection_refusal() {
        return (ErrorKind::Unavailable, "the Redis server refuses connections: is it running?".to_owned());
    }
    match sent {
        CallReach::Read => (ErrorKind::Unavailable, format!("the Redis server did not answer: {error}")),
        CallReach::Write => {
            (ErrorKind::Ambiguous, format!("the call was sent to Redis and no answer came: {error}"))
        }
    }
}

/// The code of an error reply. Before 7.0 an error inside a script came wrapped in another.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    let wrapped = REPLIES.iter().map(|(known, ..)| *known).find(|known| {
        detail.split_whitespace().any(|word| word.strip_prefix('-').is_some_and(|word| word == *known))
    });
    if code == "ERR" { wrapped.or(Some(code)) } else { Some(code) }
}
