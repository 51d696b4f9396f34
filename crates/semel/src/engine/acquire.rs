//! The way to a claim: hot cache, store, and a bounded wait for whoever holds it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use super::cache::Hit;
use super::event::{Event, ReplayedFrom, Subject};
use super::flight::{Ending, Seat, Turn};
use super::hold::Claim;
use crate::fingerprint::Fingerprint;
use crate::outcome::Outcome;
use crate::record::{self, Begin, Command, Owner, Phase, Ruling, Terms};
use crate::secret::Secret;
use crate::store::{self, ErrorKind};
use crate::time::instant;

/// How often a claim whose fate is unknown is asked again.
const TRIES: u32 = 5;
/// Dead owners push nothing, so waiters come back when the lease ends: a little later, and not all at once.
const LEASE_END_JITTER: Duration = Duration::from_millis(200);
/// The longest and shortest a refused caller is asked to stay away.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is asked for.
pub(super) struct Ask {
    pub(super) subject: Arc<Subject>,
    pub(super) fingerprint: Fingerprint,
    pub(super) terms: Arc<Terms>,
    pub(super) begin: Begin,
    pub(super) wait: Duration,
    pub(super) secret: Arc<Secret>,
}

/// What the engine answers to a claim.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "what was acquired decides whether the effect may run"]
pub enum Acquired {
    /// Run the effect.
    Won(Claim),
    /// It happened already.
    Replay(Arc<Outcome>),
    /// The key belongs to another payload.
    Conflict,
    /// Somebody else holds the key, and the wait is over.
    InFlight {
        /// When to come back.
        retry_after: Duration,
    },
    /// Nobody knows whether the effect happened.
    InDoubt,
    /// The outcome is no longer kept.
    Expired,
    /// Too many callers wait already.
    TooManyWaiters {
        /// When to come back.
        retry_after: Duration,
    },
}

/// How a question to the store ended.
enum Step {
    Final(Acquired),
    Busy { lease_left: Duration },
}

