//! Operators' commands through the engine.

use super::*;
use crate::outcome::Outcome;
use crate::record::Settlement;

async fn in_doubt(engine: &Engine) -> crate::key::KeyId {
    let cut: Run = engine.once(key()).run(async || Err(Failure::Unknown("cut".into()))).await;
    assert!(matches!(cut, Err(RunError::Unknown(_))));
    engine.id(&key()).await.unwrap()
}

fn accepted(ruling: &Result<Ruling, store::Error>) {
    assert!(matches!(ruling, Ok(Ruling::Accepted { .. })), "{ruling:?}");
}

#[tokio::test]
async fn doubt_is_settled_as_done() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let id = in_doubt(&engine).await;
    accepted(&engine.settle(id, Settlement::Done(Arc::new(Outcome::new("json", "9")))).await);
    let effect = Effect::quick();
    let answer = effect.once(&engine).await.unwrap();
    assert_eq!((answer.value, answer.replayed, effect.runs()), (9, true, 0));
}

#[tokio::test]
async fn doubt_is_settled_as_not_happened() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let id = in_doubt(&engine).await;
    accepted(&engine.settle(id, Settlement::Run).await);
    let answer = Effect::quick().once(&engine).await.unwrap();
    assert_eq!((answer.value, answer.replayed), (1, false));
    let refused = engine.settle(id, Settlement::Run).await.unwrap();
    assert!(matches!(refused, Ruling::Refused { phase: Phase::Done }), "only doubt is settled");
}

// An owner that is refused because doubt was settled meanwhile answers with the stored outcome.
#[tokio::test]
async fn an_owner_that_comes_back_after_a_settlement_does_not_answer_for_itself() {
    let (clock, store) = clocked();
    let engine = build(over(&store).wait(ms(50)));
    let id = engine.id(&key()).await.unwrap();
    let effect = Effect::held();
    let late = effect.start(&engine).await;
    clock.advance(secs(31));
    accepted(&engine.settle(id, Settlement::Done(Arc::new(Outcome::new("json", "9")))).await);
    effect.let_go();
    let late = joined(late).await.unwrap();
    assert_eq!((late.value, late.replayed), (9, true));
}

// After forget and re-execute answer, no hot cache of this process gives the outcome.
#[tokio::test]
async fn forget_and_reexecute_stop_replays_at_once() {
    let store = faulty();
    let engines = [build(over(&store)), build(over(&store))];
    let effect = Effect::quick();
    for (round, forget) in [(1, true), (2, false), (3, true)] {
        for engine in [&engines[0], &engines[0], &engines[1], &engines[1]] {
            assert_eq!(effect.once(engine).await.unwrap().value, round, "hot in both");
        }
        let id = engines[0].id(&key()).await.unwrap();
        accepted(&match forget {
            true => engines[0].forget(id, Force::No).await,
            false => engines[0].reexecute(id).await,
        });
        assert_eq!(
            engines[1].get(&key()).await.unwrap().map(|found| found.phase()),
            Some(if forget { Phase::Vacant } else { Phase::Bound })
        );
    }
    let again = effect.once(&engines[1]).await.unwrap();
    assert_eq!((again.value, again.replayed), (4, false));
}

// An outcome that was read before the forget and arrives after it must not enter the cache.
#[tokio::test]
async fn a_replay_under_way_while_its_record_is_forgotten_is_not_cached() {
    let store = faulty();
    let engine = build(over(&store));
    let effect = Effect::quick();
    effect.once(&build(over(&store))).await.unwrap();
    let gate = FaultGate::closed();
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::HoldReply(gate.clone()));
    let reading = effect.spawn(engine.once(key()));
    soon(gate.reached_by(1)).await;
    accepted(&engine.forget(engine.id(&key()).await.unwrap(), Force::No).await);
    gate.open();
    assert!(joined(reading).await.unwrap().replayed, "it began before the forget");
    assert!(!effect.once(&engine).await.unwrap().replayed, "this one did not");
}

#[tokio::test]
async fn forget_is_refused_on_a_claim_without_force() {
    let engine = build(Engine::builder(MemoryStore::new()).wait(ms(50)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let id = engine.id(&key()).await.unwrap();
    assert!(matches!(engine.forget(id, Force::No).await.unwrap(), Ruling::Refused { phase: Phase::Begun }));
    accepted(&engine.forget(id, Force::Yes).await);
    effect.let_go();
    assert!(
        matches!(joined(owner).await, Err(RunError::InFlight { .. })),
        "refused, and nobody has another outcome"
    );
}

// A caller that keeps its own owner has the retry of the engine: a lost answer is not its business.
#[tokio::test]
async fn the_steps_of_a_claim_survive_lost_answers() {
    let store = faulty();
    let engine = build(over(&store));
    let id = engine.id(&key()).await.unwrap();
    let claim = record::NewClaim {
        owner: Owner::random(),
        fingerprint: Payload::none().fingerprint(&Secret::from_bytes([1; 32])),
        terms: Arc::new(Terms::default()),
        begin: Begin::Later,
        hint: key().hint(),
    };
    for call in [StoreCall::Claim, StoreCall::Begin, StoreCall::Complete] {
        store.script(call, When::Nth(1), InjectedFault::LoseReply);
    }
    let fingerprint = claim.fingerprint;
    let Ok(Ruling::Won(win)) = soon(engine.apply(id, Command::Claim(claim))).await else {
        panic!("the claim is won")
    };
    accepted(&soon(engine.apply(id, Command::Begin(win.grant))).await);
    let outcome = Arc::new(Outcome::new("json", "9"));
    let complete = Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
    accepted(&soon(engine.apply(id, complete)).await);
    // Executed twice, a re-execution would start two epochs.
    store.script(StoreCall::Reexecute, When::Nth(1), InjectedFault::LoseReply);
    let unknown = soon(engine.apply(id, Command::Reexecute)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Ambiguous);
}
