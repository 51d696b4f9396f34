//! The Redis store against the contract, and against what breaks; each case on servers of its own.

mod cluster;
mod failover;
mod fake;
mod faults;
mod many;
mod pressure;
mod setup;

use std::sync::Arc;
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Claim, Command, Grant, Owner, Ruling, Terms};
use semel::store::{Error, RedisStore, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules};
use semel_testbed::Redis;

const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);

async fn connect(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(url).await.unwrap_or_else(|error| panic!("{error}")))
}

/// A server with the harness's usual settings.
fn server() -> Arc<Redis> {
    Arc::new(Redis::start().expect("redis-server starts"))
}

async fn fresh() -> Context {
    let server = server();
    let store: Arc<dyn Store> = connect(&server.url()).await;
    let peer: Arc<dyn Store> = connect(&server.url()).await;
    Context::new(store).peer(peer).reopen(move || {
        let server = Arc::clone(&server);
        async move { connect(&server.url()).await as Arc<dyn Store> }
    })
}

semel::contract_tests!(fresh);

#[tokio::test]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 3_000..3_010 {
        agrees_with_the_rules(&context, seed, 400).await;
    }
}

/// How much a test does: `short` in the normal run, `full` where `SEMEL_PROVE` is set.
fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { full } else { short }
}

fn key() -> KeyId {
    KeyId::from_bytes(*Owner::random().as_bytes())
}

fn claim() -> Claim {
    Claim {
        owner: Owner::random(),
        fingerprint: PAYLOAD,
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-1"),
    }
}

fn complete(grant: Grant, body: &str) -> Command {
    let outcome = Arc::new(Outcome::new("text", body));
    Command::Complete { grant, fingerprint: PAYLOAD, outcome, retention: None }
}

async fn ask(store: &RedisStore, id: KeyId, claim: &Claim) -> Result<Ruling, Error> {
    store.apply(id, Command::Claim(claim.clone())).await
}

async fn win(store: &RedisStore, id: KeyId) -> Grant {
    won(ask(store, id, &claim()).await)
}

#[track_caller]
fn won(ruling: Result<Ruling, Error>) -> Grant {
    match ruling {
        Ok(Ruling::Won(win)) => win.grant,
        other => panic!("expected a win, got {other:?}"),
    }
}

#[track_caller]
fn accepted(ruling: Result<Ruling, Error>) {
    match ruling {
        Ok(Ruling::Accepted { .. }) => {}
        other => panic!("expected it to be accepted, got {other:?}"),
    }
}

#[track_caller]
fn replayed(ruling: Result<Ruling, Error>) -> Arc<Outcome> {
    match ruling {
        Ok(Ruling::Replay { outcome, .. }) => outcome,
        other => panic!("expected a replay, got {other:?}"),
    }
}

/// Calls again and again until it is as wanted.
async fn eventually<T>(what: &str, mut call: impl AsyncFnMut() -> Option<T>) -> T {
    let patience = Duration::from_secs(30);
    let found = tokio::time::timeout(patience, async {
        loop {
            if let Some(found) = call().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("{what}: not within {patience:?}"))
}
