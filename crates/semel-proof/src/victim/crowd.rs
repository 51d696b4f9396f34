//! Many callers of one process that ask for the same key at the same time.
//!
//! Lines on its standard input ([`CrowdOrder`]) control the crowd. It reports when every caller of a round waits or runs
//! the effect, so that no timing is needed: only then the test opens the effect's gate.
//!
//! Wake-ups are proven by excluding every other way: the backstop and, in rounds without a death, the lease are far
//! longer than any caller waits. A caller that gets an outcome was therefore woken by a notification. The leader of
//! the waiters asks the store once in any case; that request ends before the crowd reports that all wait.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::store::Store;
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, When};
use semel::{Engine, Failure, Key, Mode};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet, try_id};

use super::VictimReport;
use super::life::ModeName;
use super::witness::Witness;
use crate::place::StorePlace;

/// How long a caller waits: longer than a round takes on a busy machine, far shorter than [`NEVER`].
const WAIT: Duration = Duration::from_secs(100);
const NEVER: Duration = Duration::from_secs(100_000);

/// A process full of callers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Crowd {
    /// The store.
    pub place: StorePlace,
    /// The file that the effect writes to.
    pub witness: PathBuf,
    /// How many callers.
    pub callers: usize,
}

/// A command to a crowd.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CrowdOrder {
    /// All callers ask for a key.
    Round {
        /// The key.
        key: String,
        /// The mode of the effect.
        #[serde(with = "ModeName")]
        mode: Mode,
        /// Whether the owner will die.
        deaths: Deaths,
    },
    /// Effects may continue.
    Go,
}

/// Whether the owner dies in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deaths {
    /// No: leases are long, so that only a notification ends a wait.
    None,
    /// The owner dies: leases are short, since a dead owner sends no notification.
    Owner,
}

/// The result of a round in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crowded {
    /// Number of callers by answer; an answer without a value begins with `no: `.
    pub answers: BTreeMap<String, usize>,
    /// How often the store was asked after all callers were waiting and no request was in progress.
    pub asked: u64,
    /// Number of waiting callers.
    pub waited: u64,
    /// Number of effects that this process ran.
    pub won: u64,
}

impl CrowdOrder {
    /// The line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("orders are plain data")
    }
}

impl Crowd {
    pub(super) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be started").block_on(self.listen())
    }

    async fn listen(self) -> ExitCode {
        let store = match self.place.open().await {
            Ok(store) => Arc::new(FaultStore::new(store)),
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        let leader = Arc::new(Leader::default());
        leader.follow(&store);
        let mut orders = orders();
        let gate = watch::Sender::new(false);
        VictimReport::Ready.send();
        while let Some(order) = orders.recv().await {
            match order {
                CrowdOrder::Round { key, mode, deaths } => {
                    gate.send_replace(false);
                    leader.forget();
                    let engine = engine(store.clone(), mode, deaths);
                    let round = CrowdRound {
                        crowd: self.clone(),
                        key,
                        mode,
                        store: Arc::clone(&store),
                        leader: Arc::clone(&leader),
                    };
                    tokio::spawn(round.play(engine, gate.subscribe()));
                }
                CrowdOrder::Go => {
                    gate.send_replace(true);
                }
            }
        }
        ExitCode::SUCCESS
    }
}

/// The orders, read on their own thread, because standard input blocks.
fn orders() -> mpsc::UnboundedReceiver<CrowdOrder> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(Ok(order)) = line.map(|line| serde_json::from_str(&line)) else { break };
            if sender.send(order).is_err() {
                break;
            }
        }
    });
    orders
}

fn engine(store: Arc<dyn Store>, mode: Mode, deaths: Deaths) -> Engine {
    let (lease, in_flight_max) = match deaths {
        Deaths::None => (NEVER, NEVER),
        Deaths::Owner => (Duration::from_secs(3), WAIT),
    };
    let engine = Engine::builder(store).mode(mode).lease(lease).in_flight_max(in_flight_max).retention(NEVER);
    engine.wait(WAIT).backstop(NEVER).sweep_every(None).build().expect("the terms fit together")
}

struct CrowdRound {
    crowd: Crowd,
    key: String,
    mode: Mode,
    store: Arc<FaultStore>,
    leader: Arc<Leader>,
}

