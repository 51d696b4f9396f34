//! Keys change while calls go on; a missing one is an error and never a second run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel::store::{ErrorKind, MemoryStore};
use semel::{Answer, Engine, Key, RunError};

use super::*;

async fn run(engine: &Engine, order: usize, ran: &Arc<AtomicUsize>) -> Result<Answer<usize>, RunError> {
    let ran = Arc::clone(ran);
    let once = engine.once(Key::new("pay").value(order.to_string()));
    once.run(async move || {
        ran.fetch_add(1, Ordering::SeqCst);
        Ok(order)
    })
    .await
}

/// Calls until told to stop: runs what is new, and replays everything before it.
async fn call(engine: Engine, traffic: Arc<Traffic>) {
    while !traffic.over.load(Ordering::SeqCst) {
        for order in 0..traffic.orders.load(Ordering::SeqCst) {
            let answer = run(&engine, order, &traffic.ran).await;
            assert_eq!(answer.unwrap_or_else(|error| panic!("order {order}: {error}")).value, order);
            traffic.calls.fetch_add(1, Ordering::SeqCst);
        }
        tokio::task::yield_now().await;
    }
}

#[derive(Debug, Default)]
struct Traffic {
    orders: AtomicUsize,
    ran: Arc<AtomicUsize>,
    calls: AtomicUsize,
    over: AtomicBool,
}

impl Traffic {
    /// Returns once this number of further calls has ended.
    async fn goes_on(&self, calls: usize) {
        let goal = self.calls.load(Ordering::SeqCst) + calls;
        let reached = tokio::time::timeout(Duration::from_secs(60), async {
            while self.calls.load(Ordering::SeqCst) < goal {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        reached.await.expect("calls go on");
    }
}

// Two handles, as two processes have them, are rotated one after the other in the order that the docs give: first
// everybody can open with the new key, then it seals. No call fails, no effect runs twice, and no key is in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_under_live_traffic() {
    const ROUNDS: usize = 10;
    let below = Arc::new(MemoryStore::new());
    let stores = [sealed(&below, &["k0"]), sealed(&below, &["k0"])];
    let traffic = Arc::new(Traffic::default());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..4 {
        // No hot cache: every replay is decrypted again.
        let engine = Engine::builder(stores[caller % 2].clone()).hot_cache(0, Duration::ZERO).build();
        callers.spawn(call(engine.expect("a healthy store"), Arc::clone(&traffic)));
    }
    for round in 1..=ROUNDS {
        traffic.orders.fetch_add(20, Ordering::SeqCst);
        traffic.goes_on(200).await;
        let mut ids: Vec<String> = (0..round).rev().map(|id| format!("k{id}")).collect();
        for place in [ids.len(), 0] {
            ids.retain(|id| *id != format!("k{round}"));
            ids.insert(place, format!("k{round}"));
            for store in &stores {
                store.rotate(ring(&ids.iter().map(String::as_str).collect::<Vec<_>>()));
                traffic.goes_on(20).await;
            }
        }
    }
    traffic.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.expect("no call fails");
    }
    assert_eq!(traffic.ran.load(Ordering::SeqCst), 20 * ROUNDS, "one effect per order");
    let sealings = stores[0].sealings().await.expect("a healthy store");
    assert_eq!(sealings.by_key.values().sum::<u64>(), 20 * ROUNDS as u64);
    assert_eq!(sealings.by_key.len(), ROUNDS, "{sealings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_key_never_runs_the_effect_again() {
    let below = Arc::new(MemoryStore::new());
    let ran = Arc::new(AtomicUsize::new(0));
    let engine = |ids: &[&str]| Engine::builder(sealed(&below, ids)).build().expect("a healthy store");
    run(&engine(&["old"]), 1, &ran).await.expect("it runs");
    let error = run(&engine(&["new"]), 1, &ran).await.expect_err("the key is not there");
    let RunError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::Setup);
    assert!(error.to_string().contains("`old`") && error.to_string().contains("put it back"), "{error}");
    assert!(run(&engine(&["new", "old"]), 1, &ran).await.expect("the key is back").replayed);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}
