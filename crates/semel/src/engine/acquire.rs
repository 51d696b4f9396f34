//! The way to a claim: hot cache, waiting room, store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use super::cache::Hit;
use super::event::{Event, ReplayedFrom, Subject};
use super::flight::Joined;
use super::hold::Claim;
use super::parting::{Pauses, Tenure};
use super::wait::Waited;
use crate::fingerprint::Fingerprint;
use crate::outcome::Outcome;
use crate::record::{self, Begin, Command, Owner, Ruling, Terms};
use crate::secret::Secret;
use crate::store::{self, ErrorKind};
use crate::time::instant;

/// How often a claim whose fate is unknown is asked again.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The shortest and longest a refused caller is asked to stay away.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is asked for.
pub(super) struct Ask {
    pub(super) subject: Arc<Subject>,
    /// Whose key it is, for the cap on waiters.
    pub(super) scope: Vec<u8>,
    pub(super) fingerprint: Fingerprint,
    pub(super) terms: Arc<Terms>,
    pub(super) begin: Begin,
    pub(super) wait: Duration,
    pub(super) secret: Arc<Secret>,
    /// Who asks, where the caller said so.
    pub(super) request_id: Option<Box<str>>,
}

impl Ask {
    /// The owner of one more claim.
    fn owner(&self) -> Owner {
        self.request_id.as_deref().map_or_else(Owner::random, Owner::of_request)
    }
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

impl Acquired {
    /// Busy, and the wait is over.
    pub(super) fn in_flight(ask: &Ask, lease_left: Duration) -> Self {
        Self::InFlight { retry_after: retry_after(ask, lease_left) }
    }
}

/// How long to stay away from a key whose lease stands for so long; never past the retention (R9).
fn retry_after(ask: &Ask, lease_left: Duration) -> Duration {
    let (shortest, longest) = RETRY_AFTER;
    lease_left.clamp(shortest, longest).min(ask.terms.retention)
}

/// How a question to the store ended.
pub(super) enum Step {
    Final(Acquired),
    Busy { lease_left: Duration },
}

impl Inner {
    /// Claims the key, or finds out why not. Cancel-safe: a claim that was won while nobody listened is released.
    pub(super) async fn acquire(self: &Arc<Self>, ask: &Ask) -> Result<Acquired, store::Error> {
        let since = instant();
        let deadline = since + ask.wait;
        let acquired = loop {
            match self.cache.look(ask.subject.id, &ask.fingerprint) {
                Hit::Replay(outcome) => {
                    self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::HotCache });
                    return Ok(Acquired::Replay(outcome));
                }
                Hit::Conflict => break Acquired::Conflict,
                Hit::Miss => {}
            }
            let joined = if ask.wait.is_zero() {
                Joined::NoRoom
            } else {
                // Whoever waits already will be told, and with them this caller, without a question of its own.
                self.flights.join(ask.subject.id, &ask.scope, &ask.fingerprint, since)
            };
            let joined = match joined {
                Joined::NoRoom => match self.ask_store(ask, ReplayedFrom::Store).await? {
                    Step::Final(acquired) => break acquired,
                    Step::Busy { lease_left } if ask.wait.is_zero() => {
                        break Acquired::in_flight(ask, lease_left);
                    }
                    Step::Busy { lease_left } => {
                        self.flights.open(ask.subject.id, &ask.scope, &ask.fingerprint, since, lease_left)
                    }
                },
                joined => joined,
            };
            let Joined::Seat(seat) = joined else {
                break Acquired::TooManyWaiters { retry_after: retry_after(ask, Duration::ZERO) };
            };
            // Boxed, as everything here that only slow calls meet: it would make the future of every call larger.
            match Box::pin(self.wait(ask, seat, deadline)).await? {
                Waited::Over(acquired) => break acquired,
                Waited::Late => {}
            }
        };
        self.say(ask, &acquired);
        Ok(acquired)
    }

    /// Tells why there is neither claim nor outcome.
    pub(super) fn say(&self, ask: &Ask, acquired: &Acquired) {
        let event = match acquired {
            Acquired::Conflict => Event::Conflict,
            Acquired::InFlight { .. } => Event::InFlight,
            Acquired::InDoubt => Event::InDoubt,
            Acquired::Expired => Event::Expired,
            Acquired::TooManyWaiters { .. } => Event::TooManyWaiters,
            Acquired::Won(_) | Acquired::Replay(_) => return,
        };
        self.events.emit(&ask.subject, &event);
    }

    /// Claims once, with an owner of its own, asking again while the answer is unknown.
    pub(super) async fn ask_store(
        self: &Arc<Self>,
        ask: &Ask,
        from: ReplayedFrom,
    ) -> Result<Step, store::Error> {
        let moment = self.cache.moment(ask.subject.id);
        let (sent, ruling) = self.claim(ask, moment.at).await?;
        Ok(match ruling {
            Ruling::Won(win) => {
                let claim = Claim::new(self, ask, win, sent);
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

    /// An answer that comes later than a lease is worth nothing, so none is waited for longer than that.
    async fn claim(self: &Arc<Self>, ask: &Ask, began: Instant) -> Result<(Instant, Ruling), store::Error> {
        let claim = record::Claim {
            owner: ask.owner(),
            fingerprint: ask.fingerprint,
            terms: Arc::clone(&ask.terms),
            begin: ask.begin,
            hint: ask.subject.hint.clone(),
        };
        let give_up = began + ask.terms.lease;
        let mut pauses = Pauses::from(FIRST_PAUSE);
        let mut unheard = Unheard { inner: self, ask, since: began, claim: Some(claim) };
        for tries in 1.. {
            let Some(claim) = &unheard.claim else { unreachable!("it is taken only where this returns") };
            let sent = if tries == 1 { began } else { instant() };
            match self.apply(ask.subject.id, Command::Claim(claim.clone()), &ask.terms, give_up).await {
                // Somebody took it away between two tries of the same owner. That owner is used up.
                Ok(Ruling::Lost { .. }) if (2..TRIES).contains(&tries) => {
                    unheard.claim = Some(record::Claim { owner: ask.owner(), ..claim.clone() });
                }
                Ok(ruling) => {
                    unheard.claim = None;
                    return Ok((sent, ruling));
                }
                Err(error) => {
                    // A limit that is reached is no failure of the store, and it counts its refusals itself.
                    if !error.is_over_limit() {
                        self.events.emit(&ask.subject, &Event::StoreFailed { error: &error });
                    }
                    let unknown = error.kind() == ErrorKind::Ambiguous;
                    // Only if no earlier try can have been executed is there nothing to give back.
                    if tries == 1 && !unknown {
                        unheard.claim = None;
                    }
                    let pause = pauses.next();
                    if !unknown || tries >= TRIES || instant() + pause >= give_up {
                        return Err(error);
                    }
                    Box::pin(self.background.sleep_until(instant() + pause)).await;
                }
            }
        }
        unreachable!("the last try returns")
    }
}

/// A claim that was sent and whose answer nobody has heard. If its caller goes away now, it may stand without an
/// owner, and a claim that carries the begin-mark would end in doubt although nothing ever started. So it is
/// given back.
struct Unheard<'a> {
    inner: &'a Arc<Inner>,
    ask: &'a Ask,
    since: Instant,
    claim: Option<record::Claim>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let subject = Arc::clone(&self.ask.subject);
            self.inner
                .give_back(Tenure { subject, terms: Arc::clone(&self.ask.terms), since: self.since }, claim);
        }
    }
}
