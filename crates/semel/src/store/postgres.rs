//! The PostgreSQL store: many processes, one key space, durable.
//!
//! ```text
//!   claims ──► lane ──► INSERT … ON CONFLICT DO NOTHING, and a read of those that were there ─┐
//!   owners ──► lane ──► guarded UPDATE by owner and fence while the lease holds ──────────────┤ one round trip
//!                                                                                             ▼
//!        everything else: the rules of `crate::record`, on what was read ──► swap by version ─► answer
//! ```
//!
//! # How the rules are executed
//!
//! Rules written a second time in SQL could diverge. SQL therefore implements only two narrow cases: the *first claim
//! of a key*, which is an insert whose times are offsets computed by the rules, and an *owner's write under a valid
//! lease* (complete, begin, renew), guarded by owner and fence. Every other command, and every refused one, is
//! decided by [`crate::record::apply`] in this process: the row is read, judged at the server's time of that read,
//! and written back by a compare-and-swap on its `version`, which also refuses a judgement that has become outdated.
//! If no other process was faster, the result is the same as with a locked row. Otherwise the row is read and judged
//! again. No lock is held meanwhile, no statement waits for a row that another process has locked, and a command that
//! changes nothing (stored outcome, busy, conflict) costs one read and no transaction id.
//!
//! A claim of a visible key tries no insert: if a caller's transaction is changing the row, the insert would wait for
//! its end. A free record that is locked counts as busy after a moment.
//!
//! A claim always gets an answer: a key that another process inserts between our snapshot and our insert is neither
//! inserted nor visible, and is claimed again.
//!
//! # Batches
//!
//! All waiting claims of a process go in one statement, and so do its owners' writes, each over its own connection:
//! many claims never delay a completion. There is no timer. A single claim does not even wait for the lane's task:
//! its caller sends it itself ([`lone`]). Keys are sorted, so that two processes cannot wait for each other, and
//! several commands on one key are applied one after the other in this process.
//!
//! # Fences
//!
//! The floor is a sequence, because a read of a sequence ignores the snapshot: a claim reads it after its insert, and
//! so sees the floor of the sweep that removed the key before.

mod builder;
mod caller;
mod columns;
#[cfg(feature = "redis")]
mod copies;
mod error;
mod guard;
mod judge;
mod lane;
mod link;
mod listen;
mod lone;
mod queue;
mod row;
mod schema;
mod secret;
mod shared;
mod sql;
mod sweep;
mod transfer;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

pub use semel_postgres::{AsyncCommit, Pooling};
use semel_postgres::{PostgresError, connect};
use sqlx::Row as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

pub use self::builder::PostgresBuilder;
use self::builder::Settings;
#[cfg(feature = "redis")]
pub(super) use self::copies::{Copies, CopyGeneration};
use self::lane::{Lane, LaneTask, LoneClaimResult};
use self::link::OwnConnection;
use self::listen::Pulse;
use self::lone::Lone;
use self::queue::{CommandQueue, Item};
use self::row::PgRowError;
use self::shared::StoreShared;
use super::inline::Inline;
use super::transfer::apply_closed;
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store,
    Swept, Watch,
};
use crate::key::KeyId;
use crate::outage::Availability;
use crate::record::{Command, Ruling};
use crate::secret::Secret;

/// Stores records in PostgreSQL: acknowledged writes survive a crash of this process and of the server, and every
/// process on the same database and schema sees it.
///
/// All I/O runs on the store's own thread, so a busy runtime of the caller delays no heartbeat. Dropping the store
/// ends that thread without waiting for it.
///
/// # Failures
/// - The server does not answer: [`ErrorKind::Unavailable`], for the first calls after the builder's `timeout`. From
///   then on the outage is known: it is logged once, and calls fail at once until the server answers again.
/// - A connection breaks during a command: the store reads the record again to learn the result, and returns
///   [`ErrorKind::Ambiguous`] only if that was not possible in time.
/// - A standby, `synchronous_commit = off`, an old server, missing privileges: refused on every new connection, with
///   an error that says what to do.
///
/// ```no_run
/// # async fn open() -> Result<(), semel::store::Error> {
/// let store = semel::store::PostgresStore::open("postgres://semel:secret@db.internal/app").await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresStore {
    shared: Arc<StoreShared>,
    claims: Arc<CommandQueue>,
    writes: Arc<CommandQueue>,
    lone: Arc<Lone>,
    stop: Arc<Notify>,
}

