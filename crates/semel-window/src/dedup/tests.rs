use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;

use super::*;

fn key(n: u64) -> WindowKey {
    WindowKey::from(u128::from(n))
}

/// The window as its documentation says it, with no thought for speed.
struct Model {
    capacity: usize,
    order: VecDeque<WindowKey>,
    held: HashSet<WindowKey>,
}

impl Model {
    fn new(capacity: usize) -> Self {
        Self { capacity, order: VecDeque::new(), held: HashSet::new() }
    }

    fn check_and_record(&mut self, key: WindowKey) -> bool {
        let new = self.held.insert(key);
        if new {
            self.order.push_back(key);
        }
        if self.order.len() > self.capacity {
            let oldest = self.order.pop_front().unwrap();
            self.held.remove(&oldest);
        }
        new
    }

    fn forget(&mut self, key: WindowKey) -> ForgetResult {
        self.order.retain(|held| *held != key);
        if self.held.remove(&key) { ForgetResult::TakenBack } else { ForgetResult::NotHeld }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Record(u64),
    Forget(u64),
    /// Forgets the entry that was recorded this number of steps ago: hits more often than a number at random.
    ForgetRecent(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..60).prop_map(Step::Record),
        1 => (0_u64..60).prop_map(Step::Forget),
        2 => (0_usize..30).prop_map(Step::ForgetRecent),
    ];
    prop::collection::vec(step, 0..600)
}

/// A seed under which every key below 2^64 has the same home and the same tag.
fn blind() -> Seed {
    Seed::known([0; 6])
}

proptest! {
    // Whatever is recorded and forgotten, the window answers like the model and holds what it holds,
    // with a good seed and with one that sends every key the same way.
    #[test]
    fn the_window_is_the_model(capacity in 1_usize..40, seeing in any::<bool>(), steps in steps()) {
        let seed = if seeing { Seed::random() } else { blind() };
        let window = Window::with_seed(capacity, seed).unwrap();
        let mut model = Model::new(capacity);
        for step in steps {
            match step {
                Step::Record(n) => {
                    prop_assert_eq!(window.check_and_record(key(n)), model.check_and_record(key(n)));
                }
                Step::Forget(n) => prop_assert_eq!(window.forget(key(n)), model.forget(key(n))),
                Step::ForgetRecent(ago) => {
                    let recent = model.order.iter().rev().nth(ago).copied();
                    if let Some(key) = recent {
                        prop_assert_eq!(window.forget(key), model.forget(key));
                    }
                }
            }
            prop_assert_eq!(window.len(), model.order.len());
        }
        for n in 0..60 {
            prop_assert_eq!(window.contains(key(n)), model.held.contains(&key(n)));
        }
    }
}

#[test]
fn capacity_zero_is_an_error_with_a_sentence() {
    let error = Window::new(0).unwrap_err();
    assert_eq!(error, WindowError::ZeroCapacity);
    assert!(error.to_string().contains("at least 1"), "{error}");
}

#[test]
fn a_capacity_that_cannot_be_had_is_an_error() {
    for capacity in [MAX_CAPACITY + 1, usize::MAX] {
        assert_eq!(Window::new(capacity).unwrap_err(), WindowError::TooLarge { capacity });
    }
}

#[test]
fn a_capacity_of_three_holds_exactly_the_last_three() {
    let window = Window::new(3).unwrap();
    assert!(window.is_empty());
    for n in 0..100 {
        assert!(window.check_and_record(key(n)));
        let held: Vec<u64> = (0..100).filter(|n| window.contains(key(*n))).collect();
        assert_eq!(held, (n.saturating_sub(2)..=n).collect::<Vec<_>>());
        assert_eq!(window.len(), held.len());
    }
    assert_eq!(window.capacity(), 3);
}

#[test]
fn seeing_a_key_again_does_not_renew_it() {
    let window = Window::new(2).unwrap();
    assert!(window.check_and_record(key(1)));
    assert!(window.check_and_record(key(2)));
    assert!(!window.check_and_record(key(1)));
    assert!(window.check_and_record(key(3)));
    assert!(!window.contains(key(1)), "the oldest recorded leaves first, however often it was seen");
    assert!(window.contains(key(2)));
}

#[test]
fn a_window_of_one_works() {
    let window = Window::new(1).unwrap();
    for n in 0..10 {
        assert!(window.check_and_record(key(n)));
        assert!(!window.check_and_record(key(n)));
        assert_eq!(window.forget(key(n)), ForgetResult::TakenBack);
        assert_eq!(window.forget(key(n)), ForgetResult::NotHeld);
        assert!(window.check_and_record(key(n)));
        assert_eq!(window.len(), 1);
    }
}

#[test]
fn a_key_taken_back_leaves_room_and_brings_nobody_back() {
    let window = Window::new(3).unwrap();
    for n in 1..=4 {
        assert!(window.check_and_record(key(n)));
    }
    assert_eq!(window.forget(key(3)), ForgetResult::TakenBack);
    assert!(!window.contains(key(1)), "1 left for 4 and stays away");
    assert!(window.check_and_record(key(5)));
    assert!(window.contains(key(2)), "5 took the room of 3");
    assert!(window.check_and_record(key(3)), "3 is new again, and the newest");
    let held: Vec<u64> = (1..=5).filter(|n| window.contains(key(*n))).collect();
    assert_eq!(held, [3, 4, 5]);
}

