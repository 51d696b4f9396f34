//! An estimate of the server's clock.

use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::time::{Timestamp, instant};

/// A reply that is late by this much does not change the estimate; a clock that goes back further does.
const TOLERANCE: Duration = Duration::from_millis(250);

/// A clock that goes back further than a stub lives can make a fence go back.
const ALARM: Duration = Duration::from_secs(3600);

/// Continues from the server's time in the last replies. It is never ahead of the server, unless the server's clock
/// went back since.
#[derive(Debug, Default)]
pub(super) struct ServerClock(Mutex<Option<(Timestamp, Instant)>>);

/// The change of the clock in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    Steady,
    /// It went back so far that fences are no longer safe.
    SteppedBack(Duration),
}

impl ServerClock {
    /// Records the server's time in a new reply.
    pub(super) fn saw(&self, server: Timestamp) -> Tick {
        let here = instant();
        let mut last = self.0.lock();
        let expected = last.map(|last| counted(last, here));
        match expected {
            Some(expected) if expected.left(server) > TOLERANCE || server >= expected => {
                *last = Some((server, here));
            }
            Some(_) => {}
            None => *last = Some((server, here)),
        }
        match expected.map(|expected| expected.left(server)) {
            Some(back) if back > ALARM => Tick::SteppedBack(back),
            _ => Tick::Steady,
        }
    }

    /// The server's time, or a little less; `None` before the first reply.
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.0.lock().map(|last| counted(last, instant()))
    }
}

fn counted((server, seen): (Timestamp, Instant), here: Instant) -> Timestamp {
    server.after(here.saturating_duration_since(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn counts_on_and_follows_steps() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(), None);
        assert_eq!(clock.saw(at(10_000)), Tick::Steady);
        assert!(clock.now() >= Some(at(10_000)));
        assert_eq!(clock.saw(at(20_000)), Tick::Steady);
        assert!(clock.now() >= Some(at(20_000)), "a step forward is followed");
        assert_eq!(clock.saw(at(19_990)), Tick::Steady);
        assert!(clock.now() < Some(at(19_999)), "a small step back is followed");
    }

    // More than the hour of a stub raises an alarm.
    #[test]
    fn a_large_step_back_is_noticed() {
        let clock = ServerClock::default();
        clock.saw(at(100_000));
        match clock.saw(at(90_000)) {
            Tick::SteppedBack(by) => assert!(by >= Duration::from_secs(10_000)),
            Tick::Steady => panic!("a step back by hours went unnoticed"),
        }
        assert_eq!(clock.saw(at(90_001)), Tick::Steady, "once is enough");
    }

    #[test]
    fn a_late_reply_does_not_move_it() {
        let clock = ServerClock::default();
        clock.saw(at(100));
        clock.saw(Timestamp::from_micros(100_000_000 - 100_000));
        assert!(clock.now() >= Some(at(100)));
    }
}
