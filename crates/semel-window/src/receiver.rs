//! The receiver: window and marks in front of an apply function.

mod builder;
mod operation;
mod session;

use std::fmt;
use std::sync::Arc;

pub use self::builder::ReceiverBuilder;
pub use self::operation::Operation;
use self::session::{MarkWriter, Session, Sessions};
use super::marks::{Advance, Gaps};
use super::{ForgetResult, Window, WindowKey};
use semel::block_on::block_on;
use semel::store::{self, MarkId, MarkStore};

/// Applies each operation of each session once, in the order of its sequence numbers.
///
/// Two layers protect the apply function: the session's high-water mark, in a store, and a [`Window`] of the keys that
/// were applied last. An operation that one of them knows is not applied.
///
/// # Guarantees
/// - Operations of one session are applied one at a time; those of different sessions do not wait for each
///   other.
/// - After a failed apply, mark and window are as before, and the operation can be sent again.
/// - The mark survives a restart. [`receive`](Self::receive) raises it *after* the apply function returned. After a
///   crash between the two, that one operation is applied again: at least once after a crash, exactly once
///   otherwise. If the apply function commits the mark in its own transaction,
///   [`receive_joined`](Self::receive_joined) applies it exactly once, even after a crash.
/// - An operation without a sequence number ([`receive_unnumbered`](Self::receive_unnumbered)) has only the window behind it: it
///   is applied again after a restart, or once the window has forgotten it.
/// - A session belongs to one receiver at a time. If it returns from another process, call [`reload`](Self::reload)
///   first.
///
/// Marks are never removed, so an id must not be reused for another session. Idle sessions leave memory and are read
/// from the store when they return.
///
/// ```
/// use semel::store::MemoryStore;
/// use semel_window::{Gaps, Received, Receiver, RefusedBy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let receiver = Receiver::builder(MemoryStore::new(), Gaps::Strict).build()?;
/// let mut log = Vec::new();
/// for (sequence, operation) in [(1, "a"), (2, "b"), (2, "b")] {
///     let applied = receiver
///         .receive(b"session-1", sequence, operation.as_bytes(), async || {
///             log.push(operation);
///             Ok::<_, std::convert::Infallible>(())
///         })
///         .await?;
///     println!("{sequence}: {applied:?}");
/// }
/// assert_eq!(log, ["a", "b"]);
/// # Ok(())
/// # }
/// ```
pub struct Receiver {
    store: Arc<dyn MarkStore>,
    gaps: Gaps,
    first: u64,
    name: Option<Box<str>>,
    window: Window,
    sessions: Sessions,
}

/// The result of an operation.
#[derive(Debug)]
#[must_use = "a gap must be sent again; a duplicate was not applied"]
pub enum Received<T> {
    /// It was applied, and its mark is stored.
    Applied(T),
    /// It was applied, but its mark could not be stored. This receiver does not apply it again, and raises the mark
    /// before the next operation of the session. After a crash before that, it is applied once more.
    AppliedUnmarked {
        /// The value of the apply function.
        value: T,
        /// Why the mark was not stored.
        error: store::Error,
    },
    /// It was not applied, because it was applied before.
    Duplicate(RefusedBy),
    /// It was not applied, because an earlier number is missing ([`Gaps::Strict`] only).
    Gap {
        /// The expected sequence number.
        expected: u64,
        /// The received one.
        got: u64,
    },
}

/// The layer that knew the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// Its sequence number is at or below the session's mark. Under [`Gaps::Lenient`] it may have been skipped
    /// instead of applied.
    Mark {
        /// The session's mark.
        mark: u64,
    },
    /// The window has its key: this receiver applied it, without a number or under another one, or the store has lost the mark
    /// since. The mark is raised to its number, if it has one.
    Window,
}

/// Whether the apply function of [`Receiver::receive_joined`] raised the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined<T> {
    /// The mark was raised in the transaction of the effect, and both are committed.
    Marked(T),
    /// The mark was not raised; the receiver raises it now.
    Unmarked(T),
}

