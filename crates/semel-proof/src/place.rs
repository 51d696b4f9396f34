//! Where a store lives, in words that can be handed to another process.

use std::path::PathBuf;
use std::sync::Arc;

use semel::store::{
    EmbeddedStore, EncryptedStore, Error, Keyring, KeyringError, MemoryStore, PostgresStore, RedisStore,
    SealingKey, Store,
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
