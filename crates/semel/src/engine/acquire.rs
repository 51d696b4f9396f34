//! How a call gets a claim: it asks the hot cache, then joins waiting callers, then asks the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineInner;
use super::cache::Hit;
use super::event::{Event, ReplayedFrom, Subject};
use super::flight::JoinResult;
use super::hold::Claim;
use super::parting::{ClaimWrites, LONGEST_WAIT};
use super::wait::WaitResult;
use crate::backoff::Backoff;
use crate::fingerprint::Fingerprint;
use crate::mutant::{self, Mutant};
use crate::outcome::Outcome;
use crate::record::{self, Begin, Command, Owner, Ruling, Terms};
use crate::secret::Secret;
use crate::store::{self, ErrorKind};
use crate::time::instant;

/// How often a claim is retried while its result is unknown.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(5);
/// The shortest and the longest `retry_after`.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The claim that a caller asks for.
pub(super) struct Ask {
    pub(super) subject: Arc<Subject>,
    /// The scope of the key, for the limit on waiters.
    pub(super) scope: Vec<u8>,
    pub(super) fingerprint: Fingerprint,
    pub(super) terms: Arc<Terms>,
    pub(super) begin: Begin,
    pub(super) wait: Duration,
    pub(super) secret: Arc<Secret>,
    /// The caller's request id, if it gave one.
    pub(super) request_id: Option<Box<str>>,
}

impl Ask {
    /// A new owner, for one more claim.
    fn owner(&self) -> Owner {
        if mutant::is(Mutant::OwnerTokenOff) {
            return Owner::from_bytes([0; 16]);
        }
        self.request_id.as_deref().map_or_else(Owner::random, Owner::of_request)
    }
}

/// The engine's answer to a claim.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "what was acquired decides whether the effect may run"]
pub enum Acquired {
    /// Run the effect.
    Won(Claim),
    /// The effect already happened.
    Replay(Arc<Outcome>),
    /// The key was used with another payload.
    Conflict,
    /// Another caller holds the key, and `wait` has passed.
    InFlight {
        /// When to retry.
        retry_after: Duration,
    },
    /// Nobody knows whether the effect happened.
    InDoubt,
    /// The outcome has expired.
    Expired,
    /// The limit on waiting callers is reached.
    TooManyWaiters {
        /// When to retry.
        retry_after: Duration,
    },
}

impl Acquired {
    /// The answer when the key is still claimed and `wait` has passed.
    pub(super) fn in_flight(ask: &Ask, lease_left: Duration) -> Self {
        Self::InFlight { retry_after: retry_after(ask, lease_left) }
    }
}

/// The `retry_after` for a key whose lease is valid for `lease_left`; never beyond the retention.
fn retry_after(ask: &Ask, lease_left: Duration) -> Duration {
    let (shortest, longest) = RETRY_AFTER;
    lease_left.clamp(shortest, longest).min(ask.terms.retention)
}

/// How a call to the store ended.
pub(super) enum ClaimStep {
    Final(Acquired),
    Busy { lease_left: Duration },
}

