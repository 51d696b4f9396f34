//! Completions that come at the same time go together: a call of the rules costs the server half as much for each of
//! many as for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;

use super::error::Sent;
use super::link::Numbered;
use super::{Shared, script};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::store::{Error, ErrorKind};
use crate::together::Together;

/// So many go together at most: a script holds everybody else up, with so many for some 0.5 ms.
const TOGETHER: usize = 64;

/// A larger outcome goes alone.
const LARGE: usize = 4096;

/// With fewer calls under way, waiting for one another costs more than it saves.
const BUSY: usize = 16;

/// Completions of this process that wait for one another.
#[derive(Debug)]
pub(super) struct Completions {
    waiting: Arc<Together<Completing, Result<bool, Error>>>,
    /// Set where the server turned out to take one key at a time.
    apart: AtomicBool,
}

/// One of them.
#[derive(Debug)]
struct Completing {
    key: Vec<u8>,
    /// As the script wants them: owner and fence, outcome, retention or nothing.
    arguments: [Vec<u8>; 3],
}

impl Completions {
    pub(super) fn new() -> Self {
        Self { waiting: Together::new(TOGETHER), apart: AtomicBool::new(false) }
    }
}

impl Shared {
    /// Whether a command is a completion that is better off with others.
    pub(super) fn goes_together(self: &Arc<Self>, command: &Command) -> bool {
        let small = matches!(command, Command::Complete { outcome, .. } if outcome.size() <= LARGE);
        // Every call holds one, a claim two.
        small
            && Arc::strong_count(self) > BUSY
            && self.rules.server_is_new()
            && !self.completions.apart.load(Ordering::Relaxed)
    }

    /// Completes together with whoever else does.
    pub(super) async fn complete_together(
        self: &Arc<Self>,
        numbered: Numbered,
        id: KeyId,
        command: &Command,
    ) -> Result<Ruling, Error> {
        let Command::Complete { grant, outcome, retention, .. } = command else {
            return self.apply_shortly(numbered, id, command).await;
        };
        let arguments = script::completion(grant, outcome, *retention);
        let shared = Arc::clone(self);
        let carry = move |completions: Vec<Completing>| {
            let shared = Arc::clone(&shared);
            async move { shared.complete_all(&completions).await }
        };
        let completing = Completing { key: self.names.record(id), arguments };
        match self.completions.waiting.ask(completing, carry).await {
            Some(Ok(true)) => Ok(Ruling::Accepted { lease_left: Duration::ZERO }),
            Some(Ok(false)) => self.apply_shortly(numbered, id, command).await,
            Some(Err(error)) => Err(error),
            None => {
                Err(Error::new(ErrorKind::Ambiguous, "the thread of the Redis store ended during a call"))
            }
        }
    }

    /// Whether each was completed; the others are for the rules.
    async fn complete_all(&self, completions: &[Completing]) -> Vec<Result<bool, Error>> {
        match self.try_complete_all(completions).await {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(error) => {
                completions.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect()
            }
        }
    }

    async fn try_complete_all(&self, completions: &[Completing]) -> Result<Vec<bool>, Error> {
        let mut numbered = self.link.wire().await?;
        let keys: Vec<&[u8]> = completions.iter().map(|completing| completing.key.as_slice()).collect();
        let arguments =
            || completions.iter().flat_map(|completing| completing.arguments.iter().map(Vec::as_slice));
        let script = self.rules.completions();
        let answer = match numbered.wire.query(&script.by_sha(&keys, arguments())).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                numbered.wire.query(&script.by_text(&keys, arguments())).await
            }
            answer => answer,
        };
        let answer = match answer {
            Ok(Value::Array(answer)) if answer.len() == completions.len() => answer,
            Ok(_) => return Err(script::strange("is not an answer to each completion")),
            // Nothing was done. A cluster of one server, or a proxy before many.
            Err(error) if error.code() == Some("CROSSSLOT") => {
                self.completions.apart.store(true, Ordering::Relaxed);
                return Ok(vec![false; completions.len()]);
            }
            Err(error) => return Err(self.link.failed(error, numbered.number, Sent::Write)),
        };
        Ok(answer.into_iter().map(|done| done == Value::Int(1)).collect())
    }
}
