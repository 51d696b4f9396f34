//! The receiver: window and marks in front of an apply function.

mod builder;
mod session;

use std::fmt;
use std::sync::Arc;

pub use self::builder::ReceiverBuilder;
use self::session::{MarkKnowledge, Session, Sessions};
use super::marks::{Advance, Gaps};
use super::{ForgetResult, Window, WindowKey};
use semel::block_on::block_on;
use semel::store::{self, MarkId, MarkStore};

/// Applies each operation of each session once, in the order of its sequence numbers.
///
/// Two layers stand before the apply function: the session's high-water mark, kept in a store, and a
/// [`Window`] of the keys that were applied last. An operation that either of them knows is not applied.
///
/// # What is promised
/// - Operations of one session are applied one at a time; those of different sessions do not wait for each
///   other.
/// - A failed apply leaves nothing behind: mark and window are as before, and the operation may come again.
/// - The mark survives a restart. [`receive`](Self::receive) raises it *after* the apply function returned, so
///   a crash between the two lets that one operation be applied again: at least once after a crash, once
///   otherwise. Where the apply function can commit the mark in its own transaction,
///   [`receive_joined`](Self::receive_joined) makes that once, crash or not.
/// - A session belongs to one receiver at a time. When it moves here from another process while this receiver
///   has served it before, call [`reload`](Self::reload) first.
///
/// Marks are never forgotten, so a session id is used once and not again for another session. Sessions that
/// are idle leave memory and are read from the store when they come back.
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

/// What became of an operation.
#[derive(Debug)]
#[must_use = "a gap must be sent again; a duplicate was not applied"]
pub enum Received<T> {
    /// It was applied, and its mark is kept.
    Applied(T),
    /// It was applied, but the store could not keep its mark. This receiver will not apply it again and
    /// raises the mark before it does anything else for the session; a crash before that lets it be applied
    /// once more.
    AppliedUnmarked {
        /// What the apply function returned.
        value: T,
        /// Why the mark was not kept.
        error: store::Error,
    },
    /// It was not applied, because it has been before.
    Duplicate(RefusedBy),
    /// It was not applied, because others come before it ([`Gaps::Strict`] only).
    Gap {
        /// The sequence number whose turn it is.
        expected: u64,
        /// The one that came.
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
    /// The window holds its key: this receiver applied it, and the store has lost the mark since.
    Window,
}

/// What the apply function of [`Receiver::receive_joined`] did about the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined<T> {
    /// The mark was raised in the transaction that made the effect, and both are committed.
    Marked(T),
    /// The mark was not touched; the receiver raises it now.
    Unmarked(T),
}

