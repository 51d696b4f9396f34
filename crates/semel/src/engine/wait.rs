//! The bounded wait for the owner of a claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineInner;
use super::acquire::{Acquired, Ask, ClaimStep};
use super::event::{Event, ReplayedFrom};
use super::flight::{LeaderState, Seat, SeatTurn, TimeSinceAsked, WaitEnd};
use crate::mutant::{self, Mutant};
use crate::record::Phase;
use crate::store;
use crate::time::instant;

/// A dead owner notifies nobody, so waiters ask again shortly after the lease expires. The jitter spreads their
/// requests.
const LEASE_END_JITTER: Duration = Duration::from_millis(200);

/// Number of backstop intervals without a request to the store after which a leader counts as stuck.
const STUCK: u32 = 4;

/// How a wait ended.
pub(super) enum WaitResult {
    Over(Acquired),
    /// With an answer from before the caller arrived: ask the store again.
    Late,
}

impl EngineInner {
    /// Waits at most until `deadline`. Dropping the future frees the seat.
    pub(super) async fn wait(
        self: &Arc<Self>,
        ask: &Ask,
        mut seat: Seat,
        deadline: Instant,
    ) -> Result<WaitResult, store::Error> {
        let began = instant();
        let waited = tokio::select! {
            biased;
            // First, so that a caller whose wait has ended does not lead. When many waits end together, each caller
            // would ask the store.
            () = self.background.sleep_until(deadline) => Ok(WaitResult::Over(match seat.ended() {
                Some(ending) => self.ended(ask, ending),
                None => Acquired::in_flight(ask, seat.lease_left()),
            })),
            waited = self.wait_in(ask, &mut seat) => waited,
        };
        let waited_for = instant().saturating_duration_since(began);
        self.events.emit(&ask.subject, &Event::Waited { waited: waited_for });
        waited
    }

    async fn wait_in(self: &Arc<Self>, ask: &Ask, seat: &mut Seat) -> Result<WaitResult, store::Error> {
        loop {
            let silence = seat.silence();
            let turn = tokio::select! {
                biased;
                turn = seat.turn() => turn,
                () = self.leader_stuck(silence) => {
                    let asked = instant();
                    match self.ask_store(ask, ReplayedFrom::Wait).await? {
                        ClaimStep::Final(acquired) => return Ok(end(seat, asked, acquired)),
                        ClaimStep::Busy { lease_left } => seat.busy_until(asked + lease_left),
                    }
                    continue;
                }
            };
            let mut leader = match turn {
                SeatTurn::Lead(leader) => leader,
                SeatTurn::Ended(ending) => return Ok(WaitResult::Over(self.ended(ask, ending))),
                SeatTurn::Late => return Ok(WaitResult::Late),
            };
            let (asked, acquired) = self.lead(ask, seat, &mut leader).await?;
            let waited = end(seat, asked, acquired);
            // Not earlier: the next leader must see that the room has ended, or it would ask the store too.
            drop(leader);
            return Ok(waited);
        }
    }

    /// Returns for one waiter at a time when no leader has asked the store for long: the leader's thread is blocked,
    /// or its request hangs.
    async fn leader_stuck(&self, silence: TimeSinceAsked) {
        let patience = self.backstop * STUCK;
        loop {
            self.background.sleep_until(silence.since() + patience).await;
            if silence.broken_by_me(patience) {
                return;
            }
        }
    }

    /// Asks the store when the key changes, when its lease expires and at every backstop.
    async fn lead(
        self: &Arc<Self>,
        ask: &Ask,
        seat: &Seat,
        leader: &mut LeaderState,
    ) -> Result<(Instant, Acquired), store::Error> {
        let LeaderState { changes, next } = leader;
        // Subscribes before the first request, so that no change in between is missed.
        let changes = changes.get_or_insert_with(|| self.store.watch(ask.subject.id));
        if mutant::is(Mutant::NoRecheck) {
            next.get_or_insert(instant() + self.backstop);
        }
        loop {
            if let Some(next) = *next {
                tokio::select! {
                    biased;
                    () = changes.changed() => {}
                    () = self.background.sleep_until(next) => {}
                }
            }
            let asked = seat.asking();
            // Remains valid if this request is dropped or fails, and for the next leader after this caller has won.
            *next = Some(asked + self.backstop);
            match self.ask_store(ask, ReplayedFrom::Wait).await? {
                ClaimStep::Final(acquired) => return Ok((asked, acquired)),
                ClaimStep::Busy { lease_left } => {
                    seat.busy_until(asked + lease_left);
                    let lease_end = lease_left + LEASE_END_JITTER.mul_f64(rand::random());
                    *next = Some(instant() + lease_end.min(self.backstop));
                }
            }
        }
    }

