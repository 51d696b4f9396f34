//! The burst buffer: runs wait in Redis before they go into the ledger, so that a burst does not reach the database.
//!
//! A buffered run is found by its id and by its key, and it can be changed. Its bytes are opaque to Redis; changes
//! are stored beside them, in order, and applied in Rust. There is one way out: a drainer leases a run, writes it
//! with its changes into the ledger, and removes it from the buffer when it acknowledges the lease.
//!
//! ```text
//!   put ──► queued ──lease──► leased ──ack──► gone (it is in the ledger)
//!             ▲                 │  └──remove─► gone (it is a dead letter)
//!             └─── given back, ─┘
//!                  or the lease has expired
//! ```
//!
//! # Keys of Redis
//!
//! All keys of one tenant share a hash tag, so that a script may use them on a cluster; every script gets all keys
//! that it uses. `TAG` is a hash of the tenant's name: no caller can forge it.
//!
//! | key | content |
//! |---|---|
//! | `PREFIX:{TAG}:queue` | sorted set of ids, by when they may be drained, in ms |
//! | `PREFIX:{TAG}:leased` | sorted set of ids, by when their lease expires |
//! | `PREFIX:{TAG}:runs` | hash of id to the run as it was accepted |
//! | `PREFIX:{TAG}:about` | hash of id to its lease, attempts, version, key and the key's expiry |
//! | `PREFIX:{TAG}:changes` | hash of id to the changes since, each with its length before it |
//! | `PREFIX:{TAG}:keys` | hash of dedupe id and generation to the id of the run that holds it |
//! | `PREFIX:{TAG}:listed` | hash: when the tenant was put on the list (`open`, in µs), or the token for the next put (`token`) |
//! | `PREFIX:{TAG}:refused` | sorted set of dedupe ids and generations: a put is refused if its caller read the ledger before this time, in µs |
//! | `PREFIX:{TAG}:admitted`, `:held` | the gate: the times of the last admitted triggers, and whether it holds |
//! | `PREFIX:{all}:admitted`, `:held` | the same for all tenants together |
//! | `PREFIX:{tenants}:turns` | sorted set of tenants with buffered runs, by the time of their last turn |
//! | `PREFIX:{tenants}:announced` | hash of tenant to the number of its last announcement |
//! | `PREFIX:{tenants}:whose` | hash of buffered run to its tenant |
//!
//! # Buffer and ledger
//!
//! A run may be put only if the ledger has no run of its key. The ledger is read before the put, and may change in
//! between. Each change is told to the buffer, so that such a put is refused and its caller reads the ledger again:
//!
//! - A run that goes directly to the ledger first reserves its key here. The reservation finds a run that is already
//!   buffered. It ends with the first answer of the ledger, or after the time that a claim is remembered.
//! - A run that leaves the buffer, a run that was written directly and a reset key are noted with the time. A put
//!   carries a time of Redis from before its caller read the ledger, and is refused if the note is later. A put that
//!   comes more than ten seconds after that time is refused too, so that notes can be removed after ten seconds.
//!
//! # The list of tenants
//!
//! Drainers find runs through the list of tenants, which is in another slot of a cluster than the runs. Every run
//! must be visible to the drainers. A put is therefore accepted only while the tenant is `open`, or with the token of
//! the last refusal: its producer has announced the tenant after that. A drainer that finds a tenant empty deletes
//! both, and removes the tenant from the list only if it was not announced since its turn. It does not delete a token
//! of the last five seconds, and leaves the tenant on the list: the producer is about to return. A producer that dies
//! after its announcement leaves a tenant without runs on the list for the same time.
//!
//! A failover of the master that holds the list, to a replica that is behind, can take a tenant off the list although its runs
//! are still on another master. A tenant is therefore `open` for one minute, and then announced again by the next put. With
//! `require_replicas` an announcement waits for replicas, as a put does.

mod answer;
mod change;
mod find;
mod format;
#[cfg(test)]
mod fuzz;
mod lease;
mod put;
mod reserve;
mod script;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::batch::Batcher;
use semel::key::KeyId;
use semel::mutant::{self, Mutant};
use semel::store::redis_driver::Value;
use semel::store::{Effect, Error, RedisClient, RedisScript};
use semel_pipeline::event::{Accepted, Generation};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::Patch;

pub use self::format::{BufferedRun, CurrentRun, UnreadableRun};
use self::put::PendingPut;
use self::script::BufferScripts;

/// The burst buffer of one deployment, on one Redis.
pub struct Buffer {
    client: RedisClient,
    prefix: String,
    /// The maximum number of runs of one tenant.
    capacity: u64,
    scripts: BufferScripts,
    puts: Arc<Batcher<PendingPut, Result<PutOutcome, Error>>>,
    /// For each tenant, the time of Redis' last answer to a put.
    read_times: Mutex<HashMap<String, ReadTime>>,
}

