//! The delivery loop leases work, delivers it, and writes the result.
//!
//! ```text
//! ledger ──take──► dispatcher ──► one task for each attempt ──► settler ──settle──► ledger
//!                      ▲                    │ (target)             │
//!                      └────── room ◄───────┴──────────────────────┘
//!            heartbeat thread ──renew──► ledger
//! ```
//!
//! Nothing is lost with a worker: when its lease expires, the ledger gives its deliveries to other workers, and the
//! attempt counts as crashed. A worker that was paused for longer than its lease sends nothing: it checks the lease
//! before the attempt starts, and again before every write (see [`Lease`]). Takes and settlements are batched: while
//! one call to the ledger is in progress, the next batch fills; without a call in progress, nothing waits.

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
pub use self::observe::{AfterAttempt, Attempted, DeliveryObserver, Silent};
use self::room::WorkerCapacity;
use self::settler::FinishedAttempt;
use crate::ledger::Working;
use crate::target::TargetRegistry;

/// Settings of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Its name: unique for each process, also after a restart.
    pub name: String,
    /// How long the worker holds a delivery without a renewal. Renewed at a third of it.
    pub lease: Duration,
    /// The maximum number of deliveries in progress, for all targets together.
    pub in_all: u32,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        let name = format!("worker-{}-{:08x}", std::process::id(), rand::random::<u32>());
        Self { name, lease: Duration::from_secs(30), in_all: 256 }
    }
}

/// A running worker. Dropping it has the effect of a crash: its deliveries are given back when their leases expire.
pub struct Worker {
    shared: Arc<WorkerShared>,
    stop: watch::Sender<bool>,
    dispatcher: JoinHandle<()>,
    settler: JoinHandle<()>,
    // Ends with the worker.
    _heartbeat: Heartbeat,
}

/// The state that the parts of a worker share.
struct WorkerShared {
    ledger: Arc<dyn Working>,
    registry: TargetRegistry,
    secret: Arc<Secret>,
    settings: WorkerSettings,
    observer: Arc<dyn DeliveryObserver>,
    room: WorkerCapacity,
    leases: Arc<heartbeat::Leases>,
    settled: mpsc::UnboundedSender<FinishedAttempt>,
    /// An attempt ended, or an operator changed something: the dispatcher checks again.
    wake: Notify,
    /// No delivery is in progress any more.
    empty: Notify,
}

/// How a worker stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All deliveries have ended, and their results are written.
    Drained,
    /// This many deliveries were still in progress at the time limit. The ledger gives them back.
    Left(u32),
}

impl Worker {
    /// Starts to deliver. Must be called within a runtime.
    ///
    /// # Errors
    /// The system refused a thread for the heartbeat.
    pub fn start(
        ledger: Arc<dyn Working>,
        registry: TargetRegistry,
        secret: Arc<Secret>,
        settings: WorkerSettings,
        observer: Arc<dyn DeliveryObserver>,
    ) -> std::io::Result<Self> {
        let (settled, queue) = mpsc::unbounded_channel();
        let leases = Arc::new(heartbeat::Leases::default());
        let heartbeat = Heartbeat::start(Arc::clone(&ledger), Arc::clone(&leases), settings.lease)?;
        let shared = Arc::new(WorkerShared {
            ledger,
            registry,
            secret,
            room: WorkerCapacity::new(settings.in_all),
            settings,
            observer,
            leases,
            settled,
            wake: Notify::new(),
            empty: Notify::new(),
        });
        let (stop, stopped) = watch::channel(false);
        let settler = tokio::spawn(settler::run(Arc::clone(&shared), queue));
        let dispatcher = tokio::spawn(dispatch::run(Arc::clone(&shared), stopped));
        Ok(Self { shared, stop, dispatcher, settler, _heartbeat: heartbeat })
    }

    /// Checks for work again. Call it when the targets have changed.
    pub fn wake(&self) {
        self.shared.room.mark_all_dirty();
        self.shared.wake.notify_one();
    }

    /// Number of deliveries in progress.
    pub fn in_hand(&self) -> u32 {
        self.shared.room.held()
    }

    /// Takes no more work, lets started attempts finish, gives back the others, and waits until all results are
    /// written, at most for `limit`.
    pub async fn stop(mut self, limit: Duration) -> Stopped {
        // The dispatcher listens while it runs.
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
