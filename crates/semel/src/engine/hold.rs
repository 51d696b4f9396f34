//! A won claim, before and after its effect was started. What is dropped unfinished is given back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use super::background::{Beat, Held, Ticket};
use super::event::{Event, Subject};
use crate::fingerprint::Fingerprint;
use crate::outcome::Outcome;
use crate::record::{Begin, Command, Epoch, Fence, Grant, Ruling, Terms, Win};
use crate::secret::{DerivedKey, Secret};
use crate::store;
use crate::time::instant;

/// Pauses between tries of a write that did not get through.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A claim that was won and whose effect has not started. Heartbeats keep it; dropping it releases it.
#[derive(Debug)]
#[must_use = "a claim that is dropped is released: begin it"]
pub struct Claim {
    hold: Box<Hold>,
    begin: Begin,
}

/// A claim whose effect may have started. Heartbeats keep it; dropping it abandons it, which is in doubt in
/// `marked`.
#[derive(Debug)]
#[must_use = "an effect that is dropped without a word is in doubt: complete, release or abandon it"]
pub struct Running {
    hold: Box<Hold>,
}

/// Why an effect may not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotBegun {
    /// The claim no longer stands, or might not by the time the effect starts. Claim again.
    Lost,
    /// The store could not be asked. The claim was given back.
    Store(store::Error),
}

/// What became of a completion.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completed {
    /// The outcome is kept.
    Kept,
    /// Somebody else's outcome stands. Answer with this one, never with your own.
    Superseded(Arc<Outcome>),
    /// Somebody else claimed meanwhile, and its outcome is not known yet.
    Lost,
    /// The store did not take it: the effect happened, and a later caller cannot be told what came of it.
    NotStored(store::Error),
}

/// What both kinds share.
struct Hold {
    inner: Arc<Inner>,
    subject: Arc<Subject>,
    fingerprint: Fingerprint,
    terms: Terms,
    win: Win,
    secret: Arc<Secret>,
    held: Arc<Held>,
    since: Instant,
    ticket: Option<Ticket>,
    /// What to do if this is dropped; none once the record knows.
    on_drop: Option<Command>,
}

impl Claim {
    pub(super) fn new(
        inner: &Arc<Inner>,
        subject: &Arc<Subject>,
        fingerprint: Fingerprint,
        (terms, begin): (Terms, Begin),
        (win, sent): (Win, Instant),
        secret: &Arc<Secret>,
    ) -> Self {
        let held = Arc::new(Held::new(sent, win.lease_left));
        let ticket = inner.background.renew(Beat {
            store: Arc::clone(&inner.store),
            subject: Arc::clone(subject),
            events: Arc::clone(&inner.events),
            grant: win.grant,
            terms,
            held: Arc::clone(&held),
        });
        inner.in_flight.enter();
        let hold = Hold {
            inner: Arc::clone(inner),
            subject: Arc::clone(subject),
            fingerprint,
            terms,
            win,
            secret: Arc::clone(secret),
            held,
            since: sent,
            ticket: Some(ticket),
            on_drop: Some(Command::Release(win.grant)),
        };
        Self { hold: Box::new(hold), begin }
    }

    /// What the effect needs to know.
    pub fn attempt(&self) -> Attempt {
        self.hold.attempt()
    }

    /// The grant, for whoever finishes the claim in another process.
    pub fn grant(&self) -> Grant {
        self.hold.win.grant
    }

    /// Marks that the effect may start, and checks that the claim still stands long enough to start it.
    ///
    /// Where the claim carried the mark already, nothing is sent. Cancel-safe: dropped midway, the claim is
    /// released, because nothing has started.
    ///
    /// # Errors
    /// The claim was lost or could not be marked; the effect must not start.
    pub async fn begin(mut self) -> Result<Running, NotBegun> {
        if self.begin == Begin::Later {
            match self.hold.send(Command::Begin(self.hold.win.grant)).await {
                Ok(Ruling::Accepted { .. }) => {}
                Ok(_) => {
                    self.hold.on_drop = None;
                    self.hold.emit(&Event::Lost);
                    return Err(NotBegun::Lost);
                }
                Err(error) => return Err(NotBegun::Store(error)),
            }
        }
        // A tenth of the lease is room for a slow thread between this line and the effect's first one.
        if self.hold.held.left() <= self.hold.terms.lease / 10 {
            self.hold.emit(&Event::SelfFenced);
            return Err(NotBegun::Lost);
        }
        self.hold.on_drop = Some(Command::Abandon(self.hold.win.grant));
        Ok(Running { hold: self.hold })
    }

    /// Gives the claim back: nothing happened.
    pub async fn release(mut self) {
        self.hold.finish(Command::Release(self.hold.win.grant), &Event::Released).await;
    }
}

impl Running {
    /// What the effect needs to know.
    pub fn attempt(&self) -> Attempt {
        self.hold.attempt()
    }

    /// The grant, for whoever finishes the claim in another process.
    pub fn grant(&self) -> Grant {
        self.hold.win.grant
    }

