//! A power cut at any moment leaves the acknowledged prefix: for any subset of the writes that were not synced, whole
//! or torn.
//!
//! A victim executes a script, and every write, sync and rename below it is logged in one order together with its
//! reports. From that log come images of the disk as a power cut may leave them. Each is opened, and must hold what
//! the rules make of the steps that were answered before the cut, to the last byte, or of one step more: the one
//! that was in progress.

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel::record::Ruling;
use semel::store::{EmbeddedStore, Store as _};
use semel::time::ManualClock;
use semel_proof::victim::script::{ScriptStep, World, ask_again, finished_key, script};
use semel_proof::victim::steady::{Steady, WhenFull};
use semel_proof::victim::{VictimJob, VictimReport};
use tempfile::TempDir;

use super::disk::{Cut, Disk, Event, read_log};
use super::kill_nine::intact;
use super::shim::Shim;
use super::supervisor::Victim;
use super::{Form, block_on, fast_folder, seed};

/// Steps of a run.
const STEPS: usize = 300;

/// A moment of a run: what is on the disk, and what is about to happen.
#[derive(Clone, Copy)]
struct Moment<'a> {
    number: usize,
    disk: &'a Disk,
    event: &'a Event,
}

/// A run that was logged.
struct Recording {
    folder: TempDir,
    store: PathBuf,
    seed: u64,
    events: Vec<Event>,
    steps: Vec<ScriptStep>,
    /// The world after each number of steps.
    worlds: Vec<World>,
}

impl Recording {
    fn make() -> Self {
        let seed = seed();
        let folder = fast_folder();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).expect("a folder for the victim");
        let shim = Shim::build(folder.path(), &disk);
        let store = disk.join("store");
        let log = folder.path().join("log");
        let when_full = WhenFull::GoOn;
        let job = Steady { store: store.clone(), seed, steps: STEPS, reopen_at: Some(STEPS / 2), when_full };
        let victim =
            Victim::start_with(&VictimJob::Steady(job), |command| shim.below(command, None, Some(&log)));
        let (said, status) = victim.end();
        assert!(status.success(), "SEMEL_SEED={seed}: {said:?}");

        let steps = script(seed, STEPS);
        let mut worlds = vec![World::default()];
        for (number, step) in steps.iter().enumerate() {
            let mut world = worlds[number].clone();
            let answer = world.execute(step);
            assert!(
                said.contains(&VictimReport::Answered { step: number, answer: answer.clone() }),
                "SEMEL_SEED={seed}: step {number} was to be answered {answer}"
            );
            worlds.push(world);
        }
        Self { store, seed, events: read_log(&log), steps, worlds, folder }
    }

    /// Walks through the log. Before each event `choose` says which cuts to try. Returns how many were tried.
    fn walk(&self, mut choose: impl FnMut(Moment<'_>, &mut StdRng) -> Vec<Cut>) -> Result<usize, String> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut disk = Disk::default();
        let (mut answered, mut tried) = (0, 0);
        for (number, event) in self.events.iter().enumerate() {
            for cut in choose(Moment { number, disk: &disk, event }, &mut rng) {
                let image = disk.after(cut, &self.store, &mut rng);
                self.check(image, answered).map_err(|why| {
                    format!("SEMEL_SEED={}: {cut:?} before event {number}: {why}", self.seed)
                })?;
                tried += 1;
            }
            if let Event::LeaseResult(line) = event
                && let Ok(VictimReport::Answered { .. }) = serde_json::from_str(line)
            {
                answered += 1;
            }
            disk.happen(event, &mut rng);
        }
        assert_eq!(answered, STEPS, "the log holds every answer");
        Ok(tried)
    }

    /// Opens an image and compares it with what must be there once `answered` steps were.
    fn check(&self, image: Vec<(PathBuf, Vec<u8>)>, answered: usize) -> Result<(), String> {
        let now = self.steps[answered.min(STEPS - 1)].at;
        let one_more = (answered + 1).min(STEPS);
        check_image(self.folder.path(), image, now, &self.worlds[answered..=one_more])
    }
}

