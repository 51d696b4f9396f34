//! The Rust of the documentation compiles.

/// What snippets may use without saying so.
#[allow(unused_imports, reason = "which of them a page uses is its own business")]
mod prelude {
    pub(super) use semel::store::{
        EmbeddedStore, EncryptedStore, MemoryStore, PostgresStore, RedisStore, TieredStore, sqlx,
    };
    pub(super) use semel::{Engine, FailureExt, Key};
}

include!(concat!(env!("OUT_DIR"), "/snippets.rs"));
