//! Accepts of one process that wait go together: one statement, one commit. There is no timer: a lone one waits for nobody,
//! and while one batch is committed the next gathers.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::intake;
use super::link::Shared;
use crate::event::{Accepted, NewEvent};
use crate::ledger::{Error, ErrorKind};

/// The most events that go together, unless one call brings more.
const TOGETHER: usize = 512;

/// The most bytes of payload that go together, unless one call brings more.
const BYTES: usize = 4 << 20;

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct Joint {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    calls: std::collections::VecDeque<Call>,
    /// Somebody carries them.
    carried: bool,
}

#[derive(Debug)]
struct Call {
    events: Vec<NewEvent>,
    answer: oneshot::Sender<Result<Vec<Accepted>, Error>>,
}

/// Accepts events, together with whatever else of this process waits to be accepted. A caller that goes away changes
/// nothing: what it sent is accepted all the same.
pub(super) async fn accept(shared: &Arc<Shared>, events: Vec<NewEvent>) -> Result<Vec<Accepted>, Error> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    for event in &events {
        // A call with data that cannot be stored fails alone.
        intake::check(event)?;
    }
    let (answer, answered) = oneshot::channel();
    let carried = {
        let mut waiting = shared.joint.waiting.lock();
        waiting.calls.push_back(Call { events, answer });
        std::mem::replace(&mut waiting.carried, true)
    };
    if !carried {
        // A task of its own: no caller's end leaves the others waiting.
        tokio::spawn(carry(Arc::clone(shared)));
    }
    answered.await.unwrap_or_else(|_| {
        let gone = "the ledger's runtime ended before it answered; repeat the call unchanged";
        Err(Error::Store(semel::store::Error::new(ErrorKind::Ambiguous, gone)))
    })
}

impl Joint {
    /// The calls that go together next; none where nobody waits, and then nobody carries any more.
    fn next(&self) -> Vec<Call> {
        let mut waiting = self.waiting.lock();
        let (mut together, mut events, mut bytes) = (Vec::new(), 0, 0);
        while let Some(call) = waiting.calls.front() {
            events += call.events.len();
            bytes += call.events.iter().map(|event| event.payload.len()).sum::<usize>();
            if !together.is_empty() && (events > TOGETHER || bytes > BYTES) {
                break;
            }
            together.extend(waiting.calls.pop_front());
        }
        waiting.carried = !together.is_empty();
        together
    }
}

async fn carry(shared: Arc<Shared>) {
    loop {
        let calls = shared.joint.next();
        if calls.is_empty() {
            return;
        }
        together(&shared, calls).await;
    }
}

async fn together(shared: &Shared, calls: Vec<Call>) {
    let lengths: Vec<usize> = calls.iter().map(|call| call.events.len()).collect();
    let lone = calls.len() == 1;
    let (events, answers): (Vec<_>, Vec<_>) =
        calls.into_iter().map(|call| (call.events, call.answer)).unzip();
    let events: Vec<NewEvent> = events.into_iter().flatten().collect();
    match intake::accept(shared, &events).await {
        Ok(accepted) => {
            let mut accepted = accepted.into_iter();
            for (length, answer) in lengths.into_iter().zip(answers) {
                let _ = answer.send(Ok(accepted.by_ref().take(length).collect()));
            }
        }
        Err(error) if lone => {
            for answer in answers {
                let _ = answer.send(Err(copy(&error)));
            }
        }
        // One of them may be what the server does not take.
        Err(Error::Store(error)) if !error.is_retryable() => {
            let mut rest = events.as_slice();
            for (length, answer) in lengths.into_iter().zip(answers) {
                let (own, others) = rest.split_at(length);
                rest = others;
                let _ = answer.send(intake::accept(shared, own).await);
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(copy(&error)));
            }
        }
    }
}

/// The same error for another caller.
pub(super) fn copy(error: &Error) -> Error {
    match error {
        Error::Store(error) => Error::Store(semel::store::Error::new(error.kind(), error.to_string())),
        error => Error::Refused(error.to_string()),
    }
}
