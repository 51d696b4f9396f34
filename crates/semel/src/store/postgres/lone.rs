//! The fast path of a single claim: its caller's own task sends it, over a spare connection.
//!
//! If the lane is idle and its last claim was alone with a new key, the next one most likely is too, and there is
//! nothing to batch. The hop to the lane and back would cost two thread wake-ups. Only the plain insert goes this
//! way; every other result (the key is known, an error, a raised floor) is left to the lane.
//!
//! The lane has its own connection: a caller may stop polling at any time, and no other command may wait for it.

use std::sync::Arc;
use std::time::Duration;

use semel_postgres::{Execution, PostgresError};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout};

use super::Pooling;
use super::builder::Settings;
use super::columns;
use super::error::ambiguous;
use super::link::OwnConnection;
use super::queue::{CommandQueue, Item, Pace};
use super::row::{self, RowAnswer};
use super::shared::StoreShared;
use crate::key::KeyId;
use crate::outage::Availability;
use crate::record::{self, Command, Fence, NewClaim, Ruling};
use crate::store::{Error, ErrorKind};

/// When to retry to open the spare connection after the server refused it.
const KNOCK_AGAIN: Duration = Duration::from_secs(10);

/// The spare connection. Opened after the first single claim.
#[derive(Debug)]
pub(super) struct Lone {
    spare: Arc<Mutex<OwnConnection>>,
    not_before: crate::sync::Mutex<Option<Instant>>,
}

/// Permission for one claim to use the spare connection.
pub(super) type LonePermit = OwnedMutexGuard<OwnConnection>;

impl Lone {
    pub(super) fn new(settings: &Arc<Settings>, availability: &Arc<Availability>) -> Self {
        let spare = OwnConnection::new(Arc::clone(settings), Arc::clone(availability), None);
        let spare = Arc::new(Mutex::new(spare));
        Self { spare, not_before: crate::sync::Mutex::default() }
    }

    /// The fast path, if it is free and useful.
    pub(super) fn try_permit(
        self: &Arc<Self>,
        shared: &StoreShared,
        claims: &CommandQueue,
    ) -> Option<LonePermit> {
        if claims.pace() == Pace::Busy || shared.settings.pooling == Pooling::Transaction {
            return None;
        }
        let pass = Arc::clone(&self.spare).try_lock_owned().ok()?;
        if pass.is_connected() {
            return Some(pass);
        }
        self.open(shared, pass);
        None
    }

    /// Connects on the store's own thread, for later claims.
    fn open(self: &Arc<Self>, shared: &StoreShared, mut pass: LonePermit) {
        let now = Instant::now();
        if self.not_before.lock().is_some_and(|not_before| now < not_before) {
            return;
        }
        let this = Arc::clone(self);
        shared.runtime.spawn(async move {
            if let Err(fault) = pass.connect().await {
                tracing::debug!(%fault, "no spare connection: single claims use the batch");
                *this.not_before.lock() = Some(Instant::now() + KNOCK_AGAIN);
            }
        });
    }

    /// Returns once the claim in progress has ended. An operator's command comes after every claim that was sent
    /// before, also one whose caller was dropped. A claim whose caller exists but does not poll is waited for no
    /// longer than `timeout`.
    pub(super) async fn end(&self, within: Duration) {
        drop(timeout(within, self.spare.lock()).await);
    }

    pub(super) async fn close(&self) {
        if let Ok(mut spare) = self.spare.try_lock() {
            spare.close().await;
        }
    }
}

enum InsertResult {
    Ruled(Ruling),
    /// The lane continues, with this state.
    Left {
        fault: Option<PostgresError>,
        above: Option<Fence>,
    },
}

/// Claims with a plain insert; through the lane if that was not enough.
pub(super) async fn claim(
    shared: Arc<StoreShared>,
    claims: Arc<CommandQueue>,
    mut pass: LonePermit,
    id: KeyId,
    claim: NewClaim,
) -> Result<Ruling, Error> {
    let deadline = Instant::now() + shared.settings.timeout;
    let command = Command::Claim(claim);
    let (fault, above) = match insert(&shared, &mut pass, id, &command).await {
        InsertResult::Ruled(ruling) => return Ok(ruling),
        InsertResult::Left { fault, above } => (fault, above),
    };
    let unheard = fault.as_ref().is_some_and(|fault| fault.execution == Execution::Unknown);
    if let Some(fault) = fault
        && Instant::now() >= deadline
    {
        return Err(if unheard { ambiguous(&fault) } else { fault.into() });
    }
    let (answer, answered) = oneshot::channel();
    claims.push(Item { unheard, above, refused: true, ..Item::new(id, command, deadline, answer) })?;
    // Not earlier: a caller that waits for this claim to end must come after it.
    drop(pass);
    answered.await.unwrap_or_else(|_| Err(closed()))
}

async fn insert(shared: &StoreShared, pass: &mut LonePermit, id: KeyId, command: &Command) -> InsertResult {
    let Command::Claim(claim) = command else { return InsertResult::Left { fault: None, above: None } };
    let query = shared.settings.query(&shared.settings.statements.claim_one);
    let query = columns::bind_alone(query, &id, claim, rand::random(), shared.given.digest());
    let rows = match pass.fetch(query).await {
        Ok(rows) => rows,
        Err(fault) => return InsertResult::Left { fault: Some(fault), above: None },
    };
    match rows.first().map(row::inserted) {
        Some(Ok(RowAnswer::Inserted { fence, floor, now })) if fence > floor => {
            shared.availability.wrote();
            let below = Fence::new(fence.get().saturating_sub(1));
            InsertResult::Ruled(record::apply(&mut None, command, now, below))
        }
        // As in the lane: no caller may get a fence that is not above the floor.
        Some(Ok(RowAnswer::Inserted { floor, .. })) => InsertResult::Left { fault: None, above: Some(floor) },
        Some(Err(error)) => {
            InsertResult::Left { fault: Some(shared.settings.explain_row(&error)), above: None }
        }
        _ => InsertResult::Left { fault: None, above: None },
    }
}

/// The store was closed during a call.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Ambiguous, "the PostgreSQL store was closed before it answered")
}