/// The name of a generation of a key. The first one has the name that keys had before there were generations.
fn key_name(key: KeyId, generation: Generation) -> String {
    match generation {
        _ if mutant::is(Mutant::KeyWithoutGeneration) => key.to_string(),
        Generation::FIRST => key.to_string(),
        later => format!("{key}@{}", later.get()),
    }
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The answer that the ledger would give.
    Accepted(Accepted),
    /// The tenant's part of the buffer is full: nothing was written.
    Full,
    /// The key is taken and has expired: nothing was written. Its generation must be ended first.
    Expired,
    /// The ledger must be read again, because the key may have changed there: nothing was written.
    Late,
    /// Another trigger is about to write a run of the key to the ledger: nothing was written.
    Reserved,
}

/// A time on the clock of Redis, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTime(u64);

/// The run that has a key in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferedHolder {
    /// The run.
    pub run: EventId,
    /// The fingerprint of its payload.
    pub fingerprint: [u8; 32],
    /// True if the key has expired.
    pub expired: bool,
}

/// The result of a change of a buffered run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOutcome {
    /// It is written; this is the run's new version.
    Applied(u64),
    /// The run has another version than the caller expected.
    Stale,
    /// It is not in the buffer.
    Missing,
}

/// A lease on some runs of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLease {
    /// The tenant of the runs.
    pub tenant: String,
    /// Proves the ownership of the lease.
    pub token: String,
    /// The runs, the oldest first.
    pub runs: Vec<LeasedRun>,
    /// Number of expired leases of dead drainers that were given back.
    pub reclaimed: u64,
}

impl RunLease {
    /// The tenant and the token, which prove the ownership of the lease.
    pub fn proof(&self) -> (&str, &str) {
        (&self.tenant, &self.token)
    }
}

/// The result of leasing one run.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseOneOutcome {
    /// The caller has leased it.
    Leased(RunLease),
    /// A drainer has leased it.
    Held,
    /// It is not in the buffer.
    Missing,
}

/// One run of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedRun {
    /// Its id in the buffer.
    pub id: EventId,
    /// The run with its changes, or its bytes and why they cannot be read.
    pub run: Result<BufferedRun, UnreadableRun>,
    /// How often it was leased before and not finished.
    pub attempts: u32,
    /// Its version: changes after it are not in `run`.
    pub version: u64,
}

/// The buffer's answer to an acknowledgement.
#[derive(Clone, Debug, PartialEq)]
pub enum AckOutcome {
    /// It has left the buffer.
    Gone,
    /// The run was changed meanwhile: these are all changes. Write them to the ledger, then acknowledge again.
    Changed(Vec<Patch>),
    /// Another drainer has leased it.
    Lost,
}

/// The number of buffered runs of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting runs.
    pub queued: u64,
    /// Leased runs.
    pub leased: u64,
    /// The age of the oldest run.
    pub oldest: Duration,
}

impl Buffer {
    /// A buffer on this Redis with a key prefix.
    pub fn new(client: RedisClient, prefix: impl Into<String>, capacity: u64) -> Self {
        let puts = Batcher::new(put::BATCH);
        let (scripts, read_times) = (BufferScripts::new(), Mutex::default());
        Self { client, prefix: prefix.into(), capacity, scripts, puts, read_times }
    }

    /// The server's address, without its password.
    pub fn name(&self) -> &str {
        self.client.name()
    }

    pub(crate) fn client(&self) -> &RedisClient {
        &self.client
    }

    /// The hash tag of a tenant: a hash of its name.
    fn tag(tenant: &str) -> String {
        format::hex(semel::store::MarkId::of_session(tenant.as_bytes()).as_bytes())
    }

    pub(crate) fn tenant_key(&self, tenant: &str, part: &str) -> String {
        format!("{}:{{{}}}:{part}", self.prefix, Self::tag(tenant))
    }

    /// A key for all tenants.
    pub(crate) fn global_key(&self, part: &str) -> String {
        format!("{}:{{all}}:{part}", self.prefix)
    }

    fn tenants_key(&self) -> String {
        format!("{}:{{tenants}}:whose", self.prefix)
    }

    /// The list of tenants, and the numbers of their announcements.
    fn list_keys(&self) -> [String; 2] {
        ["turns", "announced"].map(|part| format!("{}:{{tenants}}:{part}", self.prefix))
    }

    async fn call_on_list(
        &self,
        script: &RedisScript,
        arguments: &[&[u8]],
        effect: Effect,
    ) -> Result<Value, Error> {
        let keys = self.list_keys();
        let keys = keys.each_ref().map(|key| key.as_bytes());
        self.client.call(script, &keys, arguments, effect).await
    }

    /// The keys of a tenant for the scripts, in their order.
    fn tenant_keys(&self, tenant: &str) -> [String; 8] {
        let tag = Self::tag(tenant);
        let name = |part| format!("{}:{{{tag}}}:{part}", self.prefix);
        ["queue", "leased", "runs", "about", "changes", "keys", "listed", "refused"].map(name)
    }

    async fn call(
        &self,
        script: &RedisScript,
        tenant: &str,
        arguments: &[&[u8]],
        effect: Effect,
    ) -> Result<Value, Error> {
        let keys = self.tenant_keys(tenant);
        let keys = keys.each_ref().map(|key| key.as_bytes());
        self.client.call(script, &keys, arguments, effect).await
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("server", &self.client.name()).field("prefix", &self.prefix).finish()
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
