//! A won claim, before and after its effect starts. A claim that is dropped unfinished is given back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acquire::{Acquired, Ask};
use super::background::{HeartbeatTarget, HeartbeatTicket, Held};
use super::event::{Event, ReplayedFrom, Subject};
use super::parting::{Before, ClaimWrites};
use super::{Engine, EngineInner, HeldClaim};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::record::{Begin, Command, Epoch, Fence, Grant, Ruling, Win};
use crate::secret::{DerivedKey, Secret};
use crate::store;
use crate::time::instant;

/// A won claim whose effect has not started. Heartbeats renew it. Dropping it releases it.
#[derive(Debug)]
#[must_use = "a claim that is dropped is released: begin it"]
pub struct Claim {
    hold: Box<Hold>,
    begin: Begin,
}

/// A claim whose effect may have started. Heartbeats renew it. Dropping it abandons it; in mode `marked` the key is
/// then in doubt.
#[derive(Debug)]
#[must_use = "an effect that is dropped without a result is in doubt: complete, release or abandon it"]
pub struct Running {
    hold: Box<Hold>,
}

/// Why an effect may not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotBegun {
    /// The claim is no longer valid, or could expire before the effect starts. Claim again.
    Lost,
    /// The store failed. The claim was given back.
    Store(store::Error),
}

/// The result of a completion.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completed {
    /// The outcome is stored.
    Kept,
    /// Another caller's outcome is stored. Answer with that one, never with your own.
    Superseded(Arc<Outcome>),
    /// Another caller claimed the key meanwhile, and its outcome is not known yet.
    Lost,
    /// The store did not accept the outcome within a lease. The effect happened, and later callers may never get its
    /// outcome. If the store may recover, the background thread retries for `in_flight_max`.
    NotStored(store::Error),
}

/// The result of a completion, including the claim that superseded it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Concluded {
    /// The outcome is stored: answer with it.
    Kept,
    /// As [`Completed::NotStored`]: answer with your outcome, and emit_refusal that it is not stored.
    NotStored(store::Error),
    /// Another caller's claim won. Answer with its result, which is never [`Acquired::Won`].
    Instead(Acquired),
}

/// The state that `Claim` and `Running` share.
struct Hold {
    inner: Arc<EngineInner>,
    tenure: ClaimWrites,
    fingerprint: Fingerprint,
    win: Win,
    secret: Arc<Secret>,
    held: Arc<Held>,
    ticket: Option<HeartbeatTicket>,
    /// Passed to the background thread if that has to write the result.
    counted: Option<HeldClaim>,
    /// The command to write if this is dropped; `None` once the record has the result.
    on_drop: Option<Command>,
}

impl Claim {
    /// `sent` is the time before the store was asked.
    pub(super) fn new(inner: &Arc<EngineInner>, ask: &Ask, win: Win, sent: Instant) -> Self {
        let Ask { subject, fingerprint, terms, begin, secret, .. } = ask;
        let held = Arc::new(Held::new(sent, win.lease_left));
        let ticket = inner.background.renew(HeartbeatTarget {
            store: Arc::clone(&inner.store),
            subject: Arc::clone(subject),
            events: Arc::clone(&inner.events),
            grant: win.grant,
            lease: terms.lease,
            held: Arc::clone(&held),
        });
        let hold = Hold {
            inner: Arc::clone(inner),
            tenure: ClaimWrites { subject: Arc::clone(subject), terms: Arc::clone(terms), since: sent },
            fingerprint: *fingerprint,
            win,
            secret: Arc::clone(secret),
            held,
            ticket: Some(ticket),
            counted: Some(HeldClaim::new(inner)),
            on_drop: Some(Command::Release(win.grant)),
        };
        Self { hold: Box::new(hold), begin: *begin }
    }

    /// The data that the effect may use.
    pub fn attempt(&self) -> Attempt {
        self.hold.attempt()
    }

    /// The grant, for a caller that finishes the claim in another process.
    pub fn grant(&self) -> Grant {
        self.hold.win.grant
    }

    /// Marks that the effect may start, and checks that the claim is valid long enough to start it. Call it
    /// immediately before the effect.
    ///
    /// If the claim already carried the mark, nothing is sent. Cancel-safe: if the future is dropped, the claim is
    /// released, because nothing has started.
    ///
    /// # Errors
    /// The claim was lost or could not be marked; the effect must not start.
    pub async fn begin(mut self) -> Result<Running, NotBegun> {
        let lease = self.hold.tenure.terms.lease;
        if self.begin == Begin::Later {
            let command = Command::Begin(self.hold.win.grant);
            let give_up = instant() + lease;
            match self.hold.inner.send(&self.hold.tenure, &command, give_up, Before::NotSent).await {
                Ok(Ruling::Accepted { .. }) => {}
                Ok(_) => {
                    self.hold.on_drop = None;
                    self.hold.emit(&Event::Lost);
                    return Err(NotBegun::Lost);
                }
                Err(error) => return Err(NotBegun::Store(error)),
            }
        }
        // A tenth of the lease is the margin for a slow thread between this line and the first line of the effect.
        if self.hold.held.left() <= lease / 10 {
            self.hold.emit(&Event::SelfFenced);
            // Written before the caller claims again. Otherwise it would find its own claim, in progress or in doubt.
            Box::pin(self.release()).await;
            return Err(NotBegun::Lost);
        }
        self.hold.on_drop = Some(Command::Abandon(self.hold.win.grant));
        Ok(Running { hold: self.hold })
    }

