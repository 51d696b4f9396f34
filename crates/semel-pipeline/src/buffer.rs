//! The burst buffer: runs that wait in Redis for their place in the ledger, so that a burst does not reach the database.
//!
//! A buffered run is a full citizen: it is found by its id and by its key, it can be changed and cancelled, and nothing of
//! that is lost when it is drained. Its bytes are opaque to Redis; changes are kept beside them, in order, and applied
//! in Rust.
//!
//! ```text
//!   accept ──► queued ──lease──► leased ──ack──► gone (it is in the ledger)
//!                ▲                 │  └──remove─► gone (it is a dead letter)
//!                └──── give back, ─┘
//!                      or the lease is over
//! ```
//!
//! # Keys
//!
//! All keys of one tenant share a hash tag, so that a script may touch them on a cluster; every script is given every
//! key it touches. `TAG` is a hash of the tenant's name: nothing that a caller sends can forge it.
//!
//! | key | what |
//! |---|---|
//! | `PREFIX:{TAG}:queue` | sorted set of ids, by when they may be drained, in ms |
//! | `PREFIX:{TAG}:leased` | sorted set of ids, by when their lease ends |
//! | `PREFIX:{TAG}:runs` | hash of id to the run as it was accepted |
//! | `PREFIX:{TAG}:about` | hash of id to its lease, attempts, version and key |
//! | `PREFIX:{TAG}:changes` | hash of id to the changes since, each with its length before it |
//! | `PREFIX:{TAG}:keys` | hash of dedupe id to the id of its run |
//! | `PREFIX:{TAG}:gate` | hash: what the gate counted |
//! | `PREFIX:{all}:gate` | the same for all tenants together |
//! | `PREFIX:{tenants}:turns` | sorted set of tenants with buffered runs, by when they had their last turn |
//! | `PREFIX:{tenants}:whose` | hash of buffered run to its tenant |
//! | `PREFIX:{TAG}:taken` | hash of dedupe id to the fence of whoever took the claim on it over, and until when that counts: older ones buffer nothing under it |

mod entry;
mod put;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyId;
use semel::record::Fence;
use semel::store::redis_driver::{Value, cmd};
use semel::store::{Effect, Error, ErrorKind, RedisClient};
use semel::together::Together;

pub use self::entry::{Buffered, Patch, Unreadable};
use self::put::Putting;
use self::script::Scripts;
use crate::event::{Accepted, NewEvent};
use crate::id::{EventId, EventKind};

/// The burst buffer of one deployment, on one Redis.
pub struct Buffer {
    client: RedisClient,
    prefix: String,
    /// At most so many runs of one tenant.
    capacity: u64,
    scripts: Scripts,
    puts: Arc<Together<Putting, Result<Put, Error>>>,
}

/// What became of a run that was to be buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// As the ledger would have answered.
    Accepted(Accepted),
    /// The tenant's part of the buffer is full: nothing was written.
    Full,
    /// Somebody else has taken the claim on its key over: nothing was written.
    TakenOver,
}

/// What became of a change to a buffered run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    /// It is written, and the run's version is this now.
    Applied(u64),
    /// The version is another than the caller knew.
    Stale,
    /// It is on its way to the ledger: look there in a moment.
    InTransit,
    /// It is not in the buffer.
    Missing,
}

/// A lease on some runs of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Leased {
    /// Whose they are.
    pub tenant: String,
    /// Proves who holds them.
    pub token: String,
    /// The runs, the one that waited longest first.
    pub runs: Vec<LeasedRun>,
    /// How many leases of dead drainers were over and were given back.
    pub reclaimed: u64,
}

/// One run of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedRun {
    /// Its id in the buffer.
    pub id: EventId,
    /// The run with its changes; or why it cannot be read, with its bytes.
    pub run: Result<Buffered, Unreadable>,
    /// How often it was leased before and not finished.
    pub attempts: u32,
    /// Its version: changes after it are not in `run`.
    pub version: u64,
}

