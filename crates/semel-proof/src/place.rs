//! The location of a store, in a form that can be passed to another process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel::store::{
    EmbeddedStore, EncryptedStore, Error, Keyring, KeyringError, MemoryStore, PostgresStore, RedisStore,
    SealingKey, Store, TieredStore,
};
use serde::{Deserialize, Serialize};

/// How to open a store. Opened twice it gives two handles to the same data, except for [`StorePlace::Memory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorePlace {
    /// In this process.
    Memory,
    /// In a folder; one opener at a time.
    Embedded(PathBuf),
    /// On Redis: one server or a cluster, depending on the URL.
    Redis {
        /// The URL.
        url: String,
        /// The prefix of its keys.
        prefix: String,
    },
    /// In a PostgreSQL database.
    Postgres {
        /// The URL, with the database.
        url: String,
    },
    /// Redis in front of PostgreSQL.
    Tiered {
        /// The URL of the database.
        postgres: String,
        /// The URL of Redis.
        redis: String,
        /// The prefix of its keys.
        prefix: String,
    },
    /// Outcomes sealed, over another place.
    Sealed {
        /// The key that seals; every process that opens the place knows all keys.
        key: SealedWith,
        /// The inner store.
        over: Box<StorePlace>,
    },
}

/// Which key is the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each says it")]
pub enum SealedWith {
    Old,
    New,
}

impl StorePlace {
    /// Opens it.
    ///
    /// # Errors
    /// The store's error.
    pub async fn open(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(match self {
            Self::Memory => Arc::new(MemoryStore::new()),
            Self::Embedded(folder) => Arc::new(EmbeddedStore::open(folder)?),
            Self::Redis { url, prefix } => Arc::new(RedisStore::builder(url).prefix(prefix).connect().await?),
            Self::Postgres { url } => Arc::new(PostgresStore::open(url).await?),
            Self::Tiered { postgres, redis, prefix } => {
                let redis = RedisStore::builder(redis).prefix(prefix);
                // A generous timeout for a busy machine: this does not measure speed.
                let postgres = PostgresStore::builder(postgres).timeout(Duration::from_secs(20));
                let tiered = TieredStore::builder(postgres, redis).redis_timeout(Duration::from_secs(5));
                Arc::new(tiered.open().await?)
            }
            Self::Sealed { key, over } => {
                let ring = key.ring().expect("the ids are good");
                Arc::new(EncryptedStore::over(Box::pin(over.open()).await?, ring))
            }
        })
    }
}

impl SealedWith {
    /// A ring in the middle of a rotation: both keys open, one seals.
    ///
    /// # Errors
    /// None, while the ids here are valid.
    pub fn ring(self) -> Result<Keyring, KeyringError> {
        let key = |id: &str| SealingKey::from_passphrase(id.as_bytes());
        let (current, other) = match self {
            Self::Old => ("old", "new"),
            Self::New => ("new", "old"),
        };
        Keyring::new(current, &key(current))?.also_opens(other, &key(other))
    }
}
