//! Waiters of one process for one key: they share one watch on the store.
//!
//! One of them leads: it watches the key and asks the store. What it learns ends the wait of all who came before it
//! asked. When it leaves, because it won, gave up or was dropped, the next one leads, and goes on where it stopped.

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
    shards: [Mutex<HashMap<RoomKey, Arc<Room>>>; SHARDS],
    waiters: AtomicUsize,
    /// How many wait in each scope, of those in which somebody does.
    scopes: Mutex<HashMap<Box<[u8]>, usize>>,
    caps: WaiterCaps,
}

/// Waiters for one key *and payload*: what ends the wait of one is the answer for each.
type RoomKey = (KeyId, [u8; 32]);

struct Room {
    /// Whoever holds it leads.
    vigil: Arc<tokio::sync::Mutex<Vigil>>,
    ended: watch::Sender<Option<Ended>>,
    /// Changed only under the lock of the room's shard.
    seats: AtomicUsize,
    /// Until when the lease stood when it was last asked for.
    busy_until: Mutex<Instant>,
    /// When the store was last asked.
    asked: Mutex<Instant>,
}

/// What one leader hands on to the next.
#[derive(Default)]
pub(super) struct Vigil {
    /// Made by the first leader, kept by all: no change between two leaders is missed.
    pub(super) changes: Option<Watch>,
    /// When the store is to be asked although nothing was pushed; at once where there is nothing yet. Without it
    /// every leader would ask for itself, and when waiters leave one after the other, that is every waiter.
    pub(super) next: Option<Instant>,
}

/// How many callers may wait in this process. Beyond, they are refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterCaps {
    /// For one key.
    pub per_key: usize,
    /// For all keys of one scope, so that one tenant cannot take every place. Keys without a scope are not bound by it.
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
pub(super) enum Joined {
    Seat(Seat),
    /// Too many wait already.
    Full,
    /// Nobody waits for this key, so nobody knows yet that it is busy.
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

    fn shard(&self, key: &RoomKey) -> &Mutex<HashMap<RoomKey, Arc<Room>>> {
        &self.shards[usize::from(key.0.as_bytes()[0]) % SHARDS]
    }

    /// Takes a seat among those who wait for this key already. `since` is when the caller came.
    pub(super) fn join(
        self: &Arc<Self>,
        id: KeyId,
        scope: &[u8],
        fingerprint: &Fingerprint,
        since: Instant,
    ) -> Joined {
        // Most calls meet nobody, and need no lock to see that.
        if self.waiters() == 0 {
            return Joined::NoRoom;
        }
        let key = (id, *fingerprint.as_bytes());
        let rooms = self.shard(&key).lock();
        match rooms.get(&key) {
            Some(room) => self.sit(key, scope, room, since),
            None => Joined::NoRoom,
        }
    }

    /// The same for a key that the store called busy: opens a room where there is none.
    pub(super) fn open(
        self: &Arc<Self>,
        id: KeyId,
        scope: &[u8],
        fingerprint: &Fingerprint,
        since: Instant,
        lease_left: Duration,
    ) -> Joined {
        let key = (id, *fingerprint.as_bytes());
        let now = instant();
        let mut rooms = self.shard(&key).lock();
        if let Some(room) = rooms.get(&key) {
            return self.sit(key, scope, room, since);
        }
        let room = Arc::new(Room {
            vigil: Arc::default(),
            ended: watch::Sender::new(None),
            seats: AtomicUsize::new(0),
            busy_until: Mutex::new(now + lease_left),
            asked: Mutex::new(now),
        });
        let joined = self.sit(key, scope, &room, since);
        if matches!(joined, Joined::Seat(_)) {
            rooms.insert(key, room);
        }
        joined
    }

