//! High-water marks of sessions, for the receiver of `semel-window`.

use std::fmt;

use super::{BoxFuture, Error};

/// Keeps high-water marks: one number for each session, which never goes down.
///
/// Every store of this crate implements it. A mark is acknowledged when it is as durable as the store's records. The suite
/// for your own is `semel_window::testkit`.
pub trait MarkStore: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Reads a high-water mark.
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>>;

    /// Raises a high-water mark to `value`; a mark never goes down. Returns where it stands now.
    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>>;
}

/// Names a high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkId([u8; 16]);

impl MarkId {
    /// The mark of a session: BLAKE3 over the session's bytes, under a context of its own.
    pub fn of_session(session: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("semel 2026 high-water mark of a session");
        hasher.update(session);
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self(id)
    }

    /// The id with these bytes, for one that was read from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}
