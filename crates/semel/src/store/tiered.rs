//! The tiered store: Redis in front of PostgreSQL.
//!
//! ```text
//!              GET                            asks, decides                     SET, PUBLISH
//!   claim ──► Redis ──► busy or done, for ──► PostgreSQL ──► the truth ──► what it said, for ──► answer
//!                       certain: answer                                    the others
//! ```
//!
//! Only PostgreSQL grants a claim, mints a fence, and takes begin, renew, complete, release, settle and forget. Redis
//! holds, for a while, what PostgreSQL said: that a key is *busy* (a second at most, and never past half of the lease),
//! or that it is *done*, with the outcome. Losing any of it costs a question to PostgreSQL. So Redis may be away, evict,
//! forget or come back with old data, and need not be checked. What follows says why what it holds is never believed
//! for longer than it is true.
//!
//! # When an entry is believed
//!
//! All of these, and otherwise PostgreSQL is asked:
//! 1. It lies under the id of this PostgreSQL database, which is part of its name.
//! 2. It has the claim's fingerprint. Every conflict is PostgreSQL's word.
//! 3. It is of the present *generation* (below).
//! 4. Its end is not reached, counted on PostgreSQL's clock: for a copy the end of its retention, by an estimate that
//!    errs to the short side for who wrote it and to the late side for who reads it. Redis' own clock decides nothing.
//! 5. For busy: it is not the claimer's own. A repeated claim is PostgreSQL's to know.
//!
//! # Why a forgotten outcome is not replayed
//!
//! A done record stops to be done in three ways: its retention ends (4), or an operator forgets or re-executes it. For
//! the latter two PostgreSQL keeps a number, the generation of copies. Every forget and every re-execute raises it *in its
//! own transaction*, whatever process does it, also one that knows nothing of Redis.
//!
//! - *An entry is stamped with the generation that was read before PostgreSQL was asked* what the entry says. If the
//!   record was forgotten after that, the number was raised after that: the stamp is old, however late the entry is
//!   written, and from whatever disk, replica or socket buffer it comes back.
//! - *An entry is believed only under the newest generation.* A process knows the number from a read of its own, and lets
//!   PostgreSQL's own way of keeping caches honest stand guard over it: the store is attached to PostgreSQL as a cache, so
//!   a forget is answered only once this process has heard of it and has dropped the number, or once it cannot have one:
//!   it uses none while its subscription is unconfirmed, and none that was read more than 8 s ago (a forget waits
//!   10 s and more for the silent). Then it reads the number again.
//!
//! Redis has no part in this argument. A process that is cut off from Redis forgets like any other; a Redis that slept
//! through the forget, or was set back to before it, holds old stamps. A settlement ends doubt, which is never copied.
//!
//! # When Redis is away
//!
//! The first call that fails opens the breaker; from then on no call speaks to Redis, and PostgreSQL alone goes on. A
//! task in the background tries again, with a write, from 100 ms on up to every second. Once Redis answers, a new
//! generation is begun, so that everything in Redis from before the outage is ignored, by this process at once and by
//! others when they next read the number; then the breaker closes. Both changes are logged, once.
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

use self::breaker::Breaker;
pub use self::builder::TieredBuilder;
use self::counters::Counters;
pub use self::counters::{Coordination, TieredStats};
use self::entry::{Entry, Said};
use self::view::{View, Views};
use super::redis::{Running, Side, Wake};
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, PostgresStore, RedisStore,
    Scan, Snapshot, Store, Swept, Watch,
};
use crate::fingerprint::Fingerprint;
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::record::{Claim, Command, Grant, Ruling, Terms};
use crate::secret::Secret;
use crate::time::{Timestamp, instant};

/// Keeps records in PostgreSQL, with Redis in front of it for replays, busy keys and wake-ups.
///
/// What is promised is what [`PostgresStore`] promises; Redis only takes questions off it. Every process on the same
/// database may do as it likes: tiered over the same Redis, over another one, or without.
///
/// # Failures
/// - Redis is away, at start too: a warning and a count, and PostgreSQL alone goes on. It heals by itself.
/// - PostgreSQL is away: as [`PostgresStore`]. Copies are still replayed for a few seconds.
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
    /// Dropped with the store: ends the background tasks, and with them the last hold on the tiers.
    _running: Running,
}

/// What callers and background tasks share.
struct Tiers {
    postgres: PostgresStore,
    redis: Side,
    breaker: Breaker,
    views: Arc<Views>,
    counters: Counters,
    /// The claims that were won here. Who completes one knows by it how long its outcome stands.
    won: Cache<(KeyId, Grant), Tenure>,
    settings: Settings,
}

/// For which payload and under which terms a claim was won, and when at the earliest.
#[derive(Clone)]
struct Tenure {
    since: Timestamp,
    /// Of the claim: it is the record's. Who completes may name another one.
    fingerprint: Fingerprint,
    terms: Arc<Terms>,
}

/// What can be chosen.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// How long a busy entry stands at most.
    busy_for: Duration,
    /// The largest outcome that is copied.
    copy_limit: usize,
}

/// How many claims in flight are remembered. One that is not has its outcome copied by the first replay instead.
const WON: usize = 65_536;

/// A question to PostgreSQL: what was known just before it.
#[derive(Clone, Copy)]
struct Question {
    view: Option<View>,
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

    /// Settings for a store in PostgreSQL with Redis in front of it.
    pub fn builder(postgres: super::PostgresBuilder, redis: super::RedisBuilder) -> TieredBuilder {
        TieredBuilder::new(postgres, redis)
    }

    /// What was asked of whom so far, and whether Redis takes part at present.
    pub fn stats(&self) -> TieredStats {
        self.tiers.counters.read(&self.tiers.breaker)
    }
}

