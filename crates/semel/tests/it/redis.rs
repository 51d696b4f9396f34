//! The Redis store against the contract, and against what breaks; each case on servers of its own.

mod cluster;
mod failover;
mod fake;
mod faults;
mod many;
mod pressure;
mod secret;
mod setup;

use std::sync::Arc;
use std::time::Duration;

use semel::key::KeyId;
use semel::record::{Command, Grant, NewClaim, Owner, Ruling, Terms};
use semel::store::{Error, RedisStore, Scan, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules};
use semel_testbed::Redis;

use crate::by_hand::*;

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

async fn ask(store: &RedisStore, id: KeyId, claim: &NewClaim) -> Result<Ruling, Error> {
    store.apply(id, Command::Claim(claim.clone())).await
}

async fn win(store: &RedisStore, id: KeyId) -> Grant {
    won(ask(store, id, &claim()).await)
}

/// Calls again and again until it is as wanted.
async fn eventually<T>(what: &str, mut call: impl AsyncFnMut() -> Option<T>) -> T {
    let timeout = Duration::from_secs(30);
    let found = tokio::time::timeout(timeout, async {
        loop {
            if let Some(found) = call().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("{what}: not within {timeout:?}"))
}
