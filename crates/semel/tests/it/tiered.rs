//! The tiered store against the contract, and against what breaks; each case on servers of its own.

mod alone;
mod deciding;
mod killed;
mod logs;
mod many;
mod outage;
mod setup;
mod stale;

use std::sync::Arc;
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::outcome::Outcome;
use semel::record::{Command, Grant, NewClaim, Ruling, Terms};
use semel::store::{Coordination, Error, PostgresStore, RedisStore, Store, TieredBuilder, TieredStore};
use semel::testkit::contract::{self, Context, agrees_with_the_rules};
use semel_testbed::{Postgres, Redis};

use crate::by_hand::*;

/// The two servers of a deployment.
struct Servers {
    postgres: Postgres,
    redis: Redis,
}

impl Servers {
    fn start() -> Arc<Self> {
        let postgres = Postgres::start().expect("a PostgreSQL server can be started");
        Arc::new(Self { postgres, redis: Redis::start().expect("redis-server starts") })
    }

    /// As patient with Redis as a busy machine needs it: what is tested is not its speed.
    fn builder(&self) -> TieredBuilder {
        self.builder_at(&self.redis.url())
    }

    fn builder_at(&self, redis: &str) -> TieredBuilder {
        let postgres = PostgresStore::builder(self.postgres.url()).timeout(Duration::from_secs(20));
        TieredStore::builder(postgres, RedisStore::builder(redis)).redis_timeout(Duration::from_secs(5))
    }

    async fn open(&self) -> Arc<TieredStore> {
        open(self.builder()).await
    }

    /// A store that takes copies already.
    async fn ready(&self) -> Arc<TieredStore> {
        let store = self.open().await;
        uses_copies(&store).await;
        store
    }

    /// The keys in Redis that hold something of the store.
    fn entries(&self) -> Vec<String> {
        let keys = self.redis.tell(&["KEYS", "semel:copies:*"]).expect("a healthy server").text();
        keys.split_whitespace().filter(|key| key.ends_with('}')).map(str::to_owned).collect()
    }
}

async fn open(builder: TieredBuilder) -> Arc<TieredStore> {
    Arc::new(builder.open().await.unwrap_or_else(|error| panic!("{error}")))
}

/// Waits until the store replays copies: Redis is there, and word of forgets would arrive.
async fn uses_copies(store: &TieredStore) {
    let id = key();
    let grant = win(store, id).await;
    accepted(store.apply(id, complete(grant, "try")).await);
    eventually("a copy is used", async || {
        let before = store.stats().replayed_copies;
        replayed(ask(store, id, &claim()).await);
        (store.stats().replayed_copies > before).then_some(())
    })
    .await;
}

/// Waits until the store has noticed that Redis is there, or is not.
async fn notices(store: &TieredStore, coordination: Coordination) {
    eventually("the breaker", async || (store.stats().coordination == coordination).then_some(())).await;
}

async fn fresh() -> Context {
    let servers = Servers::start();
    let (store, peer) = (servers.ready().await, servers.ready().await);
    Context::new(store).peer(peer).reopen(move || {
        let servers = Arc::clone(&servers);
        async move { servers.open().await as Arc<dyn Store> }
    })
}

semel::contract_tests!(fresh);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 3_000..3_004 {
        agrees_with_the_rules(&context, seed, 150).await;
    }
}

async fn ask(store: &dyn Store, id: KeyId, claim: &NewClaim) -> Result<Ruling, Error> {
    store.apply(id, Command::Claim(claim.clone())).await
}

async fn win(store: &dyn Store, id: KeyId) -> Grant {
    won(ask(store, id, &claim()).await)
}

fn text(body: &str) -> Arc<Outcome> {
    Arc::new(Outcome::new("text", body))
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
