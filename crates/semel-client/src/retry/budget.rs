//! A budget for retries: a share of the first tries of the last seconds, or a small flow, whichever is more.
//!
//! A limit on attempts does not bound what a sick destination gets: with three attempts it gets three times the traffic
//! just when it can bear least. A share does: at 20 % it gets 1.2 times, however many callers retry. The flow is for
//! quiet times, when a fifth of nothing would forbid the first retry.

use std::time::Duration;

use super::slots::Slots;
use semel::time::Timestamp;

const FIRSTS: usize = 0;
const RETRIES: usize = 1;

#[derive(Debug)]
pub(super) struct Budget {
    /// First tries and retries of the window.
    slots: Slots,
    percent: u64,
    /// What a slot of the window allows however few first tries there were. Not more at once: saved up over the window it
    /// would be a burst of its own.
    least: u64,
}

impl Budget {
    pub(super) fn new(window: Duration, percent: u32, per_second: u32) -> Self {
        let slots = Slots::new(window);
        let least = (f64::from(per_second) * slots.step().as_secs_f64()).ceil() as u64;
        Self { slots, percent: u64::from(percent), least }
    }

    pub(super) fn first(&mut self, now: Timestamp) {
        self.slots.add(now, FIRSTS);
    }

    /// Takes a retry from the budget, if there is one left.
    pub(super) fn retry(&mut self, now: Timestamp) -> bool {
        let granted = self.left(now) > 0;
        if granted {
            self.slots.add(now, RETRIES);
        }
        granted
    }

    pub(super) fn left(&mut self, now: Timestamp) -> u64 {
        let sums = self.slots.sums(now);
        let granted = sums[FIRSTS].saturating_mul(self.percent) / 100;
        let share = granted.saturating_sub(sums[RETRIES]);
        // In a storm the share is more than the flow, and the flow must not come on top of it.
        let is_quiet = granted < self.least.saturating_mul(Slots::COUNT);
        let flow = self.least.saturating_sub(self.slots.newest()[RETRIES]);
        if is_quiet { share.max(flow) } else { share }
    }

    /// When it is worth asking again once it is spent.
    pub(super) fn step(&self) -> Duration {
        self.slots.step()
    }
}
