//! Fifty `kill -9` within a run of 200,000 embedded writes at concurrency 64: nothing acknowledged is lost, nothing
//! unacknowledged is half there.
//!
//! A victim reports a write only after the store acknowledged it, in one line of a pipe, whole or not at all. So a
//! report proves the acknowledgement, and no report proves nothing: the kill may have come between the two. Hence
//! an item stands after the writes that were reported, or after one more, because its caller sends the next write
//! only when it reported the last.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel::store::{EmbeddedStore, Scan, Store as _};
use semel_proof::victim::flood::{Flood, FloodItem, ReportTiming};
use semel_proof::victim::{VictimJob, VictimReport};

use super::supervisor::{Silence, Victim};
use super::{Form, block_on, folder, seed};

/// How many callers write at the same time.
const CALLERS: u32 = 64;
/// Room for the numbers of one victim's items.
const RANGE: u64 = 1 << 32;

#[test]
fn nothing_acknowledged_is_lost_to_kill_nine() {
    let (kills, writes) = Form::asked().pick((5, 20_000), (50, 200_000));
    let folder = folder();
    let mut run = Run::new(folder.path().join("store"), ReportTiming::Kept);
    for kill in 1..=kills {
        run.live_and_die(kill, writes * kill / kills);
        // Now and then a victim finds what the killed one left, and not what a tidy process made of it.
        if run.rng.random_bool(0.7) {
            run.verify(kill).unwrap_or_else(|why| panic!("SEMEL_SEED={}: {why}", run.seed));
        }
    }
    let records = run.verify_all().unwrap_or_else(|why| panic!("SEMEL_SEED={}: {why}", run.seed));
    assert!(run.acknowledged >= writes && run.kills >= kills);
    println!(
        "{} kills in {} acknowledged writes: none lost, none half there, {records} records",
        run.kills, run.acknowledged
    );
}

/// A check that cannot fail proves nothing: victims that report before the store acknowledges are found out.
#[test]
fn a_word_given_too_early_is_noticed() {
    let folder = folder();
    let mut run = Run::new(folder.path().join("store"), ReportTiming::Broken);
    for kill in 1..=10 {
        run.live_and_die(kill, 500 * kill);
        if let Err(why) = run.verify(kill) {
            return println!("noticed after {kill} kills: {why}");
        }
    }
    panic!("SEMEL_SEED={}: ten kills, and nobody noticed", run.seed)
}

/// Kills victims with a fault, ten times at most: what was lost.
#[cfg(feature = "mutants")]
pub(crate) fn flood_with(mutant: Option<&'static str>) -> Result<(), String> {
    let folder = folder();
    let mut run = Run::new(folder.path().join("store"), ReportTiming::Kept);
    run.mutant = mutant;
    (1..=10).try_for_each(|kill| {
        run.live_and_die(kill, 500 * kill);
        run.verify(kill)
    })
}

struct Run {
    store: PathBuf,
    seed: u64,
    rng: StdRng,
    /// What was reported of each item: how many writes, and the fence of its claim.
    items: HashMap<u64, Reported>,
    acknowledged: u64,
    kills: u64,
    word: ReportTiming,
    mutant: Option<&'static str>,
}

#[derive(Clone, Copy, Default)]
struct Reported {
    writes: u32,
    fence: u64,
}

impl Run {
    fn new(store: PathBuf, word: ReportTiming) -> Self {
        let seed = seed();
        let rng = StdRng::seed_from_u64(seed);
        let (items, mutant) = (HashMap::new(), None);
        Self { store, seed, rng, items, acknowledged: 0, kills: 0, word, mutant }
    }

    /// Lets a victim write until `goal` writes were acknowledged in all, and kills it some time later.
    fn live_and_die(&mut self, life: u64, goal: u64) {
        let first = life * RANGE;
        if self.rng.random_bool(0.3) {
            // Killed while it opens, or soon after: what it was about to repair is found by the next one.
            let hasty = self.start(first + RANGE / 2);
            let time = Duration::from_micros(self.rng.random_range(0..40_000));
            self.kill_after(hasty, first + RANGE / 2, time);
        }
        let victim = self.start(first);
        while self.acknowledged < goal {
            let Some(report) = victim.hear() else { panic!("the victim ended by itself in life {life}") };
            self.note([report]);
        }
        let time = Duration::from_micros(self.rng.random_range(0..5_000));
        self.kill_after(victim, first, time);
    }

