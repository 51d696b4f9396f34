//! Helpers for cases: make a claim, bring a key into a phase, expect a ruling.

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use crate::fingerprint::Fingerprint;
use crate::key::{Hint, KeyId};
use crate::outcome::Outcome;
use crate::record::{Begin, Command, Grant, Mode, NewClaim, Owner, Phase, Record, Ruling, State, Terms, Win};
use crate::store::Snapshot;

/// The payload of most cases, and another one.
pub(super) const PAYLOAD: Fingerprint = Fingerprint::from_bytes([0xa5; 32]);
pub(super) const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_bytes([0x5a; 32]);

pub(super) const PHASES: [Phase; 8] = [
    Phase::Vacant,
    Phase::Bound,
    Phase::Claimed,
    Phase::Begun,
    Phase::Lapsed,
    Phase::InDoubt,
    Phase::Done,
    Phase::Expired,
];

/// A claim by a new owner; its effect has not begun.
pub(super) fn ask(terms: Terms) -> NewClaim {
    NewClaim {
        owner: Owner::random(),
        fingerprint: PAYLOAD,
        terms: terms.into(),
        begin: Begin::Later,
        hint: Hint::new("contract"),
    }
}

/// As `ask`, begun with the claim.
pub(super) fn ask_and_begin(terms: Terms) -> NewClaim {
    NewClaim { begin: Begin::WithClaim, ..ask(terms) }
}

/// As `ask`, with another payload.
pub(super) fn ask_otherwise(terms: Terms) -> NewClaim {
    NewClaim { fingerprint: OTHER_PAYLOAD, ..ask(terms) }
}

pub(super) fn outcome(text: &str) -> Arc<Outcome> {
    Arc::new(Outcome::new("text", text).with_metadata("meta"))
}

pub(super) fn complete(grant: Grant, outcome: &Arc<Outcome>) -> Command {
    Command::Complete { grant, fingerprint: PAYLOAD, outcome: Arc::clone(outcome), retention: None }
}

pub(super) fn writes(grant: Grant, outcome: &Arc<Outcome>) -> [Command; 6] {
    [
        Command::Begin(grant),
        Command::Renew(grant),
        complete(grant, outcome),
        Command::Release(grant),
        Command::Bind(grant),
        Command::Abandon(grant),
    ]
}

/// A key in a known phase.
pub(super) struct KeyInPhase {
    pub(super) id: KeyId,
    /// The claim that brought it there.
    pub(super) claim: NewClaim,
    pub(super) grant: Grant,
    /// Its outcome, if it was completed.
    pub(super) outcome: Arc<Outcome>,
}

impl Context {
    pub(super) async fn win(&self, id: KeyId, claim: &NewClaim) -> Win {
        won(self.apply(id, Command::Claim(claim.clone())).await)
    }

    pub(super) async fn ask(&self, id: KeyId, claim: &NewClaim) -> Ruling {
        self.apply(id, Command::Claim(claim.clone())).await
    }

    /// The record without expired parts; it must exist.
    pub(super) async fn record(&self, id: KeyId) -> Record {
        counted(self.get(id).await.expect("the store knows the key"))
    }

    /// Wins a new key and completes it.
    pub(super) async fn done(&self, claim: &NewClaim, outcome: &Arc<Outcome>) -> KeyInPhase {
        let id = self.key();
        let grant = self.win(id, claim).await.grant;
        accepted(self.apply(id, complete(grant, outcome)).await);
        KeyInPhase { id, claim: claim.clone(), grant, outcome: Arc::clone(outcome) }
    }

