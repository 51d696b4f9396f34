//! Accepts of one process share a statement and a commit.

use std::sync::Arc;

use semel::batch::{BatchSize, Batcher};
use tokio::sync::oneshot::Sender;

use super::intake;
use super::link::Shared;
use crate::event::{Accepted, NewEvent};
use crate::ledger::{Error, ErrorKind};

/// The largest batch, unless one call is larger.
const BATCH: BatchSize = BatchSize { items: 512, bytes: 4 << 20 };

type AcceptResult = Result<Vec<Accepted>, Error>;

/// The accepts that wait.
pub(super) type AcceptBatcher = Arc<Batcher<Vec<NewEvent>, AcceptResult>>;

pub(super) fn batcher() -> AcceptBatcher {
    // One at a time: the next batch fills while this one is committed.
    Batcher::with_limits(1, BATCH, |events| BatchSize {
        items: events.len(),
        bytes: events.iter().map(|event| event.payload.len()).sum(),
    })
}

/// Accepts events in a batch with other waiting calls of this process. The events of a dropped caller are accepted all
/// the same.
pub(super) async fn accept(shared: &Arc<Shared>, events: Vec<NewEvent>) -> AcceptResult {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    for event in &events {
        // A call with data that cannot be stored fails alone.
        intake::check(event)?;
    }
    let sender = Arc::clone(shared);
    let send = move |calls, callers| {
        let shared = Arc::clone(&sender);
        async move { accept_batch(&shared, calls, callers).await }
    };
    shared.accepts.ask_each(events, send).await.unwrap_or_else(|| {
        let gone = "the ledger's runtime ended before it answered; repeat the call unchanged";
        Err(Error::Store(semel::store::Error::new(ErrorKind::Ambiguous, gone)))
    })
}

async fn accept_batch(shared: &Shared, calls: Vec<Vec<NewEvent>>, callers: Vec<Sender<AcceptResult>>) {
    let lengths: Vec<usize> = calls.iter().map(Vec::len).collect();
    let events: Vec<NewEvent> = calls.into_iter().flatten().collect();
    let batch = intake::accept(shared, &events).await;
    // One of several calls may be what the server refuses: each is then accepted alone.
    let alone = callers.len() > 1 && matches!(&batch, Err(Error::Store(error)) if !error.is_retryable());
    let mut rest = events.as_slice();
    let mut accepted = batch.as_deref().unwrap_or_default().iter().copied();
    for (length, caller) in lengths.into_iter().zip(callers) {
        let (own, others) = rest.split_at(length);
        rest = others;
        let answer = match &batch {
            Ok(_) => Ok(accepted.by_ref().take(length).collect()),
            Err(_) if alone => intake::accept(shared, own).await,
            Err(error) => Err(copy(error)),
        };
        // The caller may have been dropped.
        let _ = caller.send(answer);
    }
}

/// The same error for another caller.
pub(super) fn copy(error: &Error) -> Error {
    match error {
        Error::Store(error) => Error::Store(error.copy()),
        error => Error::Refused(error.to_string()),
    }
}
