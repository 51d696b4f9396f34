//! Waiters of one process for one key: they share one watch on the store.
//!
//! One of them leads: it watches the key and asks the store. What it learns ends the wait of all. When it leaves,
//! because it won, gave up or was dropped, the next one leads.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::fingerprint::Fingerprint;
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::sync::Mutex;

/// All waiters of an engine.
pub(super) struct Flights {
    rooms: Mutex<Rooms>,
    caps: WaiterCaps,
}

#[derive(Default)]
struct Rooms {
    by_key: HashMap<RoomKey, Arc<Room>>,
    waiters: usize,
}

/// Waiters for one key *and payload*: what ends the wait of one is the answer for each.
type RoomKey = (KeyId, [u8; 32]);

struct Room {
    lead: Arc<Semaphore>,
    ended: watch::Sender<Option<Ending>>,
    /// Guarded by the lock around the rooms.
    seats: Mutex<usize>,
}

/// How many callers may wait in this process. Beyond, they are refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterCaps {
    /// For one key.
    pub per_key: usize,
    /// For all keys together.
    pub in_all: usize,
}

impl Default for WaiterCaps {
    fn default() -> Self {
        Self { per_key: 10_000, in_all: 50_000 }
    }
}

impl Flights {
    pub(super) fn new(caps: WaiterCaps) -> Self {
        Self { rooms: Mutex::default(), caps }
    }

    /// Takes a seat among those who wait for this key; `None` when there are too many.
    pub(super) fn join(self: &Arc<Self>, id: KeyId, fingerprint: &Fingerprint) -> Option<Seat> {
        let key = (id, *fingerprint.as_bytes());
        let mut rooms = self.rooms.lock();
        if rooms.waiters >= self.caps.in_all {
            return None;
        }
        let room = Arc::clone(rooms.by_key.entry(key).or_insert_with(|| {
            Arc::new(Room {
                lead: Arc::new(Semaphore::new(1)),
                ended: watch::Sender::new(None),
                seats: Mutex::new(0),
            })
        }));
        {
            let mut seats = room.seats.lock();
            if *seats >= self.caps.per_key {
                return None;
            }
            *seats += 1;
        }
        rooms.waiters += 1;
        let ended = room.ended.subscribe();
        Some(Seat { flights: Arc::clone(self), key, room, ended })
    }

    /// How many callers wait at present.
    pub(super) fn waiters(&self) -> usize {
        self.rooms.lock().waiters
    }

    fn close(&self, key: &RoomKey, room: &Arc<Room>) {
        let mut rooms = self.rooms.lock();
        if rooms.by_key.get(key).is_some_and(|present| Arc::ptr_eq(present, room)) {
            rooms.by_key.remove(key);
        }
    }
}

/// A caller's place among the waiters. Dropping it frees the place.
pub(super) struct Seat {
    flights: Arc<Flights>,
    key: RoomKey,
    room: Arc<Room>,
    ended: watch::Receiver<Option<Ending>>,
}

impl Seat {
    /// Returns when it is this caller's turn to lead, or with what ended the wait.
    pub(super) async fn turn(&mut self) -> Turn {
        let lead = Arc::clone(&self.room.lead);
        tokio::select! {
            biased;
            ended = self.ended.wait_for(Option::is_some) => match ended.ok().and_then(|ended| ended.clone()) {
                Some(ending) => Turn::Ended(ending),
                None => unreachable!("the room holds the sender, and this waited for some"),
            },
            permit = lead.acquire_owned() => match permit {
                Ok(permit) => Turn::Lead(Lead { _permit: permit }),
                Err(_) => unreachable!("the semaphore is never closed"),
            },
        }
    }

    /// Ends the wait of everybody in the room. Whoever comes later finds a new room: an ending grows old.
    pub(super) fn end(&self, ending: Ending) {
        self.flights.close(&self.key, &self.room);
        self.room.ended.send_replace(Some(ending));
    }
}

/// What a seat waits for.
pub(super) enum Turn {
    /// Ask the store, for as long as this is held.
    Lead(Lead),
    /// Somebody else found out.
    Ended(Ending),
}

/// What ends the wait of all.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Replay(Arc<Outcome>),
    Conflict,
    InDoubt,
    Expired,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut rooms = self.flights.rooms.lock();
        rooms.waiters -= 1;
        let mut seats = self.room.seats.lock();
        *seats -= 1;
        if *seats == 0 && rooms.by_key.get(&self.key).is_some_and(|present| Arc::ptr_eq(present, &self.room))
        {
            rooms.by_key.remove(&self.key);
        }
    }
}

/// The right to ask the store on behalf of the room.
pub(super) struct Lead {
    _permit: OwnedSemaphorePermit,
}
