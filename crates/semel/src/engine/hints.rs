//! Two hints that follow from the share of calls answered from the record.
//!
//! A small share is healthy: networks fail and clients retry. A large share means that a client retries too eagerly.
//! None at all over a long time means that the keys probably differ between retries and catch no duplicates.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls per sample. Large enough that a share above 5 % is not a coincidence.
const SAMPLE: u64 = 1_000;
/// Calls without a single answer from the record before the engine emits a hint.
const LONG: u64 = 100_000;
/// Answers from the record per sample above which the engine emits a hint: 5 %.
const HIGH: u64 = 50;

/// Counts first runs and answers from the record.
#[derive(Debug, Default)]
pub(super) struct ReplayRate {
    calls: AtomicU64,
    replays: AtomicU64,
    calls_since_replay: AtomicU64,
}

/// The hint that the counts give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RateHint {
    High { rate: f64 },
    Zero { calls: u64 },
}

impl ReplayRate {
    pub(super) fn first_run(&self) -> Option<RateHint> {
        let quiet = self.calls_since_replay.fetch_add(1, Ordering::Relaxed) + 1;
        let hint = self.look();
        if quiet.is_multiple_of(LONG) { Some(RateHint::Zero { calls: quiet }) } else { hint }
    }

    pub(super) fn replay(&self) -> Option<RateHint> {
        self.calls_since_replay.store(0, Ordering::Relaxed);
        self.replays.fetch_add(1, Ordering::Relaxed);
        self.look()
    }

    fn look(&self) -> Option<RateHint> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if !calls.is_multiple_of(SAMPLE) {
            return None;
        }
        let replays = self.replays.swap(0, Ordering::Relaxed);
        let per_mille = u32::try_from(replays * 1_000 / SAMPLE).unwrap_or(u32::MAX);
        (replays > HIGH).then(|| RateHint::High { rate: f64::from(per_mille) / 1_000.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(calls: u64, replay_every: u64) -> Vec<RateHint> {
        let rate = ReplayRate::default();
        let is_replay = |call: u64| replay_every > 0 && call.is_multiple_of(replay_every);
        (1..=calls)
            .filter_map(|call| if is_replay(call) { rate.replay() } else { rate.first_run() })
            .collect()
    }

    #[test]
    fn a_healthy_share_of_replays_is_not_worth_a_word() {
        assert_eq!(hints(200_000, 20), []);
    }

    #[test]
    fn above_five_percent_each_sample_says_so() {
        assert_eq!(hints(2_000, 10), [RateHint::High { rate: 0.1 }; 2]);
    }

    #[test]
    fn no_replay_over_a_long_time_says_so() {
        assert_eq!(hints(200_000, 0), [RateHint::Zero { calls: 100_000 }, RateHint::Zero { calls: 200_000 }]);
    }
}
