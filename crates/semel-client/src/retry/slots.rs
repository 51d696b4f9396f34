//! Counts over the last seconds, in a ring of slots.

use std::time::Duration;

use semel::time::Timestamp;

/// How many slots a window is cut into: it slides in steps of a tenth.
const SLOTS: usize = 10;

/// Pairs of counts over a sliding window.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// Microseconds.
    length: u64,
    /// The number of the newest slot, counted from the epoch.
    newest: u64,
    ring: [[u64; 2]; SLOTS],
    sums: [u64; 2],
}

impl Slots {
    pub(super) const COUNT: u64 = SLOTS as u64;

    pub(super) fn new(window: Duration) -> Self {
        let micros = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        Self { length: (micros / SLOTS as u64).max(1), newest: 0, ring: [[0; 2]; SLOTS], sums: [0; 2] }
    }

    /// Lets go of what is older than the window, and gives both sums.
    pub(super) fn sums(&mut self, now: Timestamp) -> [u64; 2] {
        let slot = now.as_micros() / self.length;
        let passed = slot.saturating_sub(self.newest);
        // A clock that was put back by more than a window would freeze these counts for as long.
        if passed >= SLOTS as u64 || slot + (SLOTS as u64) < self.newest {
            self.ring = [[0; 2]; SLOTS];
            self.sums = [0; 2];
            self.newest = slot;
        } else {
            for _ in 0..passed {
                self.newest += 1;
                let index = (self.newest % SLOTS as u64) as usize;
                let old = std::mem::take(&mut self.ring[index]);
                self.sums[0] -= old[0];
                self.sums[1] -= old[1];
            }
        }
        self.sums
    }

    /// Counts one more of the first or the second kind.
    pub(super) fn add(&mut self, now: Timestamp, which: usize) {
        self.sums(now);
        self.ring[(self.newest % SLOTS as u64) as usize][which] += 1;
        self.sums[which] += 1;
    }

    /// The counts of the newest slot.
    pub(super) fn newest(&self) -> [u64; 2] {
        self.ring[(self.newest % SLOTS as u64) as usize]
    }

    pub(super) fn clear(&mut self) {
        self.ring = [[0; 2]; SLOTS];
        self.sums = [0; 2];
    }

    /// How long until the oldest slot leaves the window.
    pub(super) fn step(&self) -> Duration {
        Duration::from_micros(self.length)
    }
}
