//! The leases that this server granted or renewed itself.
//!
//! A completion with `wait=false` is answered before the store is asked. That is safe only while the lease is held: nobody else can
//! have claimed the key. The table holds what this process knows; about every other claim it knows nothing, and the store is asked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use semel::key::KeyId;
use semel::record::{Fence, Grant};
use tokio::time::Instant;

/// The most leases in the table: some 6 MiB.
const MOST: usize = 1 << 16;

/// What the table knows of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// It is not over.
    Held,
    /// It is over, or another server granted it.
    Unknown,
}

/// Ends of leases by this process's clock.
#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<KeyId, (Fence, Instant)>>);

impl Leases {
    /// Notes that the lease of this claim lasts until `end`, counted from before the store was asked.
    pub(super) fn extend(&self, id: KeyId, grant: Grant, end: Instant) {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.len() >= MOST && !leases.contains_key(&id) {
            let now = Instant::now();
            leases.retain(|_, (_, end)| *end > now);
            if leases.len() >= MOST {
                return;
            }
        }
        leases.insert(id, (grant.fence(), end));
    }

    /// Forgets a claim, and tells whether its lease was held.
    pub(super) fn end(&self, id: KeyId, grant: Grant) -> LeaseState {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match leases.get(&id) {
            Some((fence, end)) if *fence == grant.fence() => {
                let held = *end > Instant::now();
                leases.remove(&id);
                if held { LeaseState::Held } else { LeaseState::Unknown }
            }
            _ => LeaseState::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel::record::Owner;

    use super::*;

    fn grant(fence: u64) -> Grant {
        Grant::from_parts(Owner::from_bytes([2; 16]), Fence::new(fence))
    }

    #[test]
    fn a_lease_is_held_until_its_end_and_by_its_owner_only() {
        let (leases, id) = (Leases::default(), KeyId::from_bytes([1; 16]));
        assert_eq!(leases.end(id, grant(1)), LeaseState::Unknown, "never granted here");
        leases.extend(id, grant(1), Instant::now() + Duration::from_secs(60));
        assert_eq!(leases.end(id, grant(2)), LeaseState::Unknown, "of another owner");
        assert_eq!(leases.end(id, grant(1)), LeaseState::Held);
        assert_eq!(leases.end(id, grant(1)), LeaseState::Unknown, "ended before");
        leases.extend(id, grant(1), Instant::now());
        assert_eq!(leases.end(id, grant(1)), LeaseState::Unknown, "over");
    }

    #[test]
    fn a_full_table_forgets_what_is_over_and_then_takes_nothing_more() {
        let leases = Leases::default();
        let id = |number: usize| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            KeyId::from_bytes(bytes)
        };
        leases.extend(id(0), grant(1), Instant::now());
        for number in 1..MOST {
            leases.extend(id(number), grant(1), Instant::now() + Duration::from_secs(600));
        }
        leases.extend(id(MOST), grant(1), Instant::now() + Duration::from_secs(600));
        assert_eq!(leases.end(id(MOST), grant(1)), LeaseState::Held, "in place of the one that was over");
        leases.extend(id(MOST), grant(1), Instant::now() + Duration::from_secs(600));
        leases.extend(id(MOST + 1), grant(1), Instant::now() + Duration::from_secs(600));
        assert_eq!(leases.end(id(MOST + 1), grant(1)), LeaseState::Unknown, "no room");
    }
}