/// What the buffer answers a drainer that is done with a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Acked {
    /// It is gone from the buffer.
    Gone,
    /// There were changes meanwhile: apply these where it is now, then say so again with this version.
    Changed(Vec<Patch>, u64),
    /// Somebody else has it by now.
    Lost,
}

/// How much is buffered for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Runs that wait.
    pub queued: u64,
    /// Runs on their way to the ledger.
    pub leased: u64,
    /// How long the oldest of them has been here.
    pub oldest: Duration,
}

impl Buffer {
    /// A buffer on this Redis; all its keys begin with `prefix`.
    pub fn new(client: RedisClient, prefix: impl Into<String>, capacity: u64) -> Self {
        let puts = Together::new(put::TOGETHER);
        Self { client, prefix: prefix.into(), capacity, scripts: Scripts::new(), puts }
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

    /// A key that is for all tenants.
    pub(crate) fn global(&self, part: &str) -> String {
        format!("{}:{{all}}:{part}", self.prefix)
    }

    fn whose(&self) -> String {
        format!("{}:{{tenants}}:whose", self.prefix)
    }

    fn turns(&self) -> String {
        format!("{}:{{tenants}}:turns", self.prefix)
    }

    /// The six keys of a tenant that scripts touch, in the order in which they know them.
    fn keys(&self, tenant: &str) -> [String; 6] {
        let tag = Self::tag(tenant);
        let name = |part| format!("{}:{{{tag}}}:{part}", self.prefix);
        ["queue", "leased", "runs", "about", "changes", "keys"].map(name)
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

    /// Says that the claim on a key was taken over, under this fence (G5): whoever held it before buffers nothing under it
    /// from now on. Kept for so long; the one before may be slow, but not slower than its claim can last.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn take_over(
        &self,
        tenant: &str,
        key: KeyId,
        fence: Fence,
        keep: Duration,
    ) -> Result<(), Error> {
        let taken = self.key(tenant, "taken");
        let (key, fence, keep) = (key.to_string(), fence.get().to_string(), millis(keep).max(1).to_string());
        let arguments = [key.as_bytes(), fence.as_bytes(), keep.as_bytes()];
        let script = &self.scripts.take_over;
        self.client.call(script, &[taken.as_bytes()], &arguments, Effect::Writes).await.map(drop)
    }

    /// Buffers a run (G11): not where its key is there already, with or without the same payload, nor where the claim on
    /// its key was taken over from the one with this fence. Together with other runs of this process that come at the
    /// same time.
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

    /// Puts tenants on the list of those with buffered runs.
    async fn announce(&self, tenants: &[&str]) -> Result<(), Error> {
        let turns = self.turns();
        let tenants: Vec<&[u8]> = tenants.iter().map(|tenant| tenant.as_bytes()).collect();
        let script = &self.scripts.announce;
        self.client.call(script, &[turns.as_bytes()], &tenants, Effect::Writes).await.map(drop)
    }

    /// Notes whose runs are.
    async fn note_whose(&self, runs: &[(String, EventId)]) -> Result<(), Error> {
        let mut note = cmd("HSET");
        note.arg(self.whose());
        for (tenant, run) in runs {
            note.arg(run.to_string()).arg(tenant);
        }
        self.client.query(&note, Effect::Writes).await.map(drop)
    }

    /// Whose a buffered run is, by its id alone; `None` where it is not buffered, or no longer.
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

    /// Forgets whose runs were that left the buffer.
    async fn forget_whose(&self, runs: &[EventId]) -> Result<(), Error> {
        let mut forget = cmd("HDEL");
        forget.arg(self.whose());
        for run in runs {
            forget.arg(run.to_string());
        }
        self.client.query(&forget, Effect::Writes).await.map(drop)
    }

    /// Who has this key, with what fingerprint; `None` where it is free or over (G8).
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn find(&self, tenant: &str, key: KeyId) -> Result<Option<(EventId, [u8; 32])>, Error> {
        let key = key.to_string();
        // Most keys are new, and a plain read costs Redis a tenth of a script.
        let mut get = cmd("HGET");
        get.arg(self.key(tenant, "keys")).arg(&key);
        if self.client.query(&get, Effect::Reads).await? == Value::Nil {
            return Ok(None);
        }
        let answer = self.call(&self.scripts.find, tenant, &[key.as_bytes()], Effect::Writes).await?;
        let (id, print) = script::word(&answer)?;
        Ok(id.parse().ok().zip(unhex(&print)))
    }

    /// A buffered run with its changes, and its version.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn get(
        &self,
        tenant: &str,
        id: EventId,
    ) -> Result<Option<(Result<Buffered, Unreadable>, u64)>, Error> {
        let id_text = id.to_string();
        let answer = self.call(&self.scripts.get, tenant, &[id_text.as_bytes()], Effect::Reads).await?;
        let Value::Array(parts) = answer else { return Ok(None) };
        let [run, changes, version] = script::blobs::<3>(parts)?;
        Ok(Some((Buffered::read(&run, &changes), script::number(&version)?)))
    }

