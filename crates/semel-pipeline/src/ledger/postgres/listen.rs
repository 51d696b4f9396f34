//! News: who waits in this process is told at once, other processes by NOTIFY.
//!
//! A NOTIFY holds a lock of the whole database while its transaction commits, so commits that notify queue up. Therefore it
//! is never part of a call: one task says it afterwards, once for all that happened in a few milliseconds. What is lost
//! with a crash in between is found by polling.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel::backoff::Backoff;
use semel::store::Pooling;
use semel_postgres::{PostgresError, Subscription};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::link::Shared;

/// No more than one word to the other processes in this time.
const BREATH: Duration = Duration::from_millis(5);

/// Nobody waits longer than this without looking.
const BACKSTOP: Duration = Duration::from_secs(5);

/// As [`BACKSTOP`], where nothing is heard of other processes.
const POLL: Duration = Duration::from_secs(1);

/// The notification of a publisher about its outbox.
const OUTBOX: &str = "outbox";

/// Who waits for news, and who carries them.
#[derive(Debug)]
pub(super) struct News {
    /// Counts what has arrived.
    number: AtomicU64,
    arrived: Notify,
    to_tell: Notify,
    published: Notify,
    pub(super) channel: String,
    /// Names this process: what it says itself it does not have to hear.
    process: String,
}

impl News {
    pub(super) fn new(schema: &str) -> Self {
        Self {
            number: AtomicU64::new(0),
            arrived: Notify::new(),
            to_tell: Notify::new(),
            published: Notify::new(),
            channel: format!("{schema}_ledger"),
            process: format!("{:032x}", rand::random::<u128>()),
        }
    }

    /// There may be new work.
    pub(super) fn tell(&self) {
        self.arrive();
        self.to_tell.notify_one();
    }

    fn receive(&self, from: &str) {
        if from == OUTBOX {
            self.published.notify_one();
        } else if from != self.process {
            self.arrive();
        }
    }

    fn arrive(&self) {
        self.number.fetch_add(1, Ordering::AcqRel);
        self.arrived.notify_waiters();
    }

    /// Ends when something may have been published, or after a while.
    pub(super) async fn published(&self, longest: Duration) {
        let _ = timeout(longest, self.published.notified()).await;
    }

    /// How much has arrived so far.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Ends when more has arrived than `known`, or after a while.
    pub(super) async fn wait(&self, known: u64, pooling: Pooling) {
        let longest = match pooling {
            Pooling::Direct => BACKSTOP,
            Pooling::Transaction => POLL,
        };
        let longest = longest.mul_f64(0.75 + 0.5 * rand::random::<f64>());
        let news = async {
            loop {
                let arrived = self.arrived.notified();
                if self.number() != known {
                    return;
                }
                arrived.await;
            }
        };
        let _ = timeout(longest, news).await;
    }
}

impl Shared {
    async fn notify_others(&self) -> Result<(), PostgresError> {
        let mut connection = self.connection().await?;
        let notify = sqlx::query("SELECT pg_notify($1, $2)")
            .persistent(self.settings.pooling == Pooling::Direct)
            .bind(&self.news.channel)
            .bind(&self.news.process)
            .execute(&mut *connection);
        let notifying =
            async { notify.await.map_err(|error| PostgresError::statement(&self.settings.target, &error)) };
        let notified = self.availability.execute(&self.settings, notifying).await;
        if notified.is_err() {
            connection.close_on_drop();
        }
        notified.map(drop)
    }
}

/// Carries this process's news to the others, as long as the ledger lives.
pub(super) async fn speak(shared: Weak<Shared>) {
    loop {
        let Some(alive) = shared.upgrade() else { return };
        // The ledger aborts this task when it is dropped; nothing here keeps it alive for longer than a breath.
        if timeout(Duration::from_secs(1), alive.news.to_tell.notified()).await.is_err() {
            continue;
        }
        if let Err(error) = alive.notify_others().await {
            tracing::debug!(%error, "other processes could not be told of new work; they poll");
        }
        drop(alive);
        sleep(BREATH).await;
    }
}

/// Listens to the other processes, as long as the ledger lives.
pub(super) async fn listen(shared: Weak<Shared>) {
    let mut backoff = Backoff::new(Duration::from_millis(15), Duration::from_millis(1500));
    loop {
        let Some(alive) = shared.upgrade() else { return };
        let (settings, channel) = (Arc::clone(&alive.settings), alive.news.channel.clone());
        let availability = Arc::clone(&alive.availability);
        drop(alive);
        if availability.refusal().is_some() {
            backoff.wait().await;
            continue;
        }
        match Subscription::open(&settings, &channel).await {
            Ok(mut subscription) => {
                backoff.reset();
                // Notifications from before the connection were missed.
                if let Some(alive) = shared.upgrade() {
                    alive.news.arrive();
                }
                while let Some(payload) = subscription.next().await {
                    let Some(alive) = shared.upgrade() else { return };
                    alive.news.receive(&payload);
                }
                subscription.close().await;
                // Often the first sign of an outage.
                availability.report();
            }
            Err(error) => tracing::debug!(%error, "cannot listen yet"),
        }
        backoff.wait().await;
    }
}
