//! A record as a row, and back.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::fingerprint::Fingerprint;
use crate::key::{Hint, KeyId};
use crate::outcome::Outcome;
use crate::record::{self, Claim, Command, DecodeError, Epoch, Fence, Mode, Owner, Record, State, Terms};
use crate::time::Timestamp;

/// What a statement said about one key.
#[derive(Debug)]
pub(super) enum Answer {
    /// There is a row.
    Stored(Stored),
    /// Our own insert was the first.
    Inserted {
        fence: Fence,
        /// The floor, read after the insert: whatever was removed before is below it.
        floor: Fence,
        now: Timestamp,
    },
}

/// A row as it was read.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) version: i64,
    pub(super) watched: bool,
    /// The server's time when it was read.
    pub(super) now: Timestamp,
}

/// Why a row could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

pub(super) fn id(row: &PgRow) -> Result<KeyId, RowError> {
    Ok(KeyId::from_bytes(array(row.try_get(0)?, "id")?))
}

pub(super) fn stored(row: &PgRow) -> Result<Stored, RowError> {
    let moment = |column: usize| -> Result<Timestamp, RowError> {
        Ok(Timestamp::from_micros(unsigned(row.try_get(column)?, "time")?))
    };
    let length = |column: usize| -> Result<Duration, RowError> {
        Ok(Duration::from_micros(unsigned(row.try_get(column)?, "terms")?))
    };
    let count = |column: usize, name| -> Result<u32, RowError> {
        let number: i64 = row.try_get(column)?;
        Ok(u32::try_from(number).map_err(|_| DecodeError::Damaged(name))?)
    };
    let state: i16 = row.try_get(3)?;
    let state = match state {
        0 => State::Vacant,
        1 => State::Bound,
        2 => State::Claimed,
        3 => State::Begun,
        4 => {
            let bytes: Option<&[u8]> = row.try_get(21)?;
            State::Done(Arc::new(Outcome::decode(bytes.ok_or(DecodeError::Damaged("outcome"))?)?))
        }
        5 => State::Expired,
        _ => return Err(DecodeError::Damaged("state").into()),
    };
    let mode: i16 = row.try_get(4)?;
    let mode = match mode {
        0 => Mode::Atomic,
        1 => Mode::Keyed,
        2 => Mode::Marked,
        3 => Mode::Rerun,
        _ => return Err(DecodeError::Damaged("mode").into()),
    };
    let hint: &[u8] = row.try_get(10)?;
    let hint = Hint::new(str::from_utf8(hint).map_err(|_| DecodeError::Damaged("hint"))?);
    let record = Record {
        state,
        fingerprint: Fingerprint::from_bytes(array(row.try_get(5)?, "fingerprint")?),
        owner: Owner::from_bytes(array(row.try_get(6)?, "owner")?),
        fence: Fence::new(unsigned(row.try_get(7)?, "fence")?),
        epoch: Epoch::new(count(8, "epoch")?),
        attempt: count(9, "attempt")?,
        hint,
        claimed_at: moment(11)?,
        changed_at: moment(12)?,
        lease_until: moment(13)?,
        expires_at: moment(14)?,
        forget_at: moment(15)?,
        terms: Arc::new(Terms {
            mode,
            lease: length(16)?,
            in_flight_max: length(17)?,
            retention: length(18)?,
            grace: length(19)?,
            memory: length(20)?,
        }),
    };
    Ok(Stored { record, version: row.try_get(1)?, watched: row.try_get(2)?, now: moment(22)? })
}

/// Reads a row of the claim statement.
pub(super) fn answer(row: &PgRow) -> Result<Answer, RowError> {
    let floor: Option<i64> = row.try_get(23)?;
    Ok(match floor {
        None => Answer::Stored(stored(row)?),
        Some(floor) => Answer::Inserted {
            fence: Fence::new(unsigned(row.try_get(7)?, "fence")?),
            floor: Fence::new(unsigned(floor, "fence floor")?),
            now: Timestamp::from_micros(unsigned(row.try_get(22)?, "time")?),
        },
    })
}

