//! The waiters of one process for one key share one watch on the store.
//!
//! One of them leads: it watches the key and asks the store. Its answer ends the wait of all callers that came before
//! it asked. When the leader leaves, because it won, gave up or was dropped, the next waiter leads and continues from
//! the same state.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, watch};

use crate::fingerprint::Fingerprint;
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::store::Watch;
use crate::sync::Mutex;
use crate::time::instant;

const SHARDS: usize = 16;

/// All waiters of an engine.
pub(super) struct Flights {
    shards: [Mutex<HashMap<RoomKey, Arc<WaitingRoom>>>; SHARDS],
    waiters: AtomicUsize,
    /// Number of waiters per scope, for scopes that have any.
    scopes: Mutex<HashMap<Box<[u8]>, usize>>,
    caps: WaiterCaps,
}

/// Waiters for one key *and payload*: the answer that ends the wait of one is valid for all.
type RoomKey = (KeyId, [u8; 32]);

struct WaitingRoom {
    /// The holder of this lock leads.
    leader: Arc<tokio::sync::Mutex<LeaderState>>,
    ended: watch::Sender<Option<Ended>>,
    /// Changed only under the lock of the room's shard.
    seats: AtomicUsize,
    /// Until when the lease was valid at the last answer.
    busy_until: Mutex<Instant>,
    /// When the store was last asked.
    asked: Mutex<Instant>,
}

/// The state that a leader passes to the next.
#[derive(Default)]
pub(super) struct LeaderState {
    /// Created by the first leader and kept by all, so that no change between two leaders is missed.
    pub(super) changes: Option<Watch>,
    /// When to ask the store without a notification; immediately if `None`. Without this value each new leader would
    /// ask the store, and when waiters leave one after the other, each of them becomes leader.
    pub(super) next: Option<Instant>,
}

/// How many callers may wait in this process. Further callers are refused immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterCaps {
    /// For one key.
    pub per_key: usize,
    /// For all keys of one scope, so that one tenant cannot take every place. It does not apply to keys without a
    /// scope.
    pub per_scope: usize,
    /// For all keys together.
    pub in_all: usize,
}

impl Default for WaiterCaps {
    fn default() -> Self {
        Self { per_key: 10_000, per_scope: 20_000, in_all: 50_000 }
    }
}

/// Whether a caller may wait.
pub(super) enum JoinResult {
    Seat(Seat),
    /// The limit on waiting callers is reached.
    Full,
    /// No caller waits for this key, so it is not yet known to be in progress.
    NoRoom,
}

impl Flights {
    pub(super) fn new(caps: WaiterCaps) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            waiters: AtomicUsize::new(0),
            scopes: Mutex::default(),
            caps,
        }
    }

    fn shard(&self, key: &RoomKey) -> &Mutex<HashMap<RoomKey, Arc<WaitingRoom>>> {
        &self.shards[usize::from(key.0.as_bytes()[0]) % SHARDS]
    }

    /// Takes a seat among the callers that already wait for this key. `since` is when the caller arrived.
    pub(super) fn join(
        self: &Arc<Self>,
        id: KeyId,
        scope: &[u8],
        fingerprint: &Fingerprint,
        since: Instant,
    ) -> JoinResult {
        // Most calls meet no waiter and need no lock to see that.
        if self.waiters() == 0 {
            return JoinResult::NoRoom;
        }
        let key = (id, *fingerprint.as_bytes());
        let rooms = self.shard(&key).lock();
        match rooms.get(&key) {
            Some(room) => self.sit(key, scope, room, since),
            None => JoinResult::NoRoom,
        }
    }

    /// As `join`, for a key that is in progress according to the store: opens a room if there is none.
    pub(super) fn open(
        self: &Arc<Self>,
        id: KeyId,
        scope: &[u8],
        fingerprint: &Fingerprint,
        since: Instant,
        lease_left: Duration,
    ) -> JoinResult {
        let key = (id, *fingerprint.as_bytes());
        let now = instant();
        let mut rooms = self.shard(&key).lock();
        if let Some(room) = rooms.get(&key) {
            return self.sit(key, scope, room, since);
        }
        let room = Arc::new(WaitingRoom {
            leader: Arc::default(),
            ended: watch::Sender::new(None),
            seats: AtomicUsize::new(0),
            busy_until: Mutex::new(now + lease_left),
            asked: Mutex::new(now),
        });
        let joined = self.sit(key, scope, &room, since);
        if matches!(joined, JoinResult::Seat(_)) {
            rooms.insert(key, room);
        }
        joined
    }

    /// Must be called under the lock of the room's shard.
    fn sit(
        self: &Arc<Self>,
        key: RoomKey,
        scope: &[u8],
        room: &Arc<WaitingRoom>,
        since: Instant,
    ) -> JoinResult {
        if room.seats.load(Ordering::Relaxed) >= self.caps.per_key {
            return JoinResult::Full;
        }
        let Some(place) = ScopePlace::take(self, scope) else { return JoinResult::Full };
        let one_more = |waiters| (waiters < self.caps.in_all).then_some(waiters + 1);
        if self.waiters.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return JoinResult::Full;
        }
        room.seats.fetch_add(1, Ordering::Relaxed);
        let (flights, room, ended) = (Arc::clone(self), Arc::clone(room), room.ended.subscribe());
        JoinResult::Seat(Seat { flights, key, room, ended, since, _place: place })
    }

    /// Number of callers that currently wait.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Acquire)
    }

    /// True if no state of any waiter remains.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiters() == 0
            && self.scopes.lock().is_empty()
            && self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Removes the room if it is still this one.
    fn close(rooms: &mut HashMap<RoomKey, Arc<WaitingRoom>>, key: &RoomKey, room: &Arc<WaitingRoom>) {
        if rooms.get(key).is_some_and(|present| Arc::ptr_eq(present, room)) {
            rooms.remove(key);
        }
    }
}

