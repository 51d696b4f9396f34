//! The policy of a target: how often, how soon and how many deliveries are attempted, and what happens after a
//! permanent failure.

use std::time::Duration;

use semel_client::retry::{Limits, Retry, Verdict};

use super::DeliveryOutcome;
use crate::delivery::{AttemptClass, Ending, Settle, Work};
use crate::letter::Cause;

/// The policy of a target.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How often and how soon to retry. Its deadline is ignored: nobody waits.
    pub retry: Retry,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// What happens to a delivery that is out of attempts.
    pub on_exhausted: Exhausted,
    /// The number of crashed attempts that make a delivery poison. After the second it is sent while nothing else is
    /// in progress in the same process, so that other deliveries are not considered poison too.
    pub max_crashes: u32,
    /// The maximum number of deliveries in progress, in one process.
    pub concurrency: u32,
    /// The limits of its circuit breaker and retry budget; `None`: the defaults for all destinations.
    pub limits: Option<Limits>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            timeout: Duration::from_secs(10),
            on_exhausted: Exhausted::Dlq,
            max_crashes: 5,
            concurrency: 32,
            limits: None,
        }
    }
}

/// What happens to a delivery that is out of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exhausted {
    /// A dead letter; later deliveries of the same order key continue.
    Dlq,
    /// It stays blocked: no delivery of the same order key overtakes it.
    Blocked,
}

impl Policy {
    /// The result of work that must not be sent. This is not an attempt.
    pub fn refuse(&self, work: &Work) -> Option<Settle> {
        if work.expired {
            let ending = unsent("its time to be delivered was over".to_owned());
            return Some(Settle::Bury(ending, Cause::Expired));
        }
        if work.crashes >= self.max_crashes {
            let error = format!("{} attempts ended with their worker", work.crashes);
            return Some(Settle::Bury(unsent(error), Cause::Poison));
        }
        None
    }

    /// The result of work after an attempt. Crashed attempts do not count against the target.
    pub fn settle(&self, work: &Work, outcome: DeliveryOutcome) -> Settle {
        if outcome.is_given_up() {
            return Settle::Defer(Duration::ZERO);
        }
        let tries = work.attempt.saturating_sub(work.crashes).max(1);
        let verdict = outcome.verdict();
        let ending = outcome.into_ending();
        match verdict {
            Verdict::Success => Settle::Done(ending),
            // It moved to another connection by itself, once.
            Verdict::RetryOnce { .. } if tries > 1 => Settle::Bury(ending, Cause::NonRetryable),
            _ if !verdict.is_retryable() => Settle::Bury(ending, Cause::NonRetryable),
            _ if tries < self.retry.max_attempts() => {
                Settle::Retry(ending, self.retry.delay(tries, verdict.after()).wait)
            }
            _ => match self.on_exhausted {
                Exhausted::Dlq => Settle::Bury(ending, Cause::Exhausted),
                Exhausted::Blocked => Settle::Block(ending),
            },
        }
    }
}

fn unsent(error: String) -> Ending {
    Ending { class: AttemptClass::Deferred, status: None, error, excerpt: String::new(), retry_after: None }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use semel::time::Timestamp;
    use semel_client::retry::Signal;

    use super::*;
    use crate::delivery::Holding;
    use crate::event::Trace;
    use crate::id::{DeliveryId, EventId, EventKind};

    fn work(attempt: u32, crashes: u32) -> Work {
        let now = Timestamp::from_micros(1);
        Work {
            holding: Holding { delivery: DeliveryId::new(now), token: 1 },
            event: EventId::new(EventKind::Event, now),
            target: "crm".into(),
            tenant: String::new(),
            event_type: "a".into(),
            payload: Bytes::new(),
            content_type: "application/json".into(),
            headers: Vec::new(),
            attempt,
            crashes,
            epoch: 0,
            request_id: String::new(),
            trace: Trace::default(),
            accepted_at: now,
            expired: false,
            job: None,
        }
    }

    // Every end of an attempt, for each number of earlier attempts.
    #[test]
    fn what_fails_is_retried_then_set_aside() {
        let policy = Policy::default();
        let failed = |attempt, crashes, status| {
            policy.settle(&work(attempt, crashes), DeliveryOutcome::of(&Signal::status(status), "x"))
        };
        assert!(matches!(failed(1, 0, 200), Settle::Done(_)));
        assert!(matches!(failed(1, 0, 503), Settle::Retry(..)));
        assert!(matches!(failed(2, 0, 503), Settle::Retry(..)));
        assert!(matches!(failed(3, 0, 503), Settle::Bury(_, Cause::Exhausted)));
        assert!(matches!(failed(1, 0, 404), Settle::Bury(_, Cause::NonRetryable)));
        // Two of four attempts crashed: the target has failed twice.
        assert!(matches!(failed(4, 2, 503), Settle::Retry(..)));
        assert!(matches!(failed(5, 2, 503), Settle::Bury(_, Cause::Exhausted)));
        assert!(matches!(failed(1, 0, 421), Settle::Retry(..)));
        assert!(matches!(failed(2, 0, 421), Settle::Bury(_, Cause::NonRetryable)));
        let blocked = Policy { on_exhausted: Exhausted::Blocked, ..policy.clone() };
        let outcome = DeliveryOutcome::retry("busy");
        assert!(matches!(blocked.settle(&work(3, 0), outcome), Settle::Block(_)));
    }

    #[test]
    fn what_must_not_be_sent_is_not() {
        let policy = Policy::default();
        assert_eq!(policy.refuse(&work(5, 4)), None);
        assert!(matches!(policy.refuse(&work(6, 5)), Some(Settle::Bury(_, Cause::Poison))));
        let expired = Work { expired: true, ..work(1, 0) };
        assert!(matches!(policy.refuse(&expired), Some(Settle::Bury(_, Cause::Expired))));
    }

    // The later of the two, never earlier than the server asked.
    #[test]
    fn a_target_may_ask_to_be_left_alone() {
        let asked = Duration::from_secs(90);
        let settle = Policy::default().settle(&work(1, 0), DeliveryOutcome::retry_after("later", asked));
        let Settle::Retry(ending, delay) = settle else { panic!("{settle:?}") };
        assert!(delay >= asked && ending.retry_after == Some(asked));
    }
}
