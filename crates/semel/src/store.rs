//! Stores: where records live, and the one trait that every store implements.
//!
//! A store executes the rules of [`crate::record`] atomically per key and durably as far as it promises, by
//! its own clock. To write one, implement [`Store`] and run the contract suite over it (feature `testkit`,
//! `semel::testkit::contract`).

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "encryption")]
mod encrypted;
mod error;
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
mod wakeups;
#[cfg(test)]
mod wakeups_tests;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod wraps;

use std::fmt;
use std::pin::Pin;
use std::sync::Weak;

/// The SQLite binding whose `Transaction` is handed to effects that share the embedded store's transaction.
#[cfg(feature = "embedded")]
pub use rusqlite;

/// The PostgreSQL driver whose `Transaction` is handed to effects that share a transaction of the caller's.
#[cfg(feature = "postgres")]
pub use sqlx;

/// The Redis driver whose `Cmd` and `Value` a [`RedisClient`] takes and gives.
#[cfg(feature = "redis")]
pub use ::redis as redis_driver;

#[cfg(feature = "embedded")]
pub(crate) use self::embedded::Writing;
#[cfg(feature = "embedded")]
pub use self::embedded::{EmbeddedBuilder, EmbeddedStore, OnCorruption, Verified};
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
    Effect, OnStoreLoss, RedisBuilder, RedisClient, RedisClientBuilder, RedisScript, RedisStore,
};
#[cfg(all(feature = "postgres", feature = "redis"))]
pub use self::tiered::{Coordination, TieredBuilder, TieredStats, TieredStore};
pub use self::wakeups::{Wakeups, Watch};
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub(crate) use self::wraps::Veil;
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub use self::wraps::Wraps;
use crate::key::KeyId;
use crate::record::{Command, Phase, Record, Ruling};
use crate::secret::Secret;
use crate::time::Timestamp;

/// A future that can be kept behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps records and executes the rules on them.
///
/// # Contract
/// For whoever implements it:
/// - **Atomic.** [`apply`](Self::apply) behaves as [`crate::record::apply`] on one record, one command at a
///   time per key, whoever else is calling, from whatever process.
/// - **Durable.** When `apply` answers, the change has reached the point [`durability`](Self::durability)
///   names. Nothing is acknowledged before that, and nothing is half there after a crash.
/// - **Honest about not knowing.** A call whose fate is unknown fails with [`ErrorKind::Ambiguous`]; one that
///   certainly changed nothing fails with any other kind. The caller repeats an ambiguous call unchanged:
///   claims know their owner, writes their grant.
/// - **Its own clock.** The store's time decides leases and retention, never a caller's.
/// - **Never a cache.** A record is removed only by [`sweep`](Self::sweep), after the store's fence floor was
///   raised to its fence. A store that evicts makes effects happen twice.
/// - **Push.** After a change that a waiter may wait for, every [`Watch`] on the key wakes. A lost wake-up
///   delays, it never breaks: callers poll as a backstop.
/// - **Cancel-safe.** A dropped future may or may not have been executed, like an ambiguous one, and leaves
///   no lock, no half-written record and no reply for somebody else behind.
///
/// - **On any thread.** Futures are polled on the engine's own heartbeat thread too, which drives no I/O: a store
///   that speaks over a network does its I/O on a runtime of its own and waits for the answer, or polls in its context.
///
/// For wrappers: forward every method (deny `clippy::missing_trait_methods` on the impl).
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Executes one command on one record.
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>>;

    /// Reads a record; `None` where the store knows nothing of the key.
    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>>;

    /// Lists records page by page, in the order of their ids.
    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>>;

    /// Takes away what is over, changing no more than `limit` records. Bounded, repeatable, any process. Called
    /// again while it says `more`, it comes to rest, however many records are alive.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>>;

    /// Watches a key. Subscribe first, then look at the record, then wait: no change in between is missed.
    fn watch(&self, id: KeyId) -> Watch;

    /// Registers a cache of done records. The store calls it before a forget or re-execute is acknowledged.
    fn attach(&self, cache: Weak<dyn Invalidate>);

    /// The deployment's secret: keeps `candidate` if there is none yet, and returns the one that is kept.
    ///
    /// A store that others share can lose its data while this process runs, and another process then makes a new
    /// secret. So a store that gave a secret here grants claims only while it keeps that one. Where it keeps none, it
    /// puts back the one it gave; where it keeps another, every claim fails with [`ErrorKind::SecretDiffers`].
    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>>;

    /// How many bytes the store holds at present, where it can tell cheaply: for [`LimitedStore`], which asks every
    /// second or more often. The answer counts what stands, not what the files could hold.
    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(None) })
    }

    /// What survives, in a word that a start-up banner can print.
    fn durability(&self) -> Durability;
}

/// A cache of done records that a store keeps honest.
pub trait Invalidate: Send + Sync {
    /// The record is no longer what it was: drop it. Must not block.
    fn invalidate(&self, id: KeyId);

    /// Whether invalidations reach this cache at present. While they may not, it must not answer.
    fn trust(&self, trust: Trust);
}

/// Whether a cache may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every invalidation will be pushed.
    Confirmed,
    /// Some may be lost.
    Unconfirmed,
}

/// What of an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: it is gone with the process.
    Process,
    /// A crash of the process, not of the server that keeps it: lost are what that server had not synced when it
    /// crashed, and what had not reached the replica that takes its place.
    Server,
    /// A crash of the process and of the machine: it was synced to disk.
    Disk,
}

/// A record as a store had it at a moment of its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose record it is.
    pub id: KeyId,
    /// The record as written.
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

/// What to list.
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
    /// Where the next page starts; `None` after the last. A page can be short, or empty, and still have one.
    pub next: Option<KeyId>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Outcomes dropped, keys still remembered.
    pub shrunk: usize,
    /// Records removed.
    pub removed: usize,
    /// Whether there was more to do than the limit allowed.
    pub more: bool,
}

const _: () = {
    // The server picks a store at run time: the trait must stay usable behind a pointer.
    fn object_safe(_: &dyn Store) {}
    let _ = object_safe;
};
