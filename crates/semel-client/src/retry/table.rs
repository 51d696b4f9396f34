//! What a try's end means: one table, and nothing beside it.

/// Whether a call may be repeated without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// A safe method, or a key that its receiver honours: twice is once.
    Safe,
    /// It has an effect and no key: whatever may have happened must not be asked for again.
    Unsafe,
}

/// What was seen of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// It never reached a handler: no address, connection refused, TLS failed, refused before it was read.
    NotSent,
    /// It was sent, and the answer was cut or made no sense.
    Cut,
    /// It was sent, and no answer came in time.
    TimedOut,
    /// 2xx.
    Success,
    /// 3xx. Redirects are not followed.
    Redirect,
    /// 408: the server waited for the request in vain, or says so.
    RequestTimeout,
    /// 409: the same key is being worked on.
    InFlight,
    /// 409 on a call that creates what is absent: it is there.
    Exists,
    /// 409: the same key was done before, and the answer is not kept.
    Duplicate,
    /// 409: the same key began before, and nobody knows how it ended.
    InDoubt,
    /// Any other 409.
    Conflict,
    /// 421: the wrong connection.
    Misdirected,
    /// 425: too early on this connection.
    TooEarly,
    /// 429.
    TooMany,
    /// Any other 4xx: asking again gives the same answer.
    Refused,
    /// 500.
    ServerError,
    /// 501, 505, 511: it cannot be done there.
    NotImplemented,
    /// 502, 504: somebody between could not tell how it ended.
    BadGateway,
    /// 503.
    Unavailable,
    /// Any other 5xx.
    OtherServerError,
    /// The server says that it may be tried again, whatever its status.
    ToldToRetry,
    /// The server says that it must not be tried again, whatever its status.
    ToldToStop,
    /// A status that no final answer has.
    Nonsense,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It is done.
    Success,
    /// Try again.
    Retry,
    /// Try again once, on another connection.
    RetryOnce,
    /// Try again where the server said when; otherwise nobody knows whether it happened.
    RetryIfTold,
    /// Ask again later with the same key.
    InFlight,
    /// Nobody knows whether it happened, and it must not be repeated.
    Unknown,
    /// It failed for good.
    Fatal,
}

/// What the end of a call says about its destination. The circuit breaker counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationHealth {
    /// It answered.
    Healthy,
    /// It did not answer, or could not.
    Failing,
    /// It says nothing either way: it asked for less traffic.
    Unclear,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRow {
    /// What was seen.
    pub kind: Kind,
    /// Its name, the same in logs, metrics and the docs.
    pub name: &'static str,
    /// What is done about a call that may be repeated.
    pub safe: Rule,
    /// What is done about a call that may not. [`Rule::Unknown`] here also says that the effect may have happened.
    pub bare: Rule,
    /// What the breaker is told.
    pub health: DestinationHealth,
}

const fn row(kind: Kind, name: &'static str, safe: Rule, bare: Rule, health: DestinationHealth) -> RetryRow {
    RetryRow { kind, name, safe, bare, health }
}

/// The classification, in the order of [`Kind`].
pub const TABLE: [RetryRow; 23] = [
    row(Kind::NotSent, "not_sent", Rule::Retry, Rule::Retry, DestinationHealth::Failing),
    row(Kind::Cut, "cut", Rule::Retry, Rule::Unknown, DestinationHealth::Failing),
    row(Kind::TimedOut, "timed_out", Rule::Retry, Rule::Unknown, DestinationHealth::Failing),
    row(Kind::Success, "success", Rule::Success, Rule::Success, DestinationHealth::Healthy),
    row(Kind::Redirect, "redirect", Rule::Fatal, Rule::Unknown, DestinationHealth::Healthy),
    row(Kind::RequestTimeout, "request_timeout", Rule::Retry, Rule::Unknown, DestinationHealth::Healthy),
    row(Kind::InFlight, "in_flight", Rule::InFlight, Rule::Unknown, DestinationHealth::Healthy),
    row(Kind::Exists, "exists", Rule::Success, Rule::Success, DestinationHealth::Healthy),
    row(Kind::Duplicate, "duplicate", Rule::Fatal, Rule::Unknown, DestinationHealth::Healthy),
    row(Kind::InDoubt, "in_doubt", Rule::Unknown, Rule::Unknown, DestinationHealth::Healthy),
    row(Kind::Conflict, "conflict", Rule::Fatal, Rule::Fatal, DestinationHealth::Healthy),
    row(Kind::Misdirected, "misdirected", Rule::RetryOnce, Rule::RetryOnce, DestinationHealth::Healthy),
    row(Kind::TooEarly, "too_early", Rule::Retry, Rule::Retry, DestinationHealth::Healthy),
    row(Kind::TooMany, "too_many", Rule::Retry, Rule::Retry, DestinationHealth::Unclear),
    row(Kind::Refused, "refused", Rule::Fatal, Rule::Fatal, DestinationHealth::Healthy),
    row(Kind::ServerError, "server_error", Rule::Retry, Rule::Unknown, DestinationHealth::Failing),
    row(Kind::NotImplemented, "not_implemented", Rule::Fatal, Rule::Fatal, DestinationHealth::Failing),
    row(Kind::BadGateway, "bad_gateway", Rule::Retry, Rule::Unknown, DestinationHealth::Failing),
    row(Kind::Unavailable, "unavailable", Rule::Retry, Rule::RetryIfTold, DestinationHealth::Failing),
    row(Kind::OtherServerError, "other_server_error", Rule::Fatal, Rule::Unknown, DestinationHealth::Failing),
    row(Kind::ToldToRetry, "told_to_retry", Rule::Retry, Rule::Retry, DestinationHealth::Unclear),
    row(Kind::ToldToStop, "told_to_stop", Rule::Fatal, Rule::Fatal, DestinationHealth::Unclear),
    row(Kind::Nonsense, "nonsense", Rule::Fatal, Rule::Unknown, DestinationHealth::Failing),
];

impl Kind {
    /// The kind of an HTTP status by itself. A 409 can mean more; see [`Signal`](super::Signal).
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Success,
            300..=399 => Self::Redirect,
            408 => Self::RequestTimeout,
            409 => Self::Conflict,
            421 => Self::Misdirected,
            425 => Self::TooEarly,
            429 => Self::TooMany,
            400..=499 => Self::Refused,
            500 => Self::ServerError,
            501 | 505 | 511 => Self::NotImplemented,
            502 | 504 => Self::BadGateway,
            503 => Self::Unavailable,
            506..=599 => Self::OtherServerError,
            _ => Self::Nonsense,
        }
    }

    /// Its line of the table.
    #[must_use]
    pub const fn row(self) -> &'static RetryRow {
        &TABLE[self as usize]
    }

    /// Its name, the same in logs, metrics and the docs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}