    fn ended(&self, ask: &Ask, ending: WaitEnd) -> Acquired {
        match ending {
            WaitEnd::Replay(outcome) => {
                self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Wait });
                Acquired::Replay(outcome)
            }
            WaitEnd::Conflict => Acquired::Conflict,
            WaitEnd::InDoubt => Acquired::InDoubt,
            WaitEnd::Expired => Acquired::Expired,
        }
    }

    /// Waits for the outcome of the owner that took a claim over. It never claims: the effect already ran.
    pub(super) async fn follow(self: &Arc<Self>, ask: &Ask) -> Acquired {
        let followed = self.follow_while(ask, Unheld::WaitOn).await;
        followed.unwrap_or_else(|| Acquired::in_flight(ask, Duration::ZERO))
    }

    /// As `follow`, for an owner without an outcome. `None` if the key is free and has no outcome: there is nothing
    /// to wait for.
    pub(super) async fn follow_holder(self: &Arc<Self>, ask: &Ask) -> Option<Acquired> {
        self.follow_while(ask, Unheld::Stop).await
    }

    async fn follow_while(self: &Arc<Self>, ask: &Ask, unheld: Unheld) -> Option<Acquired> {
        let deadline = instant() + ask.wait;
        let mut changes = self.store.watch(ask.subject.id);
        let acquired = loop {
            let limit = deadline.max(instant() + ask.terms.lease / 3);
            // Asks a failing store again: after an effect ran, nothing else can be done.
            let found = self.background.before(|| limit, self.store.get(ask.subject.id)).await;
            let mut lease_left = Duration::ZERO;
            if unheld == Unheld::Stop
                && let Some(Ok(found)) = &found
                && found.as_ref().is_none_or(|snapshot| {
                    matches!(snapshot.phase(), Phase::Vacant | Phase::Bound | Phase::Lapsed)
                })
            {
                return None;
            }
            if let Some(Ok(Some(snapshot))) = found {
                match (snapshot.phase(), snapshot.record.outcome(snapshot.now)) {
                    (Phase::Expired, _) => break Acquired::Expired,
                    (Phase::Vacant, _) => {}
                    _ if snapshot.record.fingerprint != ask.fingerprint => break Acquired::Conflict,
                    (_, Some(outcome)) => break Acquired::Replay(Arc::clone(outcome)),
                    (Phase::InDoubt, _) => break Acquired::InDoubt,
                    _ => lease_left = snapshot.record.lease_until.left(snapshot.now),
                }
            }
            if instant() >= deadline {
                break Acquired::in_flight(ask, lease_left);
            }
            tokio::select! {
                biased;
                () = changes.changed() => {}
                () = self.background.sleep_until(deadline.min(instant() + self.backstop)) => {}
            }
        };
        if matches!(acquired, Acquired::Replay(_)) {
            self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Wait });
        }
        self.emit_refusal(ask, &acquired);
        Some(acquired)
    }
}

/// What following does when the key is free and has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unheld {
    WaitOn,
    Stop,
}

/// Gives all callers in the room what one of them found out.
fn end(seat: &Seat, asked: Instant, acquired: Acquired) -> WaitResult {
    let ending = match &acquired {
        Acquired::Replay(outcome) => Some(WaitEnd::Replay(Arc::clone(outcome))),
        Acquired::Conflict => Some(WaitEnd::Conflict),
        Acquired::InDoubt => Some(WaitEnd::InDoubt),
        Acquired::Expired => Some(WaitEnd::Expired),
        Acquired::Won(_) | Acquired::InFlight { .. } | Acquired::TooManyWaiters { .. } => None,
    };
    if let Some(ending) = ending {
        seat.end(asked, ending);
    }
    WaitResult::Over(acquired)
}
