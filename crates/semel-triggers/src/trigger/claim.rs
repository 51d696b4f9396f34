//! Claims of other triggers on the same key: the run that they are resolved to, and how to wait for them.

use semel::key::KeyId;
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Force, Phase};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger;
use tokio::time::Instant;

use super::{Burst, CHECKS, RETRY_AFTER, TriggerError, Triggers};
use crate::transfer::count;

/// The outcome of a claim on a key: the id of its run.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct ResolvedClaim {
    pub(super) id: EventId,
    pub(super) buffered: bool,
}

impl ResolvedClaim {
    pub(super) fn read(outcome: &Outcome) -> Option<Self> {
        match outcome.body() {
            OutcomeBody::Kept(bytes) => serde_json::from_slice(bytes).ok(),
            OutcomeBody::Tombstone(_) => None,
        }
    }
}

impl Triggers {
    /// A claim is resolved to a run that does not have the key: the claim must not block it.
    pub(super) async fn forget_lost_claim(
        &self,
        burst: &Burst,
        claim: KeyId,
        outcome: &Outcome,
    ) -> Result<(), ledger::Error> {
        if let Some(ResolvedClaim { id, .. }) = ResolvedClaim::read(outcome)
            && self.ledger.event(id).await?.is_none()
            && self.ledger.resolve(id).await?.is_none()
        {
            count(&self.counters.lost, 1);
            tracing::error!(target: "semel", run_id = %id, "an accepted run is neither in the buffer nor in the ledger: Redis has lost it, or it was swept");
        }
        self.fail_open(burst.claims.forget(claim, Force::No).await);
        Ok(())
    }

    /// Waits until a claim with another payload is resolved or released. A claim is not a run: its owner may itself
    /// be refused.
    ///
    /// # Errors
    /// [`TriggerError::Conflict`] if the owner was lost, because the key stays bound to the payload of that claim.
    /// [`TriggerError::TimedOut`] if the owner still holds the claim after `wait`.
    pub(super) async fn wait_for_claim(&self, burst: &Burst, claim: KeyId) -> Result<(), TriggerError> {
        count(&self.counters.waited, 1);
        let (until, mut checks) = (Instant::now() + self.wait, CHECKS);
        loop {
            let found = self.fail_open(burst.claims.store().get(claim).await).flatten();
            match found.map(|found| found.phase()) {
                None | Some(Phase::Done | Phase::Vacant | Phase::Expired) => return Ok(()),
                Some(Phase::Lapsed) => return Err(TriggerError::Conflict),
                // An owner that was refused releases its claim and then removes the binding.
                Some(Phase::Bound) if Instant::now() >= until => return Err(TriggerError::Conflict),
                Some(_) if Instant::now() >= until => return Err(self.time_out(RETRY_AFTER)),
                Some(_) => {}
            }
            checks.wait().await;
        }
    }

    /// True if another trigger holds the claim, or held it and may have placed its run.
    pub(super) async fn is_unresolved(&self, burst: &Burst, claim: KeyId) -> bool {
        let found = self.fail_open(burst.claims.store().get(claim).await).flatten();
        !found.is_some_and(|found| found.phase() == Phase::Done)
    }
}
