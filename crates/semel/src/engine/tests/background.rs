//! The engine's own thread: it ends with the engine, and never before.

use std::sync::Weak;

use super::*;
use crate::engine::background::Beats;

impl Engine {
    /// Exists as long as the thread.
    fn thread(&self) -> Weak<Beats> {
        Arc::downgrade(self.inner.background.beats())
    }
}

#[tokio::test]
async fn a_dropped_engine_leaves_no_thread_and_no_store_behind() {
    let store = Arc::new(MemoryStore::new());
    let engines: Vec<_> = (0..20).map(|_| build(over(&store).sweep_every(Some(ms(1))))).collect();
    let threads: Vec<_> = engines.iter().map(Engine::thread).collect();
    for engine in &engines {
        Effect::quick().once(engine).await.unwrap();
    }
    drop(engines);
    until("the threads end", || threads.iter().all(|thread| thread.strong_count() == 0)).await;
    until("nobody holds the store", || Arc::strong_count(&store) == 1).await;
}

// The last handle is dropped inside the effect's task: the thread ends after the outcome is stored.
#[tokio::test]
async fn an_engine_that_is_dropped_while_an_effect_runs_finishes_it() {
    let store = Arc::new(MemoryStore::new());
    let engine = build(over(&store));
    let thread = engine.thread();
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    drop(engine);
    effect.let_go();
    assert!(joined(owner).await.unwrap().stored);
    until("the thread ends", || thread.strong_count() == 0).await;
    assert!(effect.once(&build(over(&store))).await.unwrap().replayed);
}

// The last handle is dropped on the engine's own thread.
#[tokio::test]
async fn an_engine_can_be_dropped_by_its_own_thread() {
    let store = faulty();
    let engine = build(over(&store));
    let thread = engine.thread();
    let claim = won(engine.once(key())).await;
    drop((engine, claim));
    until("the thread ends", || thread.strong_count() == 0).await;
    assert_eq!(store.calls(StoreCall::Release), 1);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test]
async fn sweeping_goes_on_while_the_engine_lives_and_rests_when_nothing_is_over() {
    let clock = ManualClock::default();
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
    let engine = build(over(&store).sweep_every(Some(ms(20))));
    let effect = Effect::quick();
    for number in 0..2_000_u32 {
        effect.run_as(engine.once(Key::new("many").value(number.to_string()))).await.unwrap();
    }
    let swept = store.calls(StoreCall::Sweep);
    until("a round", || store.calls(StoreCall::Sweep) > swept).await;
    let (before, from) = (store.calls(StoreCall::Sweep), instant());
    until("some rounds", || store.calls(StoreCall::Sweep) > before + 20).await;
    // Five steps are a round over 2,000 records, and a round comes every 20 ms.
    assert!(from.elapsed() > ms(20), "sweeping never rests: {:?} for 20 steps", from.elapsed());
    clock.advance(secs(7 * 24 * 60 * 60));
    let all = crate::store::Scan { phase: None, after: None, limit: 10 };
    let deadline = instant() + PATIENCE;
    while !store.inner().scan(all).await.unwrap().items.is_empty() {
        assert!(instant() < deadline, "what is over is taken away");
        tokio::time::sleep(ms(1)).await;
    }
}

// A store that hangs in a sweep does not keep the engine alive.
#[tokio::test]
async fn an_engine_over_a_store_that_hangs_can_be_dropped() {
    let store = faulty();
    let engine = build(over(&store).sweep_every(Some(ms(1))));
    let thread = engine.thread();
    let never = FaultGate::closed();
    store.script(StoreCall::Sweep, When::Always, InjectedFault::HoldRequest(never.clone()));
    soon(never.reached_by(1)).await;
    drop(engine);
    until("the thread ends", || thread.strong_count() == 0).await;
    until("nobody holds the store", || Arc::strong_count(&store) == 1).await;
}

struct Panics;

impl Observer for Panics {
    fn event(&self, _: &Subject, event: &Event<'_>) {
        panic!("on purpose, at {}", event.name());
    }
}

// Observers are called from heartbeats and destructors: a panic there must not lose a claim, or end the process.
#[tokio::test]
async fn an_observer_that_panics_costs_nothing() {
    let store = faulty();
    let heard = Arc::new(Heard::default());
    let engine = build(over(&store).lease(ms(300)).observe(Arc::new(Panics)).observe(heard.clone()));
    store.script(StoreCall::Renew, When::Nth(1), InjectedFault::Refuse(crate::store::ErrorKind::Unavailable));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    until("it beats on", || store.calls(StoreCall::Renew) >= 4).await;
    effect.let_go();
    assert_eq!(joined(owner).await.unwrap().value, 1);
    drop(won(engine.once(Key::new("dropped").value("1"))).await);
    soon(engine.drain()).await;
    assert!(heard.all().iter().any(|event| event.starts_with("released")));
}
