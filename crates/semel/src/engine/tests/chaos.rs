//! Two engines on one store, dropped callers, effects that fail, panic and hang, lost replies: no effect happens
//! twice, all answers agree, and nothing is left behind.

use std::collections::{HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::store::{ErrorKind, Scan};
use crate::sync::Mutex;

const KEYS: u32 = 60;
const CALLS: u32 = 600;

/// What an outside observer has seen.
#[derive(Default)]
struct Witness {
    /// Per key: the values of effects that took place.
    effects: Mutex<HashMap<u32, Vec<u32>>>,
    /// Keys for which it is unknown whether their effect took place.
    unclear: Mutex<HashSet<u32>>,
}

impl Witness {
    fn effect(&self, key: u32, value: u32) {
        self.effects.lock().entry(key).or_default().push(value);
    }

    fn of(&self, key: u32) -> Vec<u32> {
        self.effects.lock().get(&key).cloned().unwrap_or_default()
    }
}

fn named(key: u32) -> Key {
    Key::new("chaos").value(key.to_string())
}

/// Breaks about one in twelve of the deciding calls.
fn haunt(store: &Faulty, random: &mut StdRng) {
    for call in [
        StoreCall::Claim,
        StoreCall::Begin,
        StoreCall::Complete,
        StoreCall::Release,
        StoreCall::Abandon,
        StoreCall::Renew,
        StoreCall::Get,
    ] {
        for number in 1..600 {
            if random.random_bool(1.0 / 12.0) {
                let lost = random.random_bool(0.5);
                let fault = if lost {
                    InjectedFault::LoseReply
                } else {
                    InjectedFault::Refuse(ErrorKind::Unavailable)
                };
                store.script(call, When::Nth(number), fault);
            }
        }
    }
}

async fn one_call(once: Once, key: u32, value: u32, fate: u32, witness: Arc<Witness>) -> Run {
    once.run(async move || {
        for _ in 0..fate % 7 {
            tokio::task::yield_now().await;
        }
        if matches!(fate % 20, 4..=6) {
            witness.unclear.lock().insert(key);
        }
        match fate % 20 {
            // Its report that nothing happened is true.
            0..=3 => Err(Failure::Failed("nothing happened".into())),
            4 => {
                witness.effect(key, value);
                Err(Failure::Unknown("it did".into()))
            }
            5 => panic!("on purpose, before"),
            6 => {
                witness.effect(key, value);
                panic!("on purpose, after")
            }
            slow @ 7..=9 => {
                tokio::time::sleep(ms(u64::from(slow))).await;
                witness.effect(key, value);
                tokio::time::sleep(ms(u64::from(slow))).await;
                Ok(value)
            }
            _ => {
                witness.effect(key, value);
                Ok(value)
            }
        }
    })
    .await
}

async fn rampage(mode: Mode, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let memory = Arc::new(MemoryStore::new());
    let stores: [Faulty; 2] = std::array::from_fn(|_| Arc::new(FaultStore::new(Arc::clone(&memory))));
    let engines = stores.each_ref().map(|store| {
        haunt(store, &mut random);
        let cache = if random.random_bool(0.5) { 0 } else { 1 << 20 };
        build(over(store).mode(mode).lease(secs(2)).wait(ms(200)).backstop(ms(20)).hot_cache(cache, secs(1)))
    });
    let witness = Arc::new(Witness::default());
    let mut calls = Vec::new();
    for value in 0..CALLS {
        let key = random.random_range(0..KEYS);
        let mut once = engines[random.random_range(0..2)].once(named(key)).fingerprint(&key);
        if random.random_bool(0.3) {
            once = once.begin_later();
        }
        let call = one_call(once, key, value, random.random(), Arc::clone(&witness));
        let patience = if random.random_bool(0.25) { random.random_range(0..15) } else { 20_000 };
        calls.push((key, tokio::spawn(tokio::time::timeout(ms(patience), call))));
        if random.random_bool(0.1) {
            tokio::time::sleep(ms(1)).await;
        }
    }
    let mut told: HashMap<u32, u32> = HashMap::new();
    let mut hear = |key: u32, run: &Run| {
        if let Ok(answer) = run
            && (answer.stored || mode == Mode::Marked)
        {
            let first = *told.entry(key).or_insert(answer.value);
            assert_eq!(first, answer.value, "two stories about one key, seed {seed}, {mode:?}");
        }
    };
    for (key, call) in calls {
        // A dropped caller has received nothing.
        if let Ok(run) = joined(call).await {
            hear(key, &run);
        }
    }
    for (store, engine) in stores.iter().zip(&engines) {
        store.heal();
        soon(engine.drain()).await;
        assert_eq!((engine.waiters(), engine.in_flight()), (0, 0), "seed {seed}");
    }
    let held = [Phase::Claimed, Phase::Begun];
    let all = Scan { phase: None, after: None, limit: 1_000 };
    let left = memory.scan(all).await.unwrap().items;
    assert!(
        left.iter().all(|record| !held.contains(&record.phase())),
        "held by nobody, seed {seed}: {left:?}"
    );
    for key in 0..KEYS {
        let before = witness.of(key);
        let once = engines[0].once(named(key)).fingerprint(&key);
        let last = one_call(once, key, CALLS + key, 19, Arc::clone(&witness)).await;
        hear(key, &last);
        let effects = witness.of(key);
        match last {
            Ok(answer) => {
                assert!(effects.contains(&answer.value), "an outcome without an effect, seed {seed}");
            }
            Err(RunError::InDoubt) if mode == Mode::Marked => {
                assert_eq!(effects, before);
                assert!(witness.unclear.lock().contains(&key), "a doubt without a reason, seed {seed}");
            }
            Err(other) => panic!("{other}, seed {seed}, {mode:?}"),
        }
        if mode == Mode::Marked {
            assert!(effects.len() <= 1, "key {key} took effect {} times, seed {seed}", effects.len());
        }
    }
    assert!(format!("{memory:?}").contains("watched: 0"), "{memory:?}");
}

/// `SEMEL_CHAOS_ROUNDS=200` runs more rounds. A round that fails names its seed.
fn rounds() -> u64 {
    std::env::var("SEMEL_CHAOS_ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_in_marked() {
    for seed in 0..rounds() {
        rampage(Mode::Marked, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_with_takeovers() {
    for seed in 0..rounds() {
        rampage(if seed % 2 == 0 { Mode::Rerun } else { Mode::Keyed }, seed).await;
    }
}
