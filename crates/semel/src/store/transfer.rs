//! Moving every record of one store to another, while processes use the first.
//!
//! ```text
//!   old store   open ─────────────────────────────► moved: no claim is granted
//!                 │ passes: everything, then changes   │ wait, last pass, comparison
//!                 ▼                                    ▼
//!   new store   filling: no claim is granted ───────────────────────────► open
//! ```
//!
//! [`Transfer`] copies. At no time do both stores grant claims, so a key that ran on one never runs on the other:
//!
//! - *The new store grants nothing while it is filled*, also after a crash of the copying process. Its
//!   [state](TransferState) is stored in it, and every process on it knows that state.
//! - *The last pass reads every claim that was granted.* A process counts a claim as won only if it has read that the
//!   store is open less than [`CONFIRMED_FOR`] before the answer arrived; without such a read it reads the state after
//!   the claim. It reads the state with its heartbeats, so a claim costs nothing. The last pass starts [`CLOSING`]
//!   after the store was marked as moved: whatever was won before is visible by then, and nothing is won later. The
//!   embedded store has one process, which holds a lock: the last pass starts when that process has ended.
//! - *The last pass reads every transaction of a caller.* It starts when the transactions that were open after the
//!   store was marked as moved have ended, even if their leases expired before. A later one is refused.
//! - *A begin mark is treated as a claim.* A claim that the last pass saw without a mark cannot begin any more on the
//!   old store, so it may be taken over on the new one when its lease expires.
//! - *A claim that is still held* is copied with owner and lease. Begun in `marked` mode it is in doubt on the new store
//!   once its lease expires; it never runs again by itself.
//!
//! - *A forgotten key stays forgotten.* A record that an earlier pass copied and that the old store has removed since
//!   becomes a stub on the new store.
//!
//! An import never lowers a fence, removes a begin mark or replaces an outcome by the claim that it ended, so passes
//! may be repeated in any number. Records are copied as they are stored: sealed outcomes stay sealed, and open with the same keyring.
//! Their times are moved by the difference between the two stores' clocks, rounded up: nothing expires earlier.

mod clock;
mod copy;
mod state;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

pub use self::clock::ClockShift;
pub use self::copy::{Pass, Transfer, Transferred, check_source, survey};
pub use self::state::{TransferRun, TransferState};
pub(super) use self::watch::TransferWatch;
use super::{BoxFuture, Error, ErrorKind, MarkId, MarkStore, Scan, Snapshot, Store};
use crate::key::KeyId;
use crate::record::{Command, Fence, Record, Ruling, State};
use crate::secret::Secret;
use crate::time::Timestamp;

/// How long a process may grant claims after it read that its store is open.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(5);

/// How long after a store was marked as moved the last claim can have been granted: longer than [`CONFIRMED_FOR`],
/// because clocks of machines run at slightly different rates.
pub const CLOSING: Duration = Duration::from_secs(6);

/// Records of one batch.
pub(super) const BATCH: usize = 500;

/// Everything a store holds, readable while other processes use it.
pub trait TransferSource: fmt::Debug + Send + Sync {
    /// The store's name, without a password: the same for every process on one machine.
    fn address(&self) -> String;

    /// The store's time.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>>;

    /// Whether the store grants claims.
    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>>;

    /// The deployment's secret, if the store holds one. Does not create one.
    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>>;

    /// A fence that no removed record was above.
    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>>;

    /// All high-water marks.
    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>>;

    /// Transactions of callers that may still commit an effect on this store, by name. Read it [`CLOSING`] after the
    /// store was marked as moved, and make the last pass when all of these have ended: a pass reads only what is
    /// committed. Transactions that begin later are refused.
    fn open_transactions(&self) -> BoxFuture<'_, Result<BTreeSet<String>, Error>> {
        Box::pin(std::future::ready(Ok(BTreeSet::new())))
    }

    /// The last loss of data that the store has noticed.
    fn data_loss(&self) -> BoxFuture<'_, Result<Option<DataLoss>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Begins to read all records. A record that exists during the whole walk is read at least once.
    fn records(&self) -> Box<dyn RecordWalk + '_>;
}

