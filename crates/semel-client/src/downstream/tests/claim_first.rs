//! Claim, then call; after a crash ask, then call.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::downstream::{AskPolicy, ClaimFirst, Error, Reconciled, ReservedId};
use semel::engine::{Answer, Engine, Failure, RunError};
use semel::store::MemoryStore;
use semel::time::ManualClock;
use semel::{Key, Mode};

/// Somebody else's system: it records what it was asked to do, and can be asked.
#[derive(Default)]
struct Provider {
    booked: Mutex<Vec<String>>,
    calls: Mutex<u32>,
    asked: Mutex<u32>,
    /// What it says when it is asked next, in place of the truth.
    mute: Mutex<u32>,
}

/// Where the first owner is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    /// The claim is written, nothing was sent.
    BeforeCall,
    /// The provider did it, the outcome was not written.
    AfterCall,
}

impl Provider {
    fn book(&self, id: ReservedId) -> String {
        *self.calls.lock() += 1;
        let mut booked = self.booked.lock();
        booked.push(id.to_string());
        format!("receipt {}", booked.len())
    }

    fn find(&self, id: ReservedId) -> Reconciled<String> {
        *self.asked.lock() += 1;
        let mut mute = self.mute.lock();
        if *mute > 0 {
            *mute -= 1;
            return Reconciled::Ambiguous("503".to_owned());
        }
        match self.booked.lock().iter().position(|booked| *booked == id.to_string()) {
            Some(at) => Reconciled::Found(format!("receipt {}", at + 1)),
            None => Reconciled::NoRecord,
        }
    }
}

struct World {
    clock: ManualClock,
    store: Arc<MemoryStore>,
    provider: Arc<Provider>,
}

type Run = Result<Answer<String>, RunError<Error<String>>>;

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        Self { clock, store, provider: Arc::default() }
    }

    /// A process of its own: another engine over the same store.
    fn engine(&self) -> Engine {
        Engine::builder(Arc::clone(&self.store)).build().unwrap()
    }

    fn claim_first(&self, ask: AskPolicy) -> ClaimFirst<impl super::super::Reconcile<String>> {
        let provider = Arc::clone(&self.provider);
        let find = move |id| {
            let provider = Arc::clone(&provider);
            async move { provider.find(id) }
        };
        ClaimFirst::new("acquirer", find).ask(ask)
    }

    async fn run(&self, engine: &Engine, ask: AskPolicy) -> Run {
        let provider = Arc::clone(&self.provider);
        let once = engine.once(Key::new("charge").scope("acct").value("order-1")).fingerprint(&1200);
        self.claim_first(ask).run(once, async move |id| Ok(provider.book(id))).await
    }

    /// An owner that goes as far as `crash` and is never heard of again.
    async fn lose(&self, engine: &Engine, crash: Crash) {
        let (provider, far) = (Arc::clone(&self.provider), Arc::new(tokio::sync::Notify::new()));
        let reached = Arc::clone(&far);
        let once = engine.once(Key::new("charge").scope("acct").value("order-1")).fingerprint(&1200);
        let claim_first = self.claim_first(AskPolicy::OnRecovery);
        tokio::spawn(async move {
            let call = async move |id| {
                if crash == Crash::AfterCall {
                    provider.book(id);
                }
                reached.notify_one();
                std::future::pending::<Result<String, Failure>>().await
            };
            claim_first.run(once, call).await
        });
        tokio::time::timeout(Duration::from_secs(20), far.notified()).await.expect("the owner gets that far");
        self.clock.advance(Duration::from_secs(31));
    }
}

#[tokio::test]
async fn the_first_attempt_is_not_asked_about() {
    let world = World::new();
    let engine = world.engine();
    let first = world.run(&engine, AskPolicy::OnRecovery).await.unwrap();
    let again = world.run(&engine, AskPolicy::OnRecovery).await.unwrap();
    assert_eq!((first.value.as_str(), first.replayed, again.replayed), ("receipt 1", false, true));
    assert_eq!((*world.provider.calls.lock(), *world.provider.asked.lock()), (1, 0));
}

// The whole matrix: where the owner was lost, and what the provider says when it is asked.
#[tokio::test]
async fn a_lost_owner_leaves_one_effect() {
    for crash in [Crash::BeforeCall, Crash::AfterCall] {
        for mute in [0, 1, 3] {
            let world = World::new();
            let dead = world.engine();
            world.lose(&dead, crash).await;
            *world.provider.mute.lock() = mute;
            let engine = world.engine();
            for turn in 0..mute {
                let calls = *world.provider.calls.lock();
                let error = world.run(&engine, AskPolicy::OnRecovery).await.unwrap_err();
                assert!(error.is_retryable(), "{crash:?}, turn {turn}: {error:?}");
                let RunError::Failed(error) = error else { panic!("{error:?}") };
                assert!(error.is_transient() && matches!(error, Error::Ambiguous { .. }), "fails closed");
                assert_eq!(*world.provider.calls.lock(), calls, "and sends nothing");
            }
            let answer = world.run(&engine, AskPolicy::OnRecovery).await.unwrap();
            assert_eq!(answer.value, "receipt 1", "{crash:?} after {mute} ambiguous answers");
            assert_eq!(*world.provider.calls.lock(), 1, "{crash:?} after {mute}");
            assert_eq!(*world.provider.asked.lock(), mute + 1);
            assert!(world.run(&engine, AskPolicy::OnRecovery).await.unwrap().replayed);
        }
    }
}

