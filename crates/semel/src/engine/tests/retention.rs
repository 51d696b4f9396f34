//! How long an outcome is given, and what comes after.

use super::*;

const RETENTION: Duration = secs(3600);
const GRACE: Duration = secs(60);
const MEMORY: Duration = secs(7200);

fn builder(store: &Arc<MemoryStore>) -> EngineBuilder {
    // Without the hot cache, whose age is real time, not the store's.
    over(store).retention(RETENTION).grace(GRACE).memory(MEMORY).hot_cache(0, secs(1))
}

#[tokio::test]
async fn a_replay_never_refreshes_the_retention() {
    let (clock, store) = clocked();
    let engine = build(builder(&store));
    let effect = Effect::quick();
    effect.once(&engine).await.unwrap();
    for _ in 0..4 {
        clock.advance(RETENTION / 4);
        assert!(effect.once(&engine).await.unwrap().replayed);
    }
    clock.advance(GRACE);
    assert!(matches!(effect.once(&engine).await, Err(RunError::Expired)));
}

#[tokio::test]
async fn late_duplicate() {
    let (clock, store) = clocked();
    let heard = Arc::new(Heard::default());
    let engine = build(builder(&store).observe(heard.clone()));
    let effect = Effect::quick();
    effect.once(&engine).await.unwrap();
    clock.advance(RETENTION + GRACE);
    let late = effect.once(&engine).await.unwrap_err();
    assert!(matches!(late, RunError::Expired) && !late.is_retryable());
    assert_eq!(engine.stats().count("expired"), 1);
    assert!(heard.all().iter().any(|event| event.starts_with("expired")));
    clock.advance(MEMORY);
    let again = effect.once(&engine).await.unwrap();
    assert_eq!((again.value, again.replayed), (2, false));
}

// Many duplicates around the edge: the outcome, then expired, then new; never back, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn retention_edge() {
    let (clock, store) = clocked();
    let engine = build(builder(&store));
    let effect = Effect::quick();
    for round in 0..100 {
        let first = effect.once(&engine).await.unwrap();
        assert!(!first.replayed, "round {round}");
        clock.advance(RETENTION + GRACE - Duration::from_micros(50));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (engine, effect, value) = (engine.clone(), effect.clone(), first.value);
                tokio::spawn(async move {
                    let mut expired = false;
                    for _ in 0..25 {
                        match effect.once(&engine).await {
                            Ok(answer) => assert!(answer.value == value && answer.replayed && !expired),
                            Err(RunError::Expired) => expired = true,
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            clock.advance(Duration::from_micros(1));
            tokio::task::yield_now().await;
        }
        for caller in callers {
            joined(caller).await;
        }
        clock.advance(MEMORY);
    }
    assert_eq!(effect.runs(), 100);
}

// The retention that an effect chooses applies, in the cache too.
#[tokio::test]
async fn an_outcome_is_kept_for_as_long_as_its_effect_says() {
    let (clock, store) = clocked();
    let engine = build(over(&store).grace(Duration::ZERO));
    let outcome = Arc::new(crate::outcome::Outcome::new("json", "1"));
    let running = won(engine.once(key())).await.begin().await.unwrap();
    assert!(matches!(running.complete(&outcome, Some(ms(20))).await, Completed::Kept));
    clock.advance(ms(20));
    let gone = async || matches!(Effect::quick().once(&engine).await, Err(RunError::Expired));
    let deadline = instant() + PATIENCE;
    while !gone().await {
        assert!(instant() < deadline, "the hot cache replays past the retention");
        tokio::time::sleep(ms(1)).await;
    }
}
