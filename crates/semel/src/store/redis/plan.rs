//! How a command is sent: by whom, and in which steps.
//!
//! A command that needs only one exchange is sent by its caller, over the open connection. The store's thread sends the
//! others: it opens connections, checks them, waits for replicas and for the caches of other processes.

use std::sync::Arc;

use super::address::{QUEUED, SharedConnection};
use super::link::NumberedConnection;
use super::{RedisStore, Shared, script};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::store::inline::Inline;
use crate::store::{BoxFuture, Error};

/// One way to send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A claim as an answer from the record, by GET.
    Replay,
    /// A claim as a first one, by SET.
    WithoutScript,
    /// A completion in a batch with concurrent ones.
    Batch,
    /// Any command, with the script of the rules.
    Script,
}

/// The steps of a command, one after the other until one gives a ruling. The last one always does.
type Steps = [Option<Step>; 3];

/// Decides how a command is sent, and sends it.
pub(super) fn apply(store: &RedisStore, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
    let shared = Arc::clone(&store.shared);
    // A claim may still get a stored answer.
    if !matches!(command, Command::Claim(_))
        && let Some(refusal) = shared.transfer.refusal(&command, &shared.name)
    {
        return Box::pin(std::future::ready(Err(refusal)));
    }
    let direct = shared.direct_connection(&command);
    let steps = shared.steps(&command, direct.as_ref());
    match (direct, steps) {
        (None, _) => store.run_on_thread(async move { shared.apply(id, command).await }),
        (Some(mut numbered), [None, None, Some(step)]) => {
            let work =
                async move { shared.send(step, &mut numbered, id, &command).await?.ok_or_else(no_ruling) };
            Box::pin(Inline::new(store.runtime.clone(), work))
        }
        (Some(numbered), steps) => Box::pin(async move {
            let command = Arc::new(command);
            for step in steps.into_iter().flatten() {
                let (shared, mut numbered, command) =
                    (Arc::clone(&shared), numbered.clone(), Arc::clone(&command));
                let work = async move { shared.send(step, &mut numbered, id, &command).await };
                // A dropped call completes the exchange that it began and sends nothing after it.
                if let Some(ruling) = Inline::new(store.runtime.clone(), work).await? {
                    return Ok(ruling);
                }
            }
            Err(no_ruling())
        }),
    }
}

fn no_ruling() -> Error {
    script::unexpected_reply("lacks a ruling")
}

impl Shared {
    /// The connection, if a command needs only one exchange over it.
    ///
    /// Callers may stop polling while they wait for a place in the connection's queue. They therefore get at most
    /// half of its places, so that the store's thread, which also sends heartbeats, always finds one. A cluster's
    /// queues are shorter.
    fn direct_connection(self: &Arc<Self>, command: &Command) -> Option<NumberedConnection> {
        // Every call holds one, a claim two.
        if Arc::strong_count(self) > QUEUED / 2 {
            return None;
        }
        let numbered = self
            .link
            .open_connection()
            .filter(|numbered| matches!(numbered.wire, SharedConnection::One(_)))?;
        let short = match command {
            Command::Claim(_) => {
                let refused = self.refusal().or_else(|| self.given.refusal(&self.name));
                self.is_introduced(&numbered) && refused.is_none()
            }
            Command::Forget(_) | Command::Reexecute => false,
            _ => true,
        };
        (short && self.replicas.are_ignored()).then_some(numbered)
    }

    /// The steps of a command over the caller's connection, or of the store's thread.
    fn steps(self: &Arc<Self>, command: &Command, direct: Option<&NumberedConnection>) -> Steps {
        match command {
            Command::Claim(_) => [
                self.guess.replay_is_likely().then_some(Step::Replay),
                (direct.is_some() && self.may_skip_script(command)).then_some(Step::WithoutScript),
                Some(Step::Script),
            ],
            _ if direct.is_some() && self.is_batched(command) => [None, None, Some(Step::Batch)],
            _ => [None, None, Some(Step::Script)],
        }
    }

    /// Sends one step; `None` if the next one must be tried.
    async fn send(
        self: &Arc<Self>,
        step: Step,
        numbered: &mut NumberedConnection,
        id: KeyId,
        command: &Command,
    ) -> Result<Option<Ruling>, Error> {
        let key = self.names.record(id);
        let ruling = match (step, command) {
            (Step::Replay, Command::Claim(claim)) => self.replay(numbered, &key, claim).await?,
            (Step::WithoutScript, _) => self.claim_without_script(numbered, &key, command).await?,
            (Step::Batch, _) => return self.complete_in_batch(numbered, id, command).await.map(Some),
            _ => return self.execute(numbered, &key, command).await.map(Some),
        };
        Ok(ruling.inspect(|ruling| self.guess.note(ruling)))
    }

    /// Sends a command from the store's thread.
    pub(super) async fn apply(self: &Arc<Self>, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let is_claim = matches!(command, Command::Claim(_));
        if is_claim {
            if let Some(refusal) = self.given.refusal(&self.name) {
                return Err(refusal);
            }
            if let Some(refusal) = self.refusal() {
                return self.apply_without_winning(id, &command, refusal).await;
            }
        }
        let mut numbered = self.link.connection().await?;
        let mut ruling = None;
        for step in self.steps(&command, None).into_iter().flatten() {
            if is_claim && step == Step::Script {
                self.introduce(&mut numbered).await?;
            }
            ruling = self.send(step, &mut numbered, id, &command).await?;
            if ruling.is_some() {
                break;
            }
        }
        let ruling = ruling.ok_or_else(no_ruling)?;
        if matches!(ruling, Ruling::Won(_) | Ruling::Accepted { .. }) {
            let key = self.names.record(id);
            self.replicas.wait_for_replicas(&self.link, &mut numbered, &key).await?;
        }
        if let (Command::Forget(_) | Command::Reexecute, Ruling::Accepted { .. }) = (&command, &ruling) {
            self.tell_caches(id).await?;
        }
        Ok(ruling)
    }
}
