//! A process that takes single steps of the protocol when it is told to, for faults that need an exact moment: a packet that is held, an
//! owner that is stopped between two steps.
//!
//! Orders are lines on its standard input. It answers each with one report.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::engine::{Acquired, Claim, Completed, Once, Running};
use semel::outcome::Outcome;
use semel::record::{Command, Settlement, Terms};
use semel::store::Store;
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, When};
use semel::{Attempt, Engine, Failure, Key, Mode};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::witness::{Deed, Repeats, WitnessClient};
use crate::place::StorePlace;
use crate::victim::VictimReport;

const NEVER: Duration = Duration::from_secs(100_000);

/// The job of a puppet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Puppet {
    /// The store.
    pub place: StorePlace,
    /// The socket of the witness.
    pub witness: PathBuf,
    /// How long its claims are valid without a heartbeat.
    pub lease: Duration,
}

/// One step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum PuppetOrder {
    /// Claim a key in `marked`.
    Claim {
        /// The key.
        key: u64,
        /// Whether the begin mark is a separate step.
        begin: SeparateBegin,
    },
    /// Begin the claim.
    Begin,
    /// Act: leave an entry in the ledger.
    Act,
    /// Store the outcome.
    Complete,
    /// Release the claim, begun or not.
    Release,
    /// Settle a key in doubt: it did not happen.
    Settle {
        /// The key.
        key: u64,
    },
    /// Read the fence of a key.
    Fence {
        /// The key.
        key: u64,
    },
    /// Claim a key with a long lease and, as soon as that is answered, run the effect of another one in `keyed`.
    RunAfter {
        /// The key that is claimed first.
        first: u64,
        /// The key whose effect is run. It ends with [`PuppetOrder::Go`].
        key: u64,
    },
    /// Run the effect of a key in `keyed`. It ends with [`PuppetOrder::Go`].
    RunNow {
        /// The key.
        key: u64,
    },
    /// Ask for a key that is in progress, and stand still before watching it, until [`PuppetOrder::Go`].
    Follow {
        /// The key.
        key: u64,
        /// How long to wait for the outcome.
        wait: Duration,
    },
    /// Go on.
    Go,
}

/// Whether the begin mark is a separate step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeparateBegin {
    /// The claim is also the begin mark.
    No,
    /// The begin mark follows.
    Yes,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PuppetReport {
    /// It was done.
    Done,
    /// It was refused; the reason.
    Refused(String),
    /// The fence of a key.
    Fence(u64),
    /// An effect runs.
    InEffect,
    /// It is about to watch a key.
    Watches,
}

impl PuppetOrder {
    /// The line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("orders are plain data")
    }
}

impl Puppet {
    pub(crate) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be started").block_on(self.obey())
    }

    async fn obey(self) -> ExitCode {
        let store = match self.place.open().await {
            Ok(store) => store,
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        let witness = WitnessClient::connect(&self.witness).await.expect("the witness listens");
        let (mut orders, go) = orders();
        let engine = engine(Arc::clone(&store), self.lease);
        let mut stage = PuppetStage { engine, store, witness, go, key: 0, claim: None, running: None };
        VictimReport::Ready.send();
        while let Some(order) = orders.recv().await {
            VictimReport::Step(stage.step(order).await).send();
        }
        ExitCode::SUCCESS
    }
}

fn engine(store: Arc<dyn Store>, lease: Duration) -> Engine {
    let engine =
        Engine::builder(store).lease(lease).in_flight_max(NEVER).retention(NEVER).wait(Duration::ZERO);
    engine.backstop(NEVER).sweep_every(None).build().expect("the terms fit together")
}

type Go = Arc<Mutex<std::sync::mpsc::Receiver<()>>>;

/// The orders, and the word to go on. Read on their own thread, because standard input blocks.
fn orders() -> (mpsc::UnboundedReceiver<PuppetOrder>, Go) {
    let (sender, orders) = mpsc::unbounded_channel();
    let (says_go, go) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(Ok(order)) = line.map(|line| serde_json::from_str(&line)) else { break };
            let heard = match order {
                PuppetOrder::Go => says_go.send(()).is_ok(),
                order => sender.send(order).is_ok(),
            };
            if !heard {
                break;
            }
        }
    });
    (orders, Arc::new(Mutex::new(go)))
}

fn wait_for_go(go: &Go) {
    go.lock().unwrap_or_else(PoisonError::into_inner).recv().expect("the test says when to go on");
}

struct PuppetStage {
    engine: Engine,
    store: Arc<dyn Store>,
    witness: WitnessClient,
    go: Go,
    key: u64,
    claim: Option<Claim>,
    running: Option<Running>,
}

