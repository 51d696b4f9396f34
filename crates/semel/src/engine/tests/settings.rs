//! Invalid settings are refused, with a message that says what to do.

use super::*;
use crate::record::TermsError;

type Setting = fn(EngineBuilder) -> EngineBuilder;

#[test]
fn every_setting_that_cannot_work_is_refused_by_name() {
    let refused: [(&str, Setting); 15] = [
        ("lease", |builder| builder.lease(secs(0))),
        ("in_flight_max", |builder| builder.in_flight_max(secs(29))),
        ("retention", |builder| builder.retention(secs(29))),
        ("wait", |builder| builder.wait(secs(61))),
        ("lease", |builder| builder.lease(Duration::MAX)),
        ("in_flight_max", |builder| builder.in_flight_max(Duration::MAX)),
        ("retention", |builder| builder.retention(Duration::MAX)),
        ("grace", |builder| builder.grace(Duration::MAX)),
        ("memory", |builder| builder.memory(Duration::MAX)),
        ("wait", |builder| builder.wait(Duration::MAX)),
        ("backstop", |builder| builder.backstop(secs(0))),
        ("backstop", |builder| builder.backstop(Duration::MAX)),
        ("hot_cache", |builder| builder.hot_cache(1, Duration::MAX)),
        ("sweep_every", |builder| builder.sweep_every(Some(secs(0)))),
        ("sweep_every", |builder| builder.sweep_every(Some(Duration::MAX))),
    ];
    for (name, setting) in refused {
        let error = setting(Engine::builder(MemoryStore::new())).build().unwrap_err();
        assert!(error.to_string().starts_with(name), "{name}: {error}");
    }
    for caps in [
        WaiterCaps { per_key: 0, per_scope: 1, in_all: 1 },
        WaiterCaps { per_key: 1, per_scope: 0, in_all: 1 },
        WaiterCaps { per_key: 1, per_scope: 1, in_all: 0 },
    ] {
        let error = Engine::builder(MemoryStore::new()).waiter_caps(caps).build().unwrap_err();
        assert!(matches!(error, BuildError::WaiterCaps));
    }
    let error = Engine::builder(MemoryStore::new()).max_outcome(usize::MAX).build().unwrap_err();
    assert!(matches!(error, BuildError::MaxOutcome { .. }));
}

#[tokio::test]
async fn terms_of_one_call_are_refused_the_same_way() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::quick();
    let refused = [
        (engine.once(key()).retention(secs(1)), "retention"),
        (engine.once(key()).wait(secs(61)), "wait"),
        (engine.once(key()).terms(Terms { lease: secs(0), ..Terms::default() }), "lease"),
        (engine.once(key()).terms(Terms { memory: Duration::MAX, ..Terms::default() }), "memory"),
    ];
    for (once, name) in refused {
        let error = effect.run_as(once).await.unwrap_err();
        assert!(
            matches!(error, RunError::Terms(_)) && error.to_string().starts_with(name),
            "{name}: {error}"
        );
    }
    let blocking: Run = engine.once(key()).wait(secs(61)).run_blocking(|_| Ok(1));
    assert!(matches!(blocking, Err(RunError::Terms(TermsError::WaitAboveInFlight { .. }))));
    assert!(matches!(effect.run_as(engine.once(Key::new("charge"))).await, Err(RunError::Key(_))));
    let unwritable = std::collections::HashMap::from([(vec![1], 1)]);
    assert!(matches!(
        effect.run_as(engine.once(key()).fingerprint(&unwritable)).await,
        Err(RunError::Payload(_))
    ));
    assert_eq!((effect.runs(), engine.in_flight()), (0, 0));
}

#[tokio::test]
async fn the_defaults_and_the_longest_terms_work() {
    let century = secs(100 * 365 * 24 * 60 * 60);
    let longest = Terms {
        mode: Mode::Marked,
        lease: century,
        in_flight_max: century,
        retention: century,
        grace: century,
        memory: century,
    };
    let engine = build(
        Engine::builder(MemoryStore::new())
            .backstop(century)
            .hot_cache(1 << 20, century)
            .sweep_every(Some(century)),
    );
    let effect = Effect::quick();
    for replayed in [false, true] {
        let answer = effect.run_as(engine.once(key()).terms(longest).wait(century)).await.unwrap();
        assert_eq!(answer.replayed, replayed);
    }
}

// A given secret is used; otherwise one is stored in the store, so that all engines agree.
#[tokio::test]
async fn engines_on_one_store_agree_on_ids() {
    let store = Arc::new(MemoryStore::new());
    let kept = build(over(&store)).id(&key()).await.unwrap();
    assert_eq!(build(over(&store)).id(&key()).await.unwrap(), kept);
    let given = build(over(&store).secret(Secret::from_bytes([7; 32]))).id(&key()).await.unwrap();
    assert_ne!(given, kept);
    let elsewhere = build(Engine::builder(MemoryStore::new()).secret(Secret::from_bytes([7; 32])));
    assert_eq!(elsewhere.id(&key()).await.unwrap(), given);
}
