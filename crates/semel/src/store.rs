//! Stores of records, and the trait that every store implements.
//!
//! A store executes the rules of [`crate::record`] atomically per key and durably as far as it promises, by
//! its own clock. To write one, implement [`Store`] and run the contract suite over it (feature `testkit`,
//! `semel::testkit::contract`).

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "encryption")]
mod encrypted;
mod error;
mod forward;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod given;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod inline;
mod limited;
mod local;
mod marks;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod tiered;
pub mod transfer;
mod wakeups;
#[cfg(test)]
mod wakeups_tests;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod wraps;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};

/// The SQLite binding. Effects that share the embedded store's transaction get its `Transaction`.
#[cfg(feature = "embedded")]
pub use rusqlite;

/// The PostgreSQL driver. Effects that share the caller's transaction get its `Transaction`.
#[cfg(feature = "postgres")]
pub use sqlx;

/// The Redis driver. A [`RedisClient`] uses its `Cmd` and `Value`.
#[cfg(feature = "redis")]
pub use ::redis as redis_driver;

#[cfg(feature = "embedded")]
pub(crate) use self::embedded::WriteTransaction;
#[cfg(feature = "embedded")]
pub use self::embedded::{EmbeddedBuilder, EmbeddedReader, EmbeddedStore, OnCorruption, Verified};
#[cfg(feature = "encryption")]
pub use self::encrypted::{EncryptedStore, Keyring, KeyringError, Plain, SealingKey, Sealings};
pub use self::error::{Error, ErrorKind};
pub use self::limited::{LimitedStore, NewKeyRate, StoreLimits};
pub use self::marks::{MarkId, MarkStore};
pub use self::memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use self::postgres::{AsyncCommit, Pooling, PostgresBuilder, PostgresStore};
#[cfg(feature = "redis")]
pub use self::redis::{
    Effect, OnStoreLoss, RedisBuilder, RedisClient, RedisClientBuilder, RedisContent, RedisScript, RedisStore,
};
#[cfg(all(feature = "postgres", feature = "redis"))]
pub use self::tiered::{Coordination, TieredBuilder, TieredStats, TieredStore};
pub use self::wakeups::{Wakeups, Watch};
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub(crate) use self::wraps::OutcomeTransform;
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub use self::wraps::Wraps;
use crate::key::KeyId;
use crate::record::{Command, Phase, Record, Ruling};
use crate::secret::Secret;
use crate::time::Timestamp;

/// A future that can be kept behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Stores records and executes the rules on them.
///
/// # Contract
/// Every implementation is:
/// - **Atomic.** [`apply`](Self::apply) behaves as [`crate::record::apply`] on one record, one command at a time per
///   key, across all callers and processes.
/// - **Durable.** When `apply` answers, the change has reached the point [`durability`](Self::durability)
///   names. Nothing is acknowledged before that, and nothing is half there after a crash.
/// - **Honest about not knowing.** A call with an unknown result fails with [`ErrorKind::Ambiguous`]; one that
///   certainly changed nothing fails with any other kind. The caller repeats an ambiguous call unchanged: claims are
///   recognised by their owner, writes by their grant.
/// - **Its own clock.** The store's time decides leases and retention, never a caller's.
/// - **Never a cache.** A record is removed only by [`sweep`](Self::sweep), after the store's fence floor was
///   raised to its fence. A store that evicts makes effects happen twice.
/// - **Push.** After a change that a waiter may wait for, every [`Watch`] on the key wakes. A lost wake-up only
///   delays, because callers also poll.
/// - **Cancel-safe.** A dropped future may or may not have been executed, like an ambiguous one, and leaves no lock,
///   no half-written record and no reply that another call would read.
///
/// - **On any thread.** Futures are polled on the engine's own heartbeat thread too, which drives no I/O: a network
///   store does its I/O on its own runtime and waits for the answer, or polls in the context of that runtime.
///
/// For wrappers: forward every method (deny `clippy::missing_trait_methods` on the impl).
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Executes one command on one record.
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>>;

    /// Reads a record; `None` if the store has no record of the key.
    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>>;

    /// Lists records page by page, in the order of their ids.
    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>>;

    /// Removes expired data and changes at most `limit` records. Bounded and repeatable, from any process. If it is
    /// called again while `more` is true, it finishes, however many records are alive.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>>;

    /// Watches a key. Subscribe first, then read the record, then wait: no change in between is missed.
    fn watch(&self, id: KeyId) -> Watch;

    /// Registers a cache of completed records. The store calls it before it acknowledges a forget or a re-execution.
    fn attach(&self, cache: Weak<dyn Invalidate>);

    /// The deployment's secret: stores `candidate` if there is none yet, and returns the stored one.
    ///
    /// A shared store can lose its data while this process runs, and another process then creates a new secret. A
    /// store that returned a secret here therefore grants claims only while it holds that secret. If it holds none,
    /// it writes back the one it returned. If it holds another, every claim fails with [`ErrorKind::SecretDiffers`].
    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>>;

    /// How many bytes the store holds at present, where it can tell cheaply: for [`LimitedStore`], which asks every
    /// second or more often. The answer counts what stands, not what the files could hold.
    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(None) })
    }

    /// What survives a crash, in a word for a start-up banner.
    fn durability(&self) -> Durability;
}

/// A store to build an engine over: by value, or shared in an `Arc`.
pub trait IntoStore {
    /// The store, shared.
    fn into_store(self) -> Arc<dyn Store>;
}

impl<S: Store> IntoStore for S {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore for Arc<S> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

impl IntoStore for Arc<dyn Store> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

/// A cache of completed records that a store invalidates.
pub trait Invalidate: Send + Sync {
    /// The record has changed: drop it. Must not block.
    fn invalidate(&self, id: KeyId);

    /// Whether invalidations currently reach this cache. While they may not, it must not answer.
    fn trust(&self, trust: Trust);
}

/// Whether a cache may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every invalidation arrives.
    Confirmed,
    /// Some may be lost.
    Unconfirmed,
}

/// Which acknowledged writes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// None: they are lost with the process.
    Process,
    /// A crash of the process, but not of the server that stores them. Lost are writes that the server had not synced
    /// when it crashed, and writes that had not reached the replica that replaces it.
    Server,
    /// A crash of the process and of the machine: writes are synced to disk.
    Disk,
}

/// A record as it was at a time of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of the key.
    pub id: KeyId,
    /// The stored record.
    pub record: Record,
    /// The store's time when it was read.
    pub now: Timestamp,
}

impl Snapshot {
    /// The state, with time applied.
    pub fn phase(&self) -> Phase {
        self.record.phase(self.now)
    }
}

/// A query of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Only records in this phase.
    pub phase: Option<Phase>,
    /// Only records after this one: the `next` of the page before.
    pub after: Option<KeyId>,
    /// At most this many items a page.
    pub limit: usize,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records, ordered by id.
    pub items: Vec<Snapshot>,
    /// Where the next page starts; `None` after the last. A page can be short, or empty, and still have a next one.
    pub next: Option<KeyId>,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Outcomes dropped, keys still known.
    pub shrunk: usize,
    /// Records removed.
    pub removed: usize,
    /// True if the limit left more to do.
    pub more: bool,
}

const _: () = {
    // The server picks a store at run time, so the trait must be object-safe.
    fn object_safe(_: &dyn Store) {}
    let _ = object_safe;
};
