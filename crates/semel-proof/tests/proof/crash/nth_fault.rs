//! Failing the Nth write or sync for every N in a 300-operation run: no false acknowledgement.
//!
//! A victim executes a script over a disk that fails once (or for a while, or tears a write and takes the process
//! with it), and reports every answer. The store is then opened over a sound disk and must hold exactly what was
//! answered: a step that was refused left nothing, one whose fate was called unknown left all or nothing.

use std::path::PathBuf;
use std::process::ExitStatus;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel_proof::victim::script::{ScriptStep, World, script};
use semel_proof::victim::steady::{Steady, WhenFull};
use semel_proof::victim::{VictimJob, VictimReport};
use tempfile::TempDir;

use super::disk::{Cut, Disk, Event, read_log};
use super::power_cut::check_image;
use super::shim::{Failure, Shim};
use super::supervisor::Victim;
use super::{Form, fast_folder, seed};

/// Steps of a run.
const STEPS: usize = 300;

/// A place to run the same script over again.
struct Bench {
    folder: TempDir,
    shim: Shim,
    seed: u64,
    steps: Vec<ScriptStep>,
    form: Form,
}

/// What a victim said, and how it ended.
struct Run {
    reports: Vec<VictimReport>,
    status: ExitStatus,
    place: TempDir,
}

impl Bench {
    fn new() -> Self {
        let seed = seed();
        let folder = fast_folder();
        let shim = Shim::build(folder.path(), folder.path());
        Self { shim, seed, steps: script(seed, STEPS), form: Form::asked(), folder }
    }

    fn run(&self, failure: Option<Failure>, when_full: WhenFull) -> Run {
        let place = tempfile::tempdir_in(self.folder.path()).expect("a folder for the victim");
        let store = place.path().join("store");
        let log = place.path().join("log");
        let job = Steady { store, seed: self.seed, steps: STEPS, reopen_at: Some(STEPS / 2), when_full };
        // Only where syncs are lost does it matter what was synced.
        let log = matches!(failure, Some(Failure::Sync(_))).then_some(log);
        let prepare = |command: &mut _| self.shim.below(command, failure, log.as_deref());
        let (reports, status) = Victim::start_with(&VictimJob::Steady(job), prepare).end();
        Run { reports, status, place }
    }

    /// How many writes and syncs a run has that meets no fault.
    fn calls(&self) -> (u64, u64) {
        let run = self.run(None, WhenFull::GoOn);
        assert!(run.status.success(), "SEMEL_SEED={}: {:?}", self.seed, run.reports.last());
        self.holds_what_was_answered(&run).unwrap_or_else(|why| panic!("SEMEL_SEED={}: {why}", self.seed));
        let calls = run.reports.iter().find_map(|report| match report {
            VictimReport::Calls { writes, syncs } => Some((*writes, *syncs)),
            _ => None,
        });
        calls.expect("the shim counts")
    }

    /// Tries every number up to `last`, or some of them, the first and the last among them.
    fn every(&self, last: u64, some: u64, check: impl Fn(u64) -> Result<(), String>) -> usize {
        let numbers: Vec<u64> = match self.form {
            Form::Full => (1..=last).collect(),
            Form::Short => {
                let mut rng = StdRng::seed_from_u64(self.seed);
                let spread = (0..some).map(|part| {
                    let (low, high) = (last * part / some, last * (part + 1) / some);
                    1 + rng.random_range(low..high.max(low + 1))
                });
                [1, last].into_iter().chain(spread).collect()
            }
        };
        for number in &numbers {
            check(*number).unwrap_or_else(|why| panic!("SEMEL_SEED={}, call {number}: {why}", self.seed));
        }
        numbers.len()
    }

    /// The worlds that fit what was said: each answer is what the rules say, a refused step changed nothing.
    fn worlds(&self, reports: &[VictimReport]) -> Result<Vec<World>, String> {
        let mut worlds = vec![World::default()];
        let with = |worlds: &[World], step: &ScriptStep| -> Vec<World> {
            let applied = worlds.iter().map(|world| {
                let mut world = world.clone();
                world.execute(step);
                world
            });
            worlds.iter().cloned().chain(applied).collect()
        };
        let mut next = 0;
        for report in reports {
            match report {
                VictimReport::Answered { step, answer } => {
                    worlds.retain_mut(|world| world.execute(&self.steps[*step]) == *answer);
                    if worlds.is_empty() {
                        return Err(format!(
                            "step {step} was answered {answer}, which is not what the rules say"
                        ));
                    }
                    next = step + 1;
                }
                VictimReport::Refused { step, kind } => {
                    if kind == "Ambiguous" {
                        worlds = with(&worlds, &self.steps[*step]);
                    }
                    next = step + 1;
                }
                _ => {}
            }
        }
        // A process that ended early was in the middle of one step.
        match self.steps.get(next) {
            Some(step) => Ok(with(&worlds, step)),
            None => Ok(worlds),
        }
    }

