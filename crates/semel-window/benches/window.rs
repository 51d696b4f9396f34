//! The window against a mutex around an LRU map: CPU per operation, bytes per key, missed repeats.
//!
//! `cargo bench -p semel-window --bench window`, with `-- --check` to fail when a goal is missed. Both sides run in
//! turns on the same keys, both are full from the start, so every new key lets an old one out.
//!
//! The yardstick is an LRU map with the standard library's hasher, which like the window's withstands chosen
//! keys. The same map with the faster hasher that the `lru` crate prefers is measured too, without a goal.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;

use lru::LruCache;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use semel_window::{DEFAULT_CAPACITY, Window, WindowKey};

const CAPACITY: usize = DEFAULT_CAPACITY;
/// Operations of one sample, over all threads.
const OPERATIONS: usize = 1_000_000;
const REPEATS: usize = 9;
/// How far back a repeat reaches, in new keys of its thread: anywhere in the window, or nearly.
const REACH: usize = CAPACITY * 9 / 10;

trait Dedup: Sync {
    fn check_and_record(&self, key: WindowKey) -> bool;
}

impl Dedup for Window {
    fn check_and_record(&self, key: WindowKey) -> bool {
        Window::check_and_record(self, key)
    }
}

/// The yardstick. It peeks, so that like the window it keeps the order of recording.
struct LruWindow<S>(Mutex<LruCache<u128, (), S>>);

impl<S: BuildHasher + Default> LruWindow<S> {
    fn new() -> Self {
        let capacity = NonZeroUsize::new(CAPACITY).expect("the capacity is not zero");
        Self(Mutex::new(LruCache::with_hasher(capacity, S::default())))
    }
}

impl<S: BuildHasher + Send> Dedup for LruWindow<S> {
    fn check_and_record(&self, key: WindowKey) -> bool {
        let mut cache = self.0.lock();
        let new = !cache.contains(&key.as_u128());
        if new {
            cache.put(key.as_u128(), ());
        }
        new
    }
}

/// One thread's operations, and how many of them are repeats.
struct Load {
    keys: Vec<WindowKey>,
    repeats: usize,
}

#[derive(Clone, Copy)]
enum Mix {
    AllNew,
    HalfRepeats,
}

impl Load {
    /// New keys differ between threads; no key comes back as new before the window has forgotten it.
    fn new(mix: Mix, thread: usize, operations: usize) -> Self {
        let mut random = SplitMix(thread as u64 + 1);
        let mut new: Vec<WindowKey> = Vec::new();
        let mut repeats = 0;
        let keys = (0..operations)
            .map(|_| {
                if matches!(mix, Mix::HalfRepeats) && !new.is_empty() && random.next().is_multiple_of(2) {
                    repeats += 1;
                    let back = random.next() as usize % new.len().min(REACH);
                    return new[new.len() - 1 - back];
                }
                let key = WindowKey::from(u128::from(random.next()) << 64 | u128::from(random.next()));
                new.push(key);
                key
            })
            .collect();
        Self { keys, repeats }
    }
}

/// A small generator: the keys must be the same on both sides, not unpredictable.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Runs every load on its own thread; returns nanoseconds of CPU per operation and how many keys were new.
fn run(dedup: &dyn Dedup, loads: &[Load]) -> (f64, usize) {
    let work = |load: &Load| load.keys.iter().filter(|key| dedup.check_and_record(**key)).count();
    let before = cpu_nanos();
    let new: usize = match loads {
        [load] => work(load),
        loads => thread::scope(|scope| {
            let threads: Vec<_> = loads.iter().map(|load| scope.spawn(move || work(load))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the worker does not panic")).sum()
        }),
    };
    let operations: usize = loads.iter().map(|load| load.keys.len()).sum();
    ((cpu_nanos() - before) as f64 / operations as f64, new)
}

fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints one comparison; returns whether the median ratio reaches the goal, if there is one.
fn compare(name: &str, lru: &dyn Dedup, mix: Mix, threads: usize, goal: Option<f64>) -> bool {
    let loads: Vec<_> = (0..threads).map(|thread| Load::new(mix, thread, OPERATIONS / threads)).collect();
    let window = Window::new(CAPACITY).expect("memory for a window");
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..=REPEATS {
        // Who goes first changes, so that neither always finds the caches warmed by the other.
        let (our, their) = if repeat % 2 == 0 {
            (run(&window, &loads).0, run(lru, &loads).0)
        } else {
            let their = run(lru, &loads).0;
            (run(&window, &loads).0, their)
        };
        if repeat > 0 {
            ours.push(our);
            theirs.push(their);
            ratios.push(their / our);
        }
    }
    let ratio = median(&mut ratios);
    let met = goal.is_none_or(|goal| ratio >= goal);
    let goal = goal.map_or("no goal".to_owned(), |goal| format!("goal {goal}x: {}", verdict(met)));
    println!(
        "{name}, {threads} thread(s): window {:.1} ns, Mutex<LruCache> {:.1} ns CPU/op; {ratio:.2}x \
         ({:.2}-{:.2}), {goal}",
        median(&mut ours),
        median(&mut theirs),
        ratios[0],
        ratios[ratios.len() - 1],
    );
    met
}

/// Counts repeats inside the window that were taken for new, and new keys taken for repeats.
fn exactness() -> bool {
    let alone = [Load::new(Mix::HalfRepeats, 7, OPERATIONS)];
    // Two threads may drift apart by any number of keys, so here nothing may leave the window.
    let together = [0, 1].map(|thread| Load::new(Mix::HalfRepeats, thread, CAPACITY / 2));
    let mut wrong = 0;
    for loads in [&alone[..], &together[..]] {
        let window = Window::new(CAPACITY).expect("memory for a window");
        let expected: usize = loads.iter().map(|load| load.keys.len() - load.repeats).sum();
        wrong += run(&window, loads).1.abs_diff(expected);
    }
    println!("missed repeats: {wrong}, goal 0: {}", verdict(wrong == 0));
    wrong == 0
}

/// Bytes by the window's own account, and by what the kernel saw the process grow.
fn memory() -> bool {
    const LIMIT: usize = 4_000_000;
    let load = [Load::new(Mix::AllNew, 3, CAPACITY * 2)];
    let before = resident();
    let window = Window::new(CAPACITY).expect("memory for a window");
    let _ = run(&window, &load);
    let grown = resident().saturating_sub(before);
    let (counted, len) = (window.memory(), window.len());
    let met = counted < LIMIT && grown < LIMIT;
    println!(
        "memory of {len} keys: {counted} bytes counted, {grown} seen by the kernel; {:.1} B a key, goal below {LIMIT}: {}",
        counted as f64 / len as f64,
        verdict(met),
    );
    met
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

fn main() -> ExitCode {
    let yardstick = LruWindow::<RandomState>::new();
    let faster = LruWindow::<lru::DefaultHasher>::new();
    let mut met = vec![memory(), exactness()];
    for (threads, goal) in [(1, 2.0), (2, 2.5)] {
        for (name, mix) in [("half repeats", Mix::HalfRepeats), ("all new", Mix::AllNew)] {
            met.push(compare(name, &yardstick, mix, threads, Some(goal)));
            compare(&format!("{name}, foldhash"), &faster, mix, threads, None);
        }
    }
    let check = std::env::args().any(|argument| argument == "--check");
    if check && met.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