/// The result of starting the store's thread.
struct Started {
    shared: Arc<StoreShared>,
    claims: Arc<CommandQueue>,
    writes: Arc<CommandQueue>,
    lone: Arc<Lone>,
}

impl PostgresStore {
    /// Connects to the database of `url`, as in `postgres://user:password@host:5432/database`, and creates or
    /// migrates the schema `semel`.
    ///
    /// # Errors
    /// As [`PostgresBuilder::open`].
    pub async fn open(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).open().await
    }

    /// Settings for a store in the database of `url`.
    pub fn builder(url: impl AsRef<str>) -> PostgresBuilder {
        PostgresBuilder::new(url.as_ref())
    }

    async fn start(settings: Arc<Settings>) -> Result<Self, Error> {
        let (told, started) = oneshot::channel();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let main = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let fault = PostgresError::setup(format!(
                        "no runtime can be started for the PostgreSQL store: {error}"
                    ));
                    drop(told.send(Err(fault)));
                    return;
                }
            };
            runtime.block_on(async {
                match start(settings).await {
                    Ok(started) => {
                        let shared = Arc::clone(&started.shared);
                        let queues = [Arc::clone(&started.claims), Arc::clone(&started.writes)];
                        let lone = Arc::clone(&started.lone);
                        if told.send(Ok(started)).is_ok() {
                            stopped.notified().await;
                        }
                        for queue in queues {
                            queue.close();
                        }
                        tokio::join!(remove_process(&shared), lone.close());
                    }
                    Err(fault) => drop(told.send(Err(fault))),
                }
            });
            runtime.shutdown_background();
        };
        thread::Builder::new().name("semel-postgres".into()).spawn(main).map_err(|error| {
            Error::new(ErrorKind::Setup, "no thread can be started for the PostgreSQL store")
                .with_source(error)
        })?;
        let Started { shared, claims, writes, lone } = started.await.map_err(|_| {
            Error::new(ErrorKind::Setup, "the thread of the PostgreSQL store ended while it started")
        })??;
        Ok(Self { shared, claims, writes, lone, stop })
    }

    /// Executes a command: a single claim directly, the others in a lane.
    async fn execute(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        match command {
            Command::Claim(claim) => match self.lone.try_permit(&self.shared, &self.claims) {
                Some(pass) => {
                    let (shared, claims) = (Arc::clone(&self.shared), Arc::clone(&self.claims));
                    let work = lone::claim(shared, claims, pass, id, claim);
                    Inline::new(self.shared.runtime.clone(), work).await
                }
                None => self.run_in_lane(&self.claims, id, Command::Claim(claim)).await,
            },
            Command::Settle(_) | Command::SettleAttempt(..) | Command::Forget(_) | Command::Reexecute => {
                let (lone, timeout) = (Arc::clone(&self.lone), self.shared.settings.timeout);
                let ended = async move {
                    lone.end(timeout).await;
                    Ok(())
                };
                self.run_on_thread(ended).await?;
                self.run_in_lane(&self.claims, id, command).await
            }
            Command::Begin(_)
            | Command::Renew(_)
            | Command::Complete { .. }
            | Command::Release(_)
            | Command::Bind(_)
            | Command::Abandon(_) => self.run_in_lane(&self.writes, id, command).await,
        }
    }

    /// Refuses a call during an outage.
    fn check_available(&self) -> Result<(), PostgresError> {
        self.shared.availability.refusal().map_or(Ok(()), |message| Err(PostgresError::outage(message)))
    }

    /// Executes a command in a lane's next batch.
    async fn run_in_lane(&self, queue: &CommandQueue, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + self.shared.settings.timeout;
        queue.push(Item::new(id, command, deadline, answer))?;
        answered.await.unwrap_or_else(|_| Err(lone::closed()))
    }

    /// Runs `work` on the store's own runtime.
    async fn run_on_thread<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PostgresError>> + Send + 'static,
    {
        self.check_available()?;
        match self.shared.runtime.spawn(work).await {
            Ok(result) => result.map_err(Error::from),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the PostgreSQL store was closed")),
        }
    }
}