/// Why an operation could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError<E> {
    /// The apply function failed. Mark and window are as before.
    #[error("the operation could not be applied")]
    Apply(#[source] E),
    /// The session's mark could not be read, or an unsaved one could not be stored. The apply function was not
    /// called.
    #[error("the session's mark could not be read or kept: {0}")]
    Store(#[from] store::Error),
}

impl Receiver {
    /// Builds a receiver that stores its marks in `store`.
    pub fn builder(store: impl MarkStore, gaps: Gaps) -> ReceiverBuilder {
        ReceiverBuilder::new(Arc::new(store), gaps)
    }

    /// As [`builder`](Self::builder), over a shared store.
    pub fn over(store: Arc<dyn MarkStore>, gaps: Gaps) -> ReceiverBuilder {
        ReceiverBuilder::new(store, gaps)
    }

    /// Applies `operation`, number `sequence` of `session`, unless it was applied before. `operation` is bytes, or the
    /// [`WindowKey`] that the sender shipped with them.
    ///
    /// The mark is raised after `apply` has returned.
    ///
    /// # Cancellation
    /// If the future is dropped while `apply` runs, the operation counts as not applied, and is applied when it is
    /// sent again. If it is dropped later, the operation counts as applied, and the next call for the session raises
    /// the mark.
    ///
    /// # Errors
    /// [`ReceiveError::Apply`] if `apply` failed, [`ReceiveError::Store`] if it was not called because the
    /// store failed. Either way the operation may be sent again.
    pub async fn receive<'a, T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: impl Into<Operation<'a>>,
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let joined = async |_| apply().await.map(Joined::Unmarked);
        self.receive_with(session, sequence, operation.into(), MarkWriter::Receiver, joined).await
    }

    /// [`receive`](Self::receive) for an apply function that commits the mark with its effect, in one
    /// transaction.
    ///
    /// `apply` gets the mark's id, raises that mark to `sequence` in the store of this receiver, and reports with
    /// [`Joined`] whether it did. After a failed or cancelled apply, the receiver reads the mark again, because the
    /// transaction may have been committed.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn receive_joined<'a, T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: impl Into<Operation<'a>>,
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce(MarkId) -> Fut,
        Fut: Future<Output = Result<Joined<T>, E>>,
    {
        self.receive_with(session, sequence, operation.into(), MarkWriter::Apply, apply).await
    }

    /// [`receive`](Self::receive) for callers that block. `apply` runs on the calling thread.
    ///
    /// Memory and embedded stores need no runtime for it; a store that speaks over a network may need the
    /// calling thread to have entered one (`tokio::runtime::Handle::enter`).
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_blocking<'a, T, E>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: impl Into<Operation<'a>>,
        apply: impl FnOnce() -> Result<T, E>,
    ) -> Result<Received<T>, ReceiveError<E>> {
        block_on(self.receive(session, sequence, operation, async || apply()))
    }

    /// Applies an operation of `session` that has no sequence number, unless the window knows it.
    ///
    /// The marks are neither read nor moved, so there are no gaps and the store may be unavailable. Only the window refuses a
    /// duplicate: after a restart, or once newer operations have pushed it out of the window, the operation is applied again.
    /// Equal bytes are equal operations; if an operation can legitimately come twice, give each its own [`WindowKey`].
    ///
    /// The result is [`Received::Applied`] or a [`Received::Duplicate`] of [`RefusedBy::Window`]. Cancellation as in
    /// [`receive`](Self::receive).
    ///
    /// # Errors
    /// [`ReceiveError::Apply`] if `apply` failed. The operation may be sent again.
    pub async fn receive_unnumbered<'a, T, E, F, Fut>(
        &self,
        session: &[u8],
        operation: impl Into<Operation<'a>>,
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let session = self.session(session);
        let key = operation.into().key(session.id(), None);
        let _turn = session.lock().await;
        let Some(entry) = WindowEntry::record(&self.window, key) else {
            return Ok(Received::Duplicate(RefusedBy::Window));
        };
        let value = apply().await.map_err(ReceiveError::Apply)?;
        entry.keep();
        Ok(Received::Applied(value))
    }

    /// The mark of a session as this receiver knows it, read from the store if it was not seen yet.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn mark(&self, session: &[u8]) -> Result<Option<u64>, store::Error> {
        let session = self.session(session);
        let mut turn = session.lock().await;
        turn.load(&*self.store, session.id()).await
    }

    /// The next call for `session` reads its mark from the store again. For a session that another process has served
    /// in the meantime.
    pub async fn reload(&self, session: &[u8]) {
        self.session(session).lock().await.invalidate();
    }

    /// The id of a session's mark in the store.
    #[must_use]
    pub fn mark_id(&self, session: &[u8]) -> MarkId {
        let Some(name) = &self.name else { return MarkId::of_session(session) };
        // The length distinguishes "ab" + "c" from "a" + "bc".
        let length = (name.len() as u64).to_le_bytes();
        MarkId::of_session(&[&length, name.as_bytes(), session].concat())
    }

    /// The window.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    fn session(&self, session: &[u8]) -> Arc<Session> {
        self.sessions.get(self.mark_id(session))
    }

    async fn receive_with<T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: Operation<'_>,
        mark_writer: MarkWriter,
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce(MarkId) -> Fut,
        Fut: Future<Output = Result<Joined<T>, E>>,
    {
        let session = self.session(session);
        // A duplicate below a stored mark is answered while another number is applied.
        if let Some(mark) = session.stored_mark().filter(|mark| sequence <= *mark) {
            return Ok(Received::Duplicate(RefusedBy::Mark { mark }));
        }
        let mut turn = session.lock().await;
        let mark = turn.load(&*self.store, session.id()).await?;
        match self.gaps.check(mark, self.first, sequence) {
            Advance::Accepted(_) => {}
            Advance::AtOrBelow { mark } => return Ok(Received::Duplicate(RefusedBy::Mark { mark })),
            Advance::OutOfOrder { expected, got } => return Ok(Received::Gap { expected, got }),
        }
        let key = operation.key(session.id(), Some(sequence));
        let Some(entry) = WindowEntry::record(&self.window, key) else {
            // While the session is locked, the window has only applied operations of it.
            turn.raise(&*self.store, session.id(), sequence).await?;
            return Ok(Received::Duplicate(RefusedBy::Window));
        };
        if mark_writer == MarkWriter::Apply {
            turn.invalidate();
        }
        let joined = apply(session.id()).await.map_err(ReceiveError::Apply)?;
        entry.keep();
        match joined {
            Joined::Marked(value) => {
                turn.set_stored(Some(sequence));
                Ok(Received::Applied(value))
            }
            Joined::Unmarked(value) => match turn.raise(&*self.store, session.id(), sequence).await {
                Ok(()) => Ok(Received::Applied(value)),
                Err(error) => Ok(Received::AppliedUnmarked { value, error }),
            },
        }
    }
}

impl fmt::Debug for Receiver {
    /// Omits the session ids, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, gaps, first: _, name, window, sessions } = self;
        f.debug_struct("Receiver")
            .field("store", &format_args!("{store}"))
            .field("gaps", gaps)
            .field("name", name)
            .field("window", window)
            .field("sessions", &sessions.len())
            .finish_non_exhaustive()
    }
}

/// A key in the window whose operation is being applied. Dropped without `keep`, it leaves the window: after an error,
/// a panic or a cancellation.
struct WindowEntry<'a> {
    window: &'a Window,
    key: Option<WindowKey>,
}

impl<'a> WindowEntry<'a> {
    /// Records a key, unless the window has it.
    fn record(window: &'a Window, key: WindowKey) -> Option<Self> {
        window.check_and_record(key).then(|| Self { window, key: Some(key) })
    }

    fn keep(mut self) {
        self.key = None;
    }
}

impl Drop for WindowEntry<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // A small window may have evicted it already.
            let (ForgetResult::TakenBack | ForgetResult::NotHeld) = self.window.forget(key);
        }
    }
}

#[cfg(test)]
mod tests;
