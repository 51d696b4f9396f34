//! The difference between the clocks of two stores.

use super::TransferSource;
use crate::record::Record;
use crate::store::Error;
use crate::time::Timestamp;

/// The latest time that every store can hold exactly: the year 2255.
const LATEST: u64 = 1 << 53;

/// How far the clock of one store is ahead of another's, rounded up.
///
/// Rounded up, so that nothing expires earlier than it would have on the first store: no lease, no outcome, no memory
/// of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockShift {
    micros: i64,
}

impl ClockShift {
    /// Measures how far the clock of `to` is ahead of the clock of `from`.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn measure(
        from: &(impl TransferSource + ?Sized),
        to: &(impl TransferSource + ?Sized),
    ) -> Result<Self, Error> {
        let mut least = i64::MAX;
        // Each answer of `to` is later than that of `from`, so each difference is an upper bound.
        for _ in 0..8 {
            let (there, here) = (from.now().await?, to.now().await?);
            least = least.min(signed(here).saturating_sub(signed(there)));
        }
        Ok(Self { micros: least })
    }

    /// The shift in microseconds; negative if the second clock is behind.
    pub const fn as_micros(self) -> i64 {
        self.micros
    }

    /// The same record by the other clock.
    #[must_use]
    pub fn apply(self, record: Record) -> Record {
        Record {
            claimed_at: self.moved(record.claimed_at),
            changed_at: self.moved(record.changed_at),
            lease_until: self.moved(record.lease_until),
            expires_at: self.moved(record.expires_at),
            forget_at: self.moved(record.forget_at),
            ..record
        }
    }

    /// Zero stays zero: it marks a swept record in Redis and no time.
    fn moved(self, moment: Timestamp) -> Timestamp {
        match moment.as_micros() {
            0 => moment,
            micros => Timestamp::from_micros(micros.saturating_add_signed(self.micros).clamp(1, LATEST)),
        }
    }
}

fn signed(moment: Timestamp) -> i64 {
    i64::try_from(moment.as_micros()).unwrap_or(i64::MAX)
}