impl EngineInner {
    /// Claims the key, or finds out why it cannot. Cancel-safe: a claim that is won after its caller was dropped is
    /// released.
    pub(super) async fn acquire(self: &Arc<Self>, ask: &Ask) -> Result<Acquired, store::Error> {
        let since = instant();
        let deadline = since + ask.wait;
        let acquired = loop {
            match self.cache.look(ask.subject.id, &ask.fingerprint) {
                Hit::Replay { outcome, .. } => {
                    self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::HotCache });
                    return Ok(Acquired::Replay(outcome));
                }
                Hit::Conflict => break Acquired::Conflict,
                Hit::Miss => {}
            }
            let joined = if ask.wait.is_zero() {
                JoinResult::NoRoom
            } else {
                // If callers already wait for this key, their leader's answer serves this caller too. It need not ask
                // the store itself.
                self.flights.join(ask.subject.id, &ask.scope, &ask.fingerprint, since)
            };
            let joined = match joined {
                JoinResult::NoRoom => match self.ask_store(ask, ReplayedFrom::Store).await? {
                    ClaimStep::Final(acquired) => break acquired,
                    ClaimStep::Busy { lease_left } if ask.wait.is_zero() => {
                        break Acquired::in_flight(ask, lease_left);
                    }
                    ClaimStep::Busy { lease_left } => {
                        self.flights.open(ask.subject.id, &ask.scope, &ask.fingerprint, since, lease_left)
                    }
                },
                joined => joined,
            };
            let JoinResult::Seat(seat) = joined else {
                break Acquired::TooManyWaiters { retry_after: retry_after(ask, Duration::ZERO) };
            };
            // Boxed, like everything here that only slow calls reach: inline, it would enlarge the future of every
            // call.
            match Box::pin(self.wait(ask, seat, deadline)).await? {
                WaitResult::Over(acquired) => break acquired,
                WaitResult::Late => {}
            }
        };
        self.emit_refusal(ask, &acquired);
        Ok(acquired)
    }

    /// Emits the signal that says why there is neither a claim nor an outcome.
    pub(super) fn emit_refusal(&self, ask: &Ask, acquired: &Acquired) {
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

    /// Claims once, with a new owner. Retries while the result is unknown.
    pub(super) async fn ask_store(
        self: &Arc<Self>,
        ask: &Ask,
        from: ReplayedFrom,
    ) -> Result<ClaimStep, store::Error> {
        let moment = self.cache.moment(ask.subject.id);
        let (sent, ruling) = self.claim(ask, moment.at).await?;
        Ok(match ruling {
            Ruling::Won(win) => {
                let claim = Claim::new(self, ask, win, sent);
                self.events.emit(&ask.subject, &Event::Won { attempt: win.attempt });
                ClaimStep::Final(Acquired::Won(claim))
            }
            Ruling::Replay { outcome, expires_in } => {
                self.cache.keep(moment, ask.subject.id, ask.fingerprint, &outcome, expires_in);
                self.events.emit(&ask.subject, &Event::Replayed { from });
                ClaimStep::Final(Acquired::Replay(outcome))
            }
            Ruling::Busy { lease_left } => ClaimStep::Busy { lease_left },
            Ruling::Conflict => ClaimStep::Final(Acquired::Conflict),
            Ruling::InDoubt => ClaimStep::Final(Acquired::InDoubt),
            Ruling::Expired => ClaimStep::Final(Acquired::Expired),
            Ruling::Lost { .. } | Ruling::Accepted { .. } | Ruling::Refused { .. } => {
                // A new owner cannot be lost. A store that says so breaks its contract.
                return Err(store::Error::new(
                    ErrorKind::Corrupt,
                    format!("the store {} gave a ruling that no claim can get", self.store),
                ));
            }
        })
    }

    /// An answer that takes longer than a lease is useless, so the engine waits no longer than that.
    async fn claim(self: &Arc<Self>, ask: &Ask, began: Instant) -> Result<(Instant, Ruling), store::Error> {
        let claim = record::NewClaim {
            owner: ask.owner(),
            fingerprint: ask.fingerprint,
            terms: Arc::clone(&ask.terms),
            begin: ask.begin,
            hint: ask.subject.hint.clone(),
        };
        let give_up = began + ask.terms.lease;
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut unheard = Unheard { inner: self, ask, since: began, claim: Some(claim) };
        for tries in 1.. {
            let Some(claim) = &unheard.claim else { unreachable!("it is taken only where this returns") };
            let sent = if tries == 1 { began } else { instant() };
            match self.apply(ask.subject.id, Command::Claim(claim.clone()), &ask.terms, give_up).await {
                // Another process removed the claim between two tries of this owner. The owner cannot be used again.
                Ok(Ruling::Lost { .. }) if (2..TRIES).contains(&tries) => {
                    unheard.claim = Some(record::NewClaim { owner: ask.owner(), ..claim.clone() });
                }
                Ok(ruling) => {
                    unheard.claim = None;
                    return Ok((sent, ruling));
                }
                Err(error) => {
                    // A reached limit is not a store failure. The store counts its own refusals.
                    if !error.is_over_limit() {
                        self.events.emit(&ask.subject, &Event::StoreFailed { error: &error });
                    }
                    let unknown = error.kind() == ErrorKind::Ambiguous;
                    // There is nothing to give back only if no earlier try can have been executed.
                    if tries == 1 && !unknown {
                        unheard.claim = None;
                    }
                    let wait = backoff.next_wait();
                    if !unknown || tries >= TRIES || instant() + wait >= give_up {
                        return Err(error);
                    }
                    Box::pin(self.background.sleep_until(instant() + wait)).await;
                }
            }
        }
        unreachable!("the last try returns")
    }
}

/// A claim that was sent and has no answer yet. If the caller is dropped now, the claim may exist without an owner.
/// With a begin mark it would then end in doubt although nothing started. Dropping this value therefore gives the
/// claim back.
struct Unheard<'a> {
    inner: &'a Arc<EngineInner>,
    ask: &'a Ask,
    since: Instant,
    claim: Option<record::NewClaim>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let subject = Arc::clone(&self.ask.subject);
            self.inner.give_back(
                ClaimWrites { subject, terms: Arc::clone(&self.ask.terms), since: self.since },
                claim,
            );
        }
    }
}