    /// Gives the claim back: nothing happened.
    pub async fn release(mut self) {
        let _ = self.hold.finish(Command::Release(self.hold.win.grant), instant()).await;
    }
}

impl Running {
    /// The data that the effect may use.
    pub fn attempt(&self) -> Attempt {
        self.hold.attempt()
    }

    /// The grant, for a caller that finishes the claim in another process.
    pub fn grant(&self) -> Grant {
        self.hold.win.grant
    }

    /// When the claim expires regardless of heartbeats. Stop an effect that still runs at this time.
    pub fn limit(&self) -> Instant {
        self.hold.tenure.since + self.hold.tenure.terms.in_flight_max
    }

    /// Stores the outcome, for `retention` if the effect chose one. Retries a failed write for the length of a lease.
    ///
    /// Cancel-safe: if the future is dropped, the background thread writes the outcome.
    pub async fn complete(mut self, outcome: &Arc<Outcome>, retention: Option<Duration>) -> Completed {
        let (id, fingerprint, grant) =
            (self.hold.tenure.subject.id, self.hold.fingerprint, self.hold.win.grant);
        let moment = self.hold.inner.cache.moment(id);
        let outcome_kept = Arc::clone(outcome);
        let command = Command::Complete { grant, fingerprint, outcome: outcome_kept, retention };
        match self.hold.finish(command, moment.at).await {
            Ok(Ruling::Accepted { .. }) => {
                let stands = retention.unwrap_or(self.hold.tenure.terms.retention);
                self.hold.inner.cache.keep(moment, id, fingerprint, outcome, stands);
                Completed::Kept
            }
            Ok(Ruling::Lost { winner: Some(winner) }) => Completed::Superseded(winner),
            Ok(_) => Completed::Lost,
            Err(error) => {
                // The background thread retries if that can help. Otherwise the waiters learn it immediately.
                self.hold.on_drop.get_or_insert(Command::Abandon(grant));
                Completed::NotStored(error)
            }
        }
    }

    /// As [`complete`](Self::complete). If another caller claimed the key meanwhile, this waits for its outcome for
    /// at most `wait`. It never claims again: the effect already ran.
    ///
    /// Cancel-safe, like `complete`.
    pub async fn complete_or_follow(
        self,
        outcome: &Arc<Outcome>,
        retention: Option<Duration>,
        wait: Duration,
    ) -> Concluded {
        let Hold { inner, tenure, fingerprint, secret, .. } = &*self.hold;
        let (inner, tenure) = (Arc::clone(inner), tenure.clone());
        let (fingerprint, secret) = (*fingerprint, Arc::clone(secret));
        match self.complete(outcome, retention).await {
            Completed::Kept => Concluded::Kept,
            Completed::NotStored(error) => Concluded::NotStored(error),
            Completed::Superseded(winner) => {
                inner.events.emit(&tenure.subject, &Event::Replayed { from: ReplayedFrom::Store });
                Concluded::Instead(Acquired::Replay(winner))
            }
            Completed::Lost => {
                let ClaimWrites { subject, terms, .. } = tenure;
                let begin = Begin::Later;
                let (scope, request_id) = (Vec::new(), None);
                let ask = Ask { subject, scope, fingerprint, terms, begin, wait, secret, request_id };
                Concluded::Instead(Box::pin(inner.follow(&ask)).await)
            }
        }
    }

    /// As [`release`](Self::release). The record refuses the release if the key was settled or another caller claimed
    /// it meanwhile. This then returns that result: the stored outcome, after at most `wait` for a claim in progress.
    /// Answer with it, never with your own. `None` if your own answer is valid.
    ///
    /// Cancel-safe, like `release`. The result is never [`Acquired::Won`].
    pub async fn release_or_follow(self, wait: Duration) -> Option<Acquired> {
        let command = Command::Release(self.hold.win.grant);
        self.give_up_or_follow(command, wait).await
    }

    /// As [`release_or_follow`](Self::release_or_follow), for [`abandon`](Self::abandon).
    pub async fn abandon_or_follow(self, wait: Duration) -> Option<Acquired> {
        let command = Command::Abandon(self.hold.win.grant);
        self.give_up_or_follow(command, wait).await
    }

