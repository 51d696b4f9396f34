//! Many callers over many handles, through the engine: one effect, equal answers, woken by push.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::{Engine, Failure, Key};

use super::*;

// Polling is set so wide that only a push can wake the waiters in time.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_callers_on_four_handles_have_one_effect() {
    let server = server();
    let runs = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for _ in 0..4 {
        let store: Arc<dyn Store> = connect(&server.url()).await;
        let engine = Engine::over(store)
            .backstop(Duration::from_secs(30))
            .wait(Duration::from_secs(20))
            .build()
            .expect("good settings");
        for _ in 0..50 {
            let (engine, runs) = (engine.clone(), Arc::clone(&runs));
            callers.push(tokio::spawn(async move {
                let once = engine.once(Key::new("charge").value("order-1")).fingerprint(&"ten euros");
                let answer = once.run(async move |_| {
                    let run = runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok::<_, Failure<Infallible>>(run)
                });
                answer.await.map(|answer| (answer.value, answer.replayed))
            }));
        }
    }
    let mut first = 0;
    for caller in callers {
        let answer = tokio::time::timeout(Duration::from_secs(15), caller).await.expect("woken by push");
        let (value, replayed) = answer.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(value, 0, "the first run's outcome");
        first += u32::from(!replayed);
    }
    assert_eq!((first, runs.load(Ordering::SeqCst)), (1, 1));
}
