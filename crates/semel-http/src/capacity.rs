//! Limits of a process: calls in progress at upstreams, and bytes of request bodies in memory.
//!
//! An effect outlives its connection, so a limit on connections does not limit the calls at an upstream. A body is read before the
//! caller is authenticated, so the total size of all bodies needs a limit. Both limits are checked before a key is claimed: a refused
//! request leaves no trace.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a body may arrive before it can be evicted to make room for others.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// Limits of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityLimits {
    /// Maximum number of guarded calls in progress.
    pub calls: usize,
    /// Maximum number of guarded calls in progress per upstream.
    pub calls_per_upstream: usize,
    /// Maximum total size of request bodies that were read and not yet passed on, in bytes.
    pub buffered_bytes: u64,
}

impl Default for CapacityLimits {
    fn default() -> Self {
        Self { calls: 2_048, calls_per_upstream: 1_024, buffered_bytes: 64 << 20 }
    }
}

/// Current use of the limits. Clones share all state. Guards that replace each other share one, so that a reload forgets no call.
#[derive(Clone, Default)]
pub struct Capacity {
    usage: Arc<Usage>,
}

#[derive(Default)]
struct Usage {
    calls: Arc<AtomicUsize>,
    /// By name of the upstream; `None` is the default upstream.
    upstreams: Mutex<HashMap<Option<Arc<str>>, Arc<AtomicUsize>>>,
    refused_in_all: AtomicU64,
    refused_by_upstream: AtomicU64,
    bodies: Mutex<Bodies>,
    refused_bodies: AtomicU64,
}

impl Capacity {
    /// A new one, with nothing in use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of guarded calls in progress, including those whose clients have disconnected.
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.usage.calls.load(Ordering::Relaxed)
    }

    /// Number of requests that each limit on calls refused, by its name in metrics.
    #[must_use]
    pub fn calls_refused(&self) -> [(&'static str, u64); 2] {
        let Usage { refused_in_all, refused_by_upstream, .. } = &*self.usage;
        [
            (CallLimit::InAll.name(), refused_in_all.load(Ordering::Relaxed)),
            (CallLimit::Upstream.name(), refused_by_upstream.load(Ordering::Relaxed)),
        ]
    }

    /// Bytes of request bodies in memory.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        self.usage.bodies.lock().used
    }

    /// Number of bodies that the memory limit refused.
    #[must_use]
    pub fn bodies_refused(&self) -> u64 {
        self.usage.refused_bodies.load(Ordering::Relaxed)
    }

    /// The call slots for an upstream.
    pub(crate) fn places(&self, upstream: Option<Arc<str>>, limits: &CapacityLimits) -> CallPlaces {
        let of_upstream = Arc::clone(self.usage.upstreams.lock().entry(upstream).or_default());
        CallPlaces { of_upstream, in_all: Arc::clone(&self.usage.calls), limits: *limits }
    }

    /// Counts a request that got no slot.
    pub(crate) fn refuse_call(&self, limit: CallLimit) {
        let counter = match limit {
            CallLimit::InAll => &self.usage.refused_in_all,
            CallLimit::Upstream => &self.usage.refused_by_upstream,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity")
            .field("calls", &self.calls_in_flight())
            .field("buffered_bytes", &self.buffered_bytes())
            .finish()
    }
}

// === calls ===

/// Which limit on calls was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallLimit {
    InAll,
    Upstream,
}

impl CallLimit {
    const fn name(self) -> &'static str {
        match self {
            Self::InAll => "process",
            Self::Upstream => "upstream",
        }
    }
}

/// The call slots of one route.
pub(crate) struct CallPlaces {
    of_upstream: Arc<AtomicUsize>,
    in_all: Arc<AtomicUsize>,
    limits: CapacityLimits,
}

impl CallPlaces {
    /// Takes a slot, if one is free.
    pub(crate) fn take(&self) -> Result<CallPlace, CallLimit> {
        let of_upstream =
            CallSlot::take(&self.of_upstream, self.limits.calls_per_upstream).ok_or(CallLimit::Upstream)?;
        let in_all = CallSlot::take(&self.in_all, self.limits.calls).ok_or(CallLimit::InAll)?;
        Ok(CallPlace { _counted: Arc::new([of_upstream, in_all]) })
    }
}

/// The slot of one call. It is free again when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct CallPlace {
    _counted: Arc<[CallSlot; 2]>,
}

struct CallSlot(Arc<AtomicUsize>);

