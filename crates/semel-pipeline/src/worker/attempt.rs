//! One attempt: asks the target's circuit breaker, delivers, and reports the result.

use std::sync::Arc;
use std::time::Duration;

use semel_client::retry::{Admit, Permit, Signal};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::observe::{AfterAttempt, Attempted};
use super::settler::FinishedAttempt;
use super::{Lease, WorkerShared};
use crate::delivery::{Settle, Work};
use crate::target::{DeliveryCall, DeliveryOutcome, Registered};

/// Starts an attempt, or settles a delivery that must not be sent.
pub(super) fn start(
    shared: &Arc<WorkerShared>,
    work: &Arc<Work>,
    registered: &Arc<Registered>,
    lease: Lease,
) {
    let policy = &registered.policy;
    if let Some(settle) = policy.refuse(work) {
        return shared.conclude(work, registered, None, Duration::ZERO, settle);
    }
    // The first attempt of a replay also counts as a first attempt: the replay job limits its rate.
    let destination = &registered.destination;
    let admitted = if work.attempt <= 1 { destination.admit() } else { destination.admit_retry() };
    let settle = match admitted {
        Admit::Go(permit) => {
            let name: Arc<str> = work.target.as_str().into();
            shared.room.start(&name);
            let underway = Underway {
                shared: Arc::clone(shared),
                work: Arc::clone(work),
                registered: Arc::clone(registered),
                call: DeliveryCall::new(Arc::clone(work), &shared.secret, policy).leased(lease),
                name,
                started: Instant::now(),
                permit: Some(permit),
                state: AttemptState::Running,
            };
            drop(tokio::spawn(run(underway)));
            return;
        }
        Admit::Wait { until } => Settle::Defer(destination.left(until)),
        // Spread over the next pauses, so that the waiting deliveries do not all retry when one is allowed.
        Admit::Spent { until } => {
            Settle::Defer(destination.left(until).max(policy.retry.delay(work.attempt, None).wait))
        }
    };
    shared.conclude(work, registered, None, Duration::ZERO, settle);
}

async fn run(underway: Underway) {
    // Here, in the attempt's own task: a runtime that is busy for a lease would otherwise send a delivery that the
    // worker no longer holds.
    if !underway.call.may_send() {
        return underway.end(DeliveryOutcome::given_up());
    }
    let limit = underway.registered.policy.timeout;
    let registered = Arc::clone(&underway.registered);
    let delivered = tokio::time::timeout(limit, registered.target.deliver(underway.call.clone())).await;
    let outcome = delivered
        .unwrap_or_else(|_| DeliveryOutcome::of(&Signal::timed_out(), format!("no answer within {limit:?}")));
    underway.end(outcome);
}

/// An attempt in progress. However its task ends, it is settled, unless the whole process ends.
struct Underway {
    shared: Arc<WorkerShared>,
    work: Arc<Work>,
    registered: Arc<Registered>,
    call: DeliveryCall,
    name: Arc<str>,
    started: Instant,
    permit: Option<Permit>,
    state: AttemptState,
}

#[derive(PartialEq, Eq)]
enum AttemptState {
    Running,
    Ended,
}

impl Underway {
    fn end(mut self, outcome: DeliveryOutcome) {
        self.conclude(outcome);
    }

    fn conclude(&mut self, outcome: DeliveryOutcome) {
        self.state = AttemptState::Ended;
        // Once the target has accepted the delivery, no later failure revokes that: no slow body, no timeout.
        let outcome = match self.call.accepted() {
            Some(status) => DeliveryOutcome::of(&Signal::status(status), ""),
            None => outcome,
        };
        if outcome.is_given_up() {
            tracing::debug!(
                target: "semel::deliveries",
                delivery_id = %self.work.holding.delivery,
                "target" = self.work.target,
                attempt = self.work.attempt,
                request_id = self.work.request_id,
                "the lease expired before the delivery was sent; giving it back"
            );
        }
        if let Some(permit) = self.permit.take() {
            permit.done(outcome.health());
        }
        self.shared.room.end(&self.name);
        let status = outcome.status();
        let settle = self.registered.policy.settle(&self.work, outcome);
        self.shared.conclude(&self.work, &self.registered, status, self.started.elapsed(), settle);
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if self.state == AttemptState::Running && std::thread::panicking() {
            self.conclude(DeliveryOutcome::unknown("the handler panicked"));
        }
    }
}

impl WorkerShared {
    /// Passes the result of a delivery to the settler.
    pub(super) fn settle(&self, work: &Work, settle: Settle) {
        self.hand_over(work, settle, None);
    }

    /// As `settle`; the returned channel completes when the result is written.
    pub(super) fn settle_and_tell(&self, work: &Work, settle: Settle) -> oneshot::Receiver<()> {
        let (tell, written) = oneshot::channel();
        self.hand_over(work, settle, Some(tell));
        written
    }

    fn hand_over(&self, work: &Work, settle: Settle, written: Option<oneshot::Sender<()>>) {
        let settled = FinishedAttempt {
            holding: work.holding,
            event: work.event,
            target: work.target.as_str().into(),
            request_id: work.request_id.clone(),
            settle,
            written,
        };
        // The settler lives as long as the worker. Without it nothing is written, and the ledger takes the work back.
        let _ = self.settled.send(settled);
    }

    /// Reports the result of an attempt, and passes it to the settler.
    fn conclude(
        &self,
        work: &Work,
        registered: &Registered,
        status: Option<u16>,
        took: Duration,
        settle: Settle,
    ) {
        let attempted = Attempted {
            work,
            max_attempts: registered.policy.max_attempts(work.job),
            position: registered.policy.position(work),
            http_status: status,
            took,
            next: AfterAttempt::of(&settle),
            ending: settle.ending(),
        };
        attempted.log();
        self.observer.attempted(&attempted);
        self.settle(work, settle);
        self.wake.notify_one();
    }
}
