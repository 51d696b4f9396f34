//! The state that lanes, listener and callers share: waiters, caches, and how they are notified.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel_postgres::{PostgresError, ReplacedPool};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row as _};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Pooling;
use super::builder::Settings;
use super::guard::Parted;
use super::judge::Group;
use super::link;
use super::queue::Item;
use crate::key::KeyId;
use crate::outage::Availability;
use crate::record::{Command, Ruling};
use crate::store::given::GivenSecret;
use crate::store::transfer::TransferWatch;
use crate::store::{Invalidate, Trust, Wakeups};
use crate::sync::Mutex;

/// How long a process may answer from its caches after its last heartbeat.
pub(super) const TRUST: Duration = Duration::from_secs(10);

/// The maximum age of a cache entry, whatever its process does.
const CACHE_AGE: Duration = Duration::from_secs(10);

/// Identifies a process in the table `process`.
pub(super) type ProcessId = [u8; 16];

/// Shared by everything that belongs to one store.
pub(super) struct StoreShared {
    pub(super) settings: Arc<Settings>,
    pub(super) availability: Arc<Availability>,
    /// For reads, listings and sweeps.
    side: ReplacedPool,
    pub(super) process: ProcessId,
    pub(super) wakeups: Wakeups,
    pub(super) acks: Acks,
    /// Keys with waiters, to be marked in the table.
    pub(super) arms: Mutex<HashSet<KeyId>>,
    pub(super) to_arm: Notify,
    /// Claims whose transactions their callers may still roll back.
    pub(super) parted: Parted,
    caches: Mutex<Vec<Weak<dyn Invalidate>>>,
    pub(super) attached: Notify,
    /// Other processes may wait for this one when they forget a key.
    pub(super) appeared: AtomicBool,
    trusted: Mutex<Trusted>,
    pub(super) given: GivenSecret,
    pub(super) transfer: TransferWatch,
    pub(super) runtime: tokio::runtime::Handle,
}

/// Whether caches may answer, and why.
struct Trusted {
    heard: Trust,
    agreed: bool,
}

impl Trusted {
    fn effective(&self) -> Trust {
        if self.agreed { self.heard } else { Trust::Unconfirmed }
    }
}

