//! Reports attempts to logs and observers.

use std::time::Duration;

use crate::delivery::{AttemptClass, Ending, Settle, Work};
use crate::id::{EventId, EventKind};
use crate::target::RoundPosition;

/// Receives the results of attempts, on the path of the delivery: it must be quick and must not block.
pub trait DeliveryObserver: Send + Sync + 'static {
    /// An attempt ended, or was not made.
    fn attempted(&self, attempted: &Attempted<'_>);

    /// The ledger has written the result of an attempt for this event: a read of the event shows it from now on.
    fn written(&self, event: EventId) {
        let _ = event;
    }
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl DeliveryObserver for Silent {
    fn attempted(&self, _: &Attempted<'_>) {}
}

/// An attempt that ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempted<'a> {
    /// The delivery.
    pub work: &'a Work,
    /// The maximum number of attempts, in all rounds together.
    pub max_attempts: u32,
    /// Its place in the rounds of the delivery.
    pub position: RoundPosition,
    /// The HTTP status of the answer, if there was one.
    pub http_status: Option<u16>,
    /// How long it took; zero if nothing was sent.
    pub took: Duration,
    /// How it ended; `None` if it was given back.
    pub ending: Option<&'a Ending>,
    /// The next step of the delivery.
    pub next: AfterAttempt,
}

/// The next step of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAttempt {
    /// It is done.
    Done,
    /// It is retried after this delay.
    Retry(Duration),
    /// It was given back without an attempt, for this delay.
    Defer(Duration),
    /// It blocks its order key.
    Blocked,
    /// It is a dead letter.
    Dead(crate::letter::Cause),
}

impl AfterAttempt {
    pub(super) fn of(settle: &Settle) -> Self {
        match settle {
            Settle::Done(_) => Self::Done,
            Settle::Retry(_, delay) => Self::Retry(*delay),
            Settle::Defer(delay) => Self::Defer(*delay),
            Settle::Block(_) => Self::Blocked,
            Settle::Bury(_, cause) => Self::Dead(*cause),
        }
    }

    /// In one word, for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry(_) => "retry",
            Self::Defer(_) => "deferred",
            Self::Blocked => "blocked",
            Self::Dead(_) => "dlq",
        }
    }
}

impl Settle {
    /// How the attempt ended; `None` if it was given back.
    pub fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Done(ending) | Self::Retry(ending, _) | Self::Block(ending) | Self::Bury(ending, _) => {
                Some(ending)
            }
            Self::Defer(_) => None,
        }
    }
}

impl Attempted<'_> {
    /// How it ended, in one word.
    pub fn class(&self) -> AttemptClass {
        self.ending.map_or(AttemptClass::Deferred, |ending| ending.class)
    }

    /// One log line with all ids of the delivery.
    pub(super) fn log(&self) {
        let Self { work, max_attempts, http_status, position, .. } = self;
        let (run_id, event_id) = match work.event.kind() {
            EventKind::Run => (Some(work.event), None),
            EventKind::Event => (None, Some(work.event)),
        };
        let (delay, cause) = match self.next {
            AfterAttempt::Retry(delay) | AfterAttempt::Defer(delay) => (Some(delay), None),
            AfterAttempt::Dead(cause) => (None, Some(cause.as_str())),
            AfterAttempt::Done | AfterAttempt::Blocked => (None, None),
        };
        let error = self.ending.map(|ending| ending.error.as_str()).filter(|error| !error.is_empty());
        let latency_ms = self.took.as_micros() as f64 / 1e3;
        macro_rules! say {
            ($level:ident, $words:literal) => {
                tracing::$level!(
                    target: "semel::deliveries",
                    operation = "deliver",
                    outcome = self.next.name(),
                    class = self.class().as_str(),
                    "target" = work.target,
                    event_type = work.event_type,
                    org = work.tenant,
                    event_id = event_id.map(tracing::field::display),
                    run_id = run_id.map(tracing::field::display),
                    delivery_id = %work.holding.delivery,
                    request_id = work.request_id,
                    trace_id = work.trace.trace_id(),
                    attempt = work.attempt,
                    max_attempts,
                    round = position.round,
                    rounds = position.rounds,
                    http_status,
                    latency_ms,
                    retryable = matches!(self.next, AfterAttempt::Retry(_) | AfterAttempt::Defer(_)),
                    delay_ms = delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                    cause,
                    error,
                    $words
                )
            };
        }
        match self.next {
            AfterAttempt::Done | AfterAttempt::Defer(_) => say!(debug, "a delivery was attempted"),
            AfterAttempt::Retry(_) => say!(info, "a delivery failed; retrying"),
            AfterAttempt::Blocked | AfterAttempt::Dead(_) => say!(warn, "a delivery failed permanently"),
        }
    }
}
