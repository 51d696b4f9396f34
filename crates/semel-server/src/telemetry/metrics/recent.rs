//! The results of the attempts of the last minutes, for a success rate that a person reads.

use semel_pipeline::delivery::AttemptClass;
use tokio::time::Instant;

/// Number of minutes that are counted, with the current one.
pub(crate) const RECENT_MINUTES: u64 = 10;

/// Number of attempts by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptCounts {
    pub(crate) succeeded: u64,
    /// Also refused ones, and those of an unknown result.
    pub(crate) failed: u64,
}

/// The attempts of the last minutes.
#[derive(Debug)]
pub(super) struct RecentAttempts {
    since: Instant,
    /// The counts of a minute are at its number modulo [`RECENT_MINUTES`].
    minutes: [(u64, AttemptCounts); RECENT_MINUTES as usize],
}

impl Default for RecentAttempts {
    fn default() -> Self {
        Self { since: Instant::now(), minutes: [(0, AttemptCounts::default()); RECENT_MINUTES as usize] }
    }
}

impl RecentAttempts {
    fn minute(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs() / 60
    }

    /// Counts an attempt. One that was given back has no result.
    pub(super) fn add(&mut self, class: AttemptClass, now: Instant) {
        let minute = self.minute(now);
        let Some((known, counts)) = self.minutes.get_mut((minute % RECENT_MINUTES) as usize) else { return };
        if *known != minute {
            (*known, *counts) = (minute, AttemptCounts::default());
        }
        match class {
            AttemptClass::Success => counts.succeeded += 1,
            AttemptClass::Transient
            | AttemptClass::Permanent
            | AttemptClass::Unknown
            | AttemptClass::Crashed => counts.failed += 1,
            AttemptClass::Deferred => {}
        }
    }

    /// The counts of the last minutes.
    pub(super) fn counts(&self, now: Instant) -> AttemptCounts {
        let minute = self.minute(now);
        let recent = self.minutes.iter().filter(|(known, _)| known + RECENT_MINUTES > minute);
        recent.fold(AttemptCounts::default(), |sum, (_, counts)| AttemptCounts {
            succeeded: sum.succeeded + counts.succeeded,
            failed: sum.failed + counts.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn attempts_are_forgotten_after_ten_minutes() {
        let mut recent = RecentAttempts::default();
        let at = |minute: u64| recent.since + Duration::from_secs(60 * minute + 1);
        let (start, fifth, tenth, later) = (at(0), at(5), at(10), at(100));
        recent.add(AttemptClass::Success, start);
        recent.add(AttemptClass::Deferred, start);
        recent.add(AttemptClass::Permanent, fifth);
        recent.add(AttemptClass::Transient, fifth);
        assert_eq!(recent.counts(fifth), AttemptCounts { succeeded: 1, failed: 2 });
        assert_eq!(recent.counts(tenth), AttemptCounts { succeeded: 0, failed: 2 });
        recent.add(AttemptClass::Success, tenth);
        assert_eq!(
            recent.counts(tenth),
            AttemptCounts { succeeded: 1, failed: 2 },
            "its place was used before"
        );
        assert_eq!(recent.counts(later), AttemptCounts::default());
    }
}