    /// Opens what a run left, over a sound disk.
    fn holds_what_was_answered(&self, run: &Run) -> Result<(), String> {
        let files = std::fs::read_dir(run.place.path().join("store"));
        let image: Vec<(PathBuf, Vec<u8>)> = files
            .into_iter()
            .flatten()
            .map(|file| file.expect("the folder can be read").path())
            .map(|path| (path.clone(), std::fs::read(path).expect("the file can be read")))
            .collect();
        self.image_holds(&run.reports, image)
    }

    /// The same, for the disk of which the failed sync took some bytes for good, and a power cut the rest: at the
    /// end, before a later sync of the folder can help, and at some moments in between.
    fn holds_it_after_a_lost_sync(&self, run: &Run) -> Result<(), String> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut disk = Disk::default();
        let mut said = Vec::new();
        let store = run.place.path().join("store");
        let events = read_log(&run.place.path().join("log"));
        let failed = events.iter().position(|event| matches!(event, Event::FailedSync(_)));
        let failed = failed.expect("the log tells of the fault");
        for (number, event) in events.iter().enumerate() {
            let naming = matches!(event, Event::Sync(path) if *path == store);
            if number > failed && (naming || rng.random_range(0..events.len() - failed) == 0) {
                let image = disk.after(Cut::Nothing, &store, &mut rng);
                self.image_holds(&said, image).map_err(|why| {
                    format!("the failed sync is event {failed}, a power cut before {number}: {why}")
                })?;
            }
            if let Event::LeaseResult(line) = event {
                said.push(serde_json::from_str(line).expect("a report"));
            }
            disk.happen(event, &mut rng);
        }
        self.image_holds(&said, disk.after(Cut::Nothing, &store, &mut rng))
            .map_err(|why| format!("where the failed sync lost its bytes: {why}"))
    }

    fn image_holds(&self, reports: &[VictimReport], image: Vec<(PathBuf, Vec<u8>)>) -> Result<(), String> {
        let worlds = self.worlds(reports)?;
        check_image(self.folder.path(), image, self.steps[STEPS - 1].at, &worlds)
            .map_err(|why| format!("{why}\nafter {:?}", tail(reports)))
    }
}

/// What was said around the fault.
fn tail(reports: &[VictimReport]) -> Vec<&VictimReport> {
    let fault = reports.iter().position(|report| matches!(report, VictimReport::Fault { .. }));
    let start = fault.unwrap_or(reports.len()).saturating_sub(3);
    reports[start..].iter().take(12).collect()
}

/// Where the fault hit, in what was said; none where it did not.
fn fault(reports: &[VictimReport]) -> Option<usize> {
    reports.iter().position(|report| matches!(report, VictimReport::Fault { .. }))
}

/// A write that fails is never acknowledged, whatever it belonged to.
#[test]
fn failed_write() {
    let bench = Bench::new();
    let (writes, _) = bench.calls();
    let tried = bench.every(writes, 60, |call| {
        let run = bench.run(Some(Failure::Write(call)), WhenFull::GoOn);
        if fault(&run.reports).is_none() {
            return Err(format!("the fault did not hit: {:?}", tail(&run.reports)));
        }
        bench.holds_what_was_answered(&run)
    });
    println!("{tried} of {writes} writes failed, one a run: no false acknowledgement");
}

