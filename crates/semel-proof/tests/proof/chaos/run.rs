//! A chaos run: starts the processes, injects the faults of a schedule, and asks every key again at the end.

use std::path::PathBuf;
use std::time::Duration;

use semel_proof::chaos::Progress;
use semel_proof::chaos::checker::{ChaosChecker, ChaosVerdict};
use semel_proof::chaos::history::{self, HistoryEvent, HistoryRow, HistoryWriter};
use semel_proof::chaos::schedule::{ChaosFault, FaultSchedule};
use semel_proof::chaos::witness::{self, WitnessProcess};
use semel_proof::chaos::worker::{ChaosWorker, WorkerTask};
use semel_proof::place::StorePlace;
use semel_proof::victim::{VictimJob, VictimReport};
use semel_testbed::redis::Persistence;
use semel_testbed::{Direction, FaultProxy, Postgres, Redis, Storage, wait};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::crash::folder;
use crate::crash::supervisor::Victim;

/// The processes that call at the same time. Each has a slot of keys.
const PROCESSES: u8 = 4;
/// How many callers each has.
const CALLERS: usize = 12;
const LEASE: Duration = Duration::from_secs(2);
/// A stopped process goes on after its leases.
const STOPPED_FOR: Duration = Duration::from_millis(2_700);
/// For how long bytes are held or delayed.
const SLOW_FOR: Duration = Duration::from_millis(700);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The server of a run. Its files are in memory: a killed process loses nothing that was written.
pub(crate) enum ChaosServer {
    Redis(Redis),
    Postgres(Postgres),
}

impl ChaosServer {
    pub(crate) fn redis() -> Self {
        let options = Redis::options().persistence(Persistence::Always).storage(Storage::Memory);
        Self::Redis(options.start().expect("redis-server starts"))
    }

    pub(crate) fn postgres() -> Self {
        let options = Postgres::options().storage(Storage::Memory);
        Self::Postgres(options.start().expect("postgres starts"))
    }

    fn addr(&self) -> std::net::SocketAddr {
        match self {
            Self::Redis(redis) => redis.addr(),
            Self::Postgres(postgres) => postgres.addr(),
        }
    }

    fn place(&self, addr: std::net::SocketAddr) -> StorePlace {
        match self {
            Self::Redis(_) => {
                StorePlace::Redis { url: format!("redis://{addr}"), prefix: "chaos".to_owned() }
            }
            Self::Postgres(postgres) => StorePlace::Postgres { url: postgres.url_at(addr, "postgres") },
        }
    }

    fn kill_and_restart(&self) {
        match self {
            Self::Redis(redis) => redis.restart().expect("redis-server starts again"),
            Self::Postgres(postgres) => postgres.restart().expect("postgres starts again"),
        }
    }
}

/// What a run must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) calls: u64,
    pub(crate) kills: u64,
}

pub(crate) struct ChaosRun {
    server: ChaosServer,
    proxy: FaultProxy,
    seed: u64,
    mutant: Option<&'static str>,
    slots: Vec<Slot>,
    witness: Victim,
    /// Kills and stops.
    history: HistoryWriter,
    progress: Progress,
    processes: u32,
    kills: u64,
    server_kills: u64,
    heals_at: Option<Instant>,
    folder: TempDir,
}

struct Slot {
    victim: Victim,
    process: u32,
    goes_on_at: Option<Instant>,
}

