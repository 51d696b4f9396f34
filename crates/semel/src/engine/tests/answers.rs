//! Values, answers from the record, conflicts, and what is stored.

use serde::{Deserialize, Serialize, Serializer};

use super::*;

#[tokio::test]
async fn a_replay_says_so_and_a_first_run_does_not() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::quick();
    let first = effect.once(&engine).await.unwrap();
    let again = effect.once(&engine).await.unwrap();
    assert_eq!((first.value, first.replayed, first.stored), (1, false, true));
    assert_eq!((again.value, again.replayed, again.stored), (1, true, true));
    assert_eq!(effect.runs(), 1);
    let stats = engine.stats();
    assert_eq!((stats.count("won"), stats.count("completed"), stats.count("replayed")), (1, 1, 1));
}

#[tokio::test]
async fn many_replays_are_said() {
    let heard = Arc::new(Heard::default());
    let engine = build(Engine::builder(MemoryStore::new()).observe(heard.clone()));
    let effect = Effect::quick();
    for _ in 0..1_000 {
        effect.once(&engine).await.unwrap();
    }
    assert_eq!(engine.stats().count("replay_rate_high"), 1);
    assert!(heard.all().iter().any(|event| event.contains("ReplayRateHigh { rate: 0.999 }")));
}

// In progress with and without a wait, done in the hot cache, done in the store, and bound.
#[tokio::test]
async fn another_payload_is_a_conflict_on_every_path() {
    for cache in [0, 1 << 20] {
        let store = faulty();
        let engine = build(over(&store).hot_cache(cache, secs(10)).mode(Mode::Keyed));
        let asked = |amount: u32| engine.once(key()).fingerprint(&amount);
        let effect = Effect::held();
        let owner = effect.spawn(asked(1));
        until("the effect runs", || effect.runs() == 1).await;
        let waiter = effect.spawn(asked(1));
        until("one waits", || engine.waiters() == 1).await;
        for wait in [secs(0), secs(5)] {
            let other = soon(effect.run_as(asked(2).wait(wait))).await;
            assert!(matches!(other, Err(RunError::Conflict)), "in flight: {other:?}");
        }
        effect.let_go();
        assert_eq!(joined(owner).await.unwrap().value, 1);
        assert!(joined(waiter).await.unwrap().replayed);

        let asked_before = store.calls(StoreCall::Claim);
        let other = effect.run_as(asked(2)).await;
        assert!(matches!(other, Err(RunError::Conflict)), "done: {other:?}");
        let asked_store = store.calls(StoreCall::Claim) > asked_before;
        assert_eq!(asked_store, cache == 0, "from the hot cache where there is one");

        let id = engine.id(&key()).await.unwrap();
        assert!(matches!(engine.reexecute(id).await.unwrap(), Ruling::Accepted { .. }));
        let other = effect.run_as(asked(2)).await;
        assert!(matches!(other, Err(RunError::Conflict)), "bound: {other:?}");
        assert_eq!(effect.runs(), 1);
        assert!(effect.run_as(asked(1)).await.is_ok_and(|answer| !answer.replayed));
    }
}

#[tokio::test]
async fn the_hot_cache_replays_without_the_store() {
    let store = faulty();
    let engine = build(over(&store));
    let effect = Effect::quick();
    effect.once(&engine).await.unwrap();
    let calls = store.all_calls();
    assert!(effect.once(&engine).await.unwrap().replayed);
    assert_eq!(store.all_calls(), calls);

    let uncached = build(over(&store).hot_cache(0, secs(10)));
    for _ in 0..2 {
        assert!(effect.once(&uncached).await.unwrap().replayed);
    }
    assert_eq!(store.calls(StoreCall::Claim), 3, "zero bytes are no cache");
}

#[tokio::test]
async fn two_operations_never_share_a_key() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::quick();
    let keys = [
        key(),
        Key::new("refund").scope("acct_1").value("order-42"),
        Key::new("charge").scope("acct_2").value("order-42"),
    ];
    for (number, key) in (1..).zip(keys) {
        assert_eq!(effect.run_as(engine.once(key)).await.unwrap().value, number);
    }
}

#[tokio::test]
async fn what_failed_is_not_kept_and_what_was_declined_is() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let failed: Run = engine.once(key()).run(async || Err(Failure::Failed("no route".into()))).await;
    assert!(matches!(failed, Err(RunError::Failed(why)) if why.to_string() == "no route"));
    assert_eq!(engine.stats().count("released"), 1);

    let declined: Result<u32, String> = Err("card declined".to_owned());
    for replayed in [false, true] {
        let declined = declined.clone();
        let answer = engine.once(key()).run(async move || Ok(declined)).await.unwrap();
        assert_eq!((answer.value, answer.replayed), (Err("card declined".to_owned()), replayed));
    }
}