impl Tiers {
    async fn apply(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        match command {
            Command::Claim(claim) => self.claim(id, claim).await,
            // Of no interest to anybody but the owner.
            Command::Begin(_) | Command::Renew(_) => self.postgres.apply(id, command).await,
            command => self.write(id, command).await,
        }
    }

    async fn claim(&self, id: KeyId, claim: Claim) -> Result<Ruling, Error> {
        // Before PostgreSQL is asked: what is written afterwards is stamped with it.
        let view = self.views.current();
        let found = if view.is_some() { self.look(id).await } else { None };
        if let Some(ruling) = found.as_ref().and_then(|entry| self.believe(entry, &claim)) {
            return Ok(ruling);
        }
        let question = Question { view, asked: instant() };
        let (owner, fingerprint, terms) = (claim.owner, claim.fingerprint, Arc::clone(&claim.terms));
        self.counters.asked_postgres.add();
        let ruling = self.postgres.apply(id, Command::Claim(claim)).await?;
        // Told before it is answered: nobody who hears this answer and then asks is told something older.
        match &ruling {
            Ruling::Won(win) => {
                // A repeated claim is won under the terms of the first, which nobody here may know. Its lease has begun.
                let is_new = win.lease_left == terms.lease;
                if let Some(view) = view.filter(|_| is_new) {
                    let since = view.earliest(question.asked);
                    self.won.insert((id, win.grant), Tenure { since, fingerprint, terms });
                }
                let said = Said::Busy { owner };
                self.tell(id, question, fingerprint, said, win.lease_left, Wake::Nobody).await;
            }
            Ruling::Replay { outcome, expires_in } => {
                let said = Said::Done(Arc::clone(outcome));
                self.tell(id, question, fingerprint, said, *expires_in, Wake::Nobody).await;
            }
            // Whoever holds it has said so.
            Ruling::Busy { .. } => {}
            // Also where nothing was found: what came meanwhile may be older than this.
            _ => self.clear(id, Wake::Nobody).await,
        }
        Ok(ruling)
    }

    /// Everything that ends something.
    async fn write(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let question = Question { view: self.views.current(), asked: instant() };
        let copy = self.copy_of(id, &command);
        let grant = grant_of(&command);
        let ruling = self.postgres.apply(id, command).await?;
        match (&ruling, copy) {
            (Ruling::Accepted { .. }, Some((fingerprint, outcome, left))) => {
                self.tell(id, question, fingerprint, Said::Done(outcome), left, Wake::Waiters).await;
            }
            (Ruling::Accepted { .. }, None) => self.clear(id, Wake::Waiters).await,
            _ => self.clear(id, Wake::Nobody).await,
        }
        if let Some(grant) = grant {
            self.won.remove(&(id, grant));
        }
        Ok(ruling)
    }

    /// What a completion leaves to be copied, and how long it stands at least: counted from the claim, because a
    /// completion that is repeated may have happened any time since.
    fn copy_of(&self, id: KeyId, command: &Command) -> Option<(Fingerprint, Arc<Outcome>, Duration)> {
        let Command::Complete { grant, outcome, retention, .. } = command else { return None };
        let Tenure { since, fingerprint, terms } = self.won.get(&(id, *grant))?;
        let stands = retention.unwrap_or(terms.retention).saturating_add(terms.grace);
        let left = since.after(stands).left(self.views.current()?.latest(instant()));
        Some((fingerprint, Arc::clone(outcome), left))
    }

    /// What Redis has, where it is asked at all and answers.
    async fn look(&self, id: KeyId) -> Option<Entry> {
        let bytes = self.through_breaker(self.redis.get(id)).await??;
        let entry = Entry::decode(&bytes);
        if entry.is_none() {
            self.counters.ignored.add();
        }
        entry
    }

    /// The answer to a claim, where the entry leaves no doubt.
    fn believe(&self, entry: &Entry, claim: &Claim) -> Option<Ruling> {
        // As of now, not of before the look: it may have been forgotten meanwhile.
        let ruling = self.views.current().and_then(|view| {
            if entry.generation > view.generation() {
                // Somebody knows of a newer one.
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

    /// Tells Redis what PostgreSQL said: that it stands for `left` from when the question was asked.
    async fn tell(
        &self,
        id: KeyId,
        question: Question,
        fingerprint: Fingerprint,
        said: Said,
        left: Duration,
        wake: Wake,
    ) {
        let left = left.saturating_sub(instant().saturating_duration_since(question.asked));
        let life = match &said {
            Said::Busy { .. } => self.settings.busy_for.min(left / 2),
            Said::Done(_) => left,
        };
        let fits = match &said {
            Said::Busy { .. } => true,
            Said::Done(outcome) => outcome.size() <= self.settings.copy_limit,
        };
        let Some(view) = question.view.filter(|_| fits && life >= Duration::from_millis(1)) else {
            return self.clear(id, wake).await;
        };
        let now = view.earliest(instant());
        let entry = Entry {
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

    /// Takes away what Redis has: it may no longer be true.
    async fn clear(&self, id: KeyId, wake: Wake) {
        self.through_breaker(self.redis.remove(id, wake)).await;
    }

    /// Makes a call to Redis, unless that is away. A failure opens the breaker.
    async fn through_breaker<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let Some(period) = self.breaker.admit() else {
            self.counters.without_redis.add();
            return None;
        };
        match call.await {
            Ok(value) => Some(value),
            // One key that somebody else put there says nothing about the server.
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            Err(error) => {
                self.counters.failed.add();
                self.breaker.open(period, self.redis.name(), &error);
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
        Command::Claim(_) | Command::Settle(_) | Command::Forget(_) | Command::Reexecute => None,
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
