//! A process with many callers on one store. It writes its history and is killed at any moment.
//!
//! Each worker counts through the keys of its own slot. Its callers also ask for keys that were used a moment ago, in any slot, and for
//! keys of long ago: a workload in which nobody asks for the keys of a dead owner hides most faults.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel::engine::{Acquired, Attempt, Concluded, Once};
use semel::outcome::{Outcome, OutcomeBody};
use semel::{Answer, Engine, Failure, Mode, RunError};
use serde::{Deserialize, Serialize};

use super::history::{HistoryEvent, HistoryRow, HistoryWriter};
use super::witness::{Deed, Repeats, WitnessClient};
use super::{ChaosKey, KeyKind, Progress};
use crate::place::StorePlace;
use crate::victim::VictimReport;

/// How far behind the newest key an old one is at most.
const LONG_AGO: u64 = 20_000;
/// The keys of a moment ago.
const RECENT: u64 = 48;
/// How often the audit asks for a key. Far more than it needs, unless the store grants nothing any more.
const AUDIT_TRIES: usize = 100;
/// How long a caller that met a failing store waits.
const AFTER_FAILURE: Duration = Duration::from_millis(30);

/// The job of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChaosWorker {
    /// The store.
    pub place: StorePlace,
    /// The socket of the witness.
    pub witness: PathBuf,
    /// The file of its history.
    pub history: PathBuf,
    /// The file with the progress of all slots.
    pub progress: PathBuf,
    /// Its number in the history.
    pub process: u32,
    /// Its slot, and the number of slots.
    pub slots: (u8, u8),
    /// How many callers.
    pub callers: usize,
    /// How long a claim is valid without a heartbeat.
    pub lease: Duration,
    /// The seed of its choices.
    pub seed: u64,
    /// What it does.
    pub task: WorkerTask,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerTask {
    /// Calls until its standard input is closed.
    Load,
    /// Asks once for every key that its slot has used, until there is a final answer.
    Audit,
}

/// The outcome of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    entry: u64,
    fence: u64,
}

impl ChaosWorker {
    pub(crate) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be started").block_on(self.work())
    }

    async fn work(self) -> ExitCode {
        let store = match self.place.open().await {
            Ok(store) => store,
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        let wait = match self.task {
            WorkerTask::Load => self.lease / 2,
            WorkerTask::Audit => self.lease * 2,
        };
        let engine = Engine::builder(store).lease(self.lease).wait(wait).sweep_every(None).build();
        let callers = Arc::new(Callers {
            engine: engine.expect("the terms fit together"),
            witness: WitnessClient::connect(&self.witness).await.expect("the witness listens"),
            history: HistoryWriter::open(&self.history).expect("the history can be written"),
            progress: Progress::open(&self.progress).expect("the progress can be read"),
            calls: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            worker: self,
        });
        VictimReport::Ready.send();
        match callers.worker.task {
            WorkerTask::Load => callers.load().await,
            WorkerTask::Audit => callers.audit().await,
        }
        callers.history.add(&HistoryRow::new(callers.worker.process, HistoryEvent::Left));
        ExitCode::SUCCESS
    }
}

struct Callers {
    engine: Engine,
    witness: WitnessClient,
    history: HistoryWriter,
    progress: Progress,
    calls: AtomicU64,
    /// The next key of the own slot.
    keys: AtomicU64,
    stopping: AtomicBool,
    worker: ChaosWorker,
}

/// What the effect of a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EffectPlan {
    Acts,
    /// It reports that nothing happened.
    Fails,
}