// Lost twice over, at both places: still one.
#[tokio::test]
async fn owners_lost_one_after_the_other_leave_one_effect() {
    for (first, second) in [(Crash::BeforeCall, Crash::BeforeCall), (Crash::BeforeCall, Crash::AfterCall)] {
        let world = World::new();
        let (one, two) = (world.engine(), world.engine());
        world.lose(&one, first).await;
        world.lose(&two, second).await;
        let answer = world.run(&world.engine(), AskPolicy::OnRecovery).await.unwrap();
        assert_eq!((answer.value.as_str(), *world.provider.calls.lock()), ("receipt 1", 1));
    }
}

// The key stays bound to its payload while nobody knows: another payload is a conflict, never a second call.
#[tokio::test]
async fn ambiguity_keeps_the_key_bound() {
    let world = World::new();
    let dead = world.engine();
    world.lose(&dead, Crash::AfterCall).await;
    *world.provider.mute.lock() = 1;
    let engine = world.engine();
    assert!(matches!(world.run(&engine, AskPolicy::OnRecovery).await, Err(RunError::Failed(_))));
    let other = engine.once(Key::new("charge").scope("acct").value("order-1")).fingerprint(&999);
    let refused: Run =
        world.claim_first(AskPolicy::OnRecovery).run(other, async |_| Ok("never".to_owned())).await;
    assert!(matches!(refused, Err(RunError::Conflict)));
}

// record_lost: where a store may lose a record, the provider is asked on the first attempt too.
#[tokio::test]
async fn a_forgotten_record_is_asked_about_where_that_was_chosen() {
    for (ask, calls) in [(AskPolicy::Always, 1), (AskPolicy::OnRecovery, 2)] {
        let world = World::new();
        let engine = world.engine();
        world.run(&engine, ask).await.unwrap();
        let id = engine.id(&Key::new("charge").scope("acct").value("order-1")).await.unwrap();
        let _ = engine.forget(id, semel::record::Force::Yes).await.unwrap();
        let answer = world.run(&engine, ask).await.unwrap();
        assert!(!answer.replayed);
        assert_eq!(*world.provider.calls.lock(), calls, "{ask:?}");
    }
}

// The call's own word counts: nothing happened, or nobody knows.
#[tokio::test]
async fn a_call_that_fails_says_how() {
    let world = World::new();
    let engine = world.engine();
    let once = || {
        engine.once(Key::new("charge").scope("acct").value("order-1")).fingerprint(&1200).mode(Mode::Marked)
    };
    let claim_first = world.claim_first(AskPolicy::OnRecovery);
    let refused: Run = claim_first.run(once(), async |_| Err(Failure::Failed("no funds".into()))).await;
    assert!(matches!(refused, Err(RunError::Failed(Error::Call(why))) if why == "no funds"));
    let provider = Arc::clone(&world.provider);
    let cut: Run = claim_first
        .run(once(), async move |id| {
            provider.book(id);
            Err(Failure::Unknown("cut".into()))
        })
        .await;
    assert!(matches!(cut, Err(RunError::Unknown(Error::Call(_)))), "{cut:?}");
    let answer = world.run(&engine, AskPolicy::OnRecovery).await.unwrap();
    assert_eq!((answer.value.as_str(), *world.provider.calls.lock()), ("receipt 1", 1), "asked, and found");
}

// The id is the same on every attempt, other for every provider, and made of nothing a caller sent.
#[tokio::test]
async fn the_reserved_id_is_fixed_by_the_claim() {
    let world = World::new();
    let dead = world.engine();
    world.lose(&dead, Crash::AfterCall).await;
    let seen = world.provider.booked.lock()[0].clone();
    world.run(&world.engine(), AskPolicy::OnRecovery).await.unwrap();
    assert_eq!(*world.provider.booked.lock(), std::slice::from_ref(&seen));
    assert!(seen.len() == 64 && !seen.contains("order"));
}

#[tokio::test]
async fn a_reserved_id_has_the_form_of_a_uuid_too() {
    let world = World::new();
    let engine = world.engine();
    let answer = engine
        .once(Key::new("n").value("v"))
        .run_with(async |attempt| {
            Ok((ReservedId::of(&attempt, "p").uuid(), ReservedId::of(&attempt, "q").uuid()))
        })
        .await
        .unwrap();
    let (one, other) = answer.value;
    assert_ne!(one, other);
    assert_eq!(one.len(), 36);
    assert_eq!((one.as_bytes()[14], one.matches('-').count()), (b'8', 4), "{one}");
    assert!(matches!(one.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{one}");
}