fn array<const N: usize>(bytes: &[u8], name: &'static str) -> Result<[u8; N], DecodeError> {
    bytes.try_into().map_err(|_| DecodeError::Damaged(name))
}

fn unsigned(number: i64, name: &'static str) -> Result<u64, DecodeError> {
    u64::try_from(number).map_err(|_| DecodeError::Damaged(name))
}

/// As many microseconds as a column takes and as can be added to a moment: "for ever" stays for ever.
const LONGEST: i64 = i64::MAX / 4;

pub(super) fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}

pub(super) fn moment(moment: Timestamp) -> i64 {
    i64::try_from(moment.as_micros()).unwrap_or(i64::MAX)
}

fn state(state: &State) -> i16 {
    match state {
        State::Vacant => 0,
        State::Bound => 1,
        State::Claimed => 2,
        State::Begun => 3,
        State::Done(_) => 4,
        State::Expired => 5,
    }
}

fn mode(mode: Mode) -> i16 {
    match mode {
        Mode::Atomic => 0,
        Mode::Keyed => 1,
        Mode::Marked => 2,
        Mode::Rerun => 3,
    }
}

/// A column of terms for each row.
#[derive(Debug, Default)]
struct TermsColumns {
    lease: Vec<i64>,
    in_flight_max: Vec<i64>,
    retention: Vec<i64>,
    grace: Vec<i64>,
    memory: Vec<i64>,
}

impl TermsColumns {
    fn push(&mut self, terms: &Terms) {
        self.lease.push(micros(terms.lease));
        self.in_flight_max.push(micros(terms.in_flight_max));
        self.retention.push(micros(terms.retention));
        self.grace.push(micros(terms.grace));
        self.memory.push(micros(terms.memory));
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The columns of fresh claims. Moments are offsets: the server adds its time, and nothing else decides.
#[derive(Debug, Default)]
pub(super) struct ClaimColumns<'a> {
    pub(super) ids: Vec<&'a [u8]>,
    versions: Vec<i64>,
    states: Vec<i16>,
    modes: Vec<i16>,
    fingerprints: Vec<&'a [u8]>,
    owners: Vec<&'a [u8]>,
    hints: Vec<&'a [u8]>,
    lease_for: Vec<i64>,
    expires_in: Vec<i64>,
    forget_in: Vec<i64>,
    sweep_in: Vec<Option<i64>>,
    terms: TermsColumns,
}

impl<'a> ClaimColumns<'a> {
    pub(super) fn push(&mut self, id: &'a KeyId, claim: &'a Claim, version: i64) {
        // The rules say what a first claim at time zero is; every moment in it is then an offset.
        let mut fresh = None;
        let _ =
            record::apply(&mut fresh, &Command::Claim(claim.clone()), Timestamp::default(), Fence::default());
        let fresh = fresh.expect("a claim of an unknown key is granted");
        self.ids.push(id.as_bytes());
        self.versions.push(version);
        self.states.push(state(&fresh.state));
        self.modes.push(mode(fresh.terms.mode));
        self.fingerprints.push(claim.fingerprint.as_bytes());
        self.owners.push(claim.owner.as_bytes());
        self.hints.push(claim.hint.as_str().as_bytes());
        let offset = |at: Timestamp| moment(at).min(LONGEST);
        self.lease_for.push(offset(fresh.lease_until));
        self.expires_in.push(offset(fresh.expires_at));
        self.forget_in.push(offset(fresh.forget_at));
        self.sweep_in.push(fresh.sweep_at().map(offset));
        self.terms.push(&claim.terms);
    }