impl StoreShared {
    pub(super) fn new(
        settings: Arc<Settings>,
        availability: Arc<Availability>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            side: ReplacedPool::new(&settings.connection),
            settings,
            availability,
            process: rand::random(),
            wakeups: Wakeups::new(),
            acks: Acks::default(),
            arms: Mutex::default(),
            to_arm: Notify::new(),
            parted: Parted::default(),
            caches: Mutex::default(),
            attached: Notify::new(),
            appeared: AtomicBool::new(false),
            trusted: Mutex::new(Trusted { heard: Trust::Unconfirmed, agreed: true }),
            given: GivenSecret::default(),
            transfer: TransferWatch::default(),
            runtime,
        }
    }

    /// Runs a statement on one of the side connections.
    pub(super) async fn fetch(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<PgRow>, PostgresError> {
        self.on_side(async |connection| {
            let rows = link::run(&self.settings, connection, query).await;
            rows.map_err(|error| self.settings.explain(&error))
        })
        .await
    }

    /// Does `work` on one of the side connections.
    pub(super) async fn on_side<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, PostgresError>,
    ) -> Result<T, PostgresError> {
        let done = async {
            let mut connection = self.availability.connect(&self.settings, self.side_connection()).await?;
            let done = self.availability.execute(&self.settings, work(&mut connection)).await;
            if done.is_err() {
                // It may be inside a failed transaction, or broken.
                connection.close_on_drop();
            }
            done
        };
        match done.await {
            Ok(done) => Ok(done),
            Err(error) => Err(self.availability.judge_error(error).await),
        }
    }

    async fn side_connection(&self) -> Result<PoolConnection<Postgres>, PostgresError> {
        let connected = self.side.get(self.availability.ended_outages()).acquire().await;
        connected.map_err(|error| {
            PostgresError::connecting(&self.settings.target, self.settings.options.get_username(), &error)
        })
    }

    /// Closes the side connections.
    pub(super) async fn close(&self) {
        self.side.get(self.availability.ended_outages()).close().await;
    }

    /// The name of this process in notifications.
    pub(super) fn name(&self) -> String {
        self.process.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The notification channel of this schema.
    pub(super) fn channel(&self) -> &str {
        self.settings.schema.name()
    }

    /// True if callers may wait for the change of this command.
    pub(super) fn wakes_waiters(command: &Command) -> bool {
        !matches!(command, Command::Claim(_) | Command::Begin(_) | Command::Renew(_))
    }

    /// Notifies the waiters and caches of this process. Must be called once a change is durable, before it is
    /// answered.
    pub(super) fn announce(&self, id: KeyId, command: &Command, ruling: &Ruling) {
        if !matches!(ruling, Ruling::Accepted { .. }) || !Self::wakes_waiters(command) {
            return;
        }
        if matches!(command, Command::Forget(_) | Command::Reexecute) {
            self.invalidate(id);
        }
        self.wakeups.wake(id);
    }

    /// Requests notifications of changes of the key.
    pub(super) fn arm(&self, id: KeyId) {
        if self.settings.pooling == Pooling::Direct && self.arms.lock().insert(id) {
            self.to_arm.notify_one();
        }
    }

    pub(super) fn attach(&self, cache: Weak<dyn Invalidate>) {
        let Some(attached) = cache.upgrade() else { return };
        {
            let mut caches = self.caches.lock();
            caches.retain(|known| known.strong_count() > 0);
            caches.push(cache);
        }
        // Only once it is registered here, and only if the other processes already wait for this one.
        let trusted = self.trusted.lock();
        if trusted.effective() == Trust::Confirmed {
            attached.trust(Trust::Confirmed);
        }
        drop(trusted);
        self.attached.notify_one();
    }

    pub(super) fn has_caches(&self) -> bool {
        self.caches.lock().iter().any(|cache| cache.strong_count() > 0)
    }

    pub(super) fn invalidate(&self, id: KeyId) {
        // Outside the lock: a cache may attach another one, or may be dropped here.
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        for cache in caches {
            cache.invalidate(id);
        }
    }

    /// Sets whether this process receives the invalidations of others.
    pub(super) fn trust(&self, heard: Trust) {
        self.change_trust(|trusted| trusted.heard = heard);
    }

    /// Sets whether this process uses the secret of the database.
    pub(super) fn agree(&self, agreed: bool) {
        self.change_trust(|trusted| trusted.agreed = agreed);
    }

    fn change_trust(&self, change: impl FnOnce(&mut Trusted)) {
        let mut trusted = self.trusted.lock();
        let before = trusted.effective();
        change(&mut trusted);
        let after = trusted.effective();
        if before == after {
            return;
        }
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        for cache in caches {
            cache.trust(after);
        }
    }

    /// Answers a group whose change is committed. A forget is answered only once every cache has confirmed it.
    pub(super) fn answer_written(self: &Arc<Self>, group: Group) {
        let Group { items, rulings, swap, .. } = group;
        for (item, ruling) in items.iter().zip(&rulings) {
            self.announce(item.id, &item.command, ruling);
        }
        let tell = move || {
            for (item, ruling) in items.into_iter().zip(rulings) {
                item.answer(Ok(ruling));
            }
        };
        match swap {
            Some(swap) if swap.invalidate => {
                let shared = Arc::clone(self);
                self.runtime.spawn(async move {
                    if let Err(error) = shared.wait_for_caches(swap.version).await {
                        if error.is_logged() {
                            tracing::debug!(%error, "cannot ask which processes must forget a key; waiting until all caches have expired");
                        } else {
                            tracing::warn!(%error, "cannot ask which processes must forget a key; waiting until all caches have expired");
                        }
                        tokio::time::sleep(CACHE_AGE).await;
                    }
                    shared.acks.forget(swap.version);
                    tell();
                });
            }
            _ => tell(),
        }
    }

    /// Answers a command whose write has happened although its connection broke.
    pub(super) fn answer_known_write(&self, item: Item, ruling: Ruling) {
        self.announce(item.id, &item.command, &ruling);
        let forgets = matches!(item.command, Command::Forget(_) | Command::Reexecute);
        if !forgets || !matches!(ruling, Ruling::Accepted { .. }) {
            item.answer(Ok(ruling));
            return;
        }
        // Confirmations were not counted while the result was unknown; no cache entry lives longer than this.
        self.runtime.spawn(async move {
            tokio::time::sleep(CACHE_AGE).await;
            item.answer(Ok(ruling));
        });
    }

    /// Waits until every process with caches has dropped the forgotten key, or may no longer answer from its caches.
    async fn wait_for_caches(&self, nonce: i64) -> Result<(), PostgresError> {
        let explain = |error: sqlx::Error| self.settings.explain(&error);
        let query = self.settings.query(&self.settings.statements.others).bind(self.process.as_slice());
        let rows = self.fetch(query).await?;
        let mut others = HashSet::new();
        let mut longest = Duration::ZERO;
        for row in &rows {
            let id: &[u8] = row.try_get(0).map_err(explain)?;
            let left: i64 = row.try_get(1).map_err(explain)?;
            if let Ok(id) = ProcessId::try_from(id) {
                others.insert(id);
                longest = longest.max(Duration::from_micros(u64::try_from(left).unwrap_or(0)));
            }
        }
        if others.is_empty() {
            return Ok(());
        }
        // A process that was paused checks the age of an entry before it uses it.
        let deadline = Instant::now() + longest.max(CACHE_AGE) + Duration::from_secs(1);
        if timeout_at(deadline, self.acks.all(nonce, &others)).await.is_err() {
            tracing::warn!("a process did not confirm that it forgot a key; waited until its caches expired");
        }
        Ok(())
    }
}

impl fmt::Debug for StoreShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("target", &self.settings.target).finish_non_exhaustive()
    }
}

/// Which processes have dropped which forgotten key.
#[derive(Debug, Default)]
pub(super) struct Acks {
    heard: Mutex<HashMap<i64, HashSet<ProcessId>>>,
    changed: Notify,
}

impl Acks {
    /// Begins to listen for answers to `nonce`, before it is sent.
    pub(super) fn expect(&self, nonce: i64) {
        self.heard.lock().insert(nonce, HashSet::new());
    }

    pub(super) fn forget(&self, nonce: i64) {
        self.heard.lock().remove(&nonce);
    }

    pub(super) fn receive(&self, nonce: i64, process: ProcessId) {
        if let Some(heard) = self.heard.lock().get_mut(&nonce) {
            heard.insert(process);
        }
        self.changed.notify_waiters();
    }

    async fn all(&self, nonce: i64, of: &HashSet<ProcessId>) {
        loop {
            let changed = self.changed.notified();
            if self.heard.lock().get(&nonce).is_none_or(|heard| of.is_subset(heard)) {
                return;
            }
            changed.await;
        }
    }
}