/// A caller's place among the waiters. Dropping it frees the place.
pub(super) struct Seat {
    flights: Arc<Flights>,
    key: RoomKey,
    room: Arc<WaitingRoom>,
    ended: watch::Receiver<Option<Ended>>,
    since: Instant,
    _place: ScopePlace,
}

/// A waiter's place in its scope; none for keys without one. Dropping it frees the place.
struct ScopePlace {
    flights: Arc<Flights>,
    scope: Box<[u8]>,
}

impl ScopePlace {
    fn take(flights: &Arc<Flights>, scope: &[u8]) -> Option<Self> {
        if !scope.is_empty() {
            let mut scopes = flights.scopes.lock();
            match scopes.get_mut(scope) {
                Some(waiting) if *waiting >= flights.caps.per_scope => return None,
                Some(waiting) => *waiting += 1,
                None => drop(scopes.insert(scope.into(), 1)),
            }
        }
        Some(Self { flights: Arc::clone(flights), scope: scope.into() })
    }
}

impl Drop for ScopePlace {
    fn drop(&mut self) {
        let mut scopes = self.flights.scopes.lock();
        match scopes.get_mut(&self.scope) {
            Some(waiting) if *waiting > 1 => *waiting -= 1,
            Some(_) => drop(scopes.remove(&self.scope)),
            None => {}
        }
    }
}

impl Seat {
    /// Returns when it is this caller's turn to lead, or with what ended the wait.
    pub(super) async fn turn(&mut self) -> SeatTurn {
        let leader = Arc::clone(&self.room.leader);
        tokio::select! {
            biased;
            ended = self.ended.wait_for(Option::is_some) => match ended.ok().and_then(|ended| ended.clone()) {
                Some(ended) => ended.turn(self.since),
                None => unreachable!("the room holds the sender, and this waited for some"),
            },
            leader = leader.lock_owned() => SeatTurn::Lead(leader),
        }
    }

    /// The ending of the wait, if it has ended.
    pub(super) fn ended(&self) -> Option<WaitEnd> {
        match self.ended.borrow().clone()?.turn(self.since) {
            SeatTurn::Ended(ending) => Some(ending),
            SeatTurn::Lead(_) | SeatTurn::Late => None,
        }
    }

    /// Ends the wait of all callers in the room with the answer to a request that was sent at `asked`. Later callers
    /// get a new room, because an answer becomes stale.
    pub(super) fn end(&self, asked: Instant, ending: WaitEnd) {
        Flights::close(&mut self.flights.shard(&self.key).lock(), &self.key, &self.room);
        self.room.ended.send_replace(Some(Ended { asked, ending }));
    }

    /// Records for the room that the store is being asked now.
    pub(super) fn asking(&self) -> Instant {
        let now = instant();
        *self.room.asked.lock() = now;
        now
    }

    /// The time since the last request to the store.
    pub(super) fn silence(&self) -> TimeSinceAsked {
        TimeSinceAsked(Arc::clone(&self.room))
    }

    /// Records for the room how long the lease is valid.
    pub(super) fn busy_until(&self, moment: Instant) {
        *self.room.busy_until.lock() = moment;
    }

    /// How long the lease is still valid, as far as the room knows.
    pub(super) fn lease_left(&self) -> Duration {
        self.room.busy_until.lock().saturating_duration_since(instant())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut rooms = self.flights.shard(&self.key).lock();
        if self.room.seats.fetch_sub(1, Ordering::Relaxed) == 1 {
            Flights::close(&mut rooms, &self.key, &self.room);
        }
        self.flights.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The time since the last request to the store for a room.
pub(super) struct TimeSinceAsked(Arc<WaitingRoom>);

impl TimeSinceAsked {
    pub(super) fn since(&self) -> Instant {
        *self.0.asked.lock()
    }

    /// True if it has lasted for `patience` and this caller is the one to end it.
    pub(super) fn broken_by_me(&self, patience: Duration) -> bool {
        let now = instant();
        let mut asked = self.0.asked.lock();
        let over = now.saturating_duration_since(*asked) >= patience;
        if over {
            *asked = now;
        }
        over
    }
}

/// What a seat gets.
pub(super) enum SeatTurn {
    /// Ask the store while this is held.
    Lead(OwnedMutexGuard<LeaderState>),
    /// Another caller got the answer.
    Ended(WaitEnd),
    /// Another caller got the answer to a request from before this caller arrived. It may be stale: a record that was
    /// forgotten in between would come back.
    Late,
}

/// The answer that ends the wait of all.
#[derive(Clone, Debug)]
pub(super) enum WaitEnd {
    Replay(Arc<Outcome>),
    Conflict,
    InDoubt,
    Expired,
}

#[derive(Clone)]
struct Ended {
    asked: Instant,
    ending: WaitEnd,
}

impl Ended {
    fn turn(self, since: Instant) -> SeatTurn {
        if self.asked >= since { SeatTurn::Ended(self.ending) } else { SeatTurn::Late }
    }
}
