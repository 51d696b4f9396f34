//! The sessions in memory: their marks, and the lock that applies their operations one at a time.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use semel::store::{self, MarkId, MarkStore};

/// Number of locks that the sessions are spread over. Each is held only for a lookup.
const SHARDS: usize = 16;

/// The sessions in memory.
pub(super) struct Sessions {
    shards: [Mutex<HashMap<MarkId, Arc<Session>>>; SHARDS],
    /// A larger shard drops its idle sessions.
    idle_per_shard: usize,
}

/// One session.
pub(super) struct Session {
    id: MarkId,
    /// Held while an operation is applied. The lock is fair: operations keep their order of arrival.
    turn: tokio::sync::Mutex<MarkState>,
    /// The mark that is certainly in the store, readable without the turn.
    stored: Mutex<Option<u64>>,
}

/// The exclusive use of a session while one of its operations is applied.
pub(super) struct SessionTurn<'a> {
    session: &'a Session,
    state: tokio::sync::MutexGuard<'a, MarkState>,
}

/// The writer of the mark while an operation is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkWriter {
    /// The receiver alone.
    Receiver,
    /// The apply function, too.
    Apply,
}

enum MarkState {
    /// Not read from the store yet.
    Unread,
    /// The store has this mark.
    Stored(Option<u64>),
    /// The last applied number, which the store does not have yet.
    Unsaved(u64),
}

impl Sessions {
    pub(super) fn new(idle: usize) -> Self {
        Self { shards: Default::default(), idle_per_shard: idle / SHARDS }
    }

    pub(super) fn get(&self, id: MarkId) -> Arc<Session> {
        let mut shard = self.shards[usize::from(id.as_bytes()[0]) % SHARDS].lock();
        if let Some(session) = shard.get(&id) {
            return Arc::clone(session);
        }
        if shard.len() > self.idle_per_shard {
            // Nobody can start to use a session while the shard is locked.
            shard.retain(|_, session| Arc::strong_count(session) > 1 || session.has_unsaved_mark());
        }
        let session =
            Session { id, turn: tokio::sync::Mutex::new(MarkState::Unread), stored: Mutex::default() };
        Arc::clone(shard.entry(id).or_insert(Arc::new(session)))
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Session {
    pub(super) fn id(&self) -> MarkId {
        self.id
    }

    /// The mark that the store has, as far as known.
    pub(super) fn stored_mark(&self) -> Option<u64> {
        *self.stored.lock()
    }

    /// Waits for the session's turn.
    pub(super) async fn lock(&self) -> SessionTurn<'_> {
        SessionTurn { session: self, state: self.turn.lock().await }
    }

    fn has_unsaved_mark(&self) -> bool {
        self.turn.try_lock().is_ok_and(|state| matches!(*state, MarkState::Unsaved(_)))
    }
}

impl SessionTurn<'_> {
    /// The session's mark, from the store if necessary. An unsaved mark is stored first.
    pub(super) async fn load(
        &mut self,
        store: &dyn MarkStore,
        id: MarkId,
    ) -> Result<Option<u64>, store::Error> {
        match *self.state {
            MarkState::Stored(mark) => return Ok(mark),
            MarkState::Unsaved(mark) => self.raise(store, id, mark).await?,
            MarkState::Unread => {
                let mark = store.read_mark(id).await?;
                self.set_stored(mark);
            }
        }
        Ok(self.session.stored_mark())
    }

    /// Raises the mark in the store to `sequence`. It counts as unsaved until the store has answered.
    pub(super) async fn raise(
        &mut self,
        store: &dyn MarkStore,
        id: MarkId,
        sequence: u64,
    ) -> Result<(), store::Error> {
        *self.state = MarkState::Unsaved(sequence);
        let stands = store.raise_mark(id, sequence).await?;
        if stands > sequence {
            tracing::warn!(
                sequence,
                stands,
                "the store has a higher mark than this receiver: another receiver serves the same session"
            );
        }
        self.set_stored(Some(stands));
        Ok(())
    }

    /// The next call reads the mark from the store. An unsaved mark stays: it is the higher one.
    pub(super) fn invalidate(&mut self) {
        if let MarkState::Stored(_) = *self.state {
            *self.state = MarkState::Unread;
        }
    }

    /// Records the mark that the store has.
    pub(super) fn set_stored(&mut self, mark: Option<u64>) {
        // A mark never goes down, even if the store has lost it.
        let mut stored = self.session.stored.lock();
        *stored = (*stored).max(mark);
        *self.state = MarkState::Stored(*stored);
    }
}
