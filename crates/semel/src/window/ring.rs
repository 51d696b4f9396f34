//! The keys themselves, in the order in which they were recorded.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{WindowError, WindowKey};

/// Fixed slots for keys. A slot is two halves because there is no 128-bit atomic; who reads without the lock
/// checks through the index that the halves belong together.
pub(super) struct Ring {
    slots: Box<[Slot]>,
}

#[derive(Default)]
struct Slot {
    low: AtomicU64,
    high: AtomicU64,
}

impl Ring {
    /// Makes `slots` slots, for a window of `capacity`.
    pub(super) fn new(slots: usize, capacity: usize) -> Result<Self, WindowError> {
        Ok(Self { slots: super::allocate(slots, capacity)? })
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of_val::<[Slot]>(&self.slots)
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn read(&self, slot: u32) -> WindowKey {
        let slot = &self.slots[slot as usize];
        let (low, high) = (slot.low.load(Ordering::Relaxed), slot.high.load(Ordering::Relaxed));
        WindowKey::from(u128::from(high) << 64 | u128::from(low))
    }

    /// Whether `key` stands in the slot.
    pub(super) fn holds(&self, slot: u32, key: WindowKey) -> bool {
        self.read(slot) == key
    }

    /// Puts a key into a slot to which no cell of the index points any more.
    pub(super) fn write(&self, slot: u32, key: WindowKey) {
        // The index forgot this slot before; a reader that sees one of the halves below must see that too.
        fence(Ordering::Release);
        let slot = &self.slots[slot as usize];
        let (low, high) = halves(key);
        slot.low.store(low, Ordering::Relaxed);
        slot.high.store(high, Ordering::Relaxed);
    }
}

/// The lower and the upper 64 bits of a key.
pub(super) fn halves(key: WindowKey) -> (u64, u64) {
    (key.as_u128() as u64, (key.as_u128() >> 64) as u64)
}
