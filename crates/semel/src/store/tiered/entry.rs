//! The entry of a key in Redis, and when it is valid.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the format: 1 |
//! | 8 | the generation it was read under |
//! | 8 | until when it may be used, in µs on PostgreSQL's clock |
//! | 8 | until when the lease or the outcome is valid |
//! | 32 | the fingerprint |
//! | 1 | 0 busy, 1 done |
//! | 16, or the rest | the owner, or the outcome as in the table `record` |
//!
//! Numbers are little-endian. Any other value is ignored.

use std::sync::Arc;

use crate::fingerprint::Fingerprint;
use crate::outcome::Outcome;
use crate::record::{NewClaim, Owner, Ruling};
use crate::store::postgres::CopyGeneration;
use crate::time::Timestamp;

const FORMAT: u8 = 1;

/// PostgreSQL's answer about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TieredEntry {
    /// The newest generation that was known before PostgreSQL was asked.
    pub(super) generation: CopyGeneration,
    /// Until when it may be used.
    pub(super) until: Timestamp,
    /// Until when the lease or the outcome is valid, if nothing changes.
    pub(super) standing_until: Timestamp,
    pub(super) fingerprint: Fingerprint,
    pub(super) said: CopiedState,
}

/// Busy or done; no other state is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopiedState {
    Busy { owner: Owner },
    Done(Arc<Outcome>),
}

impl TieredEntry {
    /// The answer to a claim at `now` under `generation`; `None` if PostgreSQL must be asked.
    pub(super) fn ruling(
        &self,
        claim: &NewClaim,
        generation: CopyGeneration,
        now: Timestamp,
    ) -> Option<Ruling> {
        if self.generation != generation || now >= self.until || self.fingerprint != claim.fingerprint {
            return None;
        }
        let left = self.standing_until.left(now);
        match &self.said {
            // A repeat of its own claim: only PostgreSQL knows the fence.
            CopiedState::Busy { owner } if *owner == claim.owner => None,
            CopiedState::Busy { .. } => Some(Ruling::Busy { lease_left: left }),
            CopiedState::Done(outcome) => {
                Some(Ruling::Replay { outcome: Arc::clone(outcome), expires_in: left })
            }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend(self.generation.0.to_le_bytes());
        out.extend(self.until.as_micros().to_le_bytes());
        out.extend(self.standing_until.as_micros().to_le_bytes());
        out.extend(self.fingerprint.as_bytes());
        match &self.said {
            CopiedState::Busy { owner } => {
                out.push(0);
                out.extend(owner.as_bytes());
            }
            CopiedState::Done(outcome) => {
                out.push(1);
                out.extend(outcome.encode());
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&FORMAT, rest) = bytes.split_first()? else { return None };
        let (generation, rest) = rest.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let (standing_until, rest) = rest.split_first_chunk()?;
        let (fingerprint, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first()?;
        Some(Self {
            generation: CopyGeneration(i64::from_le_bytes(*generation)),
            until: Timestamp::from_micros(u64::from_le_bytes(*until)),
            standing_until: Timestamp::from_micros(u64::from_le_bytes(*standing_until)),
            fingerprint: Fingerprint::from_bytes(*fingerprint),
            said: match kind {
                0 => CopiedState::Busy { owner: Owner::from_bytes(rest.try_into().ok()?) },
                1 => CopiedState::Done(Arc::new(Outcome::decode(rest).ok()?)),
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Hint;
    use crate::record::{Begin, Terms};

    const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);
    const NOW: Timestamp = Timestamp::from_micros(1_000);
    const PRESENT: CopyGeneration = CopyGeneration(5);

    fn claim() -> NewClaim {
        NewClaim {
            owner: Owner::random(),
            fingerprint: PAYLOAD,
            terms: Arc::new(Terms::default()),
            begin: Begin::WithClaim,
            hint: Hint::new("order-1"),
        }
    }

    fn done() -> TieredEntry {
        TieredEntry {
            generation: PRESENT,
            until: Timestamp::from_micros(2_000),
            standing_until: Timestamp::from_micros(2_000),
            fingerprint: PAYLOAD,
            said: CopiedState::Done(Arc::new(Outcome::new("text", "once").with_metadata("meta"))),
        }
    }

    fn busy(owner: Owner) -> TieredEntry {
        TieredEntry { said: CopiedState::Busy { owner }, ..done() }
    }

    #[test]
    fn an_entry_reads_back_and_a_damaged_one_is_nothing() {
        for entry in [done(), busy(Owner::random())] {
            let bytes = entry.encode();
            assert_eq!(TieredEntry::decode(&bytes), Some(entry));
            for end in 0..58 {
                assert_eq!(TieredEntry::decode(&bytes[..end]), None, "cut at {end}");
            }
            assert_eq!(TieredEntry::decode(&[&[2], &bytes[1..]].concat()), None, "another format");
        }
        assert_eq!(TieredEntry::decode(&[busy(Owner::random()).encode(), vec![0]].concat()), None);
    }

    // Processes of two versions read the copies of each other during an upgrade.
    #[test]
    fn the_format_never_changes() {
        let entry = busy(Owner::from_bytes([3; 16]));
        let mut expected = vec![1];
        expected.extend(PRESENT.0.to_le_bytes());
        expected.extend([0xd0, 0x07, 0, 0, 0, 0, 0, 0].repeat(2));
        expected.extend(PAYLOAD.as_bytes());
        expected.push(0);
        expected.extend([3; 16]);
        assert_eq!(entry.encode(), expected);
        expected.truncate(57);
        expected.push(1);
        // Kind, metadata, a kept body.
        expected.extend(b"\x04\0\0\0text\x04\0\0\0meta\0once");
        assert_eq!(done().encode(), expected);
        assert_eq!(TieredEntry::decode(&expected), Some(done()));
    }

    #[test]
    fn it_is_believed_where_nothing_is_in_doubt() {
        assert!(matches!(done().ruling(&claim(), PRESENT, NOW), Some(Ruling::Replay { .. })));
        let busy = busy(Owner::random()).ruling(&claim(), PRESENT, NOW);
        assert_eq!(busy, Some(Ruling::Busy { lease_left: std::time::Duration::from_millis(1) }));
    }

    #[test]
    fn everything_else_is_asked_of_postgres() {
        let mine = claim();
        assert_eq!(busy(mine.owner).ruling(&mine, PRESENT, NOW), None, "its own claim");
        for entry in [done(), busy(Owner::random())] {
            let other = NewClaim { fingerprint: Fingerprint::from_bytes([8; 32]), ..claim() };
            assert_eq!(entry.ruling(&other, PRESENT, NOW), None, "another payload");
            assert_eq!(entry.ruling(&claim(), CopyGeneration(6), NOW), None, "an old generation");
            assert_eq!(entry.ruling(&claim(), CopyGeneration(4), NOW), None, "a generation not known yet");
            assert_eq!(entry.ruling(&claim(), PRESENT, entry.until), None, "its end");
        }
    }
}