impl ChaosRun {
    /// Starts the processes of a run, with a mutant if one is named.
    pub(crate) fn start(server: ChaosServer, seed: u64, mutant: Option<&'static str>) -> Self {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let job = WitnessProcess { socket: at("witness.socket"), ledger: at("ledger") };
        let witness = Victim::start(&VictimJob::Witness(job));
        witness.wait_for("it listened", |report| (*report == VictimReport::Ready).then_some(()));
        let proxy = FaultProxy::before(server.addr()).expect("the proxy starts");
        let history = HistoryWriter::open(&at("history-0")).expect("the history can be written");
        let progress = Progress::open(&at("progress")).expect("the progress can be written");
        let slots = Vec::new();
        let (processes, kills, server_kills, heals_at) = (0, 0, 0, None);
        let mut run = Self {
            server,
            proxy,
            seed,
            mutant,
            slots,
            witness,
            history,
            progress,
            processes,
            kills,
            server_kills,
            heals_at,
            folder,
        };
        for slot in 0..PROCESSES {
            let started = run.start_process(slot, WorkerTask::Load);
            run.slots.push(started);
        }
        run
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_process(&mut self, slot: u8, task: WorkerTask) -> Slot {
        self.processes += 1;
        let process = self.processes;
        // Every second one is behind the proxy, so that some processes see faults that others do not.
        let is_behind_proxy = task == WorkerTask::Load && slot.is_multiple_of(2);
        let addr = if is_behind_proxy { self.proxy.addr() } else { self.server.addr() };
        let worker = ChaosWorker {
            place: self.server.place(addr),
            witness: self.at("witness.socket"),
            history: self.at(&format!("history-{process}")),
            progress: self.at("progress"),
            process,
            slots: (slot, PROCESSES),
            callers: CALLERS,
            lease: LEASE,
            seed: self.seed ^ u64::from(process),
            task,
        };
        let mutant = self.mutant;
        let victim = Victim::start_with(&VictimJob::Worker(worker), |command| {
            if let Some(mutant) = mutant {
                command.env("SEMEL_MUTANT", mutant);
            }
        });
        Slot { victim, process, goes_on_at: None }
    }

    /// Injects faults until the goal is reached, asks every key again, and judges.
    pub(crate) fn play(mut self, goal: Goal) -> ChaosVerdict {
        for (pause, fault) in FaultSchedule::new(self.seed, usize::from(PROCESSES), LONGEST_PAUSE) {
            let is_reached = |run: &Self| run.calls() >= goal.calls && run.kills >= goal.kills;
            if wait::until("the goal is reached", pause, || is_reached(&self)).is_ok() {
                break;
            }
            self.end_faults(Instant::now());
            self.replace_unopened();
            self.inject(fault);
        }
        self.finish()
    }

    fn calls(&self) -> u64 {
        (0..PROCESSES).map(|slot| self.progress.calls(slot).expect("the progress can be read")).sum()
    }

    fn inject(&mut self, fault: ChaosFault) {
        match fault {
            ChaosFault::KillProcess(number) => {
                let slot = &mut self.slots[number];
                slot.victim.kill();
                self.history.add(&HistoryRow::new(slot.process, HistoryEvent::Killed));
                self.kills += 1;
                let slot = u8::try_from(number).expect("there are few slots");
                self.slots[number] = self.start_process(slot, WorkerTask::Load);
            }
            ChaosFault::StopProcess(number) => {
                let slot = &mut self.slots[number];
                if slot.goes_on_at.is_none() && slot.victim.ended().is_none() {
                    slot.victim.freeze();
                    self.history.add(&HistoryRow::new(slot.process, HistoryEvent::Stopped));
                    slot.goes_on_at = Some(Instant::now() + STOPPED_FOR);
                }
            }
            ChaosFault::KillServer => {
                self.server.kill_and_restart();
                self.server_kills += 1;
            }
            ChaosFault::CutConnections => self.proxy.cut(),
            ChaosFault::DelayBytes(by) => {
                self.proxy.delay(Direction::Both, by);
                self.heals_at = Some(Instant::now() + SLOW_FOR);
            }
            ChaosFault::HoldReplies => {
                self.proxy.hold(Direction::ToClient);
                self.heals_at = Some(Instant::now() + SLOW_FOR);
            }
            ChaosFault::LoseReply => self.proxy.drop_reply_once(),
        }
    }

    /// Ends the faults whose time is over at `now`.
    fn end_faults(&mut self, now: Instant) {
        if self.heals_at.is_some_and(|end| end <= now) {
            self.proxy.heal();
            self.heals_at = None;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.goes_on_at.is_some_and(|end| end <= now)) {
            slot.victim.thaw();
            slot.goes_on_at = None;
        }
    }

    /// Replaces processes that could not open the store, because the server was killed at that moment.
    fn replace_unopened(&mut self) {
        for number in 0..self.slots.len() {
            let Some(status) = self.slots[number].victim.ended() else { continue };
            assert_eq!(
                status.code(),
                Some(1),
                "SEMEL_SEED={}: a worker ended by itself: {status}",
                self.seed
            );
            let slot = u8::try_from(number).expect("there are few slots");
            self.slots[number] = self.start_process(slot, WorkerTask::Load);
        }
    }

    fn finish(mut self) -> ChaosVerdict {
        self.proxy.heal();
        self.end_faults(Instant::now() + STOPPED_FOR);
        for slot in &mut self.slots {
            slot.victim.close_input();
        }
        for slot in std::mem::take(&mut self.slots) {
            let (said, status) = slot.victim.end();
            let unopened = said.iter().any(|report| matches!(report, VictimReport::NotOpened { .. }));
            assert!(status.success() || unopened, "SEMEL_SEED={}: a worker failed: {status}", self.seed);
        }
        let auditors: Vec<Slot> =
            (0..PROCESSES).map(|slot| self.start_process(slot, WorkerTask::Audit)).collect();
        for auditor in auditors {
            while auditor.victim.hear_within(Duration::from_secs(600)).expect("the audit ends").is_some() {}
            let (_, status) = auditor.victim.end();
            assert!(status.success(), "SEMEL_SEED={}: an auditor failed: {status}", self.seed);
        }
        self.witness.kill();
        println!("{} processes, {} kills of the server", self.processes, self.server_kills);
        let mut checker = ChaosChecker::default();
        for process in 0..=self.processes {
            let path = self.at(&format!("history-{process}"));
            // A process that was killed before it opened the store has written none.
            if path.exists() {
                history::read(&path, |row| checker.row(row)).expect("the history can be read");
            }
        }
        witness::read(&self.at("ledger"), |entry| checker.entry(entry)).expect("the ledger can be read");
        checker.judge()
    }
}
