//! Ids that this process mints: each after the one before, also within a millisecond, so that they sort as they were made.

use parking_lot::Mutex;
use semel::time::{Clock as _, SystemClock};

use crate::id::{DeliveryId, LetterId};

/// The last id of each kind.
#[derive(Debug, Default)]
pub(super) struct Ids {
    deliveries: Mutex<u128>,
    letters: Mutex<u128>,
}

impl Ids {
    pub(super) fn delivery(&self) -> DeliveryId {
        let fresh = DeliveryId::new(SystemClock.now()).to_bytes();
        DeliveryId::from_bytes(after(&self.deliveries, fresh))
    }

    pub(super) fn letter(&self) -> LetterId {
        let fresh = LetterId::new(SystemClock.now()).to_bytes();
        LetterId::from_bytes(after(&self.letters, fresh))
    }
}

/// The fresh id, or where it would sort before the last one, one shortly behind that.
fn after(last: &Mutex<u128>, fresh: [u8; 16]) -> [u8; 16] {
    let mut last = last.lock();
    let fresh = u128::from_be_bytes(fresh);
    // A step of chance: two processes that began with the same id do not go on with the same ones.
    *last = if fresh > *last { fresh } else { *last + 1 + u128::from(rand::random::<u32>()) };
    last.to_be_bytes()
}
