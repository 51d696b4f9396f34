//! Where a store lives, in words that can be handed to another process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel::store::{
    EmbeddedStore, EncryptedStore, Error, Keyring, KeyringError, MemoryStore, PostgresStore, RedisStore,
    SealingKey, Store, TieredStore,
};
use serde::{Deserialize, Serialize};

/// How to open a store. Opened twice it gives two handles on the same data, except for [`Place::Memory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In this process.
    Memory,
    /// In a folder; one opener at a time.
    Embedded(PathBuf),
    /// On Redis: one server or a cluster, as the URL says.
    Redis {
        /// The URL.
        url: String,
        /// What its keys begin with.
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
        /// What its keys begin with.
        prefix: String,
    },
    /// Outcomes sealed, over another place.
    Sealed {
        /// The key that seals; whoever opens the place knows every key.
        key: SealedWith,
        /// The store below.
        over: Box<Place>,
    },
}

/// Which key is the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each says it")]
pub enum SealedWith {
    Old,
    New,
}

impl Place {
    /// Opens it.
    ///
    /// # Errors
    /// What the store says.
    pub async fn open(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(match self {
            Self::Memory => Arc::new(MemoryStore::new()),
            Self::Embedded(folder) => Arc::new(EmbeddedStore::open(folder)?),
            Self::Redis { url, prefix } => Arc::new(RedisStore::builder(url).prefix(prefix).connect().await?),
            Self::Postgres { url } => Arc::new(PostgresStore::open(url).await?),
            Self::Tiered { postgres, redis, prefix } => {
                let redis = RedisStore::builder(redis).prefix(prefix);
                // As patient as a busy machine needs it: what is shown with it is not its speed.
                let postgres = PostgresStore::builder(postgres).patience(Duration::from_secs(20));
                let tiered = TieredStore::builder(postgres, redis).redis_patience(Duration::from_secs(5));
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
    /// None, as long as the ids here are good ones.
    pub fn ring(self) -> Result<Keyring, KeyringError> {
        let key = |id: &str| SealingKey::from_passphrase(id.as_bytes());
        let (current, other) = match self {
            Self::Old => ("old", "new"),
            Self::New => ("new", "old"),
        };
        Keyring::new(current, &key(current))?.also_opens(other, &key(other))
    }
}