/// The leader of the waiters in this process: it watches the key, asks the store once, and then waits for a
/// notification.
#[derive(Debug, Default)]
struct Leader {
    /// The task that began to watch.
    task: Mutex<Option<Id>>,
    /// True if the store has answered it since.
    settled: AtomicBool,
    /// How many requests the store has answered.
    answered: AtomicU64,
}

impl Leader {
    fn follow(self: &Arc<Self>, store: &FaultStore) {
        let watching = Arc::clone(self);
        let begins = InjectedFault::before(move || *watching.task() = try_id());
        store.script(StoreCall::Watch, When::Always, begins);
        let answered = Arc::clone(self);
        let settles = InjectedFault::after(move || {
            answered.answered.fetch_add(1, Ordering::SeqCst);
            if try_id().is_some() && *answered.task() == try_id() {
                answered.settled.store(true, Ordering::SeqCst);
            }
        });
        store.script(StoreCall::Claim, When::Always, settles);
    }

    /// The number of requests so far, if none is in progress. A late confirmation of the subscription makes the
    /// leader ask a second time; if that request were answered after the effect, it would be the one that counts.
    fn asked_so_far(&self, store: &FaultStore) -> Option<u64> {
        let asked = store.calls(StoreCall::Claim);
        let answered = self.answered.load(Ordering::SeqCst);
        (answered == asked && store.calls(StoreCall::Claim) == asked).then_some(asked)
    }

    /// A new round begins.
    fn forget(&self) {
        *self.task() = None;
        self.settled.store(false, Ordering::SeqCst);
    }

    fn task(&self) -> MutexGuard<'_, Option<Id>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CrowdRound {
    async fn play(self, engine: Engine, gate: watch::Receiver<bool>) {
        let at_gate = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for _ in 0..self.crowd.callers {
            let effect = CrowdEffect {
                witness: self.crowd.witness.clone(),
                key: self.key.clone(),
                mode: self.mode,
                at_gate: Arc::clone(&at_gate),
                gate: gate.clone(),
            };
            let once = engine.once(Key::new("crowd").value(self.key.clone())).fingerprint("the same");
            callers.spawn(async move {
                match once
                    .error::<std::io::Error>()
                    .run_with(async move |attempt| effect.happen(&attempt).await)
                    .await
                {
                    Ok(answer) => answer.value,
                    Err(error) => format!("no: {error}"),
                }
            });
        }
        let all_wait = || {
            let sitting = engine.waiters() + at_gate.load(Ordering::SeqCst);
            sitting == self.crowd.callers && self.leader.settled.load(Ordering::SeqCst)
        };
        let before = loop {
            if all_wait()
                && let Some(asked) = self.leader.asked_so_far(&self.store)
            {
                break asked;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        VictimReport::AllWait { in_effect: at_gate.load(Ordering::SeqCst) > 0 }.send();
        let mut answers: BTreeMap<String, usize> = BTreeMap::new();
        while let Some(answer) = callers.join_next().await {
            *answers.entry(answer.expect("a caller does not panic")).or_default() += 1;
        }
        let stats = engine.stats();
        let (waited, won) = (stats.count("waited"), stats.count("won"));
        let asked = self.store.calls(StoreCall::Claim) - before;
        VictimReport::Crowded(Crowded { answers, asked, waited, won }).send();
    }
}

struct CrowdEffect {
    witness: PathBuf,
    key: String,
    mode: Mode,
    at_gate: Arc<AtomicUsize>,
    gate: watch::Receiver<bool>,
}

impl CrowdEffect {
    /// Leaves a trace, and waits at the gate. The receipt names the attempt whose trace is valid.
    async fn happen(mut self, attempt: &semel::Attempt) -> Result<String, Failure<std::io::Error>> {
        let mut witness = Witness::open(&self.witness).map_err(Failure::Unknown)?;
        let fence = attempt.fence().get();
        let row = match self.mode {
            // A receiver that honours keys.
            Mode::Keyed => witness.act_once(&self.key, &attempt.derived_key("receiver").to_string(), fence),
            Mode::Atomic | Mode::Marked | Mode::Rerun => witness.act(&self.key, &self.key, fence),
        };
        let row = row.map_err(Failure::Unknown)?;
        self.at_gate.fetch_add(1, Ordering::SeqCst);
        self.gate.wait_for(|open| *open).await.expect("the crowd holds the gate");
        Ok(format!("receipt {}", row.fence))
    }
}
