//! All kinds of stores, each created fresh on servers that are started on first use.
//!
//! To add a store: add a variant to [`StoreKind`], its name, and its creation.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use semel::store::{EmbeddedStore, EncryptedStore, MemoryStore, Store};
use semel::testkit::contract::Context;
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, When};
use semel::time::ManualClock;
use semel_testbed::{Postgres, Redis, RedisCluster};
use tempfile::TempDir;

use crate::place::{SealedWith, StorePlace};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each says it")]
pub enum StoreKind {
    Memory,
    Embedded,
    Redis,
    RedisCluster,
    Postgres,
    /// Redis in front of PostgreSQL.
    Tiered,
    /// Outcomes sealed, over the embedded store.
    Encrypted,
    /// A memory store that loses outcomes, to test the tests of stores.
    Broken,
}

impl StoreKind {
    /// All that must meet the contract.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Embedded,
        Self::Redis,
        Self::RedisCluster,
        Self::Postgres,
        Self::Encrypted,
        Self::Tiered,
    ];

    /// Its name on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Embedded => "embedded",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Postgres => "postgres",
            Self::Tiered => "tiered",
            Self::Encrypted => "encrypted",
            Self::Broken => "broken",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Broken]).find(|ground| ground.name() == name)
    }
}

/// Servers, started on first use and stopped with this value.
#[derive(Debug, Default)]
pub struct Servers {
    redis: Mutex<Option<Redis>>,
    cluster: Mutex<Option<RedisCluster>>,
    postgres: Mutex<Option<Postgres>>,
    places: AtomicUsize,
}

type GroundResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Servers {
    /// A fresh place, on a store that several processes can share; `None` for a store with one opener. Blocks while a
    /// server starts.
    ///
    /// # Errors
    /// A server cannot be started.
    pub fn place(&self, ground: StoreKind) -> GroundResult<Option<StorePlace>> {
        let prefix = format!("place-{}", self.places.fetch_add(1, Ordering::Relaxed));
        Ok(Some(match ground {
            StoreKind::Memory | StoreKind::Embedded | StoreKind::Encrypted | StoreKind::Broken => {
                return Ok(None);
            }
            StoreKind::Redis => StorePlace::Redis { url: self.redis()?, prefix },
            StoreKind::RedisCluster => {
                let nodes = with(&self.cluster, RedisCluster::start, |cluster| Ok(cluster.addrs()))?;
                let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                StorePlace::Redis { url: format!("redis-cluster://{}", nodes.join(",")), prefix }
            }
            StoreKind::Postgres => StorePlace::Postgres { url: self.database()? },
            StoreKind::Tiered => {
                StorePlace::Tiered { postgres: self.database()?, redis: self.redis()?, prefix }
            }
        }))
    }

    fn redis(&self) -> GroundResult<String> {
        with(&self.redis, Redis::start, |redis| Ok(redis.url()))
    }

    fn database(&self) -> GroundResult<String> {
        with(&self.postgres, Postgres::start, |server| {
            Ok(server.url_at(server.addr(), &server.fresh_database()?))
        })
    }

    /// The context of the contract suite for a fresh store: two handles if possible, a movable clock if there is one,
    /// and how to open the store again.
    ///
    /// # Errors
    /// A server cannot be started or a store cannot be opened.
    pub async fn context(&self, ground: StoreKind) -> GroundResult<Context> {
        if let Some(place) = tokio::task::block_in_place(|| self.place(ground))? {
            let context = Context::new(place.open().await?).peer(place.open().await?);
            return Ok(context.reopen(move || {
                let place = place.clone();
                async move { place.open().await.unwrap_or_else(|error| panic!("it opens again: {error}")) }
            }));
        }
        let clock = ManualClock::default();
        match ground {
            StoreKind::Embedded => on_disk(clock, |store| Arc::new(store)),
            StoreKind::Encrypted => {
                let ring = SealedWith::New.ring()?;
                on_disk(clock, move |store| Arc::new(EncryptedStore::new(store, ring.clone())))
            }
            StoreKind::Broken => {
                let store = FaultStore::new(Arc::new(MemoryStore::with_clock(clock.clone())));
                store.script(
                    StoreCall::Complete,
                    When::Always,
                    InjectedFault::Refuse(semel::store::ErrorKind::Unavailable),
                );
                Ok(Context::new(Arc::new(store)).clock(clock))
            }
            StoreKind::Memory
            | StoreKind::Redis
            | StoreKind::RedisCluster
            | StoreKind::Postgres
            | StoreKind::Tiered => {
                Ok(Context::new(Arc::new(MemoryStore::with_clock(clock.clone()))).clock(clock))
            }
        }
    }
}

fn with<S, T>(
    server: &Mutex<Option<S>>,
    start: impl FnOnce() -> semel_testbed::Result<S>,
    ask: impl FnOnce(&S) -> semel_testbed::Result<T>,
) -> GroundResult<T> {
    let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
    let server = match &mut *server {
        Some(server) => server,
        none => none.insert(start()?),
    };
    Ok(ask(server)?)
}

fn on_disk(
    clock: ManualClock,
    wrap: impl Fn(EmbeddedStore) -> Arc<dyn Store> + Send + Sync + 'static,
) -> GroundResult<Context> {
    let folder: io::Result<TempDir> = tempfile::tempdir();
    let folder = folder?;
    let open = {
        let clock = clock.clone();
        move || EmbeddedStore::builder(folder.path()).clock(clock.clone()).open().map(&wrap)
    };
    Ok(Context::new(open()?).clock(clock).reopen(move || {
        let store = open();
        async move { store.unwrap_or_else(|error| panic!("it opens again: {error}")) }
    }))
}