    pub(super) fn bind<'q>(&'q self, query: Query<'q>) -> Query<'q> {
        query
            .bind(&self.ids)
            .bind(&self.versions)
            .bind(&self.states)
            .bind(&self.modes)
            .bind(&self.fingerprints)
            .bind(&self.owners)
            .bind(&self.hints)
            .bind(&self.lease_for)
            .bind(&self.expires_in)
            .bind(&self.forget_in)
            .bind(&self.sweep_in)
            .bind(&self.terms.lease)
            .bind(&self.terms.in_flight_max)
            .bind(&self.terms.retention)
            .bind(&self.terms.grace)
            .bind(&self.terms.memory)
    }
}

/// The columns of records that the rules changed.
#[derive(Debug, Default)]
pub(super) struct SwapColumns {
    ids: Vec<Vec<u8>>,
    seen: Vec<i64>,
    judged_until: Vec<i64>,
    versions: Vec<i64>,
    wake: Vec<bool>,
    invalidate: Vec<bool>,
    states: Vec<i16>,
    modes: Vec<i16>,
    fingerprints: Vec<Vec<u8>>,
    owners: Vec<Vec<u8>>,
    fences: Vec<i64>,
    epochs: Vec<i64>,
    attempts: Vec<i64>,
    hints: Vec<Vec<u8>>,
    claimed_at: Vec<i64>,
    changed_at: Vec<i64>,
    lease_until: Vec<i64>,
    expires_at: Vec<i64>,
    forget_at: Vec<i64>,
    sweep_at: Vec<Option<i64>>,
    terms: TermsColumns,
    outcomes: Vec<Option<Vec<u8>>>,
}

/// One record that the rules changed.
#[derive(Debug)]
pub(super) struct Swap {
    pub(super) id: KeyId,
    /// The version that was judged, and until when the judgement holds.
    pub(super) seen: i64,
    pub(super) judged_until: Timestamp,
    pub(super) version: i64,
    pub(super) record: Record,
    pub(super) wake: bool,
    pub(super) invalidate: bool,
}

impl SwapColumns {
    pub(super) fn push(&mut self, swap: &Swap) {
        let record = &swap.record;
        self.ids.push(swap.id.as_bytes().to_vec());
        self.seen.push(swap.seen);
        self.judged_until.push(moment(swap.judged_until));
        self.versions.push(swap.version);
        self.wake.push(swap.wake);
        self.invalidate.push(swap.invalidate);
        self.states.push(state(&record.state));
        self.modes.push(mode(record.terms.mode));
        self.fingerprints.push(record.fingerprint.as_bytes().to_vec());
        self.owners.push(record.owner.as_bytes().to_vec());
        self.fences.push(i64::try_from(record.fence.get()).unwrap_or(i64::MAX));
        self.epochs.push(i64::from(record.epoch.get()));
        self.attempts.push(i64::from(record.attempt));
        self.hints.push(record.hint.as_str().as_bytes().to_vec());
        self.claimed_at.push(moment(record.claimed_at));
        self.changed_at.push(moment(record.changed_at));
        self.lease_until.push(moment(record.lease_until));
        self.expires_at.push(moment(record.expires_at));
        self.forget_at.push(moment(record.forget_at));
        self.sweep_at.push(record.sweep_at().map(moment));
        self.terms.push(&record.terms);
        self.outcomes.push(match &record.state {
            State::Done(outcome) => Some(outcome.encode()),
            State::Vacant | State::Bound | State::Claimed | State::Begun | State::Expired => None,
        });
    }

    pub(super) fn bind<'q>(&'q self, query: Query<'q>) -> Query<'q> {
        query
            .bind(&self.ids)
            .bind(&self.seen)
            .bind(&self.judged_until)
            .bind(&self.versions)
            .bind(&self.wake)
            .bind(&self.invalidate)
            .bind(&self.states)
            .bind(&self.modes)
            .bind(&self.fingerprints)
            .bind(&self.owners)
            .bind(&self.fences)
            .bind(&self.epochs)
            .bind(&self.attempts)
            .bind(&self.hints)
            .bind(&self.claimed_at)
            .bind(&self.changed_at)
            .bind(&self.lease_until)
            .bind(&self.expires_at)
            .bind(&self.forget_at)
            .bind(&self.sweep_at)
            .bind(&self.terms.lease)
            .bind(&self.terms.in_flight_max)
            .bind(&self.terms.retention)
            .bind(&self.terms.grace)
            .bind(&self.terms.memory)
            .bind(&self.outcomes)
    }
}
