//! The tiered store: Redis in front of PostgreSQL.
//!
//! ```text
//!              GET                            asks, decides                     SET, PUBLISH
//!   claim ──► Redis ──► busy or done, for ──► PostgreSQL ──► the truth ──► what it said, for ──► answer
//!                       certain: answer                                    the others
//! ```
//!
//! Only PostgreSQL grants a claim, mints a fence, and takes begin, renew, complete, release, settle and forget. Redis
//! holds copies of PostgreSQL's answers for a short time: that a key is *busy* (a second at most, and never past half
//! of the lease), or that it is *done*, with the outcome. Losing a copy costs one query to PostgreSQL. Redis may
//! therefore be unavailable, evict, lose data or restart with old data, and its configuration need not be checked.
//! The next sections explain why an entry is never used for longer than it is true.
//!
//! # When an entry is used
//!
//! An entry is used if all of these conditions hold; otherwise PostgreSQL is asked:
//! 1. It is stored under the id of this PostgreSQL database, which is part of its name.
//! 2. It has the claim's fingerprint. Only PostgreSQL reports a conflict.
//! 3. It has the current *generation* (below).
//! 4. Its end is not reached, counted on PostgreSQL's clock: for a copy the end of its retention, by an estimate that
//!    is early for the writer and late for the reader. Redis' own clock is not used.
//! 5. For busy: it is not the claimer's own. Only PostgreSQL recognises a repeated claim.
//!
//! # Why a forgotten outcome is not given again
//!
//! A record stops being done in three ways: its retention ends (4), or an operator forgets or re-executes it. For the
//! latter two PostgreSQL stores a number, the generation of copies. Every forget and every re-execute raises it *in
//! its own transaction*, in every process, also in one without Redis.
//!
//! - *An entry is stamped with the generation that was read before PostgreSQL was asked* for the content of the
//!   entry. If the record was forgotten after that, the number was raised after that: the stamp is old, however late
//!   the entry is written, and from whatever disk, replica or socket buffer it comes back.
//! - *An entry is used only under the newest generation.* A process reads the number itself and relies on
//!   PostgreSQL's cache invalidation: the store is attached to PostgreSQL as a cache. A forget is therefore answered
//!   only once this process has received it and dropped the number, or cannot have a number: it uses none while its
//!   subscription is unconfirmed, and none that was read more than 8 s ago (a forget waits 10 s and more for a
//!   process that does not answer). Then it reads the number again.
//!
//! This argument does not depend on Redis. A process without a connection to Redis forgets like any other. A Redis
//! that missed the forget, or was restored to before it, holds old stamps. A settlement ends a doubt, and doubts are
//! never copied.
//!
//! # When Redis is unavailable
//!
//! The first failed call opens the circuit breaker. From then on no call uses Redis, and PostgreSQL serves
//! everything. A background task retries with a write, first after 100 ms and then up to every second. Once Redis
//! answers, the task begins a new generation, so that everything in Redis from before the outage is ignored: by this
//! process immediately, and by others when they next read the number. Then the breaker closes. Both changes are
//! logged, once.
//!
//! # Waiting
//!
//! Waiters are woken by PostgreSQL's LISTEN and by Redis' pub/sub, into the same registry; one of the two is enough.
//! A busy entry is short-lived, so a waiter that asks again at its backstop or at the end of the lease asks PostgreSQL.

mod breaker;
mod builder;
mod counters;
mod entry;
mod view;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;

use self::breaker::RedisBreaker;
pub use self::builder::TieredBuilder;
use self::counters::Counters;
pub use self::counters::{Coordination, TieredStats};
use self::entry::{CopiedState, TieredEntry};
use self::view::{TieredView, Views};
use super::redis::{Side, SideThread, Wake};
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, PostgresStore, RedisStore,
    Scan, Snapshot, Store, Swept, Watch,
};
use crate::fingerprint::Fingerprint;
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::record::{Command, Grant, NewClaim, Ruling, Terms};
use crate::secret::Secret;
use crate::time::{Timestamp, instant};

/// Stores records in PostgreSQL, with Redis in front of it for copies of outcomes, busy keys and wake-ups.
///
/// It makes the promises of [`PostgresStore`]; Redis only reduces the number of queries. Every process on the same
/// database may use the same Redis, another one or none.
///
/// # Failures
/// - Redis is unavailable, also at the start: the store logs a warning, counts it, and uses PostgreSQL only. It
///   recovers by itself.
/// - PostgreSQL is unavailable: as [`PostgresStore`]. Copies are still used for a few seconds.
///
/// ```no_run
/// # async fn open() -> Result<(), semel::store::Error> {
/// use semel::store::TieredStore;
///
/// let store = TieredStore::open("postgres://semel:secret@db.internal/app", "redis://cache.internal").await?;
/// # Ok(())
/// # }
/// ```
pub struct TieredStore {
    tiers: Arc<Tiers>,
    /// Dropped with the store: ends the background tasks, which hold the last reference to the tiers.
    _running: SideThread,
}

