//! The policy of a target: how often, how soon and how many deliveries are attempted, and what happens after a
//! permanent failure.
//!
//! ```text
//! round 1: attempt, attempt, attempt ─ 10 s ─► round 2: attempt, attempt, attempt ─ 1 min ─► … ─► dead letter
//! ```
//!
//! The round of a delivery is not stored: it follows from the number of its attempts. An attempt that was not made
//! (the circuit breaker was open) or that ended with its worker counts for no round.

use std::time::Duration;

use semel_client::retry::{Limits, Retry, Verdict};

use super::DeliveryOutcome;
use crate::delivery::{AttemptClass, Ending, Settle, Work};
use crate::id::JobId;
use crate::letter::Cause;

/// The pauses between rounds by default. The last round begins about 21 hours after the first.
pub const SCHEDULE: [Duration; 7] = [
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
    Duration::from_secs(6 * 60 * 60),
    Duration::from_secs(12 * 60 * 60),
];

/// The policy of a target.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How often and how soon to retry within one round. Its deadline is ignored: nobody waits.
    pub retry: Retry,
    /// The pauses between rounds. When all attempts of a round have failed, the delivery waits for the next pause,
    /// lengthened by up to a tenth, or longer if the target asks for it; then the next round begins. Empty: a single
    /// round. [`SCHEDULE`] by default, so that a delivery survives an outage of hours. A delivery that a replay job
    /// released has a single round: the job waits for its end.
    pub schedule: Vec<Duration>,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// What happens to a delivery whose last round failed.
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
            schedule: SCHEDULE.to_vec(),
            timeout: Duration::from_secs(10),
            on_exhausted: Exhausted::Dlq,
            max_crashes: 5,
            concurrency: 32,
            limits: None,
        }
    }
}

/// What happens to a delivery whose last round failed.
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
        let tries = tries(work);
        let verdict = outcome.verdict();
        let ending = outcome.into_ending();
        match verdict {
            Verdict::Success => Settle::Done(ending),
            // It moved to another connection by itself, once.
            Verdict::RetryOnce { .. } if tries > 1 => Settle::Bury(ending, Cause::NonRetryable),
            _ if !verdict.is_retryable() => Settle::Bury(ending, Cause::NonRetryable),
            _ => match (self.delay(work, verdict.after()), self.on_exhausted) {
                (Some(delay), _) => Settle::Retry(ending, delay),
                (None, Exhausted::Dlq) => Settle::Bury(ending, Cause::Exhausted),
                (None, Exhausted::Blocked) => Settle::Block(ending),
            },
        }
    }

    /// How long to wait after a failed attempt, if the target asked for `hint`; `None` after the last one.
    fn delay(&self, work: &Work, hint: Option<Duration>) -> Option<Duration> {
        let RoundPosition { round, rounds, attempt } = self.position(work);
        let quick = self.retry.delay(attempt, hint).wait;
        if attempt < self.retry.max_attempts() {
            return Some(quick);
        }
        let at = usize::try_from(round - 1).unwrap_or(usize::MAX);
        let pause = *self.schedule.get(at).filter(|_| round < rounds)?;
        // Never earlier than the schedule says, and not all at the same moment.
        let pause = pause.saturating_add((pause / 10).mul_f64(rand::random()));
        Some(if hint.is_some() { pause.max(quick) } else { pause })
    }

    /// The round of an attempt, and its place in it.
    pub fn position(&self, work: &Work) -> RoundPosition {
        let (tries, most) = (tries(work), self.retry.max_attempts());
        RoundPosition {
            round: self.round(tries),
            rounds: self.rounds(work.job),
            attempt: (tries - 1) % most + 1,
        }
    }

    /// The round that the `tries`-th attempt of a delivery belongs to; both count from 1. Crashed attempts count for
    /// no round.
    pub fn round(&self, tries: u32) -> u32 {
        tries.saturating_sub(1) / self.retry.max_attempts() + 1
    }

    /// The number of rounds of a delivery: one if a replay job released it.
    pub fn rounds(&self, job: Option<JobId>) -> u32 {
        match job {
            Some(_) => 1,
            None => u32::try_from(self.schedule.len()).unwrap_or(u32::MAX).saturating_add(1),
        }
    }

    /// The maximum number of attempts of a delivery, in all its rounds together.
    pub fn max_attempts(&self, job: Option<JobId>) -> u32 {
        self.rounds(job).saturating_mul(self.retry.max_attempts())
    }
}

/// Where an attempt stands in the rounds of its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundPosition {
    /// The round; counts from 1.
    pub round: u32,
    /// The number of rounds.
    pub rounds: u32,
    /// The attempt within its round; counts from 1.
    pub attempt: u32,
}

