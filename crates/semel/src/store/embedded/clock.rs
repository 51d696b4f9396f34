//! Detects when the machine's clock is set while the store runs.

use std::sync::Arc;
use std::time::Duration;

use crate::time::{Clock, Timestamp};

/// A larger difference means that the wall clock was set rather than corrected.
const TOLERANCE: Duration = Duration::from_secs(2);

/// Compares the store's clock with monotonic time after every batch.
#[derive(Debug, Default)]
pub(super) struct StepWatch {
    last: Option<(Timestamp, tokio::time::Instant)>,
}

/// How far the clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockStep {
    /// Leases and retention end early by this much.
    Forward(Duration),
    /// They end late by this much.
    Back(Duration),
}

impl StepWatch {
    /// Reads the clock and warns once per step.
    pub(super) fn look(&mut self, clock: &Arc<dyn Clock>) {
        match self.observe(clock.now(), tokio::time::Instant::now()) {
            Some(ClockStep::Forward(by)) => tracing::warn!(
                ?by,
                "the machine's clock was set forward, or it slept: leases and retention end early; check its time service"
            ),
            Some(ClockStep::Back(by)) => tracing::warn!(
                ?by,
                "the machine's clock was set back: leases and retention end late; check its time service"
            ),
            None => {}
        }
    }

    fn observe(&mut self, wall: Timestamp, steady: tokio::time::Instant) -> Option<ClockStep> {
        let (wall_before, steady_before) = self.last.replace((wall, steady))?;
        let expected = wall_before.after(steady.saturating_duration_since(steady_before));
        let (forward, back) = (wall.left(expected), expected.left(wall));
        if forward > TOLERANCE {
            Some(ClockStep::Forward(forward))
        } else if back > TOLERANCE {
            Some(ClockStep::Back(back))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_seen_once_and_drift_is_not() {
        let mut watch = StepWatch::default();
        let wall = Timestamp::from_micros(1_000_000_000_000);
        let steady = tokio::time::Instant::now();
        let second = Duration::from_secs(1);
        let hour = Duration::from_secs(3600);
        assert_eq!(watch.observe(wall, steady), None);
        assert_eq!(watch.observe(wall.after(second * 2), steady + second), None, "a correction");
        let jumped = wall.after(hour);
        assert_eq!(
            watch.observe(jumped, steady + second),
            Some(ClockStep::Forward(hour - second * 2)),
            "a step forward"
        );
        assert_eq!(watch.observe(jumped.after(second), steady + second * 2), None, "told once");
        assert_eq!(
            watch.observe(wall, steady + second * 2),
            Some(ClockStep::Back(hour + second)),
            "a step back"
        );
    }
}