/// The state that callers and background tasks share.
struct Tiers {
    postgres: PostgresStore,
    redis: Side,
    breaker: RedisBreaker,
    views: Arc<Views>,
    counters: Counters,
    /// The claims that were won here. They tell a completion how long its outcome is valid.
    won: Cache<(KeyId, Grant), WonClaim>,
    settings: TieredSettings,
}

/// The payload and the terms of a won claim, and the earliest time at which it was won.
#[derive(Clone)]
struct WonClaim {
    since: Timestamp,
    /// The fingerprint of the claim, which is the record's. A completion may carry another one.
    fingerprint: Fingerprint,
    terms: Arc<Terms>,
}

#[derive(Clone, Copy, Debug)]
struct TieredSettings {
    /// The maximum validity of a busy entry.
    busy_for: Duration,
    /// The largest outcome that is copied.
    copy_limit: usize,
}

/// How many claims in progress are remembered. The outcome of any other claim is copied when it is first read.
const WON: usize = 65_536;

/// A query to PostgreSQL: the state just before it.
#[derive(Clone, Copy)]
struct Question {
    view: Option<TieredView>,
    asked: Instant,
}

impl TieredStore {
    /// Connects to both with the usual settings.
    ///
    /// # Errors
    /// As [`TieredBuilder::open`].
    pub async fn open(postgres: impl AsRef<str>, redis: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(PostgresStore::builder(postgres), RedisStore::builder(redis.as_ref())).open().await
    }

    /// Settings for a tiered store.
    pub fn builder(postgres: super::PostgresBuilder, redis: super::RedisBuilder) -> TieredBuilder {
        TieredBuilder::new(postgres, redis)
    }

    /// Counts of queries to each store, and whether Redis is currently used.
    pub fn stats(&self) -> TieredStats {
        self.tiers.counters.read(&self.tiers.breaker)
    }
}

impl Tiers {
    async fn apply(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        match command {
            Command::Claim(claim) => self.claim(id, claim).await,
            // Only the owner needs these.
            Command::Begin(_) | Command::Renew(_) => self.postgres.apply(id, command).await,
            command => self.write(id, command).await,
        }
    }

    async fn claim(&self, id: KeyId, claim: NewClaim) -> Result<Ruling, Error> {
        // Before PostgreSQL is asked: a later entry is stamped with it.
        let view = self.views.current();
        let found = if view.is_some() { self.look(id).await } else { None };
        if let Some(ruling) = found.as_ref().and_then(|entry| self.believe(entry, &claim)) {
            return Ok(ruling);
        }
        let question = Question { view, asked: instant() };
        let (owner, fingerprint, terms) = (claim.owner, claim.fingerprint, Arc::clone(&claim.terms));
        self.counters.asked_postgres.add();
        let ruling = self.postgres.apply(id, Command::Claim(claim)).await?;
        // Written before the answer: a caller that sees this answer and then asks must not get an older one.
        match &ruling {
            Ruling::Won(win) => {
                // A repeated claim is won under the terms of the first, which may be unknown here. Its lease has
                // already begun.
                let is_new = win.lease_left == terms.lease;
                if let Some(view) = view.filter(|_| is_new) {
                    let since = view.earliest(question.asked);
                    self.won.insert((id, win.grant), WonClaim { since, fingerprint, terms });
                }
                let said = CopiedState::Busy { owner };
                self.tell(id, question, fingerprint, said, win.lease_left, Wake::Nobody).await;
            }
            Ruling::Replay { outcome, expires_in } => {
                let said = CopiedState::Done(Arc::clone(outcome));
                self.tell(id, question, fingerprint, said, *expires_in, Wake::Nobody).await;
            }
            // The owner has written the entry.
            Ruling::Busy { .. } => {}
            // Also if nothing was found: an entry that arrived meanwhile may be older than this.
            _ => self.clear(id, Wake::Nobody).await,
        }
        Ok(ruling)
    }

    /// Every command that ends something.
    async fn write(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let question = Question { view: self.views.current(), asked: instant() };
        let copy = self.copy_of(id, &command);
        let grant = grant_of(&command);
        let ruling = self.postgres.apply(id, command).await?;
        match (&ruling, copy) {
            (Ruling::Accepted { .. }, Some((fingerprint, outcome, left))) => {
                self.tell(id, question, fingerprint, CopiedState::Done(outcome), left, Wake::Waiters).await;
            }
            (Ruling::Accepted { .. }, None) => self.clear(id, Wake::Waiters).await,
            _ => self.clear(id, Wake::Nobody).await,
        }
        if let Some(grant) = grant {
            self.won.remove(&(id, grant));
        }
        Ok(ruling)
    }