/// The number of an attempt without those that crashed.
fn tries(work: &Work) -> u32 {
    work.attempt.saturating_sub(work.crashes).max(1)
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

    fn one_round() -> Policy {
        Policy { schedule: Vec::new(), ..Policy::default() }
    }

    // Every end of an attempt, for each number of earlier attempts.
    #[test]
    fn what_fails_is_retried_then_set_aside() {
        let policy = one_round();
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

    /// The delay after a failed attempt; `None` after the last one.
    fn delay_after(policy: &Policy, work: &Work) -> Option<Duration> {
        match policy.settle(work, DeliveryOutcome::retry("down")) {
            Settle::Retry(_, delay) => Some(delay),
            Settle::Bury(_, Cause::Exhausted) => None,
            other => panic!("{other:?}"),
        }
    }

    // Three quick attempts, a pause of the schedule, three quick attempts…
    #[test]
    fn a_round_follows_each_pause_of_the_schedule() {
        let policy = Policy::default();
        assert_eq!(policy.max_attempts(None), 24);
        for (round, pause) in (0..).zip(SCHEDULE) {
            for attempt in 1..=2 {
                let delay = delay_after(&policy, &work(round * 3 + attempt, 0)).expect("it is retried");
                assert!(delay <= Duration::from_millis(500), "a quick retry: {delay:?}");
            }
            let last = work(round * 3 + 3, 0);
            let position = RoundPosition { round: round + 1, rounds: 8, attempt: 3 };
            assert_eq!(policy.position(&last), position);
            let delay = delay_after(&policy, &last).expect("another round follows");
            assert!(delay >= pause && delay <= pause.mul_f64(1.1), "{delay:?} after round {}", round + 1);
        }
        assert!(delay_after(&policy, &work(23, 0)).is_some());
        assert_eq!(delay_after(&policy, &work(24, 0)), None, "the last round has failed");
    }

    /// A duration as the documentation writes it.
    fn duration(text: &str) -> Duration {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().unwrap_or_else(|_| panic!("a duration: {text}"));
        match &text[digits.len()..] {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number * 60),
            "h" => Duration::from_secs(number * 60 * 60),
            unit => panic!("a unit: {unit}"),
        }
    }

    // What an operator reads is what a delivery does by default.
    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/deliveries.md");
        let page = std::fs::read_to_string(page).expect("the page of deliveries");
        let (_, page) =
            page.split_once("## Attempts, rounds and the end of a delivery").expect("its section");
        let setting = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim_matches(['[', ']', '{', '}', ' '])
                .split(", ")
                .map(|part| part.replace('"', ""))
                .collect::<Vec<_>>()
        };
        let policy = Policy::default();
        let schedule: Vec<Duration> = setting("schedule = ").iter().map(|text| duration(text)).collect();
        assert_eq!(schedule, policy.schedule);
        let retry = setting("retry = ");
        let part = |name: &str| retry.iter().find_map(|part| part.strip_prefix(name)).expect(name);
        assert_eq!(part("max_attempts = "), policy.retry.max_attempts().to_string());
        assert_eq!(duration(part("timeout = ")), policy.timeout);
        // The longest quick pause of each attempt: `base`, doubled up to `cap`.
        let (base, cap) = (duration(part("base = ")), duration(part("cap = ")));
        for attempt in 1..10_u32 {
            let longest = (base * 2_u32.pow(attempt - 1)).min(cap);
            let pauses: Vec<Duration> = (0..1_000).map(|_| policy.retry.delay(attempt, None).wait).collect();
            let most = *pauses.iter().max().expect("a thousand");
            assert!(
                most <= longest && most > longest.mul_f64(0.9),
                "{most:?} of {longest:?}, attempt {attempt}"
            );
        }
        assert_eq!(policy.rounds(None), 8, "`about 21 hours`");
        let hours = policy.schedule.iter().sum::<Duration>().mul_f64(1.05).as_secs_f64() / 3_600.0;
        assert!((20.5..22.0).contains(&hours), "{hours}");
    }

    // Never earlier than the schedule says, later by up to a tenth, and not all at the same moment.
    #[test]
    fn a_pause_of_the_schedule_is_lengthened_by_up_to_a_tenth() {
        let policy = Policy::default();
        for (round, pause) in (0..).zip(SCHEDULE) {
            let last = work(round * 3 + 3, 0);
            let pauses = (0..1_000).map(|_| delay_after(&policy, &last).expect("another round follows"));
            let pauses: Vec<Duration> = pauses.collect();
            assert!(pauses.iter().all(|delay| *delay >= pause && *delay <= pause.mul_f64(1.1)), "{pause:?}");
            let is_spread = |part: f64| pauses.iter().any(|delay| *delay > pause.mul_f64(part));
            assert!(is_spread(1.08) && !pauses.iter().all(|delay| *delay > pause.mul_f64(1.02)), "{pause:?}");
        }
    }

    // A crashed attempt ends no round, and does not shorten one.
    #[test]
    fn crashed_attempts_count_for_no_round() {
        let policy = Policy::default();
        let position = |attempt, crashes| policy.position(&work(attempt, crashes));
        assert_eq!(position(4, 0), RoundPosition { round: 2, rounds: 8, attempt: 1 });
        assert_eq!(position(4, 1), RoundPosition { round: 1, rounds: 8, attempt: 3 });
        assert!(delay_after(&policy, &work(26, 4)).is_some(), "22 attempts have failed");
        assert!(delay_after(&policy, &work(28, 4)).is_none());
    }

    // A job waits for its deliveries: they end within seconds.
    #[test]
    fn what_a_job_released_has_one_round() {
        let policy = Policy::default();
        let job = Some(JobId::new(Timestamp::from_micros(1)));
        assert!(delay_after(&policy, &Work { job, ..work(2, 0) }).is_some());
        assert_eq!(delay_after(&policy, &Work { job, ..work(3, 0) }), None);
        assert_eq!((policy.rounds(job), policy.max_attempts(job)), (1, 3));
    }

    #[test]
    fn a_refusal_ends_every_round() {
        let settle = Policy::default().settle(&work(4, 0), DeliveryOutcome::refused("no such order"));
        assert!(matches!(settle, Settle::Bury(_, Cause::NonRetryable)), "{settle:?}");
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
        // Between two rounds too: the first pause is shorter, the fourth is longer.
        for (attempt, expected) in [(3, asked), (12, SCHEDULE[3])] {
            let settle =
                Policy::default().settle(&work(attempt, 0), DeliveryOutcome::retry_after("later", asked));
            let Settle::Retry(_, delay) = settle else { panic!("{settle:?}") };
            assert!(delay >= expected && delay <= expected.mul_f64(1.1), "{delay:?}");
        }
    }
}
