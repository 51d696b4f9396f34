//! One effect of two steps, run with the engine over the embedded store; the process can die at any point.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use semel::engine::{Acquired, Attempt, Completed, NotBegun};
use semel::outcome::{Outcome, OutcomeBody};
use semel::store::{EmbeddedStore, Store};
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, When};
use semel::{Answer, Engine, Failure, Key, Mode, RunError};
use serde::{Deserialize, Serialize};

use super::witness::Witness;
use super::{ReportedEnd, VictimReport, die};

/// The first step of the effect.
pub const DEBIT: &str = "debit";
/// The second one.
pub const CREDIT: &str = "credit";

/// How the effect runs and how the process ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VictimLife {
    /// The folder of the store.
    pub store: PathBuf,
    /// The file that the effect writes to.
    pub witness: PathBuf,
    /// The mode of the effect.
    #[serde(with = "ModeName")]
    pub mode: Mode,
    /// How long a claim is valid without a heartbeat.
    pub lease: Duration,
    /// When the begin mark is set.
    pub start: Start,
    /// Where the life ends.
    pub fate: LifeEnd,
}

/// When the begin mark is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// With the claim, as the library does.
    WithClaim,
    /// As a separate step, as the gateway does.
    Later,
}

/// Where a life ends, or pauses until a line comes on standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each says it")]
pub enum LifeEnd {
    Lives,
    DiesBeforeClaim,
    DiesAfterClaim,
    DiesAfterBegin,
    DiesMidEffect,
    DiesAfterEffect,
    DiesAfterComplete,
    /// Allocates memory in the effect until the system kills the process.
    DevoursMemory,
    PausesBeforeBegin,
    PausesInEffect,
    /// As `PausesInEffect`, and another caller of the same process asks for the same key meanwhile.
    PausesInEffectWithRival,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode")]
pub(super) enum ModeName {
    Atomic,
    Keyed,
    Marked,
    Rerun,
}

/// The key of the effect.
pub fn key() -> Key {
    Key::new("transfer").scope("acct_1").value("order-17")
}

impl VictimLife {
    /// The same life with another end.
    #[must_use]
    pub fn with(&self, fate: LifeEnd) -> Self {
        Self { fate, ..self.clone() }
    }

    /// An engine under the terms of this life.
    pub fn engine(&self, store: Arc<dyn Store>) -> Engine {
        Engine::builder(store)
            .mode(self.mode)
            .lease(self.lease)
            .wait(Duration::from_secs(20))
            .sweep_every(None)
            .build()
            .expect("the terms fit together")
    }

