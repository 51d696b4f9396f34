//! The signals of the engine about its work. Metrics and traces use them.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::hints::{RateHint, ReplayRate};
use crate::key::{Hint, KeyId, Origin};
use crate::store;

/// A signal of the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim was won: the effect runs here. An attempt above 1 means that it was taken over or had failed before.
    Won {
        /// The attempt number of this record.
        attempt: u32,
    },
    /// A later caller was answered from the record.
    Replayed {
        /// Where the outcome came from.
        from: ReplayedFrom,
    },
    /// A caller waited for another caller's effect.
    Waited {
        /// How long it waited.
        waited: Duration,
    },
    /// The key was used with another payload.
    Conflict,
    /// Another caller holds the key, and this caller did not wait or has waited its time.
    InFlight,
    /// Nobody knows whether the effect happened.
    InDoubt,
    /// A duplicate arrived after the retention.
    Expired,
    /// The limit on waiting callers is reached.
    TooManyWaiters,
    /// A claim was lost: its lease expired, or it was taken over.
    Lost,
    /// The effect was not started, because the lease could have expired first.
    SelfFenced,
    /// The outcome is stored.
    Completed {
        /// How long the claim was held.
        took: Duration,
    },
    /// Writing the outcome failed and is retried.
    CompleteRetried {
        /// The store's error.
        error: &'a store::Error,
    },
    /// The outcome could not be written: the effect happened, and later callers do not get its outcome.
    CompleteFailed {
        /// The store's error.
        error: &'a store::Error,
    },
    /// The effect happened and its body is not stored.
    NotKept,
    /// The effect reported that nothing happened: the key is free again.
    Released,
    /// As `Released`, but the key stays bound to its payload.
    Bound,
    /// The owner ended the claim without knowing the result: in doubt in `marked`, taken over in other modes.
    Abandoned,
    /// The effect panicked.
    Panicked,
    /// The effect reached its time limit and was stopped.
    TimedOut,
    /// A heartbeat failed.
    RenewFailed {
        /// The store's error.
        error: &'a store::Error,
    },
    /// A store call failed.
    StoreFailed {
        /// The store's error.
        error: &'a store::Error,
    },
    /// The share of calls answered from the record is unhealthy: clients retry too eagerly or time out too early.
    ReplayRateHigh {
        /// The share of calls answered from the record, 0 to 1.
        rate: f64,
    },
    /// No call was answered from the record over a long time: the keys may differ between retries, so that duplicates
    /// are not recognised.
    ReplayRateZero {
        /// The number of calls.
        calls: u64,
    },
}

/// Where an answer from the record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayedFrom {
    /// The cache of completed records in this process.
    HotCache,
    /// The store.
    Store,
    /// An effect that was in progress when the caller arrived. The caller waited for it.
    Wait,
}

/// Numbers the signals and names them, in the same order.
macro_rules! names {
    ($($signal:ident $name:literal)*) => {
        const NAMES: [&str; [$($name),*].len()] = [$($name),*];

        impl Event<'_> {
            fn index(&self) -> usize {
                enum Index { $($signal),* }
                match self { $(Self::$signal { .. } => Index::$signal as usize,)* }
            }
        }
    };
}

names! {
    Won "won" Replayed "replayed" Waited "waited"
    Conflict "conflict" InFlight "in_flight" InDoubt "in_doubt"
    Expired "expired" TooManyWaiters "too_many_waiters" Lost "lost"
    SelfFenced "self_fenced" Completed "completed" CompleteRetried "complete_retried"
    CompleteFailed "complete_failed" NotKept "not_kept" Released "released"
    Bound "bound" Abandoned "abandoned" Panicked "panicked"
    TimedOut "timed_out" RenewFailed "renew_failed" StoreFailed "store_failed"
    ReplayRateHigh "replay_rate_high" ReplayRateZero "replay_rate_zero"
}

