//! The Redis store: many processes, one key space.
//!
//! Every record is one packed value under its own hash tag; every change is one script call, in which the server's
//! clock decides. The script is another spelling of [`crate::record`]. What is commonest needs no script: a first claim
//! and a replay, see `redis/without_script.rs`. What is kept where, and what may be promised of it, is told in
//! `docs/reference/redis-store.md`.

mod address;
mod builder;
mod caches;
mod client;
mod clock;
mod complete;
mod error;
mod health;
mod link;
mod listen;
mod listing;
#[cfg(feature = "mutants")]
mod mutants;
mod names;
mod plan;
mod replicas;
mod script;
mod secret;
#[cfg(feature = "postgres")]
mod side;
#[cfg(all(test, feature = "testkit"))]
mod timed_tests;
mod transfer;
mod without_script;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::redis::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

pub use self::builder::{OnStoreLoss, RedisBuilder, RedisContent};
use self::caches::Caches;
pub use self::client::{Effect, RedisClient, RedisClientBuilder, RedisScript};
use self::clock::ServerClock;
use self::complete::Completions;
use self::error::CallReach;
use self::health::ServerHealth;
use self::link::{Link, NumberedConnection};
use self::listing::{IdListing, Sweeper};
use self::names::Names;

use self::replicas::Replicas;
use self::script::{Dialect, Rules, ScriptReply};
#[cfg(feature = "postgres")]
pub(super) use self::side::{Side, SideThread, Wake};
use self::without_script::Guess;
use super::given::GivenSecret;
use super::transfer::{TransferWatch, apply_closed};
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store,
    Swept, Wakeups, Watch,
};
use crate::backoff::Backoff;
use crate::key::KeyId;
use crate::outage::Availability;
use crate::record::{Command, Ruling};
use crate::secret::Secret;
use crate::time::{Timestamp, instant};

/// The maximum age of an outcome in the engine's caches: after it, a process that does not answer cannot use its
/// cache.
const CACHES_LIVE: Duration = Duration::from_secs(10);

/// Stores records in Redis: one server, one behind Sentinel, or a Cluster.
///
/// All its work runs on its own thread, so a busy caller starves no heartbeat, and a dropped call leaves no reply
/// that another call would read.
///
/// While the server does not answer, calls fail at once with [`ErrorKind::Unavailable`]. The outage and its end are logged
/// once. In a cluster, calls are still sent, because other shards may answer.
pub struct RedisStore {
    shared: Arc<Shared>,
    availability: Arc<Availability>,
    /// The runtime of the store's thread.
    runtime: Handle,
    calls: UnboundedSender<ThreadCall>,
    watched: UnboundedSender<KeyId>,
    /// Dropped with the store: ends the thread.
    _running: oneshot::Sender<()>,
}

/// The work of one call, for the store's thread.
type ThreadCall = BoxFuture<'static, ()>;

/// Starts calls in the order of their arrival. Calls that arrive together are all queued before the connection
/// writes: one packet for many calls.
async fn begin(mut calls: UnboundedReceiver<ThreadCall>) {
    let mut came = Vec::new();
    while calls.recv_many(&mut came, 1024).await > 0 {
        came.drain(..).for_each(|call| drop(tokio::spawn(call)));
    }
}

/// A message to every process, and the processes that received it.
struct Announcement {
    listeners: i64,
    /// Asks how many processes received it.
    heard: ::redis::Cmd,
    until: Instant,
    backoff: Backoff,
}

/// The state that calls and background tasks share.
struct Shared {
    /// The URL without its password.
    name: String,
    /// Distinguishes this process's own messages from those of others.
    process: [u8; 8],
    link: Arc<Link>,
    names: Names,
    rules: Rules,
    replicas: Replicas,
    wakeups: Wakeups,
    caches: Caches,
    clock: ServerClock,
    health: ServerHealth,
    given: GivenSecret,
    transfer: TransferWatch,
    guess: Guess,
    completions: Completions,
    listing: IdListing,
    sweeper: Sweeper,
}

impl RedisStore {
    /// Connects with the default settings. The URL is `redis://`, `rediss://` (TLS), `redis-cluster://` or
    /// `redis-sentinel://`.
    ///
    /// # Errors
    /// The URL or the server is wrong; the error says what to change.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Settings for a store at `url`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    /// The promises that this server does not make, in plain words, as of the last check (every minute).
    pub fn warnings(&self) -> Vec<String> {
        self.shared.health.warnings()
    }

    /// True if the server came back with less data than it had and has not been trusted since.
    pub fn has_lost_data(&self) -> bool {
        self.shared.health.has_lost_data()
    }

    /// Runs work on the store's own thread, unless there is an outage.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        Box::pin(self.availability.guard(self.run_on_thread(work)))
    }

    /// Runs work on the store's own thread. If the call is dropped, the work still completes.
    fn run_on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            // Fails only if the thread has ended; then waiting for the answer fails too.
            let _ = self.calls.send(Box::pin(async move {
                // Nobody waits for the answer of a dropped call.
                let _ = answer.send(work.await);
            }));
            answered.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Ambiguous, "the thread of the Redis store ended during a call"))
            })
        })
    }
}