impl Callers {
    async fn load(self: &Arc<Self>) {
        let slot = self.worker.slots.0;
        let done = self.progress.calls(slot).expect("the progress can be read");
        self.keys.store(self.progress.keys(slot).expect("the progress can be read"), Ordering::SeqCst);
        let listening = Arc::clone(self);
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            listening.stopping.store(true, Ordering::SeqCst);
        });
        let callers: Vec<_> = (0..self.worker.callers)
            .map(|number| tokio::spawn(Arc::clone(self).call_again_and_again(number as u64, done)))
            .collect();
        for caller in callers {
            caller.await.expect("a caller does not panic");
        }
        // Effects whose callers left come to their end too.
        while self.engine.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn call_again_and_again(self: Arc<Self>, caller: u64, done: u64) {
        let mut rng = StdRng::seed_from_u64(self.worker.seed ^ (caller << 32));
        while !self.stopping.load(Ordering::Relaxed) {
            let key = self.choose(&mut rng);
            self.call(key, &mut rng).await;
            let calls = self.calls.load(Ordering::Relaxed);
            self.progress.set_calls(self.worker.slots.0, done + calls).expect("the progress can be written");
        }
    }

    fn choose(&self, rng: &mut StdRng) -> ChaosKey {
        let (own, slots) = self.worker.slots;
        let slot = if rng.random_bool(0.3) { rng.random_range(0..slots) } else { own };
        let newest = self.progress.keys(slot).expect("the progress can be read");
        let back = match rng.random_range(0..100) {
            0..55 if slot == own => {
                let number = self.keys.fetch_add(1, Ordering::SeqCst);
                // Before the key is used: the audit must not miss one. A smaller number of another caller may come later.
                let next = self.keys.load(Ordering::SeqCst);
                self.progress.set_keys(own, next).expect("the progress can be written");
                return ChaosKey::new(own, number);
            }
            0..85 => rng.random_range(0..=RECENT),
            _ => rng.random_range(0..=LONG_AGO),
        };
        ChaosKey::new(slot, newest.saturating_sub(1).saturating_sub(back))
    }

    fn note(&self, key: ChaosKey, call: u64, event: HistoryEvent, receipt: Option<Receipt>) {
        let Receipt { entry, fence } = receipt.unwrap_or(Receipt { entry: 0, fence: 0 });
        let row = HistoryRow::new(self.worker.process, event);
        self.history.add(&HistoryRow { key: key.0, call, entry, fence, ..row });
    }

    async fn call(self: &Arc<Self>, key: ChaosKey, rng: &mut StdRng) -> HistoryEvent {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let plan = if rng.random_bool(0.02) { EffectPlan::Fails } else { EffectPlan::Acts };
        let pause = Duration::from_micros(if rng.random_bool(0.2) { rng.random_range(0..4_000) } else { 0 });
        let leaves = rng.random_bool(0.04).then(|| Duration::from_micros(rng.random_range(0..3_000)));
        self.note(key, call, HistoryEvent::Asked, None);
        let once = self.engine.once(key.name()).mode(key.mode()).fingerprint("the same");
        let (event, receipt) = match key.kind() {
            KeyKind::Stepwise => self.step_by_step(key, call, once, plan, pause).await,
            KeyKind::Marked | KeyKind::Keyed => {
                let callers = Arc::clone(self);
                let effect =
                    async move |attempt: Attempt| callers.effect(key, call, &attempt, plan, pause).await;
                let run = once.error::<io::Error>().run_with(effect);
                match leaves.filter(|_| self.worker.task == WorkerTask::Load) {
                    Some(after) => match tokio::time::timeout(after, run).await {
                        Ok(ran) => answered(&ran),
                        Err(_) => (HistoryEvent::Dropped, None),
                    },
                    None => answered(&run.await),
                }
            }
        };
        self.note(key, call, event, receipt);
        if event == HistoryEvent::StoreFailed {
            tokio::time::sleep(AFTER_FAILURE).await;
        }
        event
    }

    /// The effect: it leaves an entry in the ledger, unless it fails before.
    async fn effect(
        &self,
        key: ChaosKey,
        call: u64,
        attempt: &Attempt,
        plan: EffectPlan,
        pause: Duration,
    ) -> Result<Receipt, Failure<io::Error>> {
        let fence = attempt.fence().get();
        self.note(key, call, HistoryEvent::Began, Some(Receipt { entry: 0, fence }));
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if plan == EffectPlan::Fails {
            self.note(key, call, HistoryEvent::Failed, Some(Receipt { entry: 0, fence }));
            return Err(Failure::Failed(io::Error::other("as planned")));
        }
        let (name, repeats) = match key.mode() {
            Mode::Keyed => (short_name(attempt.derived_key("witness").as_bytes()), Repeats::AreRecognised),
            Mode::Atomic | Mode::Marked | Mode::Rerun => (u128::from(key.0), Repeats::Act),
        };
        let entry =
            self.witness.act(Deed { key: key.0, name, fence, repeats }).await.map_err(Failure::Unknown)?;
        let receipt = Receipt { entry, fence };
        self.note(key, call, HistoryEvent::Ended, Some(receipt));
        Ok(receipt)
    }

    /// A call with separate claim, begin and complete. Its caller does not leave: then it would not complete either.
    async fn step_by_step(
        &self,
        key: ChaosKey,
        call: u64,
        once: Once,
        plan: EffectPlan,
        pause: Duration,
    ) -> (HistoryEvent, Option<Receipt>) {
        let claim = match once.begin_later().claim().await {
            Ok(Acquired::Won(claim)) => claim,
            Ok(acquired) => return acquired_end(&acquired),
            Err(RunError::Store(_)) => return (HistoryEvent::StoreFailed, None),
            Err(_) => return (HistoryEvent::Unexpected, None),
        };
        tokio::time::sleep(pause).await;
        let Ok(running) = claim.begin().await else { return (HistoryEvent::StoreFailed, None) };
        let Ok(receipt) = self.effect(key, call, &running.attempt(), plan, Duration::ZERO).await else {
            running.release().await;
            return (HistoryEvent::Refused, None);
        };
        let outcome = serde_json::to_vec(&receipt).expect("a receipt is plain data");
        let outcome = Arc::new(Outcome::new("json", outcome));
        match running.complete_or_follow(&outcome, None, self.worker.lease).await {
            Concluded::Kept => (HistoryEvent::Value, Some(receipt)),
            Concluded::Instead(acquired) => acquired_end(&acquired),
            _ => (HistoryEvent::Unstored, Some(receipt)),
        }
    }

    async fn audit(self: &Arc<Self>) {
        let slot = self.worker.slots.0;
        self.history.add(&HistoryRow::new(self.worker.process, HistoryEvent::Audits));
        // Some more than were noted: a process may have been killed before it noted the last ones.
        let keys = self.progress.keys(slot).expect("the progress can be read") + RECENT;
        let next = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..self.worker.callers)
            .map(|caller| {
                let (callers, next) = (Arc::clone(self), Arc::clone(&next));
                tokio::spawn(async move {
                    let mut rng = StdRng::seed_from_u64(caller as u64);
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= keys {
                            return;
                        }
                        let is_final = |event| matches!(event, HistoryEvent::Value | HistoryEvent::InDoubt);
                        for _ in 0..AUDIT_TRIES {
                            if is_final(callers.call(ChaosKey::new(slot, number), &mut rng).await) {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("a caller does not panic");
        }
    }
}

fn answered(ran: &Result<Answer<Receipt>, RunError<io::Error>>) -> (HistoryEvent, Option<Receipt>) {
    match ran {
        Ok(Answer { value, stored: true, .. }) => (HistoryEvent::Value, Some(*value)),
        Ok(Answer { value, .. }) => (HistoryEvent::Unstored, Some(*value)),
        Err(RunError::InDoubt) => (HistoryEvent::InDoubt, None),
        Err(RunError::InFlight { .. } | RunError::TooManyWaiters { .. }) => (HistoryEvent::InFlight, None),
        Err(RunError::Failed(_)) => (HistoryEvent::Refused, None),
        Err(RunError::Store(_)) => (HistoryEvent::StoreFailed, None),
        Err(_) => (HistoryEvent::Unexpected, None),
    }
}

fn acquired_end(acquired: &Acquired) -> (HistoryEvent, Option<Receipt>) {
    match acquired {
        Acquired::Replay(outcome) => match outcome.body() {
            OutcomeBody::Kept(body) => match serde_json::from_slice(body) {
                Ok(receipt) => (HistoryEvent::Value, Some(receipt)),
                Err(_) => (HistoryEvent::Unexpected, None),
            },
            OutcomeBody::Tombstone(_) => (HistoryEvent::Unexpected, None),
        },
        Acquired::InDoubt => (HistoryEvent::InDoubt, None),
        Acquired::InFlight { .. } | Acquired::TooManyWaiters { .. } => (HistoryEvent::InFlight, None),
        _ => (HistoryEvent::Unexpected, None),
    }
}

/// The name of a derived key in the ledger.
fn short_name(key: &[u8; 32]) -> u128 {
    let mut name = [0; 16];
    name.copy_from_slice(&key[..16]);
    u128::from_le_bytes(name)
}
