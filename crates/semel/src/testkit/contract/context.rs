//! The context of a case: a store, its capabilities, and unique keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::KeyId;
use crate::record::{Command, Mode, Phase, Ruling, Terms};
use crate::store::{BoxFuture, Snapshot, Store};
use crate::sync::Mutex;
use crate::time::ManualClock;

/// A fresh store and its capabilities. Created for every case.
pub struct Context {
    handles: Mutex<Handles>,
    clock: Option<ManualClock>,
    reopen: Option<Reopen>,
    sharing: Sharing,
}

/// Two handles to the same data; the same handle twice if the store has only one.
struct Handles {
    store: Arc<dyn Store>,
    peer: Arc<dyn Store>,
}

type Reopen = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>;

/// Whether other records may be in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Alone,
    Shared,
}

impl Context {
    /// A context for an empty store. By default it uses the machine's clock, and its data ends when it is dropped.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let handles = Handles { peer: Arc::clone(&store), store };
        Self { handles: Mutex::new(handles), clock: None, reopen: None, sharing: Sharing::Alone }
    }

    /// The store reads its time from this clock, so cases can move it instead of waiting.
    #[must_use]
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How to open the same data again. Called when no case uses the store any more.
    #[must_use]
    pub fn reopen<F>(mut self, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        self.reopen = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// A second handle to the same data, with its own connections, like another process.
    #[must_use]
    pub fn peer(mut self, peer: Arc<dyn Store>) -> Self {
        self.handles.get_mut().peer = peer;
        self
    }

    /// Other users share the store: cases then check only their own keys.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.sharing = Sharing::Shared;
        self
    }

    /// The store under test.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.handles.lock().store)
    }

    /// A key that no other case uses, on any server.
    pub fn key(&self) -> KeyId {
        KeyId::from_bytes(rand::random())
    }

    /// The store under test for even numbers and its peer for odd ones, so that a race spans both.
    pub(super) fn handle(&self, number: usize) -> Arc<dyn Store> {
        let handles = self.handles.lock();
        Arc::clone(if number.is_multiple_of(2) { &handles.store } else { &handles.peer })
    }

    pub(super) fn manual_clock(&self) -> Option<&ManualClock> {
        self.clock.as_ref()
    }

    pub(super) fn sharing(&self) -> Sharing {
        self.sharing
    }

    pub(super) fn can_reopen(&self) -> bool {
        self.reopen.is_some()
    }

    /// Closes the store and opens its data again.
    pub(super) async fn open_again(&self) {
        let open = self.reopen.as_ref().expect("asked only where it can be opened again");
        // A placeholder while the old store is being closed.
        let nobody: Arc<dyn Store> = Arc::new(crate::store::MemoryStore::new());
        let old = std::mem::replace(
            &mut *self.handles.lock(),
            Handles { store: Arc::clone(&nobody), peer: nobody },
        );
        drop(old);
        let store = open().await;
        *self.handles.lock() = Handles { peer: Arc::clone(&store), store };
    }

    /// Terms that do not end while a case runs, in the given mode.
    #[expect(clippy::unused_self, reason = "reads as one word with `ending`, which needs the context")]
    pub(super) fn lasting(&self, mode: Mode) -> Terms {
        Terms {
            mode,
            lease: Duration::from_secs(600),
            in_flight_max: Duration::from_secs(1200),
            retention: Duration::from_secs(3600),
            grace: Duration::from_secs(600),
            memory: Duration::from_secs(7200),
        }
    }

    /// Terms whose end a case waits for: short if it has to wait in real time.
    pub(super) fn ending(&self, mode: Mode) -> Terms {
        if self.clock.is_some() {
            return self.lasting(mode);
        }
        Terms {
            mode,
            lease: Duration::from_secs(1),
            in_flight_max: Duration::from_secs(2),
            retention: Duration::from_secs(4),
            grace: Duration::from_secs(1),
            memory: Duration::from_secs(4),
        }
    }

    /// Lets the store's time pass: exactly if its clock can be moved, a little more if it cannot.
    pub(super) async fn pass(&self, by: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(by),
            None => tokio::time::sleep(by + Duration::from_millis(20)).await,
        }
    }

    /// Checks the remaining time in a ruling; to the microsecond if the clock can be moved.
    #[track_caller]
    pub(super) fn expect_left(&self, left: Duration, expected: Duration) {
        if self.clock.is_some() {
            assert_eq!(left, expected, "what is left, by the store's clock");
        } else {
            assert!(left <= expected, "{left:?} is left, more than the {expected:?} there can be");
            let unlikely = Duration::from_secs(30);
            assert!(left + unlikely > expected, "{left:?} is left, far less than the expected {expected:?}");
        }
    }

    /// Executes a command on a healthy store.
    pub(super) async fn apply(&self, id: KeyId, command: Command) -> Ruling {
        apply(&*self.store(), id, command).await
    }

    pub(super) async fn get(&self, id: KeyId) -> Option<Snapshot> {
        self.store().get(id).await.unwrap_or_else(|error| panic!("get failed: {error}"))
    }

    /// The phase in the store; vacant if it has no record.
    pub(super) async fn phase(&self, id: KeyId) -> Phase {
        self.get(id).await.map_or(Phase::Vacant, |snapshot| snapshot.phase())
    }
}

pub(super) async fn apply(store: &dyn Store, id: KeyId, command: Command) -> Ruling {
    let name = format!("{command:?}");
    let ruling = store.apply(id, command).await;
    ruling.unwrap_or_else(|error| panic!("{store} failed at {name}: {error}"))
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("store", &self.store())
            .field("clock", &self.clock)
            .field("reopen", &self.reopen.is_some())
            .field("sharing", &self.sharing)
            .finish()
    }
}
