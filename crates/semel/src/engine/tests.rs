//! The promises of the engine. Each file has one subject.

mod answers;
mod background;
mod blocking;
mod chaos;
mod crash;
mod lease;
mod leaving;
mod operator;
mod retention;
mod settings;
mod silence;
mod stampede;
mod waiters;

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::record::{Fence, Phase};
use crate::store::MemoryStore;
use crate::testkit::fault::{FaultGate, FaultStore, InjectedFault, StoreCall, When};
use crate::time::ManualClock;

const MODES: [Mode; 3] = [Mode::Keyed, Mode::Marked, Mode::Rerun];

/// How long a test waits for an expected event. Only a broken engine reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key() -> Key {
    Key::new("charge").scope("acct_1").value("order-42")
}

type Run = Result<Answer<u32>, RunError>;
type Faulty = Arc<FaultStore<MemoryStore>>;

fn faulty() -> Faulty {
    Arc::new(FaultStore::new(Arc::new(MemoryStore::new())))
}

/// A store on a clock that the test moves, with a second handle for an engine that will be cut off from it.
fn clocked() -> (ManualClock, Arc<MemoryStore>) {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    (clock, store)
}

fn build(builder: EngineBuilder) -> Engine {
    builder.build().expect("settings that fit")
}

fn over(store: &Arc<impl Store>) -> EngineBuilder {
    let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
    Engine::builder(store).sweep_every(None)
}

/// An effect that a test counts and blocks. Its value is the number of the run.
#[derive(Clone)]
struct Effect {
    runs: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl Effect {
    fn quick() -> Self {
        let effect = Self::held();
        effect.let_go();
        effect
    }

    fn held() -> Self {
        Self { runs: Arc::new(AtomicU32::new(0)), gate: Arc::new(Semaphore::new(0)) }
    }

    fn let_go(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn now(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn run(self) -> Result<u32, Failure> {
        let run = self.now();
        let _passed = self.gate.acquire().await.expect("never closed");
        Ok(run)
    }

    /// Runs this effect once under [`key`].
    async fn once(&self, engine: &Engine) -> Run {
        self.run_as(engine.once(key())).await
    }

    async fn run_as(&self, once: Once) -> Run {
        let effect = self.clone();
        once.run(async move || effect.run().await).await
    }

    /// As `once`, in its own task; waits until the effect runs.
    async fn start(&self, engine: &Engine) -> tokio::task::JoinHandle<Run> {
        let before = self.runs();
        let task = self.spawn(engine.once(key()));
        until("the effect runs", || self.runs() > before).await;
        task
    }

    fn spawn(&self, once: Once) -> tokio::task::JoinHandle<Run> {
        let effect = self.clone();
        tokio::spawn(async move { effect.run_as(once).await })
    }
}

/// Waits for a condition. Panics with `what` if it does not become true.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = instant() + PATIENCE;
    while !condition() {
        assert!(instant() < deadline, "waited in vain: {what}");
        tokio::time::sleep(ms(1)).await;
    }
}

/// Never hangs: an answer comes, or the test fails.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("an answer comes in time")
}

async fn joined<T>(task: tokio::task::JoinHandle<T>) -> T {
    soon(task).await.expect("the task came to its end")
}

/// The phase in the store, without faults.
async fn phase(engine: &Engine, store: &MemoryStore) -> Phase {
    let id = engine.id(&key()).await.expect("an id");
    store.get(id).await.expect("memory does not fail").map_or(Phase::Vacant, |snapshot| snapshot.phase())
}

/// Waits until the store has the key in this phase.
async fn until_phase(engine: &Engine, store: &MemoryStore, wanted: Phase) {
    let deadline = instant() + PATIENCE;
    loop {
        let found = phase(engine, store).await;
        if found == wanted {
            return;
        }
        assert!(instant() < deadline, "waited in vain for {wanted:?}, it is {found:?}");
        tokio::time::sleep(ms(1)).await;
    }
}

async fn won(once: Once) -> Claim {
    match soon(once.claim()).await.expect("the store answers") {
        Acquired::Won(claim) => claim,
        other => panic!("not won: {other:?}"),
    }
}

/// Collects all signals of an engine.
#[derive(Default)]
struct Heard(crate::sync::Mutex<Vec<String>>);

impl Observer for Heard {
    fn event(&self, subject: &Subject, event: &Event<'_>) {
        self.0.lock().push(format!("{} {subject:?} {event:?}", event.name()));
    }
}

impl Heard {
    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}
