//! Batches concurrent completions: a batch costs the server half as much per completion as single calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;

use super::error::CallReach;
use super::link::NumberedConnection;
use super::{Shared, script};
use crate::batch::Batcher;
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::store::{Error, ErrorKind};

/// Maximum size of a batch. A script blocks all other commands, at this size for about 0.5 ms.
const BATCH: usize = 64;

/// A larger outcome is sent alone.
const LARGE: usize = 4096;

/// With fewer calls in progress, waiting for a batch costs more than it saves.
const BUSY: usize = 16;

/// Completions of this process that wait for a batch.
#[derive(Debug)]
pub(super) struct Completions {
    waiting: Arc<Batcher<PendingCompletion, Result<bool, Error>>>,
    /// Set if the server accepts only one key per call.
    apart: AtomicBool,
}

#[derive(Debug)]
struct PendingCompletion {
    key: Vec<u8>,
    /// The script's arguments: owner and fence, outcome, retention or nothing.
    arguments: [Vec<u8>; 3],
}

impl Completions {
    pub(super) fn new() -> Self {
        Self { waiting: Batcher::new(BATCH), apart: AtomicBool::new(false) }
    }
}

impl Shared {
    /// True if a command is a completion that should be batched.
    pub(super) fn is_batched(self: &Arc<Self>, command: &Command) -> bool {
        let small = matches!(command, Command::Complete { outcome, .. } if outcome.size() <= LARGE);
        // Every call holds one, a claim two.
        small
            && Arc::strong_count(self) > BUSY
            && self.rules.server_is_new()
            && !self.completions.apart.load(Ordering::Relaxed)
    }

    /// Completes in a batch with concurrent completions.
    pub(super) async fn complete_in_batch(
        self: &Arc<Self>,
        numbered: &mut NumberedConnection,
        id: KeyId,
        command: &Command,
    ) -> Result<Ruling, Error> {
        let Command::Complete { grant, outcome, retention, .. } = command else {
            return self.execute(numbered, &self.names.record(id), command).await;
        };
        let arguments = script::completion(grant, outcome, *retention);
        let shared = Arc::clone(self);
        let send = move |completions: Vec<PendingCompletion>| {
            let shared = Arc::clone(&shared);
            async move { shared.complete_all(&completions).await }
        };
        let completing = PendingCompletion { key: self.names.record(id), arguments };
        match self.completions.waiting.ask(completing, send).await {
            Some(Ok(true)) => Ok(Ruling::Accepted { lease_left: Duration::ZERO }),
            Some(Ok(false)) => self.execute(numbered, &self.names.record(id), command).await,
            Some(Err(error)) => Err(error),
            None => {
                Err(Error::new(ErrorKind::Ambiguous, "the thread of the Redis store ended during a call"))
            }
        }
    }

    /// Whether each was completed; the rules decide the others.
    async fn complete_all(&self, completions: &[PendingCompletion]) -> Vec<Result<bool, Error>> {
        match self.try_complete_all(completions).await {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(error) => completions.iter().map(|_| Err(error.copy())).collect(),
        }
    }

    async fn try_complete_all(&self, completions: &[PendingCompletion]) -> Result<Vec<bool>, Error> {
        let mut numbered = self.link.connection().await?;
        let keys: Vec<&[u8]> = completions.iter().map(|completing| completing.key.as_slice()).collect();
        let arguments =
            || completions.iter().flat_map(|completing| completing.arguments.iter().map(Vec::as_slice));
        let script = &self.rules.completions;
        let answer = match numbered.wire.query(&script.by_sha(&keys, arguments())).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                numbered.wire.query(&script.by_text(&keys, arguments())).await
            }
            answer => answer,
        };
        let answer = match answer {
            Ok(Value::Array(answer)) if answer.len() == completions.len() => answer,
            Ok(_) => return Err(script::unexpected_reply("is not an answer to each completion")),
            // Nothing was done: a cluster of one server, or a proxy in front of many.
            Err(error) if error.code() == Some("CROSSSLOT") => {
                self.completions.apart.store(true, Ordering::Relaxed);
                return Ok(vec![false; completions.len()]);
            }
            Err(error) => return Err(self.link.failed(error, numbered.number, CallReach::Write)),
        };
        Ok(answer.into_iter().map(|done| done == Value::Int(1)).collect())
    }
}