impl Inner {
    /// Claims the key, or finds out why not. Cancel-safe: a claim that was won while nobody listened is released.
    pub(super) async fn acquire(self: &Arc<Self>, ask: &Ask) -> Result<Acquired, store::Error> {
        let acquired = match self.cache.look(ask.subject.id, &ask.fingerprint) {
            Hit::Replay(outcome) => {
                self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::HotCache });
                return Ok(Acquired::Replay(outcome));
            }
            Hit::Conflict => Acquired::Conflict,
            Hit::Miss => match self.ask_store(ask, ReplayedFrom::Store).await? {
                Step::Final(acquired) => acquired,
                Step::Busy { lease_left } if ask.wait.is_zero() => in_flight(lease_left),
                Step::Busy { lease_left } => self.wait(ask, lease_left).await?,
            },
        };
        let event = match &acquired {
            Acquired::Conflict => Some(Event::Conflict),
            Acquired::InFlight { .. } => Some(Event::InFlight),
            Acquired::InDoubt => Some(Event::InDoubt),
            Acquired::Expired => Some(Event::Expired),
            Acquired::TooManyWaiters { .. } => Some(Event::TooManyWaiters),
            Acquired::Won(_) | Acquired::Replay(_) => None,
        };
        if let Some(event) = event {
            self.events.emit(&ask.subject, &event);
        }
        Ok(acquired)
    }

    /// Claims once, with an owner of its own, asking again while the answer is unknown.
    async fn ask_store(self: &Arc<Self>, ask: &Ask, from: ReplayedFrom) -> Result<Step, store::Error> {
        let moment = self.cache.moment(ask.subject.id);
        let (sent, ruling) = self.claim(ask).await?;
        Ok(match ruling {
            Ruling::Won(win) => {
                let terms = (*ask.terms, ask.begin);
                let claim = Claim::new(self, &ask.subject, ask.fingerprint, terms, (win, sent), &ask.secret);
                self.events.emit(&ask.subject, &Event::Won { attempt: win.attempt });
                Step::Final(Acquired::Won(claim))
            }
            Ruling::Replay { outcome, expires_in } => {
                self.cache.keep(moment, ask.subject.id, ask.fingerprint, &outcome, expires_in);
                self.events.emit(&ask.subject, &Event::Replayed { from });
                Step::Final(Acquired::Replay(outcome))
            }
            Ruling::Busy { lease_left } => Step::Busy { lease_left },
            Ruling::Conflict => Step::Final(Acquired::Conflict),
            Ruling::InDoubt => Step::Final(Acquired::InDoubt),
            Ruling::Expired => Step::Final(Acquired::Expired),
            Ruling::Lost { .. } | Ruling::Accepted { .. } | Ruling::Refused { .. } => {
                // A fresh owner is never lost; a store that says so does not keep the contract.
                return Err(store::Error::new(
                    ErrorKind::Corrupt,
                    format!("the store {} gave a ruling that no claim can get", self.store),
                ));
            }
        })
    }

    async fn claim(self: &Arc<Self>, ask: &Ask) -> Result<(Instant, Ruling), store::Error> {
        let claim = record::Claim {
            owner: Owner::random(),
            fingerprint: ask.fingerprint,
            terms: Arc::clone(&ask.terms),
            begin: ask.begin,
            hint: ask.subject.hint.clone(),
        };
        let mut unheard = Unheard { inner: self, ask, claim: Some(claim.clone()) };
        let mut pause = Duration::from_millis(5);
        for tries in 1.. {
            let sent = instant();
            match self.store.apply(ask.subject.id, Command::Claim(claim.clone())).await {
                Ok(ruling) => {
                    unheard.claim = None;
                    return Ok((sent, ruling));
                }
                Err(error) if error.kind() == ErrorKind::Ambiguous => {
                    self.events.emit(&ask.subject, &Event::StoreFailed { error: &error });
                    if tries >= TRIES {
                        return Err(error);
                    }
                }
                Err(error) => {
                    self.events.emit(&ask.subject, &Event::StoreFailed { error: &error });
                    // Only if no earlier try can have been executed is there nothing to give back.
                    if tries == 1 {
                        unheard.claim = None;
                    }
                    return Err(error);
                }
            }
            self.background.sleep_until(instant() + pause).await;
            pause *= 2;
        }
        unreachable!("the last try returns")
    }

    async fn wait(self: &Arc<Self>, ask: &Ask, lease_left: Duration) -> Result<Acquired, store::Error> {
        let began = instant();
        let deadline = began + ask.wait;
        let Some(mut seat) = self.flights.join(ask.subject.id, &ask.fingerprint) else {
            return Ok(Acquired::TooManyWaiters { retry_after: retry_after(lease_left) });
        };
        let acquired = tokio::select! {
            biased;
            acquired = self.wait_in(ask, &mut seat) => acquired?,
            () = self.background.sleep_until(deadline) => in_flight(lease_left),
        };
        let waited = instant().saturating_duration_since(began);
        self.events.emit(&ask.subject, &Event::Waited { waited });
        Ok(acquired)
    }

    async fn wait_in(self: &Arc<Self>, ask: &Ask, seat: &mut Seat) -> Result<Acquired, store::Error> {
        let lead = match seat.turn().await {
            Turn::Lead(lead) => lead,
            Turn::Ended(ending) => {
                if matches!(ending, Ending::Replay(_)) {
                    self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Wait });
                }
                return Ok(ending.into());
            }
        };
        let acquired = self.lead(ask).await?;
        let ending = match &acquired {
            Acquired::Replay(outcome) => Some(Ending::Replay(Arc::clone(outcome))),
            Acquired::Conflict => Some(Ending::Conflict),
            Acquired::InDoubt => Some(Ending::InDoubt),
            Acquired::Expired => Some(Ending::Expired),
            Acquired::Won(_) | Acquired::InFlight { .. } | Acquired::TooManyWaiters { .. } => None,
        };
        if let Some(ending) = ending {
            seat.end(ending);
        }
        drop(lead);
        Ok(acquired)
    }

    /// Asks the store whenever the key changes, its lease ends, or the backstop says so.
    async fn lead(self: &Arc<Self>, ask: &Ask) -> Result<Acquired, store::Error> {
        // Subscribed before the next question, so that nothing in between is missed.
        let mut changes = self.store.watch(ask.subject.id);
        loop {
            let lease_left = match self.ask_store(ask, ReplayedFrom::Wait).await? {
                Step::Final(acquired) => return Ok(acquired),
                Step::Busy { lease_left } => lease_left,
            };
            let lease_end = lease_left + LEASE_END_JITTER.mul_f64(rand::random());
            let latest = instant() + lease_end.min(self.backstop);
            tokio::select! {
                biased;
                () = changes.changed() => {}
                () = self.background.sleep_until(latest) => {}
            }
        }
    }

    /// Waits for the outcome of whoever took a claim over, and never claims itself: the effect ran already.
    pub(super) async fn follow(self: &Arc<Self>, ask: &Ask) -> Result<Acquired, store::Error> {
        let deadline = instant() + ask.wait;
        let mut changes = self.store.watch(ask.subject.id);
        loop {
            let lease_left = match self.store.get(ask.subject.id).await? {
                Some(snapshot) if snapshot.record.fingerprint != ask.fingerprint => {
                    return Ok(Acquired::Conflict);
                }
                Some(snapshot) => match (snapshot.phase(), snapshot.record.outcome(snapshot.now)) {
                    (_, Some(outcome)) => return Ok(Acquired::Replay(Arc::clone(outcome))),
                    (Phase::InDoubt, _) => return Ok(Acquired::InDoubt),
                    (Phase::Expired, _) => return Ok(Acquired::Expired),
                    _ => snapshot.record.lease_until.left(snapshot.now),
                },
                None => Duration::ZERO,
            };
            if instant() >= deadline {
                return Ok(in_flight(lease_left));
            }
            tokio::select! {
                biased;
                () = changes.changed() => {}
                () = self.background.sleep_until(deadline.min(instant() + self.backstop)) => {}
            }
        }
    }
}

