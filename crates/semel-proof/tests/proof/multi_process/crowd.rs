//! 200 callers in 4 processes want one key: one effect, 200 equal answers, and every waiter woken by a push.
//!
//! No effect ends before every caller waits for it, so that each answer comes through a wake-up. In most rounds nothing
//! but a push can end a wait (see `semel_proof::victim::crowd`); in some the owner's process is killed in its effect.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use semel::Mode;
use semel_proof::grounds::{Servers, StoreKind};
use semel_proof::place::StorePlace;
use semel_proof::victim::crowd::{Crowd, CrowdOrder, Crowded, Deaths};
use semel_proof::victim::witness::{self, EffectTrace};
use semel_proof::victim::{VictimJob, VictimReport};
use tempfile::TempDir;

use crate::crash::supervisor::Victim;
use crate::crash::{Form, folder};

const CALLERS: usize = 200;

struct Stage {
    place: StorePlace,
    witness: PathBuf,
    processes: Vec<Victim>,
    callers_each: usize,
    _folder: TempDir,
}

impl Stage {
    fn new(place: impl FnOnce(&Path) -> StorePlace, processes: usize) -> Self {
        let folder = folder();
        let (place, witness) = (place(folder.path()), folder.path().join("witness"));
        let callers_each = CALLERS / processes;
        let mut stage = Self { place, witness, processes: Vec::new(), callers_each, _folder: folder };
        for _ in 0..processes {
            stage.processes.push(stage.start());
        }
        stage
    }

    fn start(&self) -> Victim {
        let (place, witness) = (self.place.clone(), self.witness.clone());
        let process = Victim::start(&VictimJob::Crowd(Crowd { place, witness, callers: self.callers_each }));
        process.wait_for("it was ready", |report| (*report == VictimReport::Ready).then_some(()));
        process
    }

    /// The traces that effects of a round left.
    fn effects(&self, key: &str) -> Vec<EffectTrace> {
        let rows = witness::rows(&self.witness).expect("the witness can be read");
        rows.into_iter().filter(|row| row.step == key).collect()
    }

    /// Lets everybody call, and returns once everybody waits: the process that stands in the effect.
    fn gather(&mut self, key: &str, mode: Mode, deaths: Deaths) -> usize {
        let order = CrowdOrder::Round { key: key.to_owned(), mode, deaths }.line();
        self.processes.iter_mut().for_each(|process| process.tell(&order));
        let in_effect = self.processes.iter().map(|process| {
            process.wait_for("everybody waited", |report| match report {
                VictimReport::AllWait { in_effect } => Some(*in_effect),
                _ => None,
            })
        });
        let owners: Vec<usize> =
            in_effect.enumerate().filter_map(|(number, in_effect)| in_effect.then_some(number)).collect();
        assert_eq!(owners.len(), 1, "one process runs the effect: {owners:?}");
        owners[0]
    }

    /// Lets effects end, and hears what came of it in each process.
    fn go(&mut self) -> Vec<Crowded> {
        self.processes.iter_mut().for_each(|process| process.tell(&CrowdOrder::Go.line()));
        let hear = |process: &Victim| {
            process.wait_for("everybody was answered", |report| match report {
                VictimReport::Crowded(crowded) => Some(crowded.clone()),
                _ => None,
            })
        };
        self.processes.iter().map(hear).collect()
    }