    pub(super) fn run(self) -> ExitCode {
        let store = match EmbeddedStore::open(&self.store) {
            Ok(store) => Arc::new(store),
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime can be started");
        VictimReport::Ready.send();
        if self.mode == Mode::Atomic {
            let engine = self.engine(store.clone());
            VictimReport::Ended(runtime.block_on(self.call_in(&engine, &store))).send();
            return ExitCode::SUCCESS;
        }
        let store = Arc::new(FaultStore::new(store));
        let (call, death) = match self.fate {
            LifeEnd::DiesBeforeClaim => (StoreCall::Claim, InjectedFault::before(|| die())),
            LifeEnd::DiesAfterClaim => (StoreCall::Claim, InjectedFault::after(|| die())),
            LifeEnd::DiesAfterBegin => (StoreCall::Begin, InjectedFault::after(|| die())),
            LifeEnd::DiesAfterEffect => (StoreCall::Complete, InjectedFault::before(|| die())),
            LifeEnd::DiesAfterComplete => (StoreCall::Complete, InjectedFault::after(|| die())),
            _ => (StoreCall::Reexecute, InjectedFault::before(|| ())),
        };
        store.script(call, When::Always, death);
        let engine = self.engine(store.clone());
        let rival = (self.fate == LifeEnd::PausesInEffectWithRival).then(|| self.engine(store));
        runtime.block_on(async {
            let own = async { VictimReport::Ended(self.call(&engine).await).send() };
            let other = async {
                let Some(rival) = &rival else { return };
                until(|| engine.in_flight() > 0).await;
                let life = self.with(LifeEnd::Lives);
                let call = async { VictimReport::Ended(life.call(rival).await).send() };
                let waits = async {
                    until(|| rival.waiters() > 0).await;
                    VictimReport::RivalWaits.send();
                };
                tokio::join!(call, waits);
            };
            tokio::join!(own, other);
        });
        ExitCode::SUCCESS
    }

    /// Calls the effect once, as configured.
    pub async fn call(&self, engine: &Engine) -> ReportedEnd {
        match self.start {
            Start::WithClaim => {
                let life = self.clone();
                let ran = engine.once(key()).fingerprint("17 euro").error().run_with(async move |attempt| {
                    VictimReport::InEffect { fence: attempt.fence().get() }.send();
                    life.transfer(&attempt).await.map_err(Failure::Unknown)
                });
                answered(ran.await)
            }
            Start::Later => self.call_stepwise(engine).await,
        }
    }

    /// As `call`, with separate claim, begin and complete.
    async fn call_stepwise(&self, engine: &Engine) -> ReportedEnd {
        loop {
            let once = engine.once(key()).fingerprint("17 euro").begin_later();
            let claim = match once.claim().await {
                Ok(Acquired::Won(claim)) => claim,
                Ok(Acquired::Replay(outcome)) => return replayed(&outcome),
                other => return ReportedEnd::Nothing(format!("{other:?}")),
            };
            VictimReport::Claimed { fence: claim.grant().fence().get() }.send();
            if self.fate == LifeEnd::PausesBeforeBegin && claim.attempt().number() == 1 {
                pause().await;
            }
            let running = match claim.begin().await {
                Ok(running) => running,
                Err(NotBegun::Lost) => continue,
                Err(error) => return ReportedEnd::Nothing(format!("{error:?}")),
            };
            VictimReport::InEffect { fence: running.grant().fence().get() }.send();
            let receipt = match self.transfer(&running.attempt()).await {
                Ok(receipt) => receipt,
                Err(error) => return ReportedEnd::Nothing(error.to_string()),
            };
            return match running.complete(&outcome(&receipt), None).await {
                Completed::Kept => ReportedEnd::Value { receipt, replayed: false, stored: true },
                Completed::Superseded(winner) => replayed(&winner),
                other => ReportedEnd::Nothing(format!("{other:?}")),
            };
        }
    }

    /// The effect: a debit, then a credit. The receipt names the attempt whose credit is valid.
    async fn transfer(&self, attempt: &Attempt) -> io::Result<String> {
        let mut witness = Witness::open(&self.witness)?;
        let fence = attempt.fence().get();
        let name = match self.mode {
            Mode::Keyed => attempt.derived_key("bank").to_string(),
            Mode::Atomic | Mode::Marked | Mode::Rerun => "order-17".to_owned(),
        };
        let mut act = |step| match self.mode {
            Mode::Keyed => witness.act_once(step, &name, fence),
            Mode::Atomic | Mode::Marked | Mode::Rerun => witness.act(step, &name, fence),
        };
        act(DEBIT)?;
        match self.fate {
            LifeEnd::DiesMidEffect => die(),
            LifeEnd::DevoursMemory => devour(),
            LifeEnd::PausesInEffect | LifeEnd::PausesInEffectWithRival => pause().await,
            _ => {}
        }
        Ok(receipt(act(CREDIT)?.fence))
    }
}

/// The receipt of the attempt with this fence.
pub fn receipt(fence: u64) -> String {
    format!("receipt of {fence}")
}

/// The outcome that contains a receipt.
pub fn outcome(receipt: &str) -> Arc<Outcome> {
    Arc::new(Outcome::new("json", serde_json::to_vec(receipt).expect("text is JSON")))
}

/// Opens the store of a life as the next process does.
///
/// # Panics
/// It cannot be opened.
pub fn reopen(store: &Path) -> Arc<EmbeddedStore> {
    Arc::new(
        EmbeddedStore::open(store).unwrap_or_else(|error| panic!("the next process is refused: {error}")),
    )
}

pub(super) fn answered(ran: Result<Answer<String>, RunError<io::Error>>) -> ReportedEnd {
    match ran {
        Ok(Answer { value, replayed, stored, .. }) => ReportedEnd::Value { receipt: value, replayed, stored },
        Err(error) => ReportedEnd::Nothing(format!("{error:?}")),
    }
}

fn replayed(outcome: &Outcome) -> ReportedEnd {
    let read = |body: &Vec<u8>| serde_json::from_slice(body).ok();
    match outcome.body() {
        OutcomeBody::Kept(body) => match read(body) {
            Some(receipt) => ReportedEnd::Value { receipt, replayed: true, stored: true },
            None => ReportedEnd::Nothing("an outcome that is no receipt".to_owned()),
        },
        OutcomeBody::Tombstone(reason) => ReportedEnd::Nothing(reason.clone()),
    }
}

/// Pauses until a line comes. Heartbeats continue meanwhile, on another thread.
async fn pause() {
    let line = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let read: Result<io::Result<usize>, _> = line.await;
    assert!(matches!(read, Ok(Ok(1..))), "the process that paused this one has ended: {read:?}");
}

/// Waits for a condition; the parent process limits the time.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Allocates memory, and uses it, until the system kills the process.
pub(super) fn devour() -> ! {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    while eaten.len() < 1 << 14 {
        eaten.push(vec![1; 1 << 20]);
    }
    panic!("16 GiB allocated without a limit: {:?}", eaten.last().map(Vec::len))
}
