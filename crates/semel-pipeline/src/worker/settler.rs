//! The settler writes the results of attempts, all waiting ones in one call.

use std::sync::Arc;
use std::time::Duration;

use semel::backoff::Backoff;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::WorkerShared;
use crate::delivery::{Holding, LeaseResult, Settle};
use crate::id::EventId;
use crate::ledger::{Error, ErrorKind};

/// The most results of one call.
const BATCH: usize = 256;
/// The first and the longest pause after a failed call.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));

/// The result of an attempt, to be written.
#[derive(Debug)]
pub(super) struct FinishedAttempt {
    pub(super) holding: Holding,
    pub(super) event: EventId,
    pub(super) target: Arc<str>,
    /// The id of the attempt, as its target saw it.
    pub(super) request_id: String,
    pub(super) settle: Settle,
    /// Notified when it is written or given up.
    pub(super) written: Option<oneshot::Sender<()>>,
}

pub(super) async fn run(shared: Arc<WorkerShared>, mut queue: UnboundedReceiver<FinishedAttempt>) {
    let mut batch = Vec::with_capacity(BATCH);
    // Results that arrive during a call go with the next one. Without a call in progress, nothing waits.
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        write(&shared, &batch).await;
        shared.leases.release(batch.iter().map(|settled| settled.holding));
        let left = shared.room.settled(batch.iter().map(|settled| settled.target.as_ref()));
        if left == 0 {
            shared.empty.notify_waiters();
        }
        shared.wake.notify_one();
        for settled in &batch {
            shared.observer.written(settled.event);
        }
        for written in batch.drain(..).filter_map(|settled| settled.written) {
            // The caller may have been dropped.
            let _ = written.send(());
        }
    }
}

async fn write(shared: &WorkerShared, batch: &[FinishedAttempt]) {
    let Err(error) = persist(shared, batch).await else { return };
    if batch.len() == 1 {
        give_up(&batch[0], &error);
        return;
    }
    // One of them is refused, and must not affect the others.
    for settled in batch {
        if let Err(error) = persist(shared, std::slice::from_ref(settled)).await {
            give_up(settled, &error);
        }
    }
}

/// Repeats a call with an unknown result, or a failed one, until it is answered: the work was done, and without its
/// result it would be repeated.
async fn persist(shared: &WorkerShared, batch: &[FinishedAttempt]) -> Result<(), Error> {
    let mut retries = RETRIES;
    loop {
        let items = batch.iter().map(|settled| (settled.holding, settled.settle.clone())).collect();
        match shared.ledger.settle(items).await {
            Ok(said) => {
                for (settled, said) in batch.iter().zip(said) {
                    if said == LeaseResult::Lost {
                        tracing::debug!(
                            target: "semel::deliveries",
                            delivery_id = %settled.holding.delivery,
                            "target" = &*settled.target,
                            request_id = settled.request_id,
                            "the lease expired before the attempt ended: another worker makes the delivery, with the same key"
                        );
                    }
                }
                return Ok(());
            }
            Err(Error::Store(error)) if is_passing(error.kind()) => {
                let waiting = batch.len();
                if error.is_logged() {
                    tracing::debug!(target: "semel::deliveries", %error, waiting, "the ledger did not write the results of attempts; retrying");
                } else {
                    tracing::warn!(target: "semel::deliveries", %error, waiting, "the ledger did not write the results of attempts; retrying");
                }
                retries.wait().await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable | ErrorKind::Full)
}

fn give_up(settled: &FinishedAttempt, error: &Error) {
    tracing::error!(
        target: "semel::deliveries",
        delivery_id = %settled.holding.delivery,
        "target" = &*settled.target,
        request_id = settled.request_id,
        %error,
        "the ledger refuses the result of an attempt; it is repeated when its lease expires"
    );
}
