//! What breaks around a PostgreSQL store, and what is promised then. Named as in the table of failure modes.
//!
//! `SEMEL_PROVE=1` makes loads and rounds longer: `./scripts/prove postgres-faults`.

mod contention;
mod crash;
mod lone;
mod settings;
mod standby;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, Grant, NewClaim, Owner, Ruling, Terms};
use semel::store::{PostgresStore, Store as _};
use semel_testbed::Postgres;

use super::{open, rounds};

fn key() -> KeyId {
    KeyId::from_bytes(Owner::random().as_bytes().to_owned())
}

fn claim() -> NewClaim {
    NewClaim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([7; 32]),
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-1"),
    }
}

fn complete(grant: Grant, body: &str) -> Command {
    Command::Complete {
        grant,
        fingerprint: Fingerprint::from_bytes([7; 32]),
        outcome: Arc::new(Outcome::new("text", body)),
        retention: None,
    }
}

async fn win(store: &PostgresStore, id: KeyId) -> Grant {
    match store.apply(id, Command::Claim(claim())).await {
        Ok(Ruling::Won(win)) => win.grant,
        other => panic!("expected a win, got {other:?}"),
    }
}

/// Waits for a condition with a deadline.
async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !look().await {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn server() -> Postgres {
    Postgres::start().expect("a PostgreSQL server can be started")
}