impl CallSlot {
    fn take(count: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let more = |count: usize| (count < limit).then_some(count + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

// === bytes ===

#[derive(Default)]
struct Bodies {
    used: u64,
    started: u64,
    /// Bodies that have not arrived completely, the oldest first.
    arriving: BTreeMap<u64, Arriving>,
}

struct Arriving {
    bytes: u64,
    since: Instant,
    signal: Arc<MakeRoomSignal>,
}

/// Tells a body that it was evicted.
#[derive(Default)]
struct MakeRoomSignal {
    evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The memory limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// Memory of a request while its body arrives, in addition to the body: its head and its task. Less with small limits.
fn overhead(limit: u64) -> u64 {
    (16 * 1024).min(limit / 1024)
}

impl Bodies {
    /// Makes room for more bytes of the body `number`. At the limit, it evicts the bodies that have been arriving for longest: they are
    /// notified and no longer count.
    fn make_room(&mut self, bytes: u64, limit: u64, number: u64) -> Result<(), NoRoom> {
        let overhead = overhead(limit);
        // Counts the other bodies only: one body may use the whole limit.
        let others = self.arriving.len().saturating_sub(1) as u64;
        let wanted = self.used.saturating_add(bytes).saturating_add(overhead * others);
        let Some(mut missing) = wanted.checked_sub(limit).filter(|left| *left > 0) else {
            return Ok(());
        };
        let now = Instant::now();
        let mut victims = Vec::new();
        for (victim, arriving) in &self.arriving {
            if missing == 0 || now.saturating_duration_since(arriving.since) < UNDISTURBED {
                break;
            }
            if *victim != number {
                victims.push(*victim);
                missing = missing.saturating_sub(arriving.bytes + overhead);
            }
        }
        if missing > 0 {
            return Err(NoRoom);
        }
        for victim in victims {
            if let Some(arriving) = self.arriving.remove(&victim) {
                self.used = self.used.saturating_sub(arriving.bytes);
                arriving.signal.evict();
            }
        }
        Ok(())
    }
}

impl MakeRoomSignal {
    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

/// The memory share of an arriving body. Dropping it returns the share.
pub(crate) struct BodyRoom {
    usage: Arc<Usage>,
    limit: u64,
    place: Option<(u64, Arc<MakeRoomSignal>)>,
}

impl BodyRoom {
    pub(crate) fn new(capacity: &Capacity, limits: &CapacityLimits) -> Self {
        Self { usage: Arc::clone(&capacity.usage), limit: limits.buffered_bytes, place: None }
    }

    /// Counts the next bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let bytes = bytes as u64;
        let mut bodies = self.usage.bodies.lock();
        let (number, signal) = self.place.get_or_insert_with(|| {
            bodies.started += 1;
            let number = bodies.started;
            let signal = Arc::new(MakeRoomSignal::default());
            let arriving = Arriving { bytes: 0, since: Instant::now(), signal: Arc::clone(&signal) };
            bodies.arriving.insert(number, arriving);
            (number, signal)
        });
        let taken = match signal.evicted.load(Ordering::Acquire) {
            true => Err(NoRoom),
            false => bodies.make_room(bytes, self.limit, *number),
        };
        if taken.is_ok() {
            bodies.used += bytes;
            if let Some(arriving) = bodies.arriving.get_mut(number) {
                arriving.bytes += bytes;
            }
        }
        taken
    }

    /// Ready when the body was evicted.
    pub(crate) fn poll_evicted(&self, context: &Context<'_>) -> Poll<()> {
        let Some((_, signal)) = &self.place else { return Poll::Pending };
        *signal.waker.lock() = Some(context.waker().clone());
        if signal.evicted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts a refused body.
    pub(crate) fn refuse(&self) {
        self.usage.refused_bodies.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the body as complete. Its memory share is returned when the last clone of the bytes is dropped.
    pub(crate) fn keep(mut self, data: Bytes) -> Result<Bytes, NoRoom> {
        let Some((number, _)) = self.place.take() else { return Ok(data) };
        // Evicted meanwhile: another body has its memory share.
        let Some(arriving) = self.usage.bodies.lock().arriving.remove(&number) else {
            self.refuse();
            return Err(NoRoom);
        };
        let room = KeptRoom { usage: Arc::clone(&self.usage), bytes: arriving.bytes };
        Ok(Bytes::from_owner(KeptBody { data, _room: room }))
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        if let Some((number, _)) = &self.place {
            let mut bodies = self.usage.bodies.lock();
            if let Some(arriving) = bodies.arriving.remove(number) {
                bodies.used = bodies.used.saturating_sub(arriving.bytes);
            }
        }
    }
}

/// The memory share of a complete body.
struct KeptRoom {
    usage: Arc<Usage>,
    bytes: u64,
}

impl Drop for KeptRoom {
    fn drop(&mut self) {
        let mut bodies = self.usage.bodies.lock();
        bodies.used = bodies.used.saturating_sub(self.bytes);
    }
}

struct KeptBody {
    data: Bytes,
    _room: KeptRoom,
}

impl AsRef<[u8]> for KeptBody {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CapacityLimits = CapacityLimits { calls: 3, calls_per_upstream: 2, buffered_bytes: 100 };

    #[test]
    fn places_are_limited_by_upstream_and_in_all() {
        let capacity = Capacity::new();
        let (one, two) = (capacity.places(None, &LIMITS), capacity.places(Some("two".into()), &LIMITS));
        let first = one.take().unwrap_or_else(|_| panic!("a place"));
        let held = (one.take().is_ok_and(|_| true), first.clone());
        assert!(held.0);
        let second = one.take();
        assert_eq!(one.take().err(), Some(CallLimit::Upstream));
        let third = two.take();
        assert_eq!(two.take().err(), Some(CallLimit::InAll));
        assert_eq!(
            capacity.calls_in_flight(),
            3,
            "the upstream's slot is returned if the total limit is reached"
        );
        drop(first);
        assert_eq!(capacity.calls_in_flight(), 3, "a clone still holds it");
        drop((held, second, third));
        assert_eq!(capacity.calls_in_flight(), 0);
        assert!(one.take().is_ok() && two.take().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn room_comes_back_however_a_body_ends() {
        let capacity = Capacity::new();
        let room = || BodyRoom::new(&capacity, &LIMITS);
        let mut dropped = room();
        dropped.take(60).unwrap();
        assert_eq!(room().take(50), Err(NoRoom));
        drop(dropped);
        assert_eq!(capacity.buffered_bytes(), 0);
        let mut whole = room();
        whole.take(40).unwrap();
        whole.take(20).unwrap();
        let data = whole.keep(Bytes::from_static(&[7; 60])).unwrap();
        let part = data.slice(3..5);
        drop(data);
        assert_eq!((capacity.buffered_bytes(), part.as_ref()), (60, &[7, 7][..]));
        drop(part);
        assert_eq!(capacity.buffered_bytes(), 0);
        assert_eq!(room().keep(Bytes::new()), Ok(Bytes::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_slow_body_makes_room_and_a_young_one_does_not() {
        let capacity = Capacity::new();
        let room = || BodyRoom::new(&capacity, &LIMITS);
        let (mut oldest, mut older, mut new) = (room(), room(), room());
        oldest.take(40).unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
        older.take(40).unwrap();
        assert_eq!(new.take(50), Err(NoRoom), "all of them are young");
        tokio::time::advance(UNDISTURBED).await;
        new.take(50).unwrap();
        let context = Context::from_waker(Waker::noop());
        assert_eq!(oldest.poll_evicted(&context), Poll::Ready(()));
        assert_eq!(older.poll_evicted(&context), Poll::Pending);
        assert_eq!(oldest.take(1), Err(NoRoom));
        assert_eq!(oldest.keep(Bytes::from_static(b"x")), Err(NoRoom));
        assert_eq!(capacity.buffered_bytes(), 90);
        drop((older, new));
        assert_eq!(capacity.buffered_bytes(), 0);
    }

    // A stream that sends a head and no body uses memory too.
    #[tokio::test(start_paused = true)]
    async fn requests_without_a_byte_of_their_body_take_room() {
        let limits = CapacityLimits { buffered_bytes: 1 << 20, ..LIMITS };
        let capacity = Capacity::new();
        let room = || {
            let mut room = BodyRoom::new(&capacity, &limits);
            room.take(0).map(|()| room)
        };
        let mut waiting: Vec<BodyRoom> = std::iter::from_fn(|| room().ok()).take(5_000).collect();
        assert_eq!(waiting.len(), 1025, "each takes a kibibyte, except the new one");
        tokio::time::advance(UNDISTURBED).await;
        waiting.push(room().expect("the oldest makes room"));
        let context = Context::from_waker(Waker::noop());
        assert_eq!(waiting[0].poll_evicted(&context), Poll::Ready(()));
        drop(waiting);
        assert!(room().is_ok() && capacity.buffered_bytes() == 0);
    }

    // A complete body is about to be passed on, and is never evicted.
    #[tokio::test(start_paused = true)]
    async fn a_whole_body_is_not_evicted() {
        let capacity = Capacity::new();
        let mut whole = BodyRoom::new(&capacity, &LIMITS);
        whole.take(90).unwrap();
        let data = whole.keep(Bytes::from_static(&[7; 90])).unwrap();
        tokio::time::advance(UNDISTURBED * 2).await;
        assert_eq!(BodyRoom::new(&capacity, &LIMITS).take(20), Err(NoRoom));
        drop(data);
        assert_eq!(capacity.buffered_bytes(), 0);
    }
}