async fn start(settings: Arc<Settings>) -> Result<Started, PostgresError> {
    let connected = timeout(settings.timeout, connect(&settings)).await;
    let mut connection = connected.unwrap_or_else(|_| Err(PostgresError::unreachable(&settings.target)))?;
    schema::MIGRATION.apply(&mut connection, &settings).await?;
    let availability = Availability::of_postgres(&settings.connection, "store");
    let runtime = tokio::runtime::Handle::current();
    let shared = Arc::new(StoreShared::new(Arc::clone(&settings), Arc::clone(&availability), runtime));
    shared.read_transfer().await?;
    let (claims, writes) = (Arc::new(CommandQueue::new()), Arc::new(CommandQueue::new()));
    let lone = Arc::new(Lone::new(&settings, &availability));
    for (lane, queue, connection) in
        [(Lane::Claims, &claims, Some(connection)), (Lane::Writes, &writes, None)]
    {
        let (shared, queue) = (Arc::clone(&shared), Arc::clone(queue));
        let link = OwnConnection::new(Arc::clone(&settings), Arc::clone(&availability), connection);
        let last = LoneClaimResult::Nothing;
        tokio::spawn(LaneTask { lane, shared, queue, link, alone: 0, last, failures: 0 }.run());
    }
    tokio::spawn(guard::release_what_was_rolled_back(Arc::clone(&shared)));
    if settings.pooling == Pooling::Direct {
        let pulse = Arc::new(Pulse::default());
        let (ready, listening) = oneshot::channel();
        tokio::spawn(listen::listen(Arc::clone(&shared), Arc::clone(&pulse), ready));
        tokio::spawn(listen::send_heartbeats(Arc::clone(&shared), pulse));
        tokio::spawn(listen::arm(Arc::clone(&shared)));
        // Without it waiters poll, so the store can start.
        let _ = timeout(settings.timeout, listening).await;
    }
    Ok(Started { shared, claims, writes, lone })
}

/// Tells other processes not to wait for this one any more.
async fn remove_process(shared: &StoreShared) {
    let left = async {
        if shared.appeared.load(Ordering::Acquire) {
            let query = shared.settings.query(&shared.settings.statements.leave);
            let _ = shared.fetch(query.bind(shared.process.as_slice())).await;
        }
        shared.close().await;
    };
    let _ = timeout(Duration::from_millis(250), left).await;
}

async fn get(shared: &StoreShared, id: KeyId) -> Result<Option<Snapshot>, PgRowError> {
    let keys = [id.as_bytes().as_slice()];
    let rows =
        shared.fetch(shared.settings.query(&shared.settings.statements.read).bind(keys.as_slice())).await?;
    let stored = rows.first().map(row::stored).transpose()?;
    Ok(stored.map(|stored| Snapshot { id, record: stored.record, now: stored.now }))
}

/// Rows read for one page, including their outcomes.
const PAGE: usize = 200;

async fn scan(shared: &StoreShared, query: Scan) -> Result<Page, PgRowError> {
    let after = query.after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
    let asked = query.limit.clamp(1, PAGE);
    let statements = &shared.settings.statements;
    // Records in progress have their own index.
    let statement = match query.phase {
        Some(phase) if phase.is_in_progress() => &statements.scan_in_progress,
        _ => &statements.scan,
    };
    let statement = shared.settings.query(statement);
    let rows = shared.fetch(statement.bind(after).bind(i64::try_from(asked).unwrap_or(i64::MAX))).await?;
    let mut page = Page::default();
    for row in &rows {
        let (id, stored) = (row::id(row)?, row::stored(row)?);
        if rows.len() == asked {
            page.next = Some(id);
        }
        if query.phase.is_none_or(|phase| stored.record.phase(stored.now) == phase) {
            page.items.push(Snapshot { id, record: stored.record, now: stored.now });
        }
    }
    Ok(page)
}