    /// Brings a new key into a phase without letting time pass. The terms do not end, the mode is `marked`.
    pub(super) async fn place(&self, phase: Phase) -> KeyInPhase {
        let terms = self.lasting(Mode::Marked);
        let id = self.key();
        let claim = match phase {
            Phase::Begun | Phase::InDoubt => ask_and_begin(terms),
            // Without grace a retention of zero ends immediately.
            Phase::Expired => ask(Terms { grace: Duration::ZERO, ..terms }),
            Phase::Vacant | Phase::Bound | Phase::Claimed | Phase::Lapsed | Phase::Done => ask(terms),
        };
        let grant = self.win(id, &claim).await.grant;
        let outcome = outcome("placed");
        let then = match phase {
            Phase::Claimed | Phase::Begun => None,
            Phase::Vacant => Some(Command::Release(grant)),
            Phase::Bound => Some(Command::Bind(grant)),
            Phase::Lapsed | Phase::InDoubt => Some(Command::Abandon(grant)),
            Phase::Done => Some(complete(grant, &outcome)),
            Phase::Expired => Some(Command::Complete {
                grant,
                fingerprint: PAYLOAD,
                outcome: Arc::clone(&outcome),
                retention: Some(Duration::ZERO),
            }),
        };
        if let Some(command) = then {
            accepted(self.apply(id, command).await);
        }
        assert_eq!(self.phase(id).await, phase, "the phase the key was brought into");
        KeyInPhase { id, claim, grant, outcome }
    }
}

/// A record without the expired outcome, which a sweep may remove at any time.
pub(super) fn counted(snapshot: Snapshot) -> Record {
    match snapshot.phase() {
        Phase::Expired => Record { state: State::Expired, ..snapshot.record },
        _ => snapshot.record,
    }
}

#[track_caller]
pub(super) fn won(ruling: Ruling) -> Win {
    match ruling {
        Ruling::Won(win) => win,
        other => panic!("the claim should be won, but the store ruled {other:?}"),
    }
}

#[track_caller]
pub(super) fn busy(ruling: Ruling) -> Duration {
    match ruling {
        Ruling::Busy { lease_left } => lease_left,
        other => panic!("the key should be busy, but the store ruled {other:?}"),
    }
}

#[track_caller]
pub(super) fn replayed(ruling: Ruling) -> (Arc<Outcome>, Duration) {
    match ruling {
        Ruling::Replay { outcome, expires_in } => (outcome, expires_in),
        other => panic!("the outcome should be replayed, but the store ruled {other:?}"),
    }
}

#[track_caller]
pub(super) fn accepted(ruling: Ruling) -> Duration {
    match ruling {
        Ruling::Accepted { lease_left } => lease_left,
        other => panic!("the write should be accepted, but the store ruled {other:?}"),
    }
}

/// The write must be refused; returns the winner that it names.
#[track_caller]
pub(super) fn lost(ruling: Ruling) -> Option<Arc<Outcome>> {
    match ruling {
        Ruling::Lost { winner } => winner,
        other => panic!("the write should be lost, but the store ruled {other:?}"),
    }
}

/// A ruling without remaining times, for comparisons while time passes.
pub(super) fn timeless(mut ruling: Ruling) -> Ruling {
    match &mut ruling {
        Ruling::Won(win) => win.lease_left = Duration::ZERO,
        Ruling::Busy { lease_left: left }
        | Ruling::Accepted { lease_left: left }
        | Ruling::Replay { expires_in: left, .. } => *left = Duration::ZERO,
        Ruling::Conflict
        | Ruling::InDoubt
        | Ruling::Expired
        | Ruling::Lost { .. }
        | Ruling::Refused { .. } => {}
    }
    ruling
}

/// Waits for an event that a healthy store causes soon; panics with its name if it does not occur.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    const SOON: Duration = Duration::from_secs(10);
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {SOON:?}"),
    }
}

/// Runs `count` futures concurrently, started together, and returns their results.
pub(super) async fn at_once<T, F>(count: usize, make: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(tokio::sync::Barrier::new(count));
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let (start, future) = (Arc::clone(&start), make(number));
            tokio::spawn(async move {
                start.wait().await;
                future.await
            })
        })
        .collect();
    let mut results = Vec::with_capacity(count);
    for task in tasks {
        results.push(task.await.expect("a racing call does not panic"));
    }
    results
}
