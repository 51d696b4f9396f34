//! The delivery loop: takes work by lease, delivers it, and writes how it ended.
//!
//! ```text
//! ledger ──take──► dispatcher ──► one task for each attempt ──► settler ──settle──► ledger
//!                      ▲                    │ (target)             │
//!                      └────── room ◄───────┴──────────────────────┘
//!            heartbeat thread ──renew──► ledger
//! ```
//!
//! Nothing is lost with a worker: what it held is given back by the ledger when its lease is over, and the attempt counts as
//! crashed. A worker that stood still for longer than its lease sends nothing any more: the lease is checked before the
//! attempt starts, and again before every write (see [`Lease`]). Takes and settlements gather by themselves: while one call to the ledger is under way, the next one fills; when
//! nothing else is under way, nothing waits.

mod attempt;
mod dispatch;
mod heartbeat;
mod lease;
mod observe;
mod room;
mod settler;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use self::heartbeat::Heartbeat;
pub use self::lease::Lease;
pub use self::observe::{Attempted, Next, Observer, Silent};
use self::room::Room;
use self::settler::Settled;
use crate::ledger::Working;
use crate::target::Registry;

/// How a worker goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who it is: unique for each process, also after a restart.
    pub name: String,
    /// How long work is the worker's without a renewal. Renewed at a third of it.
    pub lease: Duration,
    /// How many deliveries may be in its hands at once, for all targets together.
    pub in_all: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let name = format!("worker-{}-{:08x}", std::process::id(), rand::random::<u32>());
        Self { name, lease: Duration::from_secs(30), in_all: 256 }
    }
}

/// A running worker. Dropped, it ends as a crash would: what it holds is given back when its lease is over.
pub struct Worker {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    dispatcher: JoinHandle<()>,
    settler: JoinHandle<()>,
    // Ends with the worker.
    _heartbeat: Heartbeat,
}

/// What the parts of a worker share.
struct Shared {
    ledger: Arc<dyn Working>,
    registry: Registry,
    secret: Arc<Secret>,
    settings: Settings,
    observer: Arc<dyn Observer>,
    room: Room,
    leases: Arc<heartbeat::Leases>,
    settled: mpsc::UnboundedSender<Settled>,
    /// Something ended, or changed by hand: the dispatcher looks again.
    stir: Notify,
    /// Everything in hand has ended.
    empty: Notify,
}

/// How a worker stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything in its hands has ended and is written.
    Drained,
    /// So many were still in its hands when the time was over. The ledger gives them back.
    Left(u32),
}

impl Worker {
    /// Starts to deliver. To be called within a runtime.
    ///
    /// # Errors
    /// Where the system gives no thread for the heartbeat.
    pub fn start(
        ledger: Arc<dyn Working>,
        registry: Registry,
        secret: Arc<Secret>,
        settings: Settings,
        observer: Arc<dyn Observer>,
    ) -> std::io::Result<Self> {
        let (settled, queue) = mpsc::unbounded_channel();
        let leases = Arc::new(heartbeat::Leases::default());
        let heartbeat = Heartbeat::start(Arc::clone(&ledger), Arc::clone(&leases), settings.lease)?;
        let shared = Arc::new(Shared {
            ledger,
            registry,
            secret,
            room: Room::new(settings.in_all),
            settings,
            observer,
            leases,
            settled,
            stir: Notify::new(),
            empty: Notify::new(),
        });
        let (stop, stopped) = watch::channel(false);
        let settler = tokio::spawn(settler::run(Arc::clone(&shared), queue));
        let dispatcher = tokio::spawn(dispatch::run(Arc::clone(&shared), stopped));
        Ok(Self { shared, stop, dispatcher, settler, _heartbeat: heartbeat })
    }

    /// Looks again: to be called when other targets were put in force.
    pub fn stir(&self) {
        self.shared.room.soil_all();
        self.shared.stir.notify_one();
    }

    /// How many deliveries are in its hands.
    pub fn in_hand(&self) -> u32 {
        self.shared.room.held()
    }

    /// Takes no more work, lets what was sent come to its end, gives back what was not, and waits for all of it to be
    /// written, but no longer than `limit`.
    pub async fn stop(mut self, limit: Duration) -> Stopped {
        // The dispatcher listens for as long as it runs.
        let _ = self.stop.send(true);
        let drained = async {
            let _ = (&mut self.dispatcher).await;
            loop {
                let empty = self.shared.empty.notified();
                if self.shared.room.held() == 0 {
                    break;
                }
                empty.await;
            }
        };
        match tokio::time::timeout(limit, drained).await {
            Ok(()) => Stopped::Drained,
            Err(_) => Stopped::Left(self.shared.room.held()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.dispatcher.abort();
        self.settler.abort();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Worker");
        shown
            .field("settings", &self.shared.settings)
            .field("in_hand", &self.in_hand())
            .finish_non_exhaustive()
    }
}
