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
//! | `PREFIX:{TAG}:listed` | hash: whether the tenant is on the list (`open`), or the token for the next put (`token`) |
//! | `PREFIX:{TAG}:taken` | hash of dedupe id and generation to a fence and its expiry: claims with a lower fence cannot buffer a run |
//! | `PREFIX:{TAG}:admitted`, `:held` | the gate: the times of the last admitted triggers, and whether it holds |
//! | `PREFIX:{all}:admitted`, `:held` | the same for all tenants together |
//! | `PREFIX:{tenants}:turns` | sorted set of tenants with buffered runs, by the time of their last turn |
//! | `PREFIX:{tenants}:announced` | hash of tenant to the number of its last announcement |
//! | `PREFIX:{tenants}:whose` | hash of buffered run to its tenant |
//!
//! # The list of tenants
//!
//! Drainers find runs through the list of tenants, which is in another slot of a cluster than the runs. Every run
//! must be visible to the drainers. A put is therefore accepted only while the tenant is `open`, or with the token of
//! the last refusal: its producer has announced the tenant after that. A drainer that finds a tenant empty deletes
//! both, and removes the tenant from the list only if it was not announced since its turn. It does not delete a token
//! of the last five seconds, and leaves the tenant on the list: the producer is about to return. A producer that dies
//! after its announcement leaves a tenant without runs on the list for the same time.

mod entry;
#[cfg(test)]
mod fuzz;
mod put;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyId;
use semel::record::{Fence, Terms};
use semel::store::redis_driver::{Value, cmd};
use semel::store::{Effect, Error, ErrorKind, RedisClient};
use semel::time::Timestamp;
use semel::together::Together;

pub use self::entry::{Buffered, BufferedRun, Unreadable};
use self::put::Putting;
use self::script::BufferScripts;
use semel_pipeline::event::{Accepted, Generation, NewEvent};
use semel_pipeline::id::{EventId, EventKind};
pub use semel_pipeline::ledger::Patch;

/// The burst buffer of one deployment, on one Redis.
pub struct Buffer {
    client: RedisClient,
    prefix: String,
    /// The maximum number of runs of one tenant.
    capacity: u64,
    scripts: BufferScripts,
    puts: Arc<Together<Putting, Result<Put, Error>>>,
    /// How long a claim on a key can last: a later put of its owner is refused.
    longest_claim: Duration,
}

/// The name of a generation of a key. The first one has the name that keys had before there were generations.
fn key_name(key: KeyId, generation: Generation) -> String {
    match generation {
        Generation::FIRST => key.to_string(),
        later => format!("{key}@{}", later.get()),
    }
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The answer that the ledger would give.
    Accepted(Accepted),
    /// The tenant's part of the buffer is full: nothing was written.
    Full,
    /// The key is taken and has expired: nothing was written. Its generation must be ended first.
    Expired,
    /// The claim on its key was taken over, or the generation of the key has ended: nothing was written.
    TakenOver,
}

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
pub enum Patched {
    /// It is written; this is the run's new version.
    Applied(u64),
    /// The run has another version than the caller expected.
    Stale,
    /// It is not in the buffer.
    Missing,
}

/// A lease on some runs of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// The tenant of the runs.
    pub tenant: String,
    /// Proves the ownership of the lease.
    pub token: String,
    /// The runs, the oldest first.
    pub runs: Vec<LeasedRun>,
    /// Number of expired leases of dead drainers that were given back.
    pub reclaimed: u64,
}

/// The result of leasing one run.
#[derive(Clone, Debug, PartialEq)]
pub enum LeasedOne {
    /// The caller has leased it.
    Leased(Leased),
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
    pub run: Result<BufferedRun, Unreadable>,
    /// How often it was leased before and not finished.
    pub attempts: u32,
    /// Its version: changes after it are not in `run`.
    pub version: u64,
}