impl From<Ending> for Acquired {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Replay(outcome) => Self::Replay(outcome),
            Ending::Conflict => Self::Conflict,
            Ending::InDoubt => Self::InDoubt,
            Ending::Expired => Self::Expired,
        }
    }
}

fn in_flight(lease_left: Duration) -> Acquired {
    Acquired::InFlight { retry_after: retry_after(lease_left) }
}

fn retry_after(lease_left: Duration) -> Duration {
    let (shortest, longest) = RETRY_AFTER;
    lease_left.clamp(shortest, longest)
}

/// A claim that was sent and whose answer nobody has heard. If its caller goes away now, it may stand without an
/// owner, and a claim that carries the begin-mark would end in doubt although nothing ever started. So it is
/// given back: asked for once more by the same owner, which tells its fence, and released.
struct Unheard<'a> {
    inner: &'a Arc<Inner>,
    ask: &'a Ask,
    claim: Option<record::Claim>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        let (inner, id, lease) = (Arc::clone(self.inner), self.ask.subject.id, self.ask.terms.lease);
        self.inner.background.spawn(async move {
            let give_up = instant() + lease;
            let mut pause = Duration::from_millis(10);
            while instant() < give_up {
                match inner.store.apply(id, Command::Claim(claim.clone())).await {
                    Ok(Ruling::Won(win)) => {
                        // If this one gets lost, the lease ends the claim.
                        let _ = inner.store.apply(id, Command::Release(win.grant)).await;
                        return;
                    }
                    Ok(_) => return,
                    Err(_) => {
                        inner.background.sleep_until(instant() + pause).await;
                        pause *= 2;
                    }
                }
            }
        });
    }
}
