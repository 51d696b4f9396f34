//! The short way of a lone claim: its caller's own task sends it, over a spare connection.
//!
//! Where the lane rests and its last claim was alone with a fresh key, the next one most likely is too, and there is
//! nothing to batch. The way to the lane and back would be two wake-ups of threads. Only the plain insert goes this way;
//! whatever else comes of it (the key is known, a fault, a floor that was raised) is left to the lane.
//!
//! The lane keeps its own connection: a caller may stop polling at any time, and nobody else shall wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout};

use super::builder::{Pooling, Settings};
use super::columns;
use super::fault::{Fate, Fault};
use super::link::Link;
use super::queue::{Item, Pace, Queue};
use super::row::{self, Answer};
use super::shared::Shared;
use crate::key::KeyId;
use crate::record::{self, Claim, Command, Fence, Ruling};
use crate::store::{Error, ErrorKind};

/// When to try again to open the spare connection where the server gave none.
const KNOCK_AGAIN: Duration = Duration::from_secs(10);

/// The spare connection. Made when the first lone claim has come.
#[derive(Debug)]
pub(super) struct Lone {
    spare: Arc<Mutex<Link>>,
    not_before: crate::sync::Mutex<Option<Instant>>,
}

/// The way is free, for one claim.
pub(super) type Pass = OwnedMutexGuard<Link>;

impl Lone {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        let spare = Arc::new(Mutex::new(Link::new(Arc::clone(settings))));
        Self { spare, not_before: crate::sync::Mutex::default() }
    }

    /// The short way, if it is free and of use.
    pub(super) fn pass(self: &Arc<Self>, shared: &Shared, claims: &Queue) -> Option<Pass> {
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

    /// Connects on the store's own thread, for those who come later.
    fn open(self: &Arc<Self>, shared: &Shared, mut pass: Pass) {
        let now = Instant::now();
        if self.not_before.lock().is_some_and(|not_before| now < not_before) {
            return;
        }
        let this = Arc::clone(self);
        shared.runtime.spawn(async move {
            if let Err(fault) = pass.connect().await {
                tracing::debug!(%fault, "no spare connection: lone claims go with the others");
                *this.not_before.lock() = Some(Instant::now() + KNOCK_AGAIN);
            }
        });
    }

    /// Returns once the claim that is on its way has ended. What an operator does comes after every claim that was asked
    /// before, also one whose caller is gone. One whose caller is there and does not go on is not waited for any longer.
    pub(super) async fn end(&self, patience: Duration) {
        drop(timeout(patience, self.spare.lock()).await);
    }

    pub(super) async fn close(&self) {
        if let Ok(mut spare) = self.spare.try_lock() {
            spare.close().await;
        }
    }
}

/// What came of the insert.
enum Sent {
    Ruled(Ruling),
    /// The lane goes on, with what is known.
    Left {
        fault: Option<Fault>,
        above: Option<Fence>,
    },
}

/// Claims with a plain insert; by way of the lane where that was not enough.
pub(super) async fn claim(
    shared: Arc<Shared>,
    claims: Arc<Queue>,
    mut pass: Pass,
    id: KeyId,
    claim: Claim,
) -> Result<Ruling, Error> {
    let deadline = Instant::now() + shared.settings.patience;
    let command = Command::Claim(claim);
    let (fault, above) = match insert(&shared, &mut pass, id, &command).await {
        Sent::Ruled(ruling) => return Ok(ruling),
        Sent::Left { fault, above } => (fault, above),
    };
    let unheard = fault.as_ref().is_some_and(|fault| fault.fate == Fate::Unknown);
    if let Some(fault) = fault
        && Instant::now() >= deadline
    {
        return Err(if unheard { fault.ambiguous() } else { fault.into() });
    }
    let (answer, answered) = oneshot::channel();
    claims.push(Item { unheard, above, refused: true, ..Item::new(id, command, deadline, answer) })?;
    // Only now: whoever waits for this claim to end comes behind it.
    drop(pass);
    answered.await.unwrap_or_else(|_| Err(closed()))
}

async fn insert(shared: &Shared, pass: &mut Pass, id: KeyId, command: &Command) -> Sent {
    let Command::Claim(claim) = command else { return Sent::Left { fault: None, above: None } };
    let query = shared.settings.query(&shared.settings.statements.claim_one);
    let query = columns::bind_alone(query, &id, claim, rand::random(), shared.given.digest());
    let rows = match pass.fetch(query).await {
        Ok(rows) => rows,
        Err(fault) => return Sent::Left { fault: Some(fault), above: None },
    };
    match rows.first().map(row::inserted) {
        Some(Ok(Answer::Inserted { fence, floor, now })) if fence > floor => {
            let below = Fence::new(fence.get().saturating_sub(1));
            Sent::Ruled(record::apply(&mut None, command, now, below))
        }
        // As in the lane: nobody shall know of a fence that is not above the floor.
        Some(Ok(Answer::Inserted { floor, .. })) => Sent::Left { fault: None, above: Some(floor) },
        Some(Err(error)) => {
            Sent::Left { fault: Some(Fault::row(&shared.settings.target, &error)), above: None }
        }
        _ => Sent::Left { fault: None, above: None },
    }
}

/// The store went away during a call.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Ambiguous, "the PostgreSQL store was closed before it answered")
}