/// The buffer's answer to an acknowledgement.
#[derive(Clone, Debug, PartialEq)]
pub enum Acked {
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
        let puts = Together::new(put::TOGETHER);
        let Terms { in_flight_max: longest_claim, .. } = Terms::default();
        Self { client, prefix: prefix.into(), capacity, scripts: BufferScripts::new(), puts, longest_claim }
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
        hex(semel::store::MarkId::of_session(tenant.as_bytes()).as_bytes())
    }

    pub(crate) fn key(&self, tenant: &str, part: &str) -> String {
        format!("{}:{{{}}}:{part}", self.prefix, Self::tag(tenant))
    }

    /// A key for all tenants.
    pub(crate) fn global(&self, part: &str) -> String {
        format!("{}:{{all}}:{part}", self.prefix)
    }

    fn whose(&self) -> String {
        format!("{}:{{tenants}}:whose", self.prefix)
    }

    /// The list of tenants, and the numbers of their announcements.
    fn list_keys(&self) -> [String; 2] {
        ["turns", "announced"].map(|part| format!("{}:{{tenants}}:{part}", self.prefix))
    }

    async fn call_on_list(
        &self,
        script: &semel::store::RedisScript,
        arguments: &[&[u8]],
    ) -> Result<Value, Error> {
        let keys = self.list_keys();
        let keys = keys.each_ref().map(|key| key.as_bytes());
        self.client.call(script, &keys, arguments, Effect::Writes).await
    }

    /// The keys of a tenant for the scripts, in their order.
    fn keys(&self, tenant: &str) -> [String; 7] {
        let tag = Self::tag(tenant);
        let name = |part| format!("{}:{{{tag}}}:{part}", self.prefix);
        ["queue", "leased", "runs", "about", "changes", "keys", "listed"].map(name)
    }

    async fn call(
        &self,
        script: &semel::store::RedisScript,
        tenant: &str,
        arguments: &[&[u8]],
        effect: Effect,
    ) -> Result<Value, Error> {
        let keys = self.keys(tenant);
        let keys = keys.each_ref().map(|key| key.as_bytes());
        self.client.call(script, &keys, arguments, effect).await
    }

    /// Records that the claim on a generation of a key was taken over with this fence: its previous owner cannot
    /// buffer a run under it from now on. Stored for as long as that owner can exist.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn take_over(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        fence: Fence,
        keep: Duration,
    ) -> Result<(), Error> {
        let taken = self.key(tenant, "taken");
        let (key, fence) = (key_name(key, generation), fence.get().to_string());
        let keep = millis(keep).max(1).to_string();
        let arguments = [key.as_bytes(), fence.as_bytes(), keep.as_bytes()];
        let script = &self.scripts.take_over;
        self.client.call(script, &[taken.as_bytes()], &arguments, Effect::Writes).await.map(drop)
    }

    /// Records that a generation of a key has ended: no claim can buffer a run under it from now on.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn close(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
        keep: Duration,
    ) -> Result<(), Error> {
        self.take_over(tenant, (key, generation), Fence::new(u64::MAX), keep).await
    }

    /// Buffers a run, in a batch with concurrent runs of this process. Refused if its key is already taken, with or
    /// without the same payload, or if the claim on its key with this fence was taken over.
    ///
    /// # Errors
    /// Redis does not answer, or is full.
    pub async fn put(self: &Arc<Self>, run: &NewEvent, fence: Fence) -> Result<Put, Error> {
        let buffer = Arc::clone(self);
        let carry = move |runs| {
            let buffer = Arc::clone(&buffer);
            async move { put::put(&buffer, runs).await }
        };
        self.puts.ask(Putting::of(run, fence), carry).await.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Ambiguous, "the buffer's runtime ended before it answered"))
        })
    }

    /// Adds a tenant to the list of those with buffered runs.
    async fn announce(&self, tenant: &str) -> Result<(), Error> {
        self.call_on_list(&self.scripts.announce, &[tenant.as_bytes()]).await.map(drop)
    }

    /// Records the tenants of runs.
    async fn note_whose(&self, runs: &[(String, EventId)]) -> Result<(), Error> {
        let mut note = cmd("HSET");
        note.arg(self.whose());
        for (tenant, run) in runs {
            note.arg(run.to_string()).arg(tenant);
        }
        self.client.query(&note, Effect::Writes).await.map(drop)
    }

    /// The tenant of a buffered run, by its id alone; `None` if it is not in the buffer.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn tenant_of(&self, run: EventId) -> Result<Option<String>, Error> {
        let mut get = cmd("HGET");
        get.arg(self.whose()).arg(run.to_string());
        match self.client.query(&get, Effect::Reads).await? {
            Value::BulkString(name) => Ok(String::from_utf8(name).ok()),
            _ => Ok(None),
        }
    }

    /// Removes the records of the tenants of runs that left the buffer.
    async fn forget_whose(&self, runs: &[EventId]) -> Result<(), Error> {
        let mut forget = cmd("HDEL");
        forget.arg(self.whose());
        for run in runs {
            forget.arg(run.to_string());
        }
        self.client.query(&forget, Effect::Writes).await.map(drop)
    }

    /// The run that has a generation of a key in the buffer; `None` if there is none.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn find(
        &self,
        tenant: &str,
        (key, generation): (KeyId, Generation),
    ) -> Result<Option<BufferedHolder>, Error> {
        let key = key_name(key, generation);
        // Most keys are new, and a plain read costs Redis a tenth of a script.
        let mut get = cmd("HGET");
        get.arg(self.key(tenant, "keys")).arg(&key);
        if self.client.query(&get, Effect::Reads).await? == Value::Nil {
            return Ok(None);
        }
        let answer = self.call(&self.scripts.find, tenant, &[key.as_bytes()], Effect::Writes).await?;
        let Value::Array(parts) = answer else { return Err(script::strange()) };
        let [id, print, expired] = script::blobs::<3>(parts)?;
        let text = |blob: &Blob| std::str::from_utf8(blob).map(str::to_owned).map_err(|_| script::strange());
        let found = text(&id)?.parse().ok().zip(unhex(&text(&print)?));
        Ok(found.map(|(run, fingerprint)| BufferedHolder { run, fingerprint, expired: &expired[..] == b"1" }))
    }

    /// A buffered run with its changes, and its version.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn get(
        &self,
        tenant: &str,
        id: EventId,
    ) -> Result<Option<(Result<BufferedRun, Unreadable>, u64)>, Error> {
        let id_text = id.to_string();
        let answer = self.call(&self.scripts.get, tenant, &[id_text.as_bytes()], Effect::Reads).await?;
        let Value::Array(parts) = answer else { return Ok(None) };
        let [run, changes, version, expires] = script::blobs::<4>(parts)?;
        Ok(Some((BufferedRun::read(&run, &changes, expiry(&expires)?), script::number(&version)?)))
    }

    /// Adds a change to a buffered run, also while a drainer has leased it. `version` is the version that the caller
    /// expects, if any. A change that must not come too late (a cancellation, another delay) does not belong here: it
    /// moves the run into the ledger.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn patch(
        &self,
        tenant: &str,
        id: EventId,
        patch: &Patch,
        version: Option<u64>,
    ) -> Result<Patched, Error> {
        let id = id.to_string();
        let patch_bytes = entry::encode_change(patch);
        let version = version.map_or_else(|| "-1".to_owned(), |version| version.to_string());
        let arguments: [&[u8]; 3] = [id.as_bytes(), &patch_bytes, version.as_bytes()];
        let answer = self.call(&self.scripts.patch, tenant, &arguments, Effect::WritesDurably).await?;
        let (word, version) = script::word(&answer)?;
        match word.as_str() {
            "applied" => Ok(Patched::Applied(version.parse().map_err(|_| script::strange())?)),
            "stale" => Ok(Patched::Stale),
            "missing" => Ok(Patched::Missing),
            _ => Err(script::strange()),
        }
    }

    /// Gives a turn to the tenant that has waited longest, and returns it with the number of its announcement; `None`
    /// if nothing is buffered.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn next_tenant(&self) -> Result<Option<(String, u64)>, Error> {
        let Value::Array(parts) = self.call_on_list(&self.scripts.turn, &[]).await? else { return Ok(None) };
        let [name, number] = script::blobs::<2>(parts)?;
        let name = String::from_utf8(name.to_vec()).map_err(|_| script::strange())?;
        Ok(Some((name, script::number(&number)?)))
    }

    /// Leases the next runs of a tenant that are due. Expired leases are given back first. `announced` is the number
    /// of the tenant's turn: a tenant without runs leaves the list, unless it was announced since.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lease(
        &self,
        (tenant, announced): (&str, u64),
        limit: u32,
        lease: Duration,
    ) -> Result<Leased, Error> {
        let token = new_token();
        let (limit, lease) = (limit.to_string(), millis(lease).to_string());
        let number = announced.to_string();
        let arguments: [&[u8]; 3] = [limit.as_bytes(), lease.as_bytes(), token.as_bytes()];
        let answer = self.call(&self.scripts.lease, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(mut parts) = answer else { return Err(script::strange()) };
        if parts.len() < 2 || (parts.len() - 2) % 6 != 0 {
            return Err(script::strange());
        }
        let rest = parts.split_off(2);
        let (reclaimed, left) = (int(&parts[0]), int(&parts[1]));
        let mut runs = Vec::with_capacity(rest.len() / 6);
        let mut rest = rest.into_iter();
        while let Some(id) = rest.next() {
            let [id] = script::blobs::<1>(vec![id])?;
            let id =
                std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(script::strange)?;
            runs.push(leased_run(id, rest.by_ref().take(5).collect())?);
        }
        if left == 0 {
            self.call_on_list(&self.scripts.leave, &[tenant.as_bytes(), number.as_bytes()]).await?;
        }
        Ok(Leased { tenant: tenant.to_owned(), token, runs, reclaimed })
    }

    /// Leases one run, even before it is due.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lease_one(&self, tenant: &str, id: EventId, lease: Duration) -> Result<LeasedOne, Error> {
        let (token, text, lease) = (new_token(), id.to_string(), millis(lease).to_string());
        let arguments: [&[u8]; 3] = [text.as_bytes(), lease.as_bytes(), token.as_bytes()];
        let answer = self.call(&self.scripts.lease_one, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(mut parts) = answer else { return Err(script::strange()) };
        if parts.is_empty() {
            return Err(script::strange());
        }
        let rest = parts.split_off(1);
        let [word] = script::blobs::<1>(parts)?;
        match &word[..] {
            b"leased" => {
                let runs = vec![leased_run(id, rest)?];
                Ok(LeasedOne::Leased(Leased { tenant: tenant.to_owned(), token, runs, reclaimed: 0 }))
            }
            b"held" => Ok(LeasedOne::Held),
            b"missing" => Ok(LeasedOne::Missing),
            _ => Err(script::strange()),
        }
    }

    /// Extends leases. Returns the runs that the caller still holds.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn renew(
        &self,
        leased: (&str, &str),
        ids: &[EventId],
        lease: Duration,
    ) -> Result<Vec<bool>, Error> {
        let (tenant, token) = leased;
        let lease = millis(lease).to_string();
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut arguments = vec![token.as_bytes(), lease.as_bytes()];
        arguments.extend(ids.iter().map(String::as_bytes));
        let answer = self.call(&self.scripts.renew, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(held) = answer else { return Err(script::strange()) };
        Ok(held.iter().map(|held| int(held) == 1).collect())
    }

    /// Acknowledges that the run is in the ledger, with all changes up to `version`: it leaves the buffer, unless it
    /// was changed since.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn ack(&self, leased: (&str, &str), run: EventId, version: u64) -> Result<Acked, Error> {
        let mut acked = self.ack_all(leased, &[(run, version)]).await?;
        acked.pop().ok_or_else(script::strange)
    }

    /// As [`ack`](Self::ack), for many runs of one lease. Answers in their order.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn ack_all(
        &self,
        (tenant, token): (&str, &str),
        runs: &[(EventId, u64)],
    ) -> Result<Vec<Acked>, Error> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let texts: Vec<[String; 2]> =
            runs.iter().map(|(run, version)| [run.to_string(), version.to_string()]).collect();
        let keep = millis(self.longest_claim * 2).to_string();
        let mut arguments = vec![token.as_bytes(), keep.as_bytes()];
        arguments.extend(texts.iter().flatten().map(String::as_bytes));
        let (own, taken) = (self.keys(tenant), self.key(tenant, "taken"));
        let keys: Vec<&[u8]> = own.iter().chain([&taken]).map(|key| key.as_bytes()).collect();
        let answer = self.client.call(&self.scripts.ack, &keys, &arguments, Effect::Writes).await?;
        let Value::Array(answers) = answer else { return Err(script::strange()) };
        if answers.len() != runs.len() {
            return Err(script::strange());
        }
        let (mut acked, mut gone) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        for (answer, (run, _)) in answers.into_iter().zip(runs) {
            let Value::Array(parts) = answer else { return Err(script::strange()) };
            let [word, changes] = script::blobs::<2>(parts)?;
            acked.push(match &word[..] {
                b"gone" => {
                    gone.push(*run);
                    Acked::Gone
                }
                b"lost" => Acked::Lost,
                b"changed" => {
                    let patches =
                        entry::decode_changes(&changes).map_err(|why| Error::new(ErrorKind::Corrupt, why))?;
                    Acked::Changed(patches)
                }
                _ => return Err(script::strange()),
            });
        }
        if !gone.is_empty() {
            self.forget_whose(&gone).await?;
        }
        Ok(acked)
    }

    /// Gives a run back, to be drained after a pause. `counts` if the run itself failed.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn give_back(
        &self,
        leased: (&str, &str),
        id: EventId,
        pause: Duration,
        counts: bool,
    ) -> Result<bool, Error> {
        let (tenant, token) = leased;
        let (id, pause) = (id.to_string(), millis(pause).to_string());
        let counts: &[u8] = if counts { b"1" } else { b"0" };
        let arguments: [&[u8]; 4] = [token.as_bytes(), id.as_bytes(), pause.as_bytes(), counts];
        let answer = self.call(&self.scripts.give_back, tenant, &arguments, Effect::Writes).await?;
        Ok(int(&answer) == 1)
    }

    /// Removes a leased run that cannot be read: it is a dead letter now.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn remove(&self, (tenant, token): (&str, &str), run: EventId) -> Result<bool, Error> {
        let id = run.to_string();
        let arguments: [&[u8]; 2] = [token.as_bytes(), id.as_bytes()];
        let answer = self.call(&self.scripts.remove, tenant, &arguments, Effect::Writes).await?;
        let removed = int(&answer) == 1;
        if removed {
            self.forget_whose(&[run]).await?;
        }
        Ok(removed)
    }

    /// The number of buffered runs of a tenant.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn depth(&self, tenant: &str) -> Result<Depth, Error> {
        let answer = self.call(&self.scripts.depth, tenant, &[], Effect::Reads).await?;
        let Value::Array(parts) = answer else { return Err(script::strange()) };
        let number = |at: usize| parts.get(at).map_or(0, int);
        Ok(Depth { queued: number(0), leased: number(1), oldest: Duration::from_millis(number(2)) })
    }

    /// The tenants that may have buffered runs.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn tenants(&self) -> Result<Vec<String>, Error> {
        let mut list = cmd("ZRANGE");
        let [turns, _] = self.list_keys();
        list.arg(turns).arg(0).arg(-1);
        let Value::Array(names) = self.client.query(&list, Effect::Reads).await? else {
            return Err(script::strange());
        };
        let text = |name| match name {
            Value::BulkString(name) => String::from_utf8(name).ok(),
            _ => None,
        };
        Ok(names.into_iter().filter_map(text).collect())
    }

    /// Ids of buffered runs of a tenant, the oldest first, after `after`.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn list(
        &self,
        tenant: &str,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<EventId>, Error> {
        let mut list = cmd("HKEYS");
        list.arg(self.key(tenant, "about"));
        let Value::Array(names) = self.client.query(&list, Effect::Reads).await? else {
            return Err(script::strange());
        };
        let read = |name| match name {
            Value::BulkString(name) => std::str::from_utf8(&name).ok().and_then(|id| id.parse().ok()),
            _ => None,
        };
        let mut ids: Vec<EventId> = names.into_iter().filter_map(read).collect();
        ids.retain(|id| id.kind() == EventKind::Run && after.is_none_or(|after| *id > after));
        ids.sort_unstable();
        ids.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ids)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("server", &self.client.name()).field("prefix", &self.prefix).finish()
    }
}

fn new_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Parses a leased run from a script's answer: the run, its changes, attempts, version and expiry.
fn leased_run(id: EventId, parts: Vec<Value>) -> Result<LeasedRun, Error> {
    let [run, changes, attempts, version, expires] = script::blobs::<5>(parts)?;
    Ok(LeasedRun {
        id,
        run: BufferedRun::read(&run, &changes, expiry(&expires)?),
        attempts: u32::try_from(script::number(&attempts)?).unwrap_or(u32::MAX),
        version: script::number(&version)?,
    })
}

/// When a key expires, from milliseconds; -1 is never.
fn expiry(text: &Blob) -> Result<Option<Timestamp>, Error> {
    if &text[..] == b"-1" {
        return Ok(None);
    }
    Ok(Some(Timestamp::from_micros(script::number(text)?.saturating_mul(1000))))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn int(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).expect("four bits are a digit"));
        }
    }
    text
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Bytes of an answer.
type Blob = Bytes;