/// Why an operation was not applied although it should have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError<E> {
    /// The apply function failed. Mark and window are as before.
    #[error("the operation could not be applied")]
    Apply(#[source] E),
    /// The session's mark could not be read, or one that was still owed could not be kept. The apply function
    /// was not called.
    #[error("the session's mark could not be read or kept: {0}")]
    Store(#[from] store::Error),
}

impl Receiver {
    /// Starts to build a receiver that keeps its marks in `store`.
    pub fn builder(store: impl MarkStore, gaps: Gaps) -> ReceiverBuilder {
        ReceiverBuilder::new(Arc::new(store), gaps)
    }

    /// The same, over a store that others use too.
    pub fn over(store: Arc<dyn MarkStore>, gaps: Gaps) -> ReceiverBuilder {
        ReceiverBuilder::new(store, gaps)
    }

    /// Applies `operation`, number `sequence` of `session`, unless that has been done.
    ///
    /// The mark is raised after `apply` has returned.
    ///
    /// # Cancellation
    /// If the future is dropped while `apply` runs, the operation counts as not applied and will be applied when
    /// it comes again. Dropped later, it counts as applied, and the mark is raised by the next call for the
    /// session.
    ///
    /// # Errors
    /// [`ReceiveError::Apply`] if `apply` failed, [`ReceiveError::Store`] if it was not called because the
    /// store failed. Either way the operation may be sent again.
    pub async fn receive<T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: &[u8],
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let joined = async |_| apply().await.map(Joined::Unmarked);
        self.pass(session, sequence, operation, MarkKnowledge::Stays, joined).await
    }

    /// [`receive`](Self::receive) for an apply function that commits the mark with its effect, in one
    /// transaction.
    ///
    /// `apply` gets the mark's id; raising that mark to `sequence` in the store this receiver reads is its part.
    /// It says with [`Joined`] whether it did. The session's mark is read from the store at first sight, and
    /// again after an apply that failed or was cancelled, since its transaction may have been committed all the
    /// same.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn receive_joined<T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: &[u8],
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce(MarkId) -> Fut,
        Fut: Future<Output = Result<Joined<T>, E>>,
    {
        self.pass(session, sequence, operation, MarkKnowledge::Unsure, apply).await
    }

    /// [`receive`](Self::receive) for callers that block. `apply` runs on the calling thread.
    ///
    /// Memory and embedded stores need no runtime for it; a store that speaks over a network may need the
    /// calling thread to have entered one (`tokio::runtime::Handle::enter`).
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_blocking<T, E>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: &[u8],
        apply: impl FnOnce() -> Result<T, E>,
    ) -> Result<Received<T>, ReceiveError<E>> {
        block_on(self.receive(session, sequence, operation, async || apply()))
    }

    /// The mark of a session as this receiver knows it, read from the store if it was not seen yet.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn mark(&self, session: &[u8]) -> Result<Option<u64>, store::Error> {
        let session = self.session(session);
        let mut state = session.lock().await;
        state.load(&*self.store, session.id()).await
    }

    /// Lets the next call for `session` read its mark from the store again: for a session that another process
    /// has served in the meantime.
    pub async fn reload(&self, session: &[u8]) {
        self.session(session).lock().await.doubt();
    }

    /// The id under which a session's mark is kept.
    #[must_use]
    pub fn mark_id(&self, session: &[u8]) -> MarkId {
        let Some(name) = &self.name else { return MarkId::of_session(session) };
        // The length keeps "ab" + "c" apart from "a" + "bc".
        let length = (name.len() as u64).to_le_bytes();
        MarkId::of_session(&[&length, name.as_bytes(), session].concat())
    }

    /// The window in front, to look at.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    fn session(&self, session: &[u8]) -> Arc<Session> {
        self.sessions.get(self.mark_id(session))
    }

    async fn pass<T, E, F, Fut>(
        &self,
        session: &[u8],
        sequence: u64,
        operation: &[u8],
        meanwhile: MarkKnowledge,
        apply: F,
    ) -> Result<Received<T>, ReceiveError<E>>
    where
        F: FnOnce(MarkId) -> Fut,
        Fut: Future<Output = Result<Joined<T>, E>>,
    {
        let session = self.session(session);
        // What is behind a mark that is kept needs no turn: it is answered while another number is applied.
        if let Some(mark) = session.kept_mark().filter(|mark| sequence <= *mark) {
            return Ok(Received::Duplicate(RefusedBy::Mark { mark }));
        }
        let mut state = session.lock().await;
        let mark = state.load(&*self.store, session.id()).await?;
        match self.gaps.judge(mark, self.first, sequence) {
            Advance::Accepted(_) => {}
            Advance::AtOrBelow { mark } => return Ok(Received::Duplicate(RefusedBy::Mark { mark })),
            Advance::OutOfOrder { expected, got } => return Ok(Received::Gap { expected, got }),
        }
        // The id stands for the session because all ids have one length: see `WindowKey`.
        let key = WindowKey::derive(session.id().as_bytes(), sequence, operation);
        if !self.window.check_and_record(key) {
            // Only what was applied is in the window once the session is locked. So the mark is what is wrong.
            state.raise(&*self.store, session.id(), sequence).await?;
            return Ok(Received::Duplicate(RefusedBy::Window));
        }
        let entry = WindowEntry { window: &self.window, key: Some(key) };
        if meanwhile == MarkKnowledge::Unsure {
            state.doubt();
        }
        let joined = apply(session.id()).await.map_err(ReceiveError::Apply)?;
        entry.keep();
        match joined {
            Joined::Marked(value) => {
                state.committed(sequence);
                Ok(Received::Applied(value))
            }
            Joined::Unmarked(value) => match state.raise(&*self.store, session.id(), sequence).await {
                Ok(()) => Ok(Received::Applied(value)),
                Err(error) => Ok(Received::AppliedUnmarked { value, error }),
            },
        }
    }
}

impl fmt::Debug for Receiver {
    /// Leaves the session ids out; they may be secrets.
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

/// A key in the window whose operation is being applied. Unless it is kept, it is taken back when dropped: after
/// an error, a panic, or a caller that went away.
struct WindowEntry<'a> {
    window: &'a Window,
    key: Option<WindowKey>,
}

impl WindowEntry<'_> {
    fn keep(mut self) {
        self.key = None;
    }
}

impl Drop for WindowEntry<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // In a small window others may have pushed it out already.
            let (ForgetResult::TakenBack | ForgetResult::NotHeld) = self.window.forget(key);
        }
    }
}

#[cfg(test)]
mod tests;
