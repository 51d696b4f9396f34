//! Commands as a test gives them by hand, and what it expects of their rulings.

use std::sync::Arc;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, Grant, NewClaim, Owner, Ruling, Terms};
use semel::store::Error;

pub(crate) const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);

pub(crate) fn key() -> KeyId {
    KeyId::from_bytes(*Owner::random().as_bytes())
}

pub(crate) fn claim() -> NewClaim {
    NewClaim {
        owner: Owner::random(),
        fingerprint: PAYLOAD,
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-1"),
    }
}

pub(crate) fn complete(grant: Grant, body: &str) -> Command {
    let outcome = Arc::new(Outcome::new("text", body));
    Command::Complete { grant, fingerprint: PAYLOAD, outcome, retention: None }
}

#[track_caller]
pub(crate) fn won(ruling: Result<Ruling, Error>) -> Grant {
    match ruling {
        Ok(Ruling::Won(win)) => win.grant,
        other => panic!("expected a win, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn accepted(ruling: Result<Ruling, Error>) {
    match ruling {
        Ok(Ruling::Accepted { .. }) => {}
        other => panic!("expected it to be accepted, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn busy(ruling: Result<Ruling, Error>) {
    match ruling {
        Ok(Ruling::Busy { .. }) => {}
        other => panic!("expected it to be busy, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn replayed(ruling: Result<Ruling, Error>) -> Arc<Outcome> {
    match ruling {
        Ok(Ruling::Replay { outcome, .. }) => outcome,
        other => panic!("expected a replay, got {other:?}"),
    }
}