impl Shared {
    async fn execute(
        &self,
        numbered: &mut NumberedConnection,
        key: &[u8],
        command: &Command,
    ) -> Result<Ruling, Error> {
        if matches!(command, Command::Claim(_))
            && let Some(refusal) = self.refusal()
        {
            return Err(refusal);
        }
        let (script, arguments) = (self.rules.script(command), script::arguments(command));
        if !matches!(command, Command::Claim(_)) {
            let answer = self.link.call(numbered, script, key, &arguments, CallReach::Write).await?;
            let ruling = script::ruling(command, answer)?;
            if let (Command::Begin(_), Ruling::Accepted { .. }) = (command, &ruling) {
                self.confirm_open(numbered).await?;
            }
            return Ok(ruling);
        }
        let secret = self.secret_query();
        let (answer, kept) =
            self.link.call_then(numbered, script, key, &arguments, secret.as_ref(), CallReach::Write).await?;
        let ruling = script::ruling(command, answer)?;
        self.guess.note(&ruling);
        self.confirm_grant(numbered, key, ruling, kept).await
    }

    /// Answers a claim with the rules, but refuses it if it would be won.
    async fn apply_without_winning(
        &self,
        id: KeyId,
        command: &Command,
        refusal: Error,
    ) -> Result<Ruling, Error> {
        apply_closed(self.get(id).await?, command, refusal)
    }

    async fn get(&self, id: KeyId) -> Result<Option<Snapshot>, Error> {
        let mut numbered = self.link.connection().await?;
        let key = self.names.record(id);
        let script = &self.rules.usual;
        let answer =
            self.link.call(&mut numbered, script, &key, &[b"read".to_vec()], CallReach::Read).await?;
        let mut answer = ScriptReply::new(answer)?;
        let now = Timestamp::from_micros(answer.number()?);
        if answer.is_over() {
            return Ok(None);
        }
        Ok(Some(Snapshot { id, record: answer.record()?, now }))
    }

    /// Invalidates a record in the caches of every process, and returns once they have confirmed.
    async fn tell_caches(&self, id: KeyId) -> Result<(), Error> {
        self.caches.invalidate(id);
        let mut told = self.tell_all(id).await?;
        while !self.all_confirmed(&mut told).await? {}
        Ok(())
    }

    async fn tell_all(&self, id: KeyId) -> Result<Announcement, Error> {
        let receipt = [self.process, rand::random()].concat();
        let mut publish = self.publish();
        publish.arg([&id.as_bytes()[..], &receipt].concat());
        let listeners = number(&self.link.query(&publish, CallReach::Write).await?);
        let mut heard = ::redis::cmd("GET");
        heard.arg(self.names.receipt(&receipt));
        Ok(Announcement {
            listeners,
            heard,
            until: instant() + CACHES_LIVE,
            backoff: Backoff::new(Duration::from_micros(200), Duration::from_millis(20)),
        })
    }

    /// True if every process has received a message. If not, this waits a moment before it returns.
    ///
    /// A process that does not answer is waited for until everything it caches is too old to be used.
    async fn all_confirmed(&self, told: &mut Announcement) -> Result<bool, Error> {
        let heard = number(&self.link.query(&told.heard, CallReach::Write).await?);
        if heard >= told.listeners || instant() >= told.until {
            return Ok(true);
        }
        told.backoff.wait().await;
        Ok(false)
    }

    /// A message to all processes, still without its content.
    fn publish(&self) -> ::redis::Cmd {
        let mut publish = ::redis::cmd(match self.link.address.dialect() {
            Dialect::One => "PUBLISH",
            Dialect::Cluster => "SPUBLISH",
        });
        publish.arg(self.names.forgotten());
        publish
    }

    async fn read_mark(&self, mark: MarkId) -> Result<Option<u64>, Error> {
        let mut get = ::redis::cmd("GET");
        match self.link.query(get.arg(self.names.mark(mark)), CallReach::Read).await? {
            Value::Nil => Ok(None),
            value => mark_value(&value).map(Some),
        }
    }

    async fn raise_mark(&self, mark: MarkId, value: u64) -> Result<u64, Error> {
        if let Some(refusal) = self.transfer.moved(&self.name) {
            return Err(refusal);
        }
        let mut numbered = self.link.connection().await?;
        let key = self.names.mark(mark);
        let arguments = [b"mark".to_vec(), format!("{value:020}").into_bytes()];
        let answer =
            self.link.call(&mut numbered, &self.rules.marks, &key, &arguments, CallReach::Write).await?;
        self.replicas.wait_for_replicas(&self.link, &mut numbered, &key).await?;
        if !self.transfer.is_confirmed() {
            self.read_transfer(&mut numbered).await?;
            if let Some(refusal) = self.transfer.moved(&self.name) {
                return Err(refusal);
            }
        }
        mark_value(&answer)
    }
}

fn mark_value(value: &Value) -> Result<u64, Error> {
    let Value::BulkString(digits) = value else { return Err(script::unexpected_reply("is not a mark")) };
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a mark is not a number"))
}

/// The number in a reply; zero for nothing.
fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        Value::BulkString(digits) => {
            str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

impl Store for RedisStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move { self.availability.guard(plan::apply(self, id, command)).await })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.get(id).await })
    }

    /// Redis has no order, so a page costs a walk over all keys (SCAN, in small steps). The ids found are remembered
    /// for a minute, so that the following pages rarely need a walk.
    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { listing::page(&shared, query).await })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { listing::sweep(&shared, limit).await })
    }

    fn watch(&self, id: KeyId) -> Watch {
        let watch = self.shared.wakeups.watch(id);
        // Fails only if the thread has ended: then nothing wakes the callers, and they poll.
        let _ = self.watched.send(id);
        watch
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.shared.caches.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.secret(candidate).await })
    }

    /// What the server says that it uses, of all primaries together: also for data of others.
    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.used_bytes().await.map(Some) })
    }

    fn durability(&self) -> Durability {
        Durability::Server
    }
}

impl MarkStore for RedisStore {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.read_mark(mark).await })
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.raise_mark(mark, value).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.shared.name).finish_non_exhaustive()
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}