    async fn give_up_or_follow(mut self, command: Command, wait: Duration) -> Option<Acquired> {
        match self.hold.finish(command, instant()).await {
            Ok(Ruling::Lost { .. }) => {}
            _ => return None,
        }
        let Hold { inner, tenure, fingerprint, secret, .. } = &*self.hold;
        let ask = Ask {
            subject: Arc::clone(&tenure.subject),
            scope: Vec::new(),
            fingerprint: *fingerprint,
            terms: Arc::clone(&tenure.terms),
            begin: Begin::Later,
            wait,
            secret: Arc::clone(secret),
            request_id: None,
        };
        Box::pin(inner.follow_holder(&ask)).await
    }

    /// The effect reports that nothing happened: the key is free again (in `keyed` it stays bound).
    pub async fn release(mut self) {
        let _ = self.hold.finish(Command::Release(self.hold.win.grant), instant()).await;
    }

    /// As [`release`](Self::release), but the key stays bound to its payload.
    pub async fn bind(mut self) {
        let _ = self.hold.finish(Command::Bind(self.hold.win.grant), instant()).await;
    }

    /// Ends the claim without knowing whether the effect happened: in doubt in `marked`, taken over in other modes.
    pub async fn abandon(mut self) {
        let _ = self.hold.finish(Command::Abandon(self.hold.win.grant), instant()).await;
    }
}

impl Hold {
    fn attempt(&self) -> Attempt {
        Attempt::new(&self.win, &self.tenure.subject, &self.secret, &self.held)
    }

    fn emit(&self, event: &Event<'_>) {
        self.inner.events.emit(&self.tenure.subject, event);
    }

    /// Writes the result of this claim. The background thread takes over if the write does not succeed within a
    /// lease.
    async fn finish(&mut self, command: Command, now: Instant) -> Result<Ruling, store::Error> {
        self.held.finish();
        if matches!(command, Command::Abandon(_)) {
            self.ticket = None;
        }
        let command = self.on_drop.insert(command);
        let give_up = now + self.tenure.terms.lease;
        let answered = self.inner.part(&self.tenure, command, give_up, Before::NotSent).await;
        if answered.as_ref().map_or_else(|error| !error.is_retryable(), |_| true) {
            self.on_drop = None;
        }
        answered
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(command) = self.on_drop.take() else { return };
        let before = if self.held.finish() { Before::Unanswered } else { Before::NotSent };
        let patience = match command {
            // The end of the lease has the same effect.
            Command::Abandon(_) => self.tenure.terms.lease,
            _ => self.tenure.terms.in_flight_max,
        };
        // Held until the result is written, so that no caller sees a doubt that does not exist.
        let ticket = self.ticket.take().filter(|_| !matches!(command, Command::Abandon(_)));
        let (inner, tenure, counted) = (Arc::clone(&self.inner), self.tenure.clone(), self.counted.take());
        self.inner.background.spawn(async move {
            let _ = inner.part(&tenure, &command, instant() + patience, before).await;
            drop((ticket, counted));
        });
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("subject", &self.tenure.subject)
            .field("win", &self.win)
            .finish_non_exhaustive()
    }
}

/// The data that an effect may use about its attempt.
#[derive(Clone)]
pub struct Attempt {
    number: u32,
    grant: Grant,
    epoch: Epoch,
    subject: Arc<Subject>,
    secret: Arc<Secret>,
    held: Arc<Held>,
}

impl Attempt {
    pub(super) fn new(win: &Win, subject: &Arc<Subject>, secret: &Arc<Secret>, held: &Arc<Held>) -> Self {
        Self {
            number: win.attempt,
            grant: win.grant,
            epoch: win.epoch,
            subject: Arc::clone(subject),
            secret: Arc::clone(secret),
            held: Arc::clone(held),
        }
    }

    /// 1 for the first run of a key. Higher if the effect was taken over, or failed and the key stayed bound.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Grows with every claim of the key. Pass it to a resource that rejects lower numbers.
    pub fn fence(&self) -> Fence {
        self.grant.fence()
    }

    /// How often an operator asked for this key to be executed again.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The key to send to `provider`. It is the same on every attempt of this epoch and different for every provider,
    /// and does not reveal the caller's key.
    pub fn derived_key(&self, provider: &str) -> DerivedKey {
        self.secret.derived_key(provider, self.subject.id, self.epoch.get())
    }

    /// How long the claim is certainly valid. At zero, stop before the next irreversible step.
    pub fn time_left(&self) -> Duration {
        self.held.left()
    }
}

impl Engine {
    /// The key to send to `provider` without a call to the store. It equals [`Attempt::derived_key`] unless an
    /// operator asked for `key` to be executed again. `None` for an invalid key, and while the deployment's secret is
    /// not known.
    #[must_use]
    pub fn derived_key(&self, key: &Key, provider: &str) -> Option<DerivedKey> {
        let secret = self.inner.secret.get()?;
        let id = key.id(secret).ok()?;
        Some(secret.derived_key(provider, id, Epoch::default().get()))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("number", &self.number)
            .field("fence", &self.grant.fence())
            .field("epoch", &self.epoch)
            .field("key", &self.subject.hint)
            .finish_non_exhaustive()
    }
}