#[test]
fn a_long_run_never_misses_a_repeat_and_stays_in_bounds() {
    let capacity = 10_000;
    let window = Window::new(capacity).unwrap();
    let derive = |n: u64| WindowKey::derive(b"session", n, b"operation");
    for n in 0..50_000 {
        assert!(window.check_and_record(derive(n)));
        let back = (n * 7919) % capacity as u64;
        if let Some(earlier) = n.checked_sub(back) {
            assert!(!window.check_and_record(derive(earlier)), "missed the repeat of {earlier} at {n}");
        }
        if let Some(gone) = n.checked_sub(capacity as u64) {
            assert!(!window.contains(derive(gone)), "{gone} should be out at {n}");
        }
    }
    assert_eq!(window.len(), capacity);
}

#[test]
fn a_hundred_thousand_entries_take_less_than_four_megabytes() {
    let window = Window::default();
    assert_eq!(window.capacity(), 100_000);
    assert!(window.memory() < 4_000_000, "{} bytes", window.memory());
}

#[test]
fn of_many_threads_with_the_same_keys_exactly_one_is_first() {
    const KEYS: usize = 20_000;
    let window = Window::new(KEYS).unwrap();
    let firsts: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (window, firsts) = (&window, &firsts);
            scope.spawn(move || {
                for step in 0..KEYS {
                    // Half the threads walk in the same order and collide on every key, half go their own way.
                    let n = if thread % 2 == 0 { step } else { (step * 7919 + thread) % KEYS };
                    if window.check_and_record(key(n as u64)) {
                        firsts[n].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(firsts.iter().all(|first| first.load(Ordering::Relaxed) == 1));
    assert_eq!(window.len(), KEYS);
}

#[test]
fn threads_that_overflow_the_window_leave_exactly_its_capacity() {
    // Each thread brings its own keys, so every key is new once, and the last ones must be held.
    const CAPACITY: usize = 64;
    const EACH: u64 = 50_000;
    let window = Window::new(CAPACITY).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let window = &window;
            scope.spawn(move || {
                for n in 0..EACH {
                    assert!(window.check_and_record(key(thread * EACH + n)));
                    if n % 16 == 0 {
                        window.forget(key(thread * EACH + n));
                    }
                }
            });
        }
    });
    assert_eq!(window.len(), CAPACITY, "after each thread's last forget come fifteen new keys");
    let held = (0..4 * EACH).filter(|n| window.contains(key(*n))).count();
    assert_eq!(held, window.len());
    for n in 0..CAPACITY as u64 {
        assert!(window.check_and_record(key(u64::MAX - n)));
    }
    assert!((0..4 * EACH).all(|n| !window.contains(key(n))), "the last {CAPACITY} keys are the only ones");
    assert_eq!(window.len(), CAPACITY);
}

#[test]
fn chosen_keys_do_not_crowd_one_corner_of_the_table() {
    // Patterns that a plain remainder, shift or exclusive-or of the key would send to one home.
    type Pattern = (&'static str, fn(u128) -> u128);
    let patterns: [Pattern; 6] = [
        ("counting", |n| n),
        ("same low 64 bits", |n| n << 64),
        ("same low 110 bits", |n| n << 110),
        ("same high bits, multiples of 2^40", |n| n << 40),
        ("both halves equal", |n| n << 64 | n),
        ("low half is the complement", |n| n << 64 | u128::from(!(n as u64))),
    ];
    for (name, pattern) in patterns {
        let window = Window::new(50_000).unwrap();
        for n in 0..150_000_u128 {
            let _ = window.check_and_record(WindowKey::from(pattern(n)));
        }
        // By chance a key or two lie some four buckets from home; a pattern that hurts reaches thousands.
        assert!(
            window.table.longest_displacement() < 20,
            "{name}: {} buckets",
            window.table.longest_displacement()
        );
    }
}

#[test]
fn keys_that_crowd_are_slow_but_exact() {
    // More keys with one home than an overflow count can count. Shows too that the test above can fail.
    const CAPACITY: usize = 2_000;
    let window = Window::with_seed(CAPACITY, blind()).unwrap();
    let mut model = Model::new(CAPACITY);
    for n in 0..3 * CAPACITY as u64 {
        assert_eq!(window.check_and_record(key(n)), model.check_and_record(key(n)));
        if n % 3 == 0 {
            assert_eq!(window.forget(key(n / 2)), model.forget(key(n / 2)));
        }
    }
    assert!(window.table.longest_displacement() > 200);
    for n in 0..3 * CAPACITY as u64 {
        assert_eq!(window.contains(key(n)), model.held.contains(&key(n)), "{n}");
    }
}

#[test]
fn a_reader_beside_a_writer_sees_what_is_held() {
    const CAPACITY: u64 = 4_096;
    const KEYS: u64 = 300_000;
    let window = Window::new(CAPACITY as usize).unwrap();
    let recorded = AtomicU64::new(0);
    let checked = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut checked = 0;
            let mut newest = 0;
            while newest < KEYS {
                newest = recorded.load(Ordering::Acquire);
                let Some(asked) = newest.checked_sub(1 + newest % 1_000) else { continue };
                let held = window.contains(key(asked));
                // The writer may be one key further than it said.
                if recorded.load(Ordering::Acquire) + 1 - asked <= CAPACITY {
                    assert!(held, "missed {asked}");
                    checked += 1;
                }
                assert!(!window.contains(key(KEYS + asked)), "{asked} was never recorded in this form");
            }
            checked
        });
        for n in 0..KEYS {
            assert!(window.check_and_record(key(n)));
            recorded.store(n + 1, Ordering::Release);
        }
        reader.join().unwrap()
    });
    assert!(checked > 0);
}
