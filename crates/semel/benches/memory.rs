//! The memory store against a bare sharded map: CPU time of claim + complete + replay, and the ratio.
//!
//! `cargo bench -p semel --bench memory`, with `-- --check` to fail when the goal is missed. Both sides run in turns,
//! on the same fresh ids, with a token and an outcome of its own for every call. The bare map does the least that could
//! be called the same: insert fingerprint and token if absent, put the outcome in their place, read it back. It knows no
//! lease, no time, no fence and no mode.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, NewClaim, Owner, Ruling, Terms};
use semel::store::{MemoryStore, Store};
use semel::time::{Clock, SystemClock, Timestamp};

const KEYS: usize = 1_000_000;
const REPEATS: usize = 5;
const GOAL: f64 = 1.5;

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let clock = MovedClock::default();
    let (store, map) = (MemoryStore::with_clock(clock.clone()), bare_map());
    let mut samples = Vec::new();
    // The first round warms up: from then on both sides work in memory that they hold already.
    for round in 0..=REPEATS {
        let ids: Vec<KeyId> = (0..KEYS).map(|_| KeyId::from_bytes(rand::random())).collect();
        // Made by the effect, not by the store: outside the measurement, and each used once.
        let outcomes: Vec<Arc<Outcome>> = ids.iter().map(|_| outcome()).collect();
        // In turns, so that neither always finds the memory as the other left it.
        let sample = if round % 2 == 0 {
            let ours = on_store(&store, &ids, &outcomes);
            (ours, on_map(&map, &ids, &outcomes))
        } else {
            let bare = on_map(&map, &ids, &outcomes);
            (on_store(&store, &ids, &outcomes), bare)
        };
        if round > 0 {
            samples.push(sample);
        }
        empty(&store, &clock);
        map.iter().for_each(|shard| shard.lock().clear());
    }
    samples.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let ratio = |(ours, bare): (f64, f64)| ours / bare;
    let (ours, bare) = samples[REPEATS / 2];
    let met = ratio((ours, bare)) <= GOAL;
    println!("claim + complete + replay, {KEYS} keys, one thread, CPU time");
    println!("  memory store     {ours:6.0} ns");
    println!("  bare sharded map {bare:6.0} ns");
    println!(
        "  ratio            {:6.2}  (spread {:.2} to {:.2}; goal at most {GOAL}: {})",
        ours / bare,
        ratio(samples[0]),
        ratio(samples[REPEATS - 1]),
        if met { "met" } else { "missed" },
    );
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The system's clock, moved on between the rounds so that everything is over and can be swept.
#[derive(Clone, Debug, Default)]
struct MovedClock(Arc<AtomicU64>);

impl MovedClock {
    fn moved(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        SystemClock.now().after(self.moved())
    }

    fn now_coarse(&self) -> Timestamp {
        SystemClock.now_coarse().after(self.moved())
    }
}

fn empty(store: &MemoryStore, clock: &MovedClock) {
    clock.0.fetch_add(7 * 24 * 60 * 60, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
    let swept = runtime.block_on(store.sweep(usize::MAX)).expect("memory does not fail");
    assert_eq!(swept.removed, KEYS);
}

/// CPU time of this process, in nanoseconds.
fn cpu() -> i64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn per_key(work: impl FnOnce()) -> f64 {
    let before = cpu();
    work();
    (cpu() - before) as f64 / KEYS as f64
}

fn on_store(store: &MemoryStore, ids: &[KeyId], outcomes: &[Arc<Outcome>]) -> f64 {
    let fingerprint = Fingerprint::from_bytes([7; 32]);
    let terms = Arc::new(Terms::default());
    let hint = Hint::new("order-42");
    let claim = || {
        let (terms, hint) = (Arc::clone(&terms), hint.clone());
        Command::Claim(NewClaim { owner: Owner::random(), fingerprint, terms, begin: Begin::WithClaim, hint })
    };
    per_key(|| {
        for (id, outcome) in ids.iter().zip(outcomes) {
            let outcome = Arc::clone(outcome);
            let Ruling::Won(win) = store.apply_now(*id, &claim()) else { panic!("a fresh key is won") };
            let complete = Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
            let _ = black_box(store.apply_now(*id, &complete));
            assert!(matches!(black_box(store.apply_now(*id, &claim())), Ruling::Replay { .. }));
        }
    })
}

/// What an effect leaves behind: a body of its own for every key.
fn outcome() -> Arc<Outcome> {
    Arc::new(Outcome::new("json", [b'x'; 200]))
}

#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(tail) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*tail);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

enum Entry {
    Claimed(Fingerprint, Owner),
    Done(Fingerprint, Arc<Outcome>),
}

type Shard = HashMap<KeyId, Entry, BuildHasherDefault<AsIs>>;

fn bare_map() -> Vec<Mutex<Shard>> {
    (0..256).map(|_| Mutex::default()).collect()
}

fn on_map(shards: &[Mutex<Shard>], ids: &[KeyId], outcomes: &[Arc<Outcome>]) -> f64 {
    let shard = |id: &KeyId| shards[usize::from(id.as_bytes()[0])].lock();
    let fingerprint = Fingerprint::from_bytes([7; 32]);
    per_key(|| {
        for (id, outcome) in ids.iter().zip(outcomes) {
            let owner = Owner::random();
            claim(&mut shard(id), id, fingerprint, owner);
            match shard(id).get_mut(id) {
                Some(entry) if matches!(&*entry, Entry::Claimed(of, by) if *by == owner && *of == fingerprint) =>
                {
                    *entry = Entry::Done(fingerprint, Arc::clone(outcome));
                }
                _ => panic!("it was claimed"),
            }
            let replayed = claim(&mut shard(id), id, fingerprint, Owner::random());
            assert!(black_box(replayed).is_some());
        }
    })
}

/// Insert if absent, as everybody writes it by hand: the outcome if there is one.
fn claim(shard: &mut Shard, id: &KeyId, fingerprint: Fingerprint, owner: Owner) -> Option<Arc<Outcome>> {
    match shard.entry(*id).or_insert(Entry::Claimed(fingerprint, owner)) {
        Entry::Done(of, outcome) if *of == fingerprint => Some(Arc::clone(outcome)),
        Entry::Done(..) | Entry::Claimed(..) => None,
    }
}