impl Store for PostgresStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move {
            self.check_available()?;
            if let Some(refusal) = self.shared.transfer.refusal(&command, self) {
                return apply_closed(self.get(id).await?, &command, refusal);
            }
            let is_begin = matches!(command, Command::Begin(_));
            let ruling = self.execute(id, command).await?;
            match ruling {
                Ruling::Won(_) => {}
                Ruling::Accepted { .. } if is_begin => {}
                ruling => return Ok(ruling),
            }
            if self.shared.transfer.is_confirmed() {
                return Ok(ruling);
            }
            // Boxed: it is rare, and two more calls.
            Box::pin(self.confirm_open(id, ruling)).await
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move {
            get(&shared, id).await.map_err(|error| shared.settings.explain_row(&error))
        }))
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move {
            scan(&shared, query).await.map_err(|error| shared.settings.explain_row(&error))
        }))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { sweep::sweep(&shared, limit).await }))
    }

    fn watch(&self, id: KeyId) -> Watch {
        let watch = self.shared.wakeups.watch(id);
        self.shared.arm(id);
        watch
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.shared.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { secret::give(&shared, &candidate).await }))
    }

    /// The size of the table of records with its indexes. PostgreSQL gives room back to the system only with
    /// `VACUUM FULL`; until then it counts, although new records use it.
    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move {
            let query = shared.settings.query(&shared.settings.statements.used_bytes);
            let rows = shared.fetch(query).await?;
            let bytes = rows.first().ok_or(sqlx::Error::RowNotFound).and_then(|row| row.try_get::<i64, _>(0));
            let bytes = bytes.map_err(|error| shared.settings.explain(&error))?;
            Ok(u64::try_from(bytes).ok())
        }))
    }

    fn durability(&self) -> Durability {
        match self.shared.settings.async_commit {
            AsyncCommit::Refuse => Durability::Disk,
            AsyncCommit::Accept => Durability::Server,
        }
    }
}

impl MarkStore for PostgresStore {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move {
            let query = shared.settings.query(&shared.settings.statements.read_mark);
            let rows = shared.fetch(query.bind(mark.as_bytes().as_slice())).await?;
            let value = rows.first().map(|row| row.try_get::<i64, _>(0)).transpose();
            let value = value.map_err(|error| shared.settings.explain(&error))?;
            Ok(value.map(|value| u64::try_from(value).unwrap_or(0)))
        }))
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        let shared = Arc::clone(&self.shared);
        let raise = self.run_on_thread(async move {
            let Ok(value) = i64::try_from(value) else {
                return Err(PostgresError::setup("a high-water mark in PostgreSQL must be below 2^63"));
            };
            let query = shared.settings.query(&shared.settings.statements.raise_mark);
            let rows = shared.fetch(query.bind(mark.as_bytes().as_slice()).bind(value)).await?;
            let stands =
                rows.first().ok_or(sqlx::Error::RowNotFound).and_then(|row| row.try_get::<i64, _>(0));
            let stands = stands.map_err(|error| shared.settings.explain(&error))?;
            // See `crate::store::transfer`: a mark counts as a claim does.
            if !shared.transfer.is_confirmed() {
                shared.read_transfer().await?;
            }
            Ok(u64::try_from(stands).unwrap_or(0))
        });
        Box::pin(async move {
            let stands = match self.shared.transfer.moved(self) {
                None => raise.await?,
                Some(refusal) => return Err(refusal),
            };
            self.shared.transfer.moved(self).map_or(Ok(stands), Err)
        })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl fmt::Display for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", self.shared.settings.address)
    }
}