/// A failed sync poisons: nothing is acknowledged after it, and nothing that was acknowledged depends on it.
#[test]
fn fsync_error() {
    let bench = Bench::new();
    let (_, syncs) = bench.calls();
    let tried = bench.every(syncs, 60, |call| {
        let run = bench.run(Some(Failure::Sync(call)), WhenFull::GoOn);
        let Some(hit) = fault(&run.reports) else {
            return Err(format!("the fault did not hit: {:?}", tail(&run.reports)));
        };
        // A step that was on disk before may still be on its way to be answered; a store that was opened again after a
        // failure at its close has looked at the files afresh. And SQLite does not look at how the sync of its folder
        // ended: then nothing that is answered may depend on a name in it.
        let of_folder = matches!(&run.reports[hit], VictimReport::Fault { file, .. } if file == "store");
        let same_store = run.reports[hit..].iter().take_while(|report| **report != VictimReport::Ready);
        let answered = same_store.filter(|report| matches!(report, VictimReport::Answered { .. })).count();
        if answered > 1 && !of_folder {
            return Err(format!(
                "{answered} steps were answered after a failed sync: {:?}",
                tail(&run.reports)
            ));
        }
        bench.holds_what_was_answered(&run)?;
        bench.holds_it_after_a_lost_sync(&run)
    });
    println!(
        "{tried} of {syncs} syncs failed, one a run: nothing acknowledged after it, nothing lost with it"
    );
}

/// A failed sync, a restart without a look at the disk, and a power cut while the files are being repaired. What the
/// failed sync lost is still to be seen in memory, and must not be built upon before it is on disk.
#[test]
fn restart_after_a_failed_sync() {
    let bench = Bench::new();
    let (_, syncs) = bench.calls();
    let cuts = std::cell::Cell::new(0);
    let tried = bench.every(syncs, 20, |call| {
        let run = bench.run(Some(Failure::Sync(call)), WhenFull::GoOn);
        let (store, log) = (run.place.path().join("store"), run.place.path().join("log"));
        let before = read_log(&log).len();
        let hold = VictimJob::Hold { store: store.clone() };
        let mut next = Victim::start_with(&hold, |command| bench.shim.below(command, None, Some(&log)));
        next.wait_for("it opened", |report| (*report == VictimReport::Ready).then_some(()));
        next.kill();

        let mut rng = StdRng::seed_from_u64(bench.seed);
        let mut disk = Disk::default();
        for (number, event) in read_log(&log).iter().enumerate() {
            if number > before && rng.random_bool(bench.form.pick(0.2, 0.5)) {
                let cut = Cut::ALL[rng.random_range(0..Cut::ALL.len())];
                let image = disk.after(cut, &store, &mut rng);
                bench.image_holds(&run.reports, image).map_err(|why| {
                    format!("{cut:?} before event {number}, {} after the restart: {why}", number - before)
                })?;
                cuts.set(cuts.get() + 1);
            }
            disk.happen(event, &mut rng);
        }
        Ok(())
    });
    println!("{tried} of {syncs} syncs failed; {} power cuts while the next process opened", cuts.get());
}

/// A write that is torn by the end of the process: whatever part of it is there, it is dropped as a whole.
#[test]
fn torn_write_and_exit() {
    let bench = Bench::new();
    let (writes, _) = bench.calls();
    let tried = bench.every(writes, 60, |call| {
        let thousandths = [0, 1, 125, 500, 875, 999, 1000][(call % 7) as usize];
        let run = bench.run(Some(Failure::Torn { write: call, thousandths }), WhenFull::GoOn);
        if run.status.code() != Some(86) {
            return Err(format!("it was not torn: {:?}", tail(&run.reports)));
        }
        bench.holds_what_was_answered(&run)
    });
    println!("{tried} of {writes} writes torn, one a run: the tail was dropped, the rest is there");
}

/// No room for a while: refused with nothing changed, replays served meanwhile, and all goes on once there is room.
#[test]
fn disk_full() {
    let bench = Bench::new();
    let (writes, _) = bench.calls();
    let tried = bench.every(writes, 60, |from| {
        let count = 1 + from % 23;
        let run = bench.run(Some(Failure::NoRoom { from, count }), WhenFull::Insist);
        let replays = run.reports.iter().filter_map(|report| match report {
            VictimReport::Replayed { answer } => Some(answer),
            _ => None,
        });
        if let Some(answer) = replays.clone().find(|answer| !answer.starts_with("Ok(Replay")) {
            return Err(format!("a replay was answered {answer} while there was no room"));
        }
        let mut answered =
            run.reports.iter().filter(|report| matches!(report, VictimReport::Answered { .. }));
        let (healed, last) = (answered.clone().count(), answered.next_back());
        if healed != STEPS || !run.status.success() {
            return Err(format!(
                "only {healed} steps were answered, the last {last:?}: {:?}",
                tail(&run.reports)
            ));
        }
        bench.holds_what_was_answered(&run)
    });
    println!("{tried} of {writes} writes found no room for a while: refused, replays served, healed");
}