/// Writes an image down, opens it, and compares it with each of the worlds it may hold.
pub(super) fn check_image(
    folder: &Path,
    image: Vec<(PathBuf, Vec<u8>)>,
    now: semel::time::Timestamp,
    worlds: &[World],
) -> Result<(), String> {
    let place = tempfile::tempdir_in(folder).expect("a folder for the image");
    for (path, bytes) in image {
        let name = path.file_name().expect("a file has a name");
        std::fs::write(place.path().join(name), bytes).expect("the image can be written");
    }
    let clock = ManualClock::at(now);
    let store = EmbeddedStore::builder(place.path())
        .clock(clock)
        .open()
        .map_err(|error| format!("it cannot be opened: {error}"))?;
    block_on(async {
        let found = World::read(&store).await.map_err(|error| format!("it cannot be read: {error}"))?;
        if !worlds.iter().any(|world| world.looks_like(&found)) {
            let all: Vec<_> = worlds.iter().map(|world| world.differences(&found)).collect();
            return Err(format!("it holds something else: {all:#?}"));
        }
        // And it goes on from there.
        let ruling = match worlds.first().and_then(|world| world.record(finished_key())) {
            Some(_) => store.apply(finished_key(), ask_again()).await,
            None => store.apply(semel::key::KeyId::from_bytes([7; 16]), ask_again()).await,
        };
        match ruling {
            Ok(Ruling::Won(_) | Ruling::Replay { .. } | Ruling::Busy { .. } | Ruling::InDoubt) => Ok(()),
            other => Err(format!("it does not go on: {other:?}")),
        }
    })?;
    drop(store);
    intact(place.path());
    Ok(())
}

/// Every sync boundary, each with every kind of cut; between them a cut now and then.
#[test]
fn power_cut() {
    let recording = Recording::make();
    let (at_sync, elsewhere) = Form::asked().pick((0.2, 0.02), (1.0, 0.5));
    let tried = recording.walk(|Moment { event, .. }, rng| match event {
        Event::Sync(_) if rng.random_bool(at_sync) => Cut::ALL.to_vec(),
        _ if rng.random_bool(elsewhere) => vec![Cut::ALL[rng.random_range(0..Cut::ALL.len())]],
        _ => Vec::new(),
    });
    let tried = tried.unwrap_or_else(|why| panic!("{why}"));
    println!("{} events, {tried} power cuts: each left the acknowledged prefix", recording.events.len());
}

/// The log ends in the middle of a commit: cut at every byte of its last 4 KiB, it is dropped as a whole.
#[test]
fn torn_write() {
    let recording = Recording::make();
    let step = Form::asked().pick(31, 1);
    // The commit of the last step that wrote something.
    let is_answer = |event: &Event| matches!(event, Event::LeaseResult(line) if line.contains("Answered"));
    let is_commit = |event: &Event| matches!(event, Event::Sync(path) if path.ends_with("semel.db-wal"));
    let last_answer = recording.events.iter().rposition(is_answer).expect("it said something");
    let last = recording.events[..last_answer].iter().rposition(is_commit).expect("it committed something");
    let tried = recording.walk(|Moment { number, .. }, _| {
        if number == last { (0..=4096).step_by(step).map(Cut::WithoutLast).collect() } else { Vec::new() }
    });
    println!("cut at {} bytes of the last commit", tried.unwrap_or_else(|why| panic!("{why}")));
}

/// The file comes to be under another name and is renamed. Whatever a power cut leaves of names and bytes until that
/// is synced, the store is there or it is not, and never half made.
#[test]
fn rename_without_dirsync() {
    let recording = Recording::make();
    let often = Form::asked().pick(1, 20);
    let mut renames = 0;
    let tried = recording.walk(|Moment { disk, event, .. }, _| {
        renames += usize::from(matches!(event, Event::Rename(..)));
        if disk.has_unsynced_names() { Cut::ALL.repeat(often) } else { Vec::new() }
    });
    assert!(renames > 0, "there is a rename to be cut");
    println!("{} power cuts while names were not synced", tried.unwrap_or_else(|why| panic!("{why}")));
}

/// There is no compaction that rewrites the file. What comes nearest is moving the log into the file (checkpoint) and
/// giving pages back: cut while the file itself has changes that are not synced.
#[test]
fn compaction_crash() {
    let recording = Recording::make();
    let often = Form::asked().pick(0.1, 1.0);
    let mut syncs = 0;
    let tried = recording.walk(|Moment { disk, event, .. }, rng| {
        if !disk.is_unsynced("semel.db") {
            return Vec::new();
        }
        let sync = matches!(event, Event::Sync(path) if path.ends_with("semel.db"));
        syncs += usize::from(sync);
        if sync || rng.random_bool(often) { Cut::ALL.to_vec() } else { Vec::new() }
    });
    let tried = tried.unwrap_or_else(|why| panic!("{why}"));
    // Once at the reopening, once at the end; and the file was made before.
    assert!(syncs >= 2, "the log was moved");
    println!("{tried} power cuts while the log was moved into the file, {syncs} times");
}

/// A check that cannot fail proves nothing: a disk that says it synced and did not is found out.
#[test]
fn a_disk_that_lies_is_noticed() {
    let mut recording = Recording::make();
    // Names are there, bytes are not.
    recording.events.retain(|event| !matches!(event, Event::Sync(path) if path.ends_with("semel.db-wal")));
    let noticed =
        recording.walk(|_, rng| if rng.random_bool(0.01) { vec![Cut::SomeWrites] } else { Vec::new() });
    let why = noticed.expect_err("lost acknowledgements are noticed");
    println!("noticed: {}", why.lines().next().unwrap_or_default());
}