    /// To be called under the lock of the room's shard.
    fn sit(self: &Arc<Self>, key: RoomKey, scope: &[u8], room: &Arc<Room>, since: Instant) -> Joined {
        if room.seats.load(Ordering::Relaxed) >= self.caps.per_key {
            return Joined::Full;
        }
        let Some(place) = ScopePlace::take(self, scope) else { return Joined::Full };
        let one_more = |waiters| (waiters < self.caps.in_all).then_some(waiters + 1);
        if self.waiters.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return Joined::Full;
        }
        room.seats.fetch_add(1, Ordering::Relaxed);
        let (flights, room, ended) = (Arc::clone(self), Arc::clone(room), room.ended.subscribe());
        Joined::Seat(Seat { flights, key, room, ended, since, _place: place })
    }

    /// How many callers wait at present.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Acquire)
    }

    /// Whether nothing is remembered of any waiter.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiters() == 0
            && self.scopes.lock().is_empty()
            && self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Takes the room away if it is still this one.
    fn close(rooms: &mut HashMap<RoomKey, Arc<Room>>, key: &RoomKey, room: &Arc<Room>) {
        if rooms.get(key).is_some_and(|present| Arc::ptr_eq(present, room)) {
            rooms.remove(key);
        }
    }
}

/// A caller's place among the waiters. Dropping it frees the place.
pub(super) struct Seat {
    flights: Arc<Flights>,
    key: RoomKey,
    room: Arc<Room>,
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
    pub(super) async fn turn(&mut self) -> Turn {
        let vigil = Arc::clone(&self.room.vigil);
        tokio::select! {
            biased;
            ended = self.ended.wait_for(Option::is_some) => match ended.ok().and_then(|ended| ended.clone()) {
                Some(ended) => ended.turn(self.since),
                None => unreachable!("the room holds the sender, and this waited for some"),
            },
            vigil = vigil.lock_owned() => Turn::Lead(vigil),
        }
    }

    /// What ended the wait, if it has ended by now.
    pub(super) fn ended(&self) -> Option<Ending> {
        match self.ended.borrow().clone()?.turn(self.since) {
            Turn::Ended(ending) => Some(ending),
            Turn::Lead(_) | Turn::Late => None,
        }
    }

    /// Ends the wait of everybody in the room, with what the store was `asked` at that moment. Whoever comes later
    /// finds a new room: an ending grows old.
    pub(super) fn end(&self, asked: Instant, ending: Ending) {
        Flights::close(&mut self.flights.shard(&self.key).lock(), &self.key, &self.room);
        self.room.ended.send_replace(Some(Ended { asked, ending }));
    }

    /// Notes for all that the store is being asked, now.
    pub(super) fn asking(&self) -> Instant {
        let now = instant();
        *self.room.asked.lock() = now;
        now
    }

    /// For how long nobody has asked.
    pub(super) fn silence(&self) -> Silence {
        Silence(Arc::clone(&self.room))
    }

    /// Notes for all how long the lease stands.
    pub(super) fn busy_until(&self, moment: Instant) {
        *self.room.busy_until.lock() = moment;
    }

    /// How long the lease still stands, as far as the room knows.
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

/// The time since the store was last asked for a room.
pub(super) struct Silence(Arc<Room>);

impl Silence {
    pub(super) fn since(&self) -> Instant {
        *self.0.asked.lock()
    }

    /// Whether it has lasted for `patience`, and this caller is the one to end it.
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

/// What a seat waits for.
pub(super) enum Turn {
    /// Ask the store, for as long as this is held.
    Lead(OwnedMutexGuard<Vigil>),
    /// Somebody else found out.
    Ended(Ending),
    /// Somebody else found out, by a question from before this caller came. What it says may be over: a record
    /// that was forgotten in between would come back to life.
    Late,
}

/// What ends the wait of all.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Replay(Arc<Outcome>),
    Conflict,
    InDoubt,
    Expired,
}

#[derive(Clone)]
struct Ended {
    asked: Instant,
    ending: Ending,
}

impl Ended {
    fn turn(self, since: Instant) -> Turn {
        if self.asked >= since { Turn::Ended(self.ending) } else { Turn::Late }
    }
}