    /// A round in which nobody dies.
    fn play(&mut self, key: &str, mode: Mode) {
        self.gather(key, mode, Deaths::None);
        let ended = self.go();
        let answers = answers(&ended);
        assert_eq!(answers.len(), 1, "{key}: all answers are equal: {answers:?}");
        assert_eq!(answers.values().sum::<usize>(), CALLERS, "{key}: everybody is answered");
        assert!(answers.keys().all(|answer| answer.starts_with("receipt ")), "{key}: {answers:?}");
        assert_eq!(self.effects(key).len(), 1, "{key}: one effect");
        assert_eq!(ended.iter().map(|crowded| crowded.won).sum::<u64>(), 1, "{key}: one owner: {ended:?}");
        let waited: u64 = ended.iter().map(|crowded| crowded.waited).sum();
        assert_eq!(waited, CALLERS as u64 - 1, "{key}: all others waited: {ended:?}");
        for crowded in &ended {
            // Nobody asks unless woken. One push can come several times (the tiered store has two ways), and each may be
            // followed by a question; a crowd in which everybody asked would be far above this.
            assert!((1..=10).contains(&crowded.asked), "{key}: woken, and nobody polls: {crowded:?}");
        }
    }

    /// A round in which the owner's process is killed in the effect.
    fn play_with_a_death(&mut self, key: &str, mode: Mode) {
        let owner = self.gather(key, mode, Deaths::Owner);
        let mut dead = self.processes.remove(owner);
        dead.kill();
        assert_eq!(self.effects(key).len(), 1, "{key}: the effect had happened when its process was killed");
        let ended = self.go();
        let answers = answers(&ended);
        assert_eq!(
            answers.values().sum::<usize>(),
            CALLERS - self.callers_each,
            "{key}: every survivor is answered"
        );
        assert_eq!(answers.len(), 1, "{key}: all answers are equal: {answers:?}");
        let (answer, effects) = (answers.keys().next().cloned().unwrap_or_default(), self.effects(key));
        assert_eq!(effects.len(), 1, "{key}: one effect, at a receiver that honours keys too: {effects:?}");
        match mode {
            // Taken over, and the outcome of the one effect recovered by asking again.
            Mode::Keyed => assert_eq!(answer, format!("receipt {}", effects[0].fence), "{key}"),
            // Nobody knows, and nobody runs it again.
            Mode::Marked | Mode::Atomic | Mode::Rerun => {
                assert!(answer.starts_with("no: it is unknown whether"), "{key}: {answer}");
            }
        }
        self.processes.push(self.start());
    }
}

fn answers(ended: &[Crowded]) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for (answer, count) in ended.iter().flat_map(|crowded| &crowded.answers) {
        *all.entry(answer.clone()).or_default() += count;
    }
    all
}

/// Several processes on a store that they share.
fn together(ground: StoreKind) {
    let servers = Servers::default();
    let place = servers.place(ground).expect("the server starts").expect("the store can be shared");
    let mut stage = Stage::new(|_| place, 4);
    let rounds = Form::asked().pick(3, 100);
    for round in 0..rounds {
        let mode = [Mode::Marked, Mode::Keyed, Mode::Rerun][round % 3];
        stage.play(&format!("round {round}"), mode);
    }
    for death in 0..Form::asked().pick(1, 10) {
        stage.play_with_a_death(&format!("death {death}, marked"), Mode::Marked);
        stage.play_with_a_death(&format!("death {death}, keyed"), Mode::Keyed);
    }
    println!("{rounds} rounds of {CALLERS} callers in 4 processes on {}", ground.name());
}

/// One process with all callers, on a store that has one opener.
fn alone(place: impl FnOnce(&Path) -> StorePlace) {
    let mut stage = Stage::new(place, 1);
    for round in 0..Form::asked().pick(3, 100) {
        stage.play(&format!("round {round}"), [Mode::Marked, Mode::Keyed, Mode::Rerun][round % 3]);
    }
}

#[test]
fn redis() {
    together(StoreKind::Redis);
}

#[test]
fn redis_cluster() {
    together(StoreKind::RedisCluster);
}

#[test]
fn postgres() {
    together(StoreKind::Postgres);
}

#[test]
fn tiered() {
    together(StoreKind::Tiered);
}

#[test]
fn memory() {
    alone(|_| StorePlace::Memory);
}

#[test]
fn embedded() {
    alone(|folder| StorePlace::Embedded(folder.join("store")));
}
