//! A record as bytes, as written by every store that holds records outside this process.
//!
//! Fixed little-endian fields behind a version byte, so that a script in a server can read and patch them by
//! position. The table is a contract with stored data: a change needs a new version byte.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version (1) |
//! | 1 | 1 | state: 0 vacant, 1 bound, 2 claimed, 3 begun, 4 done, 5 expired |
//! | 2 | 1 | mode: 0 atomic, 1 keyed, 2 marked, 3 rerun |
//! | 3 | 1 | length of the hint |
//! | 4 | 32 | fingerprint |
//! | 36 | 16 | owner |
//! | 52 | 8 | fence |
//! | 60 | 4 | epoch |
//! | 64 | 4 | attempt |
//! | 68 | 5 × 8 | claimed_at, changed_at, lease_until, expires_at, forget_at (µs since 1970) |
//! | 108 | 5 × 8 | lease, in_flight_max, retention, grace, memory (µs) |
//! | 148 | | hint, UTF-8: up to 8 characters of the key; behind 8 of them a space and the origin (method, path, request id, caller) |
//! | | | done only: length of kind (4), kind, length of metadata (4), metadata, body: 0 kept or 1 tombstone (1), then all the rest |

use std::sync::Arc;
use std::time::Duration;

use super::{Epoch, Fence, Mode, Owner, Record, State, Terms};
use crate::fingerprint::Fingerprint;
use crate::key::Hint;
use crate::outcome::{Outcome, OutcomeBody};
use crate::time::Timestamp;

const VERSION: u8 = 1;

/// Bytes that are not a record of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Written by a version of Semel that this one does not know.
    #[error(
        "the record has format {0}, this version of Semel reads format {VERSION}: upgrade Semel, or keep the data for the version that wrote it"
    )]
    Version(u8),
    /// Too short, or a field has an invalid value.
    #[error("the record is damaged: its {0} cannot be read")]
    Damaged(&'static str),
}

