//! Redis is killed and comes back, again and again, under load: no effect happens twice.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use semel::{Engine, Key};

use super::*;

/// How many claims, and over how many keys each is repeated.
fn rounds() -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { 10_000 } else { 600 }
}

/// How often each key is claimed.
const REPEATS: usize = 4;
const CALLERS: usize = 16;

// tiered_redis_killed: no duplicate effect, PostgreSQL carries on, and Redis takes part again without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn tiered_redis_killed() {
    let servers = Servers::start();
    let mut stores = Vec::new();
    for _ in 0..2 {
        // As impatient as in production: some calls shall find out the hard way.
        stores.push(open(servers.builder().redis_timeout(Duration::from_millis(250))).await);
    }
    let engines: Vec<Engine> = stores
        .iter()
        .map(|store| {
            let store: Arc<dyn Store> = store.clone();
            Engine::builder(store).wait(Duration::from_secs(60)).build().expect("good settings")
        })
        .collect();
    let witness = Arc::new(Mutex::new(HashMap::<usize, u32>::new()));
    let over = Arc::new(AtomicBool::new(false));
    let killer = {
        let (servers, over, stores) = (Arc::clone(&servers), Arc::clone(&over), stores.clone());
        tokio::spawn(async move {
            let mut kills = 0_u32;
            while !over.load(Ordering::SeqCst) || kills < 3 {
                servers.redis.kill();
                tokio::time::sleep(Duration::from_millis(300)).await;
                servers.redis.restart().expect("it starts again");
                while stores.iter().any(|store| store.stats().coordination == Coordination::Away) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                kills += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            kills
        })
    };
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (engines, witness) = (engines.clone(), Arc::clone(&witness));
            tokio::spawn(async move {
                for number in (caller..rounds()).step_by(CALLERS) {
                    // Neighbours meet at the same key at the same time; and it comes again much later.
                    let order = number / REPEATS;
                    let engine = &engines[number % engines.len()];
                    let witness = Arc::clone(&witness);
                    let once = engine.once(Key::new("charge").value(order.to_string())).fingerprint(&order);
                    let answer = once.run(async move || {
                        *witness.lock().expect("nobody panics in here").entry(order).or_default() += 1;
                        Ok(order)
                    });
                    let answer = answer.await.unwrap_or_else(|error| panic!("order {order}: {error}"));
                    assert_eq!(answer.value, order, "somebody else's outcome");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("every claim is answered, rightly");
    }
    over.store(true, Ordering::SeqCst);
    let kills = killer.await.expect("the killer lives");
    let witness = std::mem::take(&mut *witness.lock().expect("nobody panics in there"));
    let twice: Vec<_> = witness.iter().filter(|(_, effects)| **effects != 1).collect();
    assert!(twice.is_empty(), "effects that happened more than once: {twice:?}");
    assert_eq!(witness.len(), rounds().div_ceil(REPEATS), "every order has its effect");
    for store in &stores {
        notices(store, Coordination::Working).await;
        uses_copies(store).await;
        let stats = store.stats();
        assert!(stats.breaker_opened >= 1 && stats.without_redis > 0, "Redis was never missed: {stats:?}");
    }
    println!("{} claims, {kills} kills of Redis, {} effects", rounds(), witness.len());
}