/// A loss of data: some records of a store are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataLoss {
    /// When it was noticed, by the store's clock.
    pub at: Timestamp,
    /// True if the store grants no claims because of it.
    pub refuses_claims: bool,
}

/// The next records of a walk, or `None` after the last.
pub type WalkedRecords = Result<Option<Vec<(KeyId, Record)>>, Error>;

/// A walk over all records of a store.
pub trait RecordWalk: Send {
    /// The next records, in any order; `None` after the last.
    fn next(&mut self) -> BoxFuture<'_, WalkedRecords>;
}

/// A store that can be filled, closed and opened. Its rules are not applied to imported records.
pub trait TransferStore: TransferSource + Store + MarkStore {
    /// Writes records as another store had them, unless the stored one [is ahead](is_ahead). Returns the keys whose
    /// record was ahead. Does nothing unless the store is being filled by `run`.
    ///
    /// # Errors
    /// [`ErrorKind::Moved`] if the store is not being filled by `run`.
    fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> BoxFuture<'_, Result<Vec<KeyId>, Error>>;

    /// Makes every later fence of a key without a record higher than `floor`.
    fn raise_fence_floor(&self, floor: Fence) -> BoxFuture<'_, Result<(), Error>>;

    /// Replaces the state `seen` by `next`. Returns false if the store has another state by now.
    fn change_state<'a>(
        &'a self,
        seen: &'a TransferState,
        next: &'a TransferState,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}

/// True if the stored record knows more than the imported one: a later claim, the begin mark of the same claim, or its
/// end. Imports in the wrong order, such as a late packet of a killed process, therefore lose nothing that decides
/// whether an effect may run.
pub fn is_ahead(stored: &Record, imported: &Record) -> bool {
    let rank = |record: &Record| match record.state {
        State::Claimed => 0,
        State::Begun => 1,
        State::Vacant | State::Bound | State::Done(_) | State::Expired => 2,
    };
    (stored.fence, rank(stored)) > (imported.fence, rank(imported))
}

/// Answers a command that a closed store refuses. A claim gets the answer of the rules, unless it would be won.
pub(super) fn apply_closed(
    found: Option<Snapshot>,
    command: &Command,
    refusal: Error,
) -> Result<Ruling, Error> {
    let (Command::Claim(_), Some(Snapshot { mut record, now, .. })) = (command, found) else {
        return Err(refusal);
    };
    match record.apply(command, now, Fence::default()) {
        Ruling::Won(_) => Err(refusal),
        ruling => Ok(ruling),
    }
}

/// The error of an import into a store that is not being filled by this run.
pub(super) fn not_filled(address: &str) -> Error {
    Error::new(
        ErrorKind::Moved,
        format!("another process fills or opened {address}: this copy stopped and changed nothing more"),
    )
}

/// A walk with [`Store::scan`], for stores with an order of ids.
pub(super) struct ScanWalk<'a, S: ?Sized> {
    store: &'a S,
    after: Option<KeyId>,
    is_over: bool,
}

impl<'a, S: Store + ?Sized> ScanWalk<'a, S> {
    pub(super) fn new(store: &'a S) -> Self {
        Self { store, after: None, is_over: false }
    }
}

impl<S: Store + ?Sized> RecordWalk for ScanWalk<'_, S> {
    fn next(&mut self) -> BoxFuture<'_, WalkedRecords> {
        Box::pin(async move {
            if self.is_over {
                return Ok(None);
            }
            let page = self.store.scan(Scan { phase: None, after: self.after, limit: BATCH }).await?;
            self.after = page.next;
            self.is_over = page.next.is_none();
            Ok(Some(page.items.into_iter().map(|item| (item.id, item.record)).collect()))
        })
    }
}