    /// Adds a change to a buffered run (G12). `version` is what the caller knew, where that matters. What must not come too
    /// late is not added to a run that is on its way.
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
        let patch_bytes = patch.encode();
        let version = version.map_or_else(|| "-1".to_owned(), |version| version.to_string());
        let in_transit: &[u8] = if patch.may_follow() { b"1" } else { b"0" };
        let arguments: [&[u8]; 4] = [id.as_bytes(), &patch_bytes, version.as_bytes(), in_transit];
        let answer = self.call(&self.scripts.patch, tenant, &arguments, Effect::Writes).await?;
        let (word, version) = script::word(&answer)?;
        match word.as_str() {
            "applied" => Ok(Patched::Applied(version.parse().map_err(|_| script::strange())?)),
            "stale" => Ok(Patched::Stale),
            "in transit" => Ok(Patched::InTransit),
            "missing" => Ok(Patched::Missing),
            _ => Err(script::strange()),
        }
    }

    /// Frees a key (G15): the run that has it keeps its place and loses its key, also where it is on its way to the
    /// ledger. Answers whose it was.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn reset(&self, tenant: &str, key: KeyId) -> Result<Option<EventId>, Error> {
        let (key_text, patch) = (key.to_string(), Patch::DropKey.encode());
        let arguments: [&[u8]; 2] = [key_text.as_bytes(), &patch];
        let answer = self.call(&self.scripts.reset, tenant, &arguments, Effect::Writes).await?;
        let (id, _) = script::word(&answer)?;
        Ok(id.parse().ok())
    }

    /// The tenant that has waited longest for its turn, which it has now (G13); `None` where nothing is buffered.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn next_tenant(&self) -> Result<Option<String>, Error> {
        let turns = self.turns();
        let answer = self.client.call(&self.scripts.turn, &[turns.as_bytes()], &[], Effect::Writes).await?;
        match answer {
            Value::BulkString(name) => Ok(String::from_utf8(name).ok()),
            _ => Ok(None),
        }
    }

    /// Leases the next runs of a tenant that may be drained. Leases that are over are given back first.
    /// A tenant without any loses its place in the turns.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn lease(&self, tenant: &str, limit: u32, lease: Duration) -> Result<Leased, Error> {
        let token = format!("{:032x}", rand::random::<u128>());
        let (limit, lease) = (limit.to_string(), millis(lease).to_string());
        let arguments: [&[u8]; 3] = [limit.as_bytes(), lease.as_bytes(), token.as_bytes()];
        let answer = self.call(&self.scripts.lease, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(mut parts) = answer else { return Err(script::strange()) };
        if parts.len() < 2 || (parts.len() - 2) % 5 != 0 {
            return Err(script::strange());
        }
        let rest = parts.split_off(2);
        let (reclaimed, left) = (int(&parts[0]), int(&parts[1]));
        let mut runs = Vec::with_capacity(rest.len() / 5);
        let mut rest = rest.into_iter();
        while rest.len() > 0 {
            let [id, run, changes, attempts, version] = script::blobs::<5>(rest.by_ref().take(5).collect())?;
            let id =
                std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(script::strange)?;
            runs.push(LeasedRun {
                id,
                run: Buffered::read(&run, &changes),
                attempts: u32::try_from(script::number(&attempts)?).unwrap_or(u32::MAX),
                version: script::number(&version)?,
            });
        }
        if runs.is_empty() && left == 0 {
            self.leave(tenant).await?;
        }
        Ok(Leased { tenant: tenant.to_owned(), token, runs, reclaimed })
    }

    /// Takes a tenant off the list, unless something came meanwhile.
    async fn leave(&self, tenant: &str) -> Result<(), Error> {
        let mut remove = cmd("ZREM");
        remove.arg(self.turns()).arg(tenant);
        self.client.query(&remove, Effect::Writes).await?;
        if self.depth(tenant).await? != Depth::default() {
            self.announce(&[tenant]).await?;
        }
        Ok(())
    }

    /// Extends leases. Answers which of the runs are still the caller's.
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

    /// The run is in the ledger, with all changes up to `version`: it leaves the buffer, unless it was changed since.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn ack(&self, leased: (&str, &str), run: EventId, version: u64) -> Result<Acked, Error> {
        let mut acked = self.ack_all(leased, &[(run, version)]).await?;
        acked.pop().ok_or_else(script::strange)
    }

    /// The same for many of one lease. Answers in their order.
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
        let mut arguments = vec![token.as_bytes()];
        arguments.extend(texts.iter().flatten().map(String::as_bytes));
        let answer = self.call(&self.scripts.ack, tenant, &arguments, Effect::Writes).await?;
        let Value::Array(answers) = answer else { return Err(script::strange()) };
        if answers.len() != runs.len() {
            return Err(script::strange());
        }
        let (mut acked, mut gone) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        for (answer, (run, version)) in answers.into_iter().zip(runs) {
            let Value::Array(parts) = answer else { return Err(script::strange()) };
            let [word, changes, now] = script::blobs::<3>(parts)?;
            acked.push(match &word[..] {
                b"gone" => {
                    gone.push(*run);
                    Acked::Gone
                }
                b"lost" => Acked::Lost,
                b"changed" => {
                    let known = usize::try_from(*version).unwrap_or(usize::MAX);
                    let patches =
                        Patch::read_all(&changes).map_err(|why| Error::new(ErrorKind::Corrupt, why))?;
                    Acked::Changed(patches.into_iter().skip(known).collect(), script::number(&now)?)
                }
                _ => return Err(script::strange()),
            });
        }
        if !gone.is_empty() {
            self.forget_whose(&gone).await?;
        }
        Ok(acked)
    }

    /// Gives a run back, to be drained after a pause. `counts` where it was the run's own failure.
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

    /// Takes a run out: it is a dead letter now, or somebody waits for it and puts it into the ledger at once. Without a
    /// token only where it is not on its way already.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn remove(&self, tenant: &str, token: Option<&str>, run: EventId) -> Result<bool, Error> {
        let id = run.to_string();
        let arguments: [&[u8]; 2] = [token.unwrap_or("").as_bytes(), id.as_bytes()];
        let answer = self.call(&self.scripts.remove, tenant, &arguments, Effect::Writes).await?;
        let removed = int(&answer) == 1;
        if removed {
            self.forget_whose(&[run]).await?;
        }
        Ok(removed)
    }

    /// How much is buffered for a tenant.
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
        list.arg(self.turns()).arg(0).arg(-1);
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