    /// When the claim ends for good, heartbeats or not.
    pub(super) fn limit(&self) -> Instant {
        self.hold.since + self.hold.terms.in_flight_max
    }

    /// Keeps the outcome, for `retention` where the effect itself said how long. A write that does not get
    /// through is repeated for as long as a lease lasts.
    ///
    /// Dropped midway, the outcome may or may not be kept, and the key is not free: run it where nobody drops it.
    pub async fn complete(mut self, outcome: &Arc<Outcome>, retention: Option<Duration>) -> Completed {
        let Hold { subject, fingerprint, win, terms, since, .. } = &*self.hold;
        let (id, fingerprint, since) = (subject.id, *fingerprint, *since);
        let stands = retention.unwrap_or(terms.retention);
        let moment = self.hold.inner.cache.moment(id);
        let command =
            Command::Complete { grant: win.grant, fingerprint, outcome: Arc::clone(outcome), retention };
        let sent = self.hold.send(command).await;
        if sent.is_ok() {
            self.hold.on_drop = None;
        }
        match sent {
            Ok(Ruling::Accepted { .. }) => {
                self.hold.inner.cache.keep(moment, id, fingerprint, outcome, stands);
                self.hold.emit(&Event::Completed { took: instant().saturating_duration_since(since) });
                Completed::Kept
            }
            Ok(Ruling::Lost { winner }) => {
                self.hold.emit(&Event::Lost);
                winner.map_or(Completed::Lost, Completed::Superseded)
            }
            Ok(_) => Completed::Lost,
            Err(error) => {
                self.hold.emit(&Event::CompleteFailed { error: &error });
                Completed::NotStored(error)
            }
        }
    }

    /// The effect's word that nothing happened: the key is free again (in `keyed` it stays bound).
    pub async fn release(mut self) {
        self.hold.finish(Command::Release(self.hold.win.grant), &Event::Released).await;
    }

    /// The same, and the key stays bound to its payload.
    pub async fn bind(mut self) {
        self.hold.finish(Command::Bind(self.hold.win.grant), &Event::Bound).await;
    }

    /// Gives up without knowing whether the effect happened: in doubt in `marked`, taken over in other modes.
    pub async fn abandon(mut self) {
        self.hold.finish(Command::Abandon(self.hold.win.grant), &Event::Abandoned).await;
    }
}

impl Hold {
    fn attempt(&self) -> Attempt {
        Attempt {
            number: self.win.attempt,
            grant: self.win.grant,
            epoch: self.win.epoch,
            subject: Arc::clone(&self.subject),
            secret: Arc::clone(&self.secret),
            held: Arc::clone(&self.held),
        }
    }

    fn emit(&self, event: &Event<'_>) {
        self.inner.events.emit(&self.subject, event);
    }

    /// Sends a command until the store has answered, for as long as a lease lasts. Every command here is fenced
    /// and repeatable, so one whose fate is unknown is simply sent again.
    async fn send(&self, command: Command) -> Result<Ruling, store::Error> {
        let give_up = instant() + self.terms.lease;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.inner.store.apply(self.subject.id, command.clone()).await {
                Err(error) if error.is_retryable() && instant() + pause < give_up => {
                    self.emit(&match command {
                        Command::Complete { .. } => Event::CompleteRetried { error: &error },
                        _ => Event::StoreFailed { error: &error },
                    });
                    self.inner.background.sleep_until(instant() + pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                answered => return answered,
            }
        }
    }

    async fn finish(&mut self, command: Command, event: &Event<'_>) {
        // If this is dropped midway, the same command is sent from the background.
        self.on_drop = Some(command.clone());
        match self.send(command).await {
            Ok(Ruling::Accepted { .. }) => self.emit(event),
            Ok(_) => self.emit(&Event::Lost),
            // The lease ends it.
            Err(error) => self.emit(&Event::StoreFailed { error: &error }),
        }
        self.on_drop = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ticket = None;
        self.inner.in_flight.leave();
        if let Some(command) = self.on_drop.take() {
            self.emit(&match command {
                Command::Abandon(_) => Event::Abandoned,
                _ => Event::Released,
            });
            let (store, id) = (Arc::clone(&self.inner.store), self.subject.id);
            self.inner.background.spawn(async move {
                // One try: the lease ends it otherwise.
                let _ = store.apply(id, command).await;
            });
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("subject", &self.subject).field("win", &self.win).finish_non_exhaustive()
    }
}

/// What an effect is told about itself.
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
    /// 1 for the first run of a key; more when it failed or was taken over before.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Grows with every claim of the key: hand it to a resource that refuses lower numbers.
    pub fn fence(&self) -> Fence {
        self.grant.fence()
    }

    /// How often an operator asked for this key to be executed anew.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The key to send to `provider`: the same on every attempt of this epoch, different for every provider, and
    /// nobody can read the caller's key from it.
    pub fn derived_key(&self, provider: &str) -> DerivedKey {
        self.secret.derived_key(provider, self.subject.id, self.epoch.get())
    }

    /// How long the claim surely stands. Zero: stop before the next step that cannot be taken back.
    pub fn time_left(&self) -> Duration {
        self.held.left()
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