#[tokio::test]
async fn a_kept_value_of_another_type_is_an_error_that_does_not_quote_it() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let kept = engine.once(key()).run(async || Ok("canary-value".to_owned())).await;
    assert_eq!(kept.unwrap().value, "canary-value");
    let effect = Effect::quick();
    let error = effect.once(&engine).await.unwrap_err();
    assert!(matches!(error, RunError::Decode(_)));
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        shown += &format!("{cause} {cause:?}");
        source = cause.source();
    }
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(effect.runs(), 0);
}

/// A value that cannot be written as JSON.
#[derive(Debug, PartialEq, Deserialize)]
struct Unwritable(u8);

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        assert_eq!(self.0, 0, "canary in a panic");
        Err(serde::ser::Error::custom("canary in an error"))
    }
}

#[tokio::test]
async fn a_value_that_cannot_be_kept_leaves_a_tombstone_and_is_never_run_again() {
    let engine = build(Engine::builder(MemoryStore::new()).max_outcome(8));
    let run = async |length: usize| engine.once(key()).run(async move || Ok("x".repeat(length))).await;
    let first = run(7).await.unwrap();
    assert!((first.stored, first.replayed) == (true, false), "its own caller gets the value");
    let again = run(1).await;
    assert!(matches!(&again, Err(RunError::NotKept(why)) if why.contains("max_outcome")), "{again:?}");
    assert_eq!(engine.stats().count("not_kept"), 1);

    for (number, value) in [("fails", 0), ("panics", 1)] {
        let once = || engine.once(Key::new("unwritable").value(number));
        let first = once().run(async move || Ok(Unwritable(value))).await;
        assert_eq!(
            first.unwrap().value,
            Unwritable(value),
            "the effect happened, whatever can be kept of it"
        );
        let again = once().run(async move || Ok(Unwritable(value))).await;
        let Err(RunError::NotKept(why)) = again else { panic!("{again:?}") };
        assert!(!why.contains("canary"), "{why}");
    }
}

#[tokio::test]
async fn derived_keys_are_stable_over_attempts_and_differ_by_provider_and_epoch() {
    let engine = build(Engine::builder(MemoryStore::new()).mode(Mode::Keyed));
    let first = won(engine.once(key())).await;
    let (attempt, fence) = (first.attempt(), first.attempt().fence());
    let derived = attempt.derived_key("acme").to_string();
    assert_ne!(derived, attempt.derived_key("other").to_string());
    first.begin().await.unwrap().release().await;

    let second = won(engine.once(key())).await;
    assert_eq!((second.attempt().number(), second.attempt().epoch().get()), (2, 0));
    assert!(second.attempt().fence() > fence);
    assert_eq!(second.attempt().derived_key("acme").to_string(), derived);
    let outcome = Arc::new(crate::outcome::Outcome::new("json", "1"));
    let running = second.begin().await.unwrap();
    assert!(matches!(running.complete(&outcome, None).await, Completed::Kept));

    let _ = engine.reexecute(engine.id(&key()).await.unwrap()).await.unwrap();
    let third = won(engine.once(key())).await;
    assert_eq!(third.attempt().epoch().get(), 1);
    assert_ne!(third.attempt().derived_key("acme").to_string(), derived);
    third.release().await;
}

// The record of a claim identifies its request, while it is held and after; two claims of one request are still two
// owners.
#[tokio::test]
async fn a_claim_is_found_by_its_request() {
    let store = faulty();
    let engine = build(over(&store));
    let owner = async || {
        let id = engine.id(&key()).await.unwrap();
        engine.store().get(id).await.unwrap().unwrap().record.owner
    };
    let claim = async |request: &str| match engine.once(key()).request_id(request).claim().await.unwrap() {
        Acquired::Won(claim) => claim,
        other => panic!("{other:?}"),
    };
    let first = claim("req-1").await;
    let held = owner().await;
    assert!(held.is_of_request("req-1") && !held.is_of_request("req-2") && !held.is_of_request(""));
    first.release().await;
    let second = claim("req-1").await;
    let again = owner().await;
    assert!(again.is_of_request("req-1"));
    assert_ne!(held, again);
    let running = second.begin().await.unwrap();
    let outcome = Arc::new(Outcome::new("json", "1"));
    assert!(matches!(running.complete(&outcome, None).await, Completed::Kept));
    assert!(owner().await.is_of_request("req-1"), "also when it is done");
}
