//! Compares the script with the rules at every edge of time: the contract and long random sequences on a clock that
//! the test moves, to the microsecond. The script differs only in how it reads its time, and in that Redis removes
//! nothing itself.

use std::fmt;
use std::sync::{Arc, Weak};

use semel_testbed::Redis;

use super::error::CallReach;
use super::script::COMPLETE;
use super::{RedisStore, Shared};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::secret::Secret;
use crate::store::{BoxFuture, Durability, Error, Invalidate, Page, Scan, Snapshot, Store, Swept, Watch};
use crate::testkit::contract::{Context, agrees_with_the_rules};
use crate::time::{Clock, ManualClock};

/// A script with its time in a key, and without expiry times for Redis.
fn on_a_clock_of_ours(script: &str) -> String {
    let mut removals = vec![", 'PXAT', math.ceil(gone / 1000))"];
    match script {
        COMPLETE => removals = vec![", 'PXAT', ceil(gone / 1000))"],
        _ => removals.push(",\n        'PXAT', math.ceil((changed_at + STUB) / 1000))"),
    }
    let time = ("redis.call('TIME')", "{ 0, tonumber(redis.call('GET', 'now')) }");
    let replaced = removals.into_iter().map(|removal| (removal, ")")).chain([time]);
    replaced.fold(script.to_owned(), |text, (was, is)| {
        assert_eq!(text.matches(was).count(), 1, "the script has changed: {was}");
        text.replace(was, is)
    })
}

/// The store, which gets the time before every call.
struct Timed {
    store: RedisStore,
    clock: ManualClock,
}

impl Timed {
    async fn connect(url: &str, clock: ManualClock) -> Arc<dyn Store> {
        let builder = RedisStore::builder(url).rules(on_a_clock_of_ours);
        let store = builder.connect().await.unwrap_or_else(|error| panic!("{error}"));
        Arc::new(Self { store, clock })
    }

    /// Sets the time, then does the work; both on the store's thread, so a dropped call behaves as before.
    fn at<'a, T: Send + 'static, F>(
        &'a self,
        work: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> BoxFuture<'a, Result<T, Error>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (shared, now) = (Arc::clone(&self.store.shared), self.clock.now());
        self.store.run(async move {
            let mut set = ::redis::cmd("SET");
            set.arg("now").arg(now.as_micros());
            shared.link.query(&set, CallReach::Write).await?;
            work(shared).await
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for Timed {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        self.at(move |shared| async move {
            match &command {
                // As in a batch.
                Command::Complete { .. } => {
                    let mut numbered = shared.link.connection().await?;
                    shared.complete_in_batch(&mut numbered, id, &command).await
                }
                _ => shared.apply(id, command).await,
            }
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.at(move |shared| async move { shared.get(id).await })
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        self.at(move |shared| async move { super::listing::page(&shared, query).await })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        self.at(move |shared| async move { super::listing::sweep(&shared, limit).await })
    }

    fn watch(&self, id: KeyId) -> Watch {
        self.store.watch(id)
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.store.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        self.store.secret(candidate)
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.store.used_bytes()
    }

    fn durability(&self) -> Durability {
        self.store.durability()
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl fmt::Display for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

async fn fresh() -> Context {
    let server = Arc::new(Redis::start().expect("redis-server starts"));
    let clock = ManualClock::default();
    let store = Timed::connect(&server.url(), clock.clone()).await;
    let peer = Timed::connect(&server.url(), clock.clone()).await;
    Context::new(store).peer(peer).clock(clock.clone()).reopen(move || {
        let (url, clock) = (server.url(), clock.clone());
        let server = Arc::clone(&server);
        async move {
            let store = Timed::connect(&url, clock).await;
            drop(server);
            store
        }
    })
}

crate::contract_tests!(fresh);

#[tokio::test(flavor = "multi_thread")]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 4_000..4_020 {
        agrees_with_the_rules(&context, seed, 400).await;
    }
}
