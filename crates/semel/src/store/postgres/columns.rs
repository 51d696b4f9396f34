//! Records and commands as parameters of a statement: one array for each column.

use std::time::Duration;

use super::queue::Item;
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Mode, NewClaim, Record, State, Terms};
use crate::time::Timestamp;

/// The largest number of microseconds that a column holds and that can be added to a time.
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

/// A record as its first claim creates it. Times are offsets from the claim.
struct NewRecord {
    state: i16,
    mode: i16,
    lease_for: i64,
    expires_in: i64,
    forget_in: i64,
    sweep_in: Option<i64>,
}

impl NewRecord {
    fn new(claim: &NewClaim) -> Self {
        // The rules compute a first claim at time zero; every time in it is then an offset.
        let mut fresh = None;
        let command = Command::Claim(claim.clone());
        let _ = record::apply(&mut fresh, &command, Timestamp::default(), Fence::default());
        let fresh = fresh.expect("a claim of an unknown key is granted");
        let offset = |at: Timestamp| moment(at).min(LONGEST);
        Self {
            state: state(&fresh.state),
            mode: mode(fresh.terms.mode),
            lease_for: offset(fresh.lease_until),
            expires_in: offset(fresh.expires_at),
            forget_in: offset(fresh.forget_at),
            sweep_in: fresh.sweep_at().map(offset),
        }
    }
}

/// Binds the one row of a single claim. `secret` is the digest of the expected secret.
pub(super) fn bind_alone<'q>(
    query: Query<'q>,
    id: &'q KeyId,
    claim: &'q NewClaim,
    version: i64,
    secret: Option<[u8; 32]>,
) -> Query<'q> {
    let (fresh, terms) = (NewRecord::new(claim), &claim.terms);
    query
        .bind(id.as_bytes().as_slice())
        .bind(version)
        .bind(fresh.state)
        .bind(fresh.mode)
        .bind(claim.fingerprint.as_bytes().as_slice())
        .bind(claim.owner.as_bytes().as_slice())
        .bind(claim.hint.to_stored().into_owned().into_bytes())
        .bind(fresh.lease_for)
        .bind(fresh.expires_in)
        .bind(fresh.forget_in)
        .bind(fresh.sweep_in)
        .bind(micros(terms.lease))
        .bind(micros(terms.in_flight_max))
        .bind(micros(terms.retention))
        .bind(micros(terms.grace))
        .bind(micros(terms.memory))
        .bind(secret.map(Vec::from))
}

/// The columns of new claims. Times are offsets: only the server adds its time.
#[derive(Debug, Default)]
pub(super) struct ClaimColumns<'a> {
    pub(super) ids: Vec<&'a [u8]>,
    versions: Vec<i64>,
    states: Vec<i16>,
    modes: Vec<i16>,
    fingerprints: Vec<&'a [u8]>,
    owners: Vec<&'a [u8]>,
    hints: Vec<Vec<u8>>,
    lease_for: Vec<i64>,
    expires_in: Vec<i64>,
    forget_in: Vec<i64>,
    sweep_in: Vec<Option<i64>>,
    terms: TermsColumns,
}

impl<'a> ClaimColumns<'a> {
    pub(super) fn push(&mut self, id: &'a KeyId, claim: &'a NewClaim, version: i64) {
        let fresh = NewRecord::new(claim);
        self.ids.push(id.as_bytes());
        self.versions.push(version);
        self.states.push(fresh.state);
        self.modes.push(fresh.mode);
        self.fingerprints.push(claim.fingerprint.as_bytes());
        self.owners.push(claim.owner.as_bytes());
        self.hints.push(claim.hint.to_stored().into_owned().into_bytes());
        self.lease_for.push(fresh.lease_for);
        self.expires_in.push(fresh.expires_in);
        self.forget_in.push(fresh.forget_in);
        self.sweep_in.push(fresh.sweep_in);
        self.terms.push(&claim.terms);
    }

    /// `secret` is the digest of the expected secret.
    pub(super) fn bind<'q>(&'q self, query: Query<'q>, secret: Option<[u8; 32]>) -> Query<'q> {
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
            .bind(secret.map(Vec::from))
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
    /// The version that was judged, and until when the judgement is valid.
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
        self.hints.push(record.hint.to_stored().into_owned().into_bytes());
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

/// The columns of an owner's writes.
#[derive(Debug, Default)]
pub(super) struct WriteColumns<'a> {
    pub(super) ids: Vec<&'a [u8]>,
    versions: Vec<i64>,
    kinds: Vec<i16>,
    owners: Vec<&'a [u8]>,
    fences: Vec<i64>,
    outcomes: Vec<Option<Vec<u8>>>,
    retentions: Vec<Option<i64>>,
}

impl<'a> WriteColumns<'a> {
    pub(super) fn push(&mut self, item: &'a Item) {
        let (kind, grant, outcome, retention) = match &item.command {
            Command::Complete { grant, outcome, retention, .. } => {
                (0, grant, Some(outcome.encode()), retention.map(micros))
            }
            Command::Begin(grant) => (1, grant, None, None),
            Command::Renew(grant) => (2, grant, None, None),
            _ => return,
        };
        // A fence above the column's range was never granted.
        let Ok(fence) = i64::try_from(grant.fence.get()) else { return };
        self.ids.push(item.id.as_bytes());
        self.versions.push(rand::random());
        self.kinds.push(kind);
        self.owners.push(grant.owner.as_bytes());
        self.fences.push(fence);
        self.outcomes.push(outcome);
        self.retentions.push(retention);
    }

    pub(super) fn bind<'q>(&'q self, query: Query<'q>) -> Query<'q> {
        query
            .bind(&self.ids)
            .bind(&self.versions)
            .bind(&self.kinds)
            .bind(&self.owners)
            .bind(&self.fences)
            .bind(&self.outcomes)
            .bind(&self.retentions)
    }
}