impl Event<'_> {
    /// The signal's name, the same in counters, metrics and logs.
    pub fn name(&self) -> &'static str {
        NAMES[self.index()]
    }

    /// The log message for an operator on call; `None` if there is nothing to do.
    fn warning(&self) -> Option<&'static str> {
        Some(match self {
            Self::Lost => "claim lost: its lease expired, or another owner took it over",
            Self::SelfFenced => "effect not started: its lease could have expired first",
            Self::CompleteFailed { .. } => {
                "outcome not stored: the effect happened, later callers do not get its outcome"
            }
            Self::Panicked => "effect panicked",
            Self::TimedOut => "effect stopped at its time limit",
            // It is retried, or its caller gets the error; the store logs an outage once, and a claim that is lost by it is
            // logged.
            Self::RenewFailed { error } | Self::StoreFailed { error }
                if error.is_logged() || error.is_retryable() =>
            {
                return None;
            }
            Self::RenewFailed { .. } => "heartbeat failed",
            Self::StoreFailed { .. } => "store call failed",
            Self::ReplayRateHigh { .. } => {
                "many calls are answered from the record: clients retry too eagerly, or time out too early"
            }
            Self::ReplayRateZero { .. } => {
                "no call was answered from the record: the keys may differ between retries"
            }
            _ => return None,
        })
    }

    fn error(&self) -> Option<&store::Error> {
        match self {
            Self::CompleteRetried { error }
            | Self::CompleteFailed { error }
            | Self::RenewFailed { error }
            | Self::StoreFailed { error } => Some(error),
            _ => None,
        }
    }

    fn duration_ms(&self) -> Option<f64> {
        match self {
            Self::Waited { waited: length } | Self::Completed { took: length } => {
                Some(length.as_micros() as f64 / 1e3)
            }
            _ => None,
        }
    }
}

/// The key that a signal is about. Shows only the key's first characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The operation.
    pub namespace: String,
    /// The record.
    pub id: KeyId,
    /// The key's first characters.
    pub hint: Hint,
}

/// Receives every signal. Called on the path of the effect: it must be quick and must not block.
pub trait Observer: Send + Sync + 'static {
    /// The engine emitted a signal.
    fn event(&self, subject: &Subject, event: &Event<'_>);
}

/// How often each signal occurred since the engine was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats([u64; NAMES.len()]);

impl Stats {
    /// How often the signal of this name occurred; 0 for an unknown name.
    pub fn count(&self, name: &str) -> u64 {
        NAMES.iter().position(|known| *known == name).map_or(0, |index| self.0[index])
    }

    /// Every name with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut happened = self.iter().filter(|(_, count)| *count > 0).peekable();
        while let Some((name, count)) = happened.next() {
            write!(f, "{name} {count}{}", if happened.peek().is_some() { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Counts signals, logs them, passes them to the observers, and watches the replay rate.
#[derive(Default)]
pub(super) struct Events {
    counts: [AtomicU64; NAMES.len()],
    observers: Vec<Arc<dyn Observer>>,
    replay_rate: ReplayRate,
}

impl Events {
    pub(super) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self { observers, ..Self::default() }
    }

    pub(super) fn emit(&self, subject: &Subject, event: &Event<'_>) {
        self.tell(subject, event);
        let hint = match event {
            Event::Won { .. } => self.replay_rate.first_run(),
            Event::Replayed { .. } => self.replay_rate.replay(),
            _ => None,
        };
        match hint {
            Some(RateHint::High { rate }) => self.tell(subject, &Event::ReplayRateHigh { rate }),
            Some(RateHint::Zero { calls }) => self.tell(subject, &Event::ReplayRateZero { calls }),
            None => {}
        }
    }

    fn tell(&self, subject: &Subject, event: &Event<'_>) {
        self.counts[event.index()].fetch_add(1, Ordering::Relaxed);
        log(subject, event);
        let name = event.name();
        for observer in &self.observers {
            // Called from heartbeats and destructors: a panic there would lose a claim or end the process.
            let told = std::panic::catch_unwind(AssertUnwindSafe(|| observer.event(subject, event)));
            if told.is_err() {
                tracing::error!(target: "semel", outcome = name, "an observer panicked; it stays registered");
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        Stats(std::array::from_fn(|index| self.counts[index].load(Ordering::Relaxed)))
    }
}

fn log(Subject { namespace, id, hint }: &Subject, event: &Event<'_>) {
    let outcome = event.name();
    let error = event.error().map(tracing::field::display);
    match event.warning() {
        None => {
            let attempt = if let Event::Won { attempt } = event { Some(*attempt) } else { None };
            let duration_ms = event.duration_ms();
            tracing::debug!(target: "semel", outcome, operation = namespace, %id, key = %hint, error, attempt, duration_ms);
        }
        Some(message) => {
            // Heartbeats and other work in the background run outside of the request's span.
            let request_id = hint.origin().and_then(Origin::request_id);
            let rate = if let Event::ReplayRateHigh { rate } = event { Some(*rate) } else { None };
            let calls = if let Event::ReplayRateZero { calls } = event { Some(*calls) } else { None };
            tracing::warn!(
                target: "semel", outcome, operation = namespace, %id, key = %hint, request_id, error, rate, calls,
                "{message}"
            );
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
