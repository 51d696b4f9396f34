//! What is received: an operation, by its bytes or by a shipped key.

use std::fmt;

use crate::WindowKey;
use semel::store::MarkId;

/// An operation as the window tells it from others: by its bytes, or by a key that came with it.
///
/// A shipped key saves the follower the hash over the operation. It is compared within its session only. Send it with every
/// repetition: the key of the bytes is another one.
///
/// ```
/// use semel::store::MemoryStore;
/// use semel_window::{Gaps, Received, Receiver, WindowKey};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The leader derives the key once and ships it to every follower.
/// let shipped = WindowKey::derive(b"session-1", 1, b"a large operation").to_bytes();
///
/// let follower = Receiver::builder(MemoryStore::new(), Gaps::Strict).build()?;
/// let key = WindowKey::from_bytes(&shipped)?;
/// let received = follower.receive(b"session-1", 1, key, async || std::io::Result::Ok(())).await?;
/// assert!(matches!(received, Received::Applied(())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// The bytes; the receiver derives a key from them.
    Bytes(&'a [u8]),
    /// The key that the sender derived.
    Key(WindowKey),
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Operation<'a> {
    fn from(bytes: &'a B) -> Self {
        Self::Bytes(bytes.as_ref())
    }
}

impl From<WindowKey> for Operation<'_> {
    fn from(key: WindowKey) -> Self {
        Self::Key(key)
    }
}

impl fmt::Debug for Operation<'_> {
    /// Omits the bytes, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Key(key) => f.debug_tuple("Key").field(key).finish(),
        }
    }
}

impl Operation<'_> {
    /// The key in the window. Sessions share the window, so the session's id is part of every key.
    pub(super) fn key(self, session: MarkId, sequence: Option<u64>) -> WindowKey {
        let (kind, bytes) = match (self, sequence) {
            // The id stands for the session because all ids have one length: see `WindowKey`.
            (Self::Bytes(bytes), Some(sequence)) => {
                return WindowKey::derive(session.as_bytes(), sequence, bytes);
            }
            (Self::Bytes(bytes), None) => (0, bytes),
            (Self::Key(key), _) => (1, &key.to_bytes()[..]),
        };
        let mut hasher = blake3::Hasher::new_derive_key("semel 2026 operation of a session in a window");
        hasher.update(session.as_bytes()).update(&[kind]).update(bytes);
        WindowKey::from_hash(&hasher)
    }
}
