//! Settings of the tiered store, and its background tasks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use quick_cache::sync::Cache;

use super::breaker::RedisBreaker;
use super::counters::Counters;
use super::view::{READ_EVERY, Views};
use super::{TieredSettings, TieredStore, Tiers, WON};
use crate::backoff::Backoff;
use crate::outage::Server;
use crate::store::redis::Side;
use crate::store::{Error, ErrorKind, Invalidate, PostgresBuilder, RedisBuilder, Store as _};

/// The first wait before Redis is retried.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// The longest wait between tries.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Settings for a [`TieredStore`]. Created by [`TieredStore::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it opens"]
pub struct TieredBuilder {
    postgres: PostgresBuilder,
    redis: RedisBuilder,
    redis_timeout: Duration,
    settings: TieredSettings,
}

impl TieredBuilder {
    pub(super) fn new(postgres: PostgresBuilder, redis: RedisBuilder) -> Self {
        Self {
            postgres,
            redis,
            redis_timeout: Duration::from_millis(250),
            settings: TieredSettings { busy_for: Duration::from_secs(1), copy_limit: 256 * 1024 },
        }
    }

    /// How long Redis may take to connect or to answer (250 ms), instead of the timeouts of its own builder. A call
    /// that waits longer continues without Redis and opens the breaker: a hanging Redis costs this time once.
    pub fn redis_timeout(mut self, timeout: Duration) -> Self {
        self.redis_timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// How long a claim is known in Redis as busy (1 s), and at most for half of its lease. After that PostgreSQL is
    /// asked again. Zero always asks PostgreSQL.
    pub fn busy_for(mut self, length: Duration) -> Self {
        self.settings.busy_for = length;
        self
    }

    /// The largest outcome in bytes that is copied to Redis (256 KiB). Larger ones are read from PostgreSQL.
    pub fn copy_limit(mut self, bytes: usize) -> Self {
        self.settings.copy_limit = bytes;
        self
    }

    /// Connects to PostgreSQL, and to Redis if it is available.
    ///
    /// # Errors
    /// As [`PostgresBuilder::open`]; and `Setup` if the URL, the password or the permissions for Redis are wrong. An
    /// unavailable Redis is a warning.
    pub async fn open(self) -> Result<TieredStore, Error> {
        let postgres = self.postgres.open().await?;
        let copies = postgres.copies().await?;
        let id: String = copies.store.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let space = format!("copies:{id}");
        let (redis, running) = Side::start(self.redis, &space, self.redis_timeout, postgres.wakeups())?;
        let views = Arc::new(Views::new(copies.store));
        let guard: Weak<Views> = Arc::downgrade(&views);
        postgres.attach(guard as Weak<dyn Invalidate>);
        let breaker = RedisBreaker::new(Server::of(redis.name(), "copies of outcomes"));
        let tiers = Arc::new(Tiers {
            postgres,
            redis,
            breaker,
            views,
            counters: Counters::default(),
            won: Cache::new(WON),
            settings: self.settings,
        });
        match tiers.redis.probe().await {
            Ok(()) => tiers.breaker.close(),
            Err(error) if error.kind() == ErrorKind::Setup => return Err(error),
            Err(error) => tiers.breaker.stay_open(&error),
        }
        tiers.redis.spawn(keep_view(Arc::clone(&tiers)));
        tiers.redis.spawn(mend(Arc::clone(&tiers)));
        Ok(TieredStore { tiers, _running: running })
    }
}

/// Reads the generation of copies when it is needed, and before the view gets too old.
async fn keep_view(tiers: Arc<Tiers>) {
    loop {
        let mut pause = READ_EVERY;
        if let Some(reading) = tiers.views.begin() {
            match tiers.postgres.copies().await {
                Ok(copies) => tiers.views.take(reading, copies),
                Err(error) => {
                    tracing::debug!(%error, "the generation of copies cannot be read; copies are disabled meanwhile");
                    pause = TRY_AGAIN;
                }
            }
        }
        let _ = tokio::time::timeout(pause, tiers.views.wanted()).await;
    }
}

/// Retries an unavailable Redis until it answers.
async fn mend(tiers: Arc<Tiers>) {
    loop {
        tiers.breaker.is_open().await;
        let mut backoff = Backoff::new(TRY_AGAIN, LONGEST_WAIT);
        while let Err(error) = try_again(&tiers).await {
            tracing::debug!(redis = tiers.redis.name(), %error, "Redis is still unavailable");
            backoff.wait().await;
        }
        tiers.breaker.close();
    }
}

async fn try_again(tiers: &Tiers) -> Result<(), Error> {
    tiers.redis.probe().await?;
    // The entries in Redis are from before the outage, or from processes that could reach it: they have an older
    // generation. A process that receives the new generation uses no entry until it has read the number again.
    tiers.postgres.begin_generation().await?;
    tiers.views.drop_view();
    Ok(())
}
