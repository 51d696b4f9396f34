//! What is told about attempts: to logs, and to whoever counts.

use std::time::Duration;

use crate::delivery::{Class, Ending, Settle, Work};
use crate::id::{EventId, EventKind};

/// Is told how attempts end, on the path of the delivery: it must be quick and must not block.
pub trait Observer: Send + Sync + 'static {
    /// An attempt ended, or was not made after all.
    fn attempted(&self, attempted: &Attempted<'_>);

    /// The ledger has written how an attempt for this event ended: a read of the event shows it from now on.
    fn written(&self, event: EventId) {
        let _ = event;
    }
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn attempted(&self, _: &Attempted<'_>) {}
}

/// An attempt that ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempted<'a> {
    /// What was to be delivered.
    pub work: &'a Work,
    /// How many attempts there may be.
    pub max_attempts: u32,
    /// What was answered, where somebody answered.
    pub http_status: Option<u16>,
    /// How long it took; zero where nothing was sent.
    pub took: Duration,
    /// How it ended; `None` where it was given back.
    pub ending: Option<&'a Ending>,
    /// What comes of the delivery.
    pub next: Next,
}

/// What comes of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is done.
    Done,
    /// It is tried again after so long.
    Retry(Duration),
    /// It was given back untried, for so long.
    Defer(Duration),
    /// It blocks its order key.
    Blocked,
    /// It is a dead letter.
    Dead(crate::letter::Cause),
}

impl Next {
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
    /// How the attempt ended; `None` where it was given back.
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
    pub fn class(&self) -> Class {
        self.ending.map_or(Class::Deferred, |ending| ending.class)
    }

    /// One line with all ids under which the story is found (P12).
    pub(super) fn log(&self) {
        let Self { work, max_attempts, http_status, .. } = self;
        let (run_id, event_id) = match work.event.kind() {
            EventKind::Run => (Some(work.event), None),
            EventKind::Event => (None, Some(work.event)),
        };
        let (delay, cause) = match self.next {
            Next::Retry(delay) | Next::Defer(delay) => (Some(delay), None),
            Next::Dead(cause) => (None, Some(cause.as_str())),
            Next::Done | Next::Blocked => (None, None),
        };
        let error = self.ending.map(|ending| ending.error.as_str()).filter(|error| !error.is_empty());
        let latency_ms = self.took.as_secs_f64() * 1e3;
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
                    http_status,
                    latency_ms,
                    retryable = matches!(self.next, Next::Retry(_) | Next::Defer(_)),
                    delay_ms = delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                    cause,
                    error,
                    $words
                )
            };
        }
        match self.next {
            Next::Done | Next::Defer(_) => say!(debug, "a delivery was attempted"),
            Next::Retry(_) => say!(info, "a delivery failed and is tried again"),
            Next::Blocked | Next::Dead(_) => say!(warn, "a delivery failed for good"),
        }
    }
}