    fn start(&self, first: u64) -> Victim {
        let (store, seed, word) = (self.store.clone(), self.seed, self.word);
        let flood = Flood { store, seed, first, callers: CALLERS, word };
        Victim::start_with(&VictimJob::Flood(flood), |command| {
            if let Some(mutant) = self.mutant {
                command.env("SEMEL_MUTANT", mutant);
            }
        })
    }

    fn kill_after(&mut self, mut victim: Victim, first: u64, time: Duration) {
        let heard = listen_for(&victim, time);
        let rest = victim.kill();
        self.kills += 1;
        self.note(heard.into_iter().chain(rest));
        // Callers take numbers in turn and finish one before they take the next.
        let highest =
            self.items.keys().copied().filter(|item| (first..first + RANGE / 2).contains(item)).max();
        for number in first..=highest.unwrap_or(first) + u64::from(CALLERS) {
            self.items.entry(number).or_default();
        }
    }

    fn note(&mut self, reports: impl IntoIterator<Item = VictimReport>) {
        for report in reports {
            match report {
                VictimReport::Ready => {}
                VictimReport::Acknowledged { item, write, fence } => {
                    let reported = self.items.entry(item).or_default();
                    assert_eq!(reported.writes + 1, write, "item {item} reports out of order");
                    *reported = Reported { writes: write, fence };
                    self.acknowledged += 1;
                }
                other => panic!("a flood does not say {other:?}"),
            }
        }
    }

    /// Looks at the items of the last life, and at some of all others.
    fn verify(&mut self, life: u64) -> Result<(), String> {
        let store = open(&self.store);
        let mut numbers: Vec<u64> = self.items.keys().copied().filter(|item| item / RANGE == life).collect();
        let others: Vec<u64> = self.items.keys().copied().filter(|item| item / RANGE != life).collect();
        if !others.is_empty() {
            numbers.extend((0..1_000).map(|_| others[self.rng.random_range(0..others.len())]));
        }
        block_on(self.check(&store, &numbers))?;
        drop(store);
        intact(&self.store);
        Ok(())
    }

    /// Looks at everything, and that there is nothing else.
    fn verify_all(&self) -> Result<usize, String> {
        let store = open(&self.store);
        let numbers: Vec<u64> = self.items.keys().copied().collect();
        let there = block_on(async {
            let there = self.check(&store, &numbers).await?;
            let (mut listed, mut after) = (0, None);
            loop {
                let page =
                    store.scan(Scan { phase: None, after, limit: 1_000 }).await.expect("it can be listed");
                listed += page.items.len();
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            if listed == there {
                Ok(there)
            } else {
                Err(format!("{there} records were written, {listed} are there"))
            }
        })?;
        drop(store);
        intact(&self.store);
        Ok(there)
    }

    /// How many of the items are in the store; what is wrong with the first that is not as it must be.
    async fn check(&self, store: &EmbeddedStore, numbers: &[u64]) -> Result<usize, String> {
        let mut there = 0;
        for number in numbers {
            let Reported { writes, fence } = self.items[number];
            let item = FloodItem::of(self.seed, *number);
            let found = store.get(item.id).await.expect("it can be read").map(|found| found.record);
            let one_more = (writes + 1).min(item.writes());
            let whole = [writes, one_more].into_iter().any(|writes| item.is_after(writes, found.as_ref()));
            let fenced = writes == 0 || found.as_ref().is_some_and(|found| found.fence.get() == fence);
            if !whole || !fenced {
                return Err(format!(
                    "item {number}: {writes} writes acknowledged under {fence}, found {found:?}"
                ));
            }
            there += usize::from(found.is_some());
        }
        Ok(there)
    }
}

/// Listens for this time, or until the victim's pipe is empty for that time.
fn listen_for(victim: &Victim, time: Duration) -> Vec<VictimReport> {
    let end = tokio::time::Instant::now() + time;
    let mut heard = Vec::new();
    loop {
        match victim.hear_within(end.saturating_duration_since(tokio::time::Instant::now())) {
            Ok(Some(report)) => heard.push(report),
            Ok(None) => panic!("the victim ended by itself; it said {:?}", heard.last()),
            Err(Silence) => return heard,
        }
        if tokio::time::Instant::now() >= end {
            return heard;
        }
    }
}

fn open(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open(path).unwrap_or_else(|error| panic!("it cannot be opened after a kill: {error}"))
}

/// The file is whole by SQLite's own word: no page lost, every index agrees with its table.
pub(super) fn intact(store: &Path) {
    let connection = rusqlite::Connection::open(store.join("semel.db")).expect("the file is there");
    let verdict: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it can be checked");
    assert_eq!(verdict, "ok");
}
