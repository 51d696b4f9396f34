//! Time as the stores see it: microseconds since the Unix epoch, read from a [`Clock`] that tests can control.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A time on a store's clock, in microseconds since the Unix epoch.
///
/// All arithmetic saturates: a duration of centuries becomes the maximum and never overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This time plus `by`.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        // In 64 bits: the 128 of `Duration::as_micros` cost more than the rest of a claim's arithmetic.
        let micros = by.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(by.subsec_micros()));
        Self(self.0.saturating_add(micros))
    }

    /// How long from `now` until this time; zero once it is past.
    pub fn left(self, now: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(now.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The time source of a store without its own clock.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current time. May go back when the machine's clock does; the rules tolerate that.
    fn now(&self) -> Timestamp;

    /// The time of about the last tick, if that is cheaper to read: some milliseconds behind [`now`](Self::now),
    /// never ahead of it. Do not use it for leases: a lease counted from an earlier time expires too early.
    fn now_coarse(&self) -> Timestamp {
        self.now()
    }
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    // Bypasses the standard library: its conversion through `Duration` costs as much as the clock, and every command
    // of a store in memory reads the time.
    #[cfg(unix)]
    fn now(&self) -> Timestamp {
        read(rustix::time::ClockId::Realtime)
    }

    #[cfg(target_os = "linux")]
    fn now_coarse(&self) -> Timestamp {
        read(rustix::time::ClockId::RealtimeCoarse)
    }

    #[cfg(not(unix))]
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "the one place where wall time is read")]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp::default().after(since.unwrap_or_default())
    }
}

#[cfg(unix)]
fn read(clock: rustix::time::ClockId) -> Timestamp {
    let now = rustix::time::clock_gettime(clock);
    // A clock before 1970 is broken; zero keeps every lease in the future and fences still grow.
    let (secs, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    Timestamp(secs.saturating_mul(1_000_000).saturating_add(nanos / 1_000))
}

/// A clock for tests that changes only when it is told to. Clones share one time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `start` until it is moved.
    pub fn at(start: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(start.as_micros())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let moved = self.now().after(by);
        self.set(moved);
    }

    /// Sets the clock to `moment`, also backwards.
    pub fn set(&self, moment: Timestamp) {
        self.0.store(moment.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// Starts at an arbitrary time well after the epoch, so that tests can go back.
    fn default() -> Self {
        Self::at(Timestamp::from_micros(1_000_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// The machine's monotonic time, for deadlines within this process. It must not leave the process.
pub(crate) fn instant() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "the one place where monotonic time is read")]
    std::time::Instant::now()
}