impl PuppetStage {
    async fn step(&mut self, order: PuppetOrder) -> PuppetReport {
        match order {
            PuppetOrder::Claim { key, begin } => {
                self.key = key;
                let once = self.once(key);
                let once = if begin == SeparateBegin::Yes { once.begin_later() } else { once };
                match once.claim().await {
                    Ok(Acquired::Won(claim)) => {
                        self.claim = Some(claim);
                        PuppetReport::Done
                    }
                    other => PuppetReport::Refused(format!("{other:?}")),
                }
            }
            PuppetOrder::Begin => match self.claim.take().expect("it has a claim").begin().await {
                Ok(running) => {
                    self.running = Some(running);
                    PuppetReport::Done
                }
                Err(error) => PuppetReport::Refused(format!("{error:?}")),
            },
            PuppetOrder::Act => {
                act(&self.witness, self.key).await;
                PuppetReport::Done
            }
            PuppetOrder::Complete => {
                let outcome = Arc::new(Outcome::new("json", self.key.to_string()));
                match self.running.take().expect("it runs").complete(&outcome, None).await {
                    Completed::Kept => PuppetReport::Done,
                    other => PuppetReport::Refused(format!("{other:?}")),
                }
            }
            PuppetOrder::Release => {
                match (self.claim.take(), self.running.take()) {
                    (Some(claim), _) => claim.release().await,
                    (None, Some(running)) => running.release().await,
                    (None, None) => panic!("it has a claim"),
                }
                PuppetReport::Done
            }
            PuppetOrder::Settle { key } => {
                let settled = self.store.apply(self.id(key), Command::Settle(Settlement::Run)).await;
                match settled {
                    Ok(semel::record::Ruling::Accepted { .. }) => PuppetReport::Done,
                    other => PuppetReport::Refused(format!("{other:?}")),
                }
            }
            PuppetOrder::Fence { key } => match self.store.get(self.id(key)).await {
                Ok(Some(found)) => PuppetReport::Fence(found.record.fence.get()),
                other => PuppetReport::Refused(format!("{other:?}")),
            },
            PuppetOrder::RunAfter { first, key } => {
                // The lease is long, so that a late answer is not asked for again.
                let long = Terms {
                    mode: Mode::Keyed,
                    lease: NEVER,
                    in_flight_max: NEVER,
                    retention: NEVER,
                    ..Terms::default()
                };
                let first = self.engine.once(name(first)).terms(long).fingerprint("the same").claim().await;
                let ran = self.run_keyed(key).await;
                drop(first);
                ran
            }
            PuppetOrder::RunNow { key } => self.run_keyed(key).await,
            PuppetOrder::Follow { key, wait } => self.follow(key, wait).await,
            PuppetOrder::Go => PuppetReport::Done,
        }
    }

    fn once(&self, key: u64) -> Once {
        self.engine.once(name(key)).mode(Mode::Marked).fingerprint("the same")
    }

    fn id(&self, key: u64) -> semel::key::KeyId {
        self.engine.id_at_hand(&name(key)).expect("the engine has claimed before, so it knows the secret")
    }

    async fn run_keyed(&self, key: u64) -> PuppetReport {
        let (witness, go) = (self.witness.clone(), Arc::clone(&self.go));
        let effect = async move |_: Attempt| {
            act(&witness, key).await;
            VictimReport::Step(PuppetReport::InEffect).send();
            tokio::task::block_in_place(|| wait_for_go(&go));
            Ok::<_, Failure<std::io::Error>>(key)
        };
        let once = self.engine.once(name(key)).mode(Mode::Keyed).fingerprint("the same");
        let ran = once.error::<std::io::Error>().run_with(effect).await;
        match ran {
            Ok(_) => PuppetReport::Done,
            Err(error) => PuppetReport::Refused(error.to_string()),
        }
    }

    async fn follow(&self, key: u64, wait: Duration) -> PuppetReport {
        let store = Arc::new(FaultStore::new(Arc::clone(&self.store)));
        let go = Arc::clone(&self.go);
        let stands_still = InjectedFault::before(move || {
            VictimReport::Step(PuppetReport::Watches).send();
            tokio::task::block_in_place(|| wait_for_go(&go));
        });
        store.script(StoreCall::Watch, When::Nth(1), stands_still);
        let engine = engine(store, NEVER);
        let (witness, once) =
            (self.witness.clone(), engine.once(name(key)).mode(Mode::Marked).fingerprint("the same"));
        let effect = async move |_: Attempt| {
            act(&witness, key).await;
            Ok::<_, Failure<std::io::Error>>(key)
        };
        match once.wait(wait).error::<std::io::Error>().run_with(effect).await {
            Ok(_) => PuppetReport::Done,
            Err(error) => PuppetReport::Refused(error.to_string()),
        }
    }
}

fn name(key: u64) -> Key {
    Key::new("puppet").value(key.to_string())
}

async fn act(witness: &WitnessClient, key: u64) {
    let deed = Deed { key, name: key.into(), fence: 0, repeats: Repeats::Act };
    witness.act(deed).await.expect("the witness lives longer");
}
