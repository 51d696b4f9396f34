//! Writes that must succeed: the owner or the background thread repeats them until the store has answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Event, Subject};
use super::{EngineInner, HeldClaim};
use crate::backoff::Backoff;
use crate::key::KeyId;
use crate::record::{self, Begin, Command, Grant, Ruling, Terms};
use crate::store::{self, ErrorKind};
use crate::time::instant;

/// The first wait after a failed write.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest wait after a failed call of the store.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The data that all writes about one claim share.
#[derive(Clone)]
pub(super) struct ClaimWrites {
    pub(super) subject: Arc<Subject>,
    pub(super) terms: Arc<Terms>,
    /// When the claim was sent.
    pub(super) since: Instant,
}

/// Whether a command was sent before, without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    NotSent,
    Unanswered,
}

impl EngineInner {
    /// One request to the store. A missing answer counts as lost after a third of a lease, so that the request can be
    /// repeated while the lease is valid.
    pub(super) async fn apply(
        &self,
        id: KeyId,
        command: Command,
        terms: &Terms,
        give_up: Instant,
    ) -> Result<Ruling, store::Error> {
        let patience = terms.lease / 3;
        let limit = || give_up.min(instant() + patience);
        self.background.before(limit, self.store.apply(id, command)).await.unwrap_or_else(|| {
            let store = self.store.as_ref();
            let ms = patience.as_millis();
            Err(store::Error::new(ErrorKind::Ambiguous, format!("no answer from {store} in {ms} ms")))
        })
    }

    /// Sends a command until the store has answered, at most until `give_up`. Every command here is fenced and
    /// repeatable, so a command with an unknown result is sent again.
    pub(super) async fn send(
        &self,
        tenure: &ClaimWrites,
        command: &Command,
        give_up: Instant,
        mut before: Before,
    ) -> Result<Ruling, store::Error> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            match self.apply(tenure.subject.id, command.clone(), &tenure.terms, give_up).await {
                Err(error) if error.is_retryable() => {
                    let wait = backoff.next_wait();
                    if instant() + wait >= give_up {
                        return Err(error);
                    }
                    if error.kind() == ErrorKind::Ambiguous {
                        before = Before::Unanswered;
                    }
                    self.events.emit(
                        &tenure.subject,
                        &match command {
                            Command::Complete { .. } => Event::CompleteRetried { error: &error },
                            _ => Event::StoreFailed { error: &error },
                        },
                    );
                    Box::pin(self.background.sleep_until(instant() + wait)).await;
                }
                // The try whose reply was lost has already ended the claim.
                Ok(Ruling::Lost { .. }) if before == Before::Unanswered && gives_up(command) => {
                    return Ok(Ruling::Accepted { lease_left: Duration::ZERO });
                }
                answered => return answered,
            }
        }
    }

    /// Sends the last command of a claim and returns its result.
    pub(super) async fn part(
        &self,
        tenure: &ClaimWrites,
        command: &Command,
        give_up: Instant,
        before: Before,
    ) -> Result<Ruling, store::Error> {
        let answered = self.send(tenure, command, give_up, before).await;
        let event = match (&answered, command) {
            (Ok(Ruling::Accepted { .. }), Command::Complete { .. }) => {
                Event::Completed { took: instant().saturating_duration_since(tenure.since) }
            }
            (Ok(Ruling::Accepted { .. }), Command::Bind(_)) => Event::Bound,
            (Ok(Ruling::Accepted { .. }), Command::Abandon(_)) => Event::Abandoned,
            (Ok(Ruling::Accepted { .. }), _) => Event::Released,
            (Ok(_), _) => Event::Lost,
            (Err(error), Command::Complete { .. }) => Event::CompleteFailed { error },
            (Err(error), _) => Event::StoreFailed { error },
        };
        self.events.emit(&tenure.subject, &event);
        answered
    }

    /// Gives back a claim whose answer nobody received. The same owner claims once more. That returns its fence and
    /// leaves a stub, which refuses the first packet if it arrives later.
    pub(super) fn give_back(self: &Arc<Self>, tenure: ClaimWrites, mut claim: record::NewClaim) {
        let inner = Arc::clone(self);
        let counted = HeldClaim::new(self);
        // Without a begin mark: if this answer is lost too, the claim expires and leaves no doubt.
        claim.begin = Begin::Later;
        self.background.spawn(async move {
            let give_up = instant() + tenure.terms.in_flight_max;
            let command = Command::Claim(claim.clone());
            let answered = inner.send(&tenure, &command, give_up, Before::Unanswered).await;
            let grant = match answered {
                Ok(Ruling::Won(win)) => Some(win.grant),
                Ok(Ruling::InDoubt) => {
                    let look_up = inner.in_doubt_of(&tenure, &claim, give_up);
                    inner.background.before(|| give_up, look_up).await.flatten()
                }
                Ok(_) | Err(_) => None,
            };
            if let Some(grant) = grant {
                let _ = inner.part(&tenure, &Command::Release(grant), give_up, Before::NotSent).await;
            }
            drop(counted);
        });
    }

    /// The grant under which a key is in doubt, if it is the grant of `claim`: its lease expired before it was given
    /// back. Asked until the store answers: the effect did not run, and nobody else can know that.
    async fn in_doubt_of(
        &self,
        tenure: &ClaimWrites,
        claim: &record::NewClaim,
        give_up: Instant,
    ) -> Option<Grant> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let snapshot = loop {
            match self.store.get(tenure.subject.id).await {
                Ok(found) => break found?,
                Err(error) => {
                    self.events.emit(&tenure.subject, &Event::StoreFailed { error: &error });
                    let wait = backoff.next_wait();
                    if !error.is_retryable() || instant() + wait >= give_up {
                        return None;
                    }
                    Box::pin(self.background.sleep_until(instant() + wait)).await;
                }
            }
        };
        let record = &snapshot.record;
        (record.owner == claim.owner).then(|| Grant::from_parts(record.owner, record.fence))
    }
}

/// True if a command ends a claim without an outcome.
fn gives_up(command: &Command) -> bool {
    matches!(command, Command::Release(_) | Command::Bind(_) | Command::Abandon(_))
}
