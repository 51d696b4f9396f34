//! The Rust of the documentation compiles.

/// What snippets may use without saying so.
mod prelude {
    pub(super) use semel::store::{
        EmbeddedStore, EncryptedStore, MemoryStore, PostgresStore, RedisStore, TieredStore, sqlx,
    };
    pub(super) use semel::{Engine, FailureExt, Key};
}

include!(concat!(env!("OUT_DIR"), "/snippets.rs"));