impl Record {
    /// Writes the record, to be read by [`Record::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let outcome = match &self.state {
            State::Done(outcome) => Some(outcome),
            State::Vacant | State::Bound | State::Claimed | State::Begun | State::Expired => None,
        };
        let stored = self.hint.to_stored();
        let hint = stored.as_bytes();
        let mut out = Vec::with_capacity(148 + hint.len() + outcome.map_or(0, |outcome| outcome.size() + 9));
        let state = match self.state {
            State::Vacant => 0,
            State::Bound => 1,
            State::Claimed => 2,
            State::Begun => 3,
            State::Done(_) => 4,
            State::Expired => 5,
        };
        let mode = match self.terms.mode {
            Mode::Atomic => 0,
            Mode::Keyed => 1,
            Mode::Marked => 2,
            Mode::Rerun => 3,
        };
        // A hint has at most 32 bytes, and its origin at most 221.
        out.extend([VERSION, state, mode, u8::try_from(hint.len()).unwrap_or(0)]);
        out.extend(self.fingerprint.as_bytes());
        out.extend(self.owner.as_bytes());
        out.extend(self.fence.get().to_le_bytes());
        out.extend(self.epoch.get().to_le_bytes());
        out.extend(self.attempt.to_le_bytes());
        for moment in [self.claimed_at, self.changed_at, self.lease_until, self.expires_at, self.forget_at] {
            out.extend(moment.as_micros().to_le_bytes());
        }
        let Terms { mode: _, lease, in_flight_max, retention, grace, memory } = *self.terms;
        for length in [lease, in_flight_max, retention, grace, memory] {
            out.extend(u64::try_from(length.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
        }
        out.extend(hint);
        if let Some(outcome) = outcome {
            encode_outcome(outcome, &mut out);
        }
        out
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// Names the damaged field, or says that a newer version wrote the record. Never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader(bytes);
        let [version] = input.take("version")?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let [state, mode, hint_length] = input.take("head")?;
        let mode = match mode {
            0 => Mode::Atomic,
            1 => Mode::Keyed,
            2 => Mode::Marked,
            3 => Mode::Rerun,
            _ => return Err(DecodeError::Damaged("mode")),
        };
        let fingerprint = Fingerprint::from_bytes(input.take("fingerprint")?);
        let owner = Owner::from_bytes(input.take("owner")?);
        let fence = Fence::new(u64::from_le_bytes(input.take("fence")?));
        let epoch = Epoch::new(u32::from_le_bytes(input.take("epoch")?));
        let attempt = u32::from_le_bytes(input.take("attempt")?);
        let mut moment = |name| Ok(Timestamp::from_micros(u64::from_le_bytes(input.take(name)?)));
        let claimed_at = moment("claimed_at")?;
        let changed_at = moment("changed_at")?;
        let lease_until = moment("lease_until")?;
        let expires_at = moment("expires_at")?;
        let forget_at = moment("forget_at")?;
        let mut length = |name| Ok(Duration::from_micros(u64::from_le_bytes(input.take(name)?)));
        let terms = Terms {
            mode,
            lease: length("lease")?,
            in_flight_max: length("in_flight_max")?,
            retention: length("retention")?,
            grace: length("grace")?,
            memory: length("memory")?,
        };
        let hint = input.slice("hint", usize::from(hint_length))?;
        let hint = Hint::from_stored(str::from_utf8(hint).map_err(|_| DecodeError::Damaged("hint"))?);
        let state = match state {
            0 => State::Vacant,
            1 => State::Bound,
            2 => State::Claimed,
            3 => State::Begun,
            4 => State::Done(Arc::new(decode_outcome(&mut input)?)),
            5 => State::Expired,
            _ => return Err(DecodeError::Damaged("state")),
        };
        if !input.0.is_empty() {
            return Err(DecodeError::Damaged("end"));
        }
        Ok(Self {
            state,
            fingerprint,
            owner,
            fence,
            epoch,
            attempt,
            hint,
            terms: Arc::new(terms),
            claimed_at,
            changed_at,
            lease_until,
            expires_at,
            forget_at,
        })
    }
}

/// For stores that hold an outcome apart from the rest of its record.
#[cfg(any(feature = "encryption", feature = "postgres"))]
impl Outcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size() + 9);
        encode_outcome(self, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_outcome(&mut Reader(bytes))
    }
}

pub(crate) fn encode_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    // Lengths above 4 GiB cannot occur: the engine's limit on outcomes is far below.
    let prefixed = |bytes: &[u8], out: &mut Vec<u8>| {
        out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    prefixed(outcome.kind().as_bytes(), out);
    prefixed(outcome.metadata(), out);
    match outcome.body() {
        OutcomeBody::Kept(body) => {
            out.push(0);
            out.extend_from_slice(body);
        }
        OutcomeBody::Tombstone(reason) => {
            out.push(1);
            out.extend_from_slice(reason.as_bytes());
        }
    }
}

fn decode_outcome(input: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    let text = |bytes: &[u8], name| String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Damaged(name));
    let kind = text(input.prefixed("kind")?, "kind")?;
    let metadata = input.prefixed("metadata")?.to_vec();
    let [tag] = input.take("body")?;
    let rest = std::mem::take(&mut input.0);
    let outcome = match tag {
        0 => Outcome::new(kind, rest.to_vec()),
        1 => Outcome::tombstone(kind, text(rest, "tombstone")?),
        _ => return Err(DecodeError::Damaged("body")),
    };
    Ok(outcome.with_metadata(metadata))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError::Damaged(name))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn slice(&mut self, name: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Damaged(name))?;
        self.0 = rest;
        Ok(taken)
    }

    fn prefixed(&mut self, name: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = u32::from_le_bytes(self.take(name)?);
        self.slice(name, usize::try_from(length).map_err(|_| DecodeError::Damaged(name))?)
    }
}
