//! What the receiver knows of each session, and the turn each session gives.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use semel::store::{self, MarkId, MarkStore};

/// Sessions are spread over this many locks, which are held only to look one up.
const SHARDS: usize = 16;

/// The sessions in memory.
pub(super) struct Sessions {
    shards: [Mutex<HashMap<MarkId, Arc<Session>>>; SHARDS],
    /// A shard that has grown past this lets go of its idle sessions.
    idle_per_shard: usize,
}

/// One session.
pub(super) struct Session {
    id: MarkId,
    /// Held while an operation is applied. A fair lock: operations go in the order in which they came.
    turn: tokio::sync::Mutex<State>,
    /// The mark that surely is in the store, to be read without waiting for the turn.
    kept: Mutex<Option<u64>>,
}

/// A session whose turn it is.
pub(super) struct Turn<'a> {
    session: &'a Session,
    state: tokio::sync::MutexGuard<'a, State>,
}

/// Whether what is known of the mark stays true while an operation is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKnowledge {
    /// Nobody else writes it.
    Stays,
    /// The apply function may write it.
    Unsure,
}

enum State {
    /// The store must be asked.
    Unread,
    /// The store has this mark.
    Kept(Option<u64>),
    /// Applied up to here, but the store does not know yet.
    Owed(u64),
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
            shard.retain(|_, session| Arc::strong_count(session) > 1 || session.owes());
        }
        let session = Session { id, turn: tokio::sync::Mutex::new(State::Unread), kept: Mutex::default() };
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
    pub(super) fn kept_mark(&self) -> Option<u64> {
        *self.kept.lock()
    }

    /// Waits for the session's turn.
    pub(super) async fn lock(&self) -> Turn<'_> {
        Turn { session: self, state: self.turn.lock().await }
    }

    fn owes(&self) -> bool {
        self.turn.try_lock().is_ok_and(|state| matches!(*state, State::Owed(_)))
    }
}

impl Turn<'_> {
    /// The session's mark, from the store if need be. A mark that is owed is paid first.
    pub(super) async fn load(
        &mut self,
        store: &dyn MarkStore,
        id: MarkId,
    ) -> Result<Option<u64>, store::Error> {
        match *self.state {
            State::Kept(mark) => return Ok(mark),
            State::Owed(mark) => self.raise(store, id, mark).await?,
            State::Unread => {
                let mark = store.read_mark(id).await?;
                self.keep(mark);
            }
        }
        Ok(self.session.kept_mark())
    }

    /// Has the store raise the mark to `sequence`. From the call on it is owed, whatever becomes of the call.
    pub(super) async fn raise(
        &mut self,
        store: &dyn MarkStore,
        id: MarkId,
        sequence: u64,
    ) -> Result<(), store::Error> {
        *self.state = State::Owed(sequence);
        let stands = store.raise_mark(id, sequence).await?;
        if stands > sequence {
            tracing::warn!(
                sequence,
                stands,
                "the store has a higher mark than this receiver: another receiver serves the same session"
            );
        }
        self.keep(Some(stands));
        Ok(())
    }

    /// Takes note that the store has the mark, because somebody else committed it.
    pub(super) fn committed(&mut self, sequence: u64) {
        self.keep(Some(sequence));
    }

    /// Lets the next look at the mark be one at the store. A mark that is owed stays owed: it is the higher one.
    pub(super) fn doubt(&mut self) {
        if let State::Kept(_) = *self.state {
            *self.state = State::Unread;
        }
    }

    fn keep(&mut self, mark: Option<u64>) {
        // A mark never goes down, even if the store has lost it.
        let mut kept = self.session.kept.lock();
        *kept = (*kept).max(mark);
        *self.state = State::Kept(*kept);
    }
}