    /// The outcome of a completion for a copy, and its minimum validity. Counted from the claim, because a repeated
    /// completion may have happened at any time since.
    fn copy_of(&self, id: KeyId, command: &Command) -> Option<(Fingerprint, Arc<Outcome>, Duration)> {
        let Command::Complete { grant, outcome, retention, .. } = command else { return None };
        let WonClaim { since, fingerprint, terms } = self.won.get(&(id, *grant))?;
        let stands = retention.unwrap_or(terms.retention).saturating_add(terms.grace);
        let left = since.after(stands).left(self.views.current()?.latest(instant()));
        Some((fingerprint, Arc::clone(outcome), left))
    }

    /// The entry in Redis, if Redis is used and answers.
    async fn look(&self, id: KeyId) -> Option<TieredEntry> {
        let bytes = self.through_breaker(self.redis.get(id)).await??;
        let entry = TieredEntry::decode(&bytes);
        if entry.is_none() {
            self.counters.ignored.add();
        }
        entry
    }

    /// The answer to a claim, if the entry is certain.
    fn believe(&self, entry: &TieredEntry, claim: &NewClaim) -> Option<Ruling> {
        // The current view, not the one from before the read: the record may have been forgotten meanwhile.
        let ruling = self.views.current().and_then(|view| {
            if entry.generation > view.generation() {
                // Another process knows a newer generation.
                self.views.read_again();
            }
            entry.ruling(claim, view.generation(), view.latest(instant()))
        });
        match &ruling {
            Some(Ruling::Replay { .. }) => self.counters.replayed_copies.add(),
            Some(_) => self.counters.believed_busy.add(),
            None => self.counters.ignored.add(),
        }
        ruling
    }

    /// Writes PostgreSQL's answer to Redis: it is valid for `left` from the time of the query.
    async fn tell(
        &self,
        id: KeyId,
        question: Question,
        fingerprint: Fingerprint,
        said: CopiedState,
        left: Duration,
        wake: Wake,
    ) {
        let left = left.saturating_sub(instant().saturating_duration_since(question.asked));
        let life = match &said {
            CopiedState::Busy { .. } => self.settings.busy_for.min(left / 2),
            CopiedState::Done(_) => left,
        };
        let fits = match &said {
            CopiedState::Busy { .. } => true,
            CopiedState::Done(outcome) => outcome.size() <= self.settings.copy_limit,
        };
        let Some(view) = question.view.filter(|_| fits && life >= Duration::from_millis(1)) else {
            return self.clear(id, wake).await;
        };
        let now = view.earliest(instant());
        let entry = TieredEntry {
            generation: view.generation(),
            until: now.after(life),
            standing_until: now.after(left),
            fingerprint,
            said,
        };
        if self.through_breaker(self.redis.put(id, entry.encode(), life, wake)).await.is_some() {
            self.counters.told.add();
        }
    }

    /// Removes the entry in Redis: it may no longer be true.
    async fn clear(&self, id: KeyId, wake: Wake) {
        self.through_breaker(self.redis.remove(id, wake)).await;
    }

    /// Calls Redis, unless the breaker is open. A failure opens the breaker.
    async fn through_breaker<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let Some(period) = self.breaker.admit() else {
            self.counters.without_redis.add();
            return None;
        };
        match call.await {
            Ok(value) => Some(value),
            // A foreign value under one key says nothing about the server.
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            Err(error) => {
                self.counters.failed.add();
                self.breaker.open(period, &error);
                None
            }
        }
    }
}

fn grant_of(command: &Command) -> Option<Grant> {
    match command {
        Command::Begin(grant)
        | Command::Renew(grant)
        | Command::Complete { grant, .. }
        | Command::Release(grant)
        | Command::Bind(grant)
        | Command::Abandon(grant) => Some(*grant),
        Command::Claim(_)
        | Command::Settle(_)
        | Command::SettleAttempt(..)
        | Command::Forget(_)
        | Command::Reexecute => None,
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for TieredStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(self.tiers.apply(id, command))
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.tiers.postgres.get(id)
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        self.tiers.postgres.scan(query)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        self.tiers.postgres.sweep(limit)
    }

    fn watch(&self, id: KeyId) -> Watch {
        let watch = self.tiers.postgres.watch(id);
        self.tiers.redis.watch(id);
        watch
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.tiers.postgres.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        self.tiers.postgres.secret(candidate)
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.tiers.postgres.used_bytes()
    }

    fn durability(&self) -> Durability {
        self.tiers.postgres.durability()
    }
}

impl MarkStore for TieredStore {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.tiers.postgres.read_mark(mark)
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        self.tiers.postgres.raise_mark(mark, value)
    }
}

impl fmt::Debug for TieredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TieredStore")
            .field("postgres", &self.tiers.postgres)
            .field("redis", &self.tiers.redis)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for TieredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} behind {}", self.tiers.postgres, self.tiers.redis.name())
    }
}
