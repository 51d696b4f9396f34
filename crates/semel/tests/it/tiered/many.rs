//! Many callers over two engines on the same servers: one effect, equal answers, woken by push.

use std::sync::atomic::{AtomicU32, Ordering};

use semel::{Engine, Key};

use super::*;

/// How long the engine waits before it asks again by itself: long enough that only a push can wake it in time.
const BACKSTOP: Duration = Duration::from_secs(600);

async fn engines(servers: &Servers) -> Vec<(Engine, Arc<TieredStore>)> {
    let mut engines = Vec::new();
    for _ in 0..2 {
        let store = servers.open().await;
        let engine = Engine::builder(Arc::clone(&store) as Arc<dyn Store>)
            .backstop(BACKSTOP)
            .wait(Duration::from_secs(50))
            .build()
            .expect("good settings");
        engines.push((engine, store));
    }
    engines
}

async fn stampede(servers: &Servers, order: &'static str) {
    let engines = engines(servers).await;
    let runs = Arc::new(AtomicU32::new(0));
    let gate = Arc::new(tokio::sync::Notify::new());
    let mut callers = Vec::new();
    for number in 0..64 {
        let engine = engines[number % 2].0.clone();
        let (runs, gate) = (Arc::clone(&runs), Arc::clone(&gate));
        callers.push(tokio::spawn(async move {
            let once = engine.once(Key::new("charge").value(order)).fingerprint(&"ten euros");
            let answer = once.run(async move || {
                let run = runs.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok(run)
            });
            answer.await.map(|answer| (answer.value, answer.replayed))
        }));
    }
    eventually("the effect runs", async || (runs.load(Ordering::SeqCst) == 1).then_some(())).await;
    gate.notify_one();
    let mut first = 0;
    for caller in callers {
        let answer = tokio::time::timeout(Duration::from_secs(45), caller).await.expect("woken by push");
        let (value, replayed) = answer.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(value, 0, "the first run's outcome");
        first += u32::from(!replayed);
    }
    assert_eq!((first, runs.load(Ordering::SeqCst)), (1, 1));
    for (_, store) in &engines {
        let stats = store.stats();
        assert!(stats.asked_postgres + stats.believed_busy < 40, "one of each process asks: {stats:?}");
    }
}

// Stampede
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_callers_on_two_engines_have_one_effect() {
    stampede(&Servers::start(), "order-1").await;
}

// The same without Redis.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_callers_have_one_effect_without_redis() {
    let servers = Servers::start();
    servers.redis.kill();
    stampede(&servers, "order-2").await;
}
