//! The claim protocol, model-checked over the real rules: `cargo nextest run -p semel-proof model_`.
//!
//! `SEMEL_PROVE=1` makes the models larger. Three kinds of test:
//!
//! - **promises**: every property of a mode holds in every reachable state, and what would make that empty (a
//!   takeover, a conflict, a replay, doubt…) is reached;
//! - **mutants**: something is broken on purpose and a named property must notice;
//! - **limits**: what a mode does not promise, shown by the shortest way to it.

mod triggers;

use semel::record::Mode;
use semel_proof::model::{ModelAction, ModelBudget, ModelState, Mutant, ProtocolModel, name};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

const NOTHING: ModelBudget = ModelBudget {
    grants: 3,
    crashes: 0,
    cancels: 0,
    abandons: 0,
    late_packets: 0,
    ticks: 0,
    asks: 0,
    lives: 0,
    losses: 0,
    forced: 0,
    rash_settlements: 0,
    clock_steps: 0,
};

/// How large a model is: small for every day, large where `SEMEL_PROVE` asks for it.
fn size(every_day: u8, proof: u8) -> u8 {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { proof } else { every_day }
}

fn holds(what: &str, protocol: ProtocolModel) {
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{what}: {} unique states, {} generated, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    for (name, path) in checker.discoveries() {
        let fails = checker.model().property(name).expectation.discovery_is_failure();
        assert!(!fails, "{what}: {name:?} does not hold:{}", story(path));
    }
    // Also that everything a pass rests on was reached.
    checker.assert_properties();
}

/// The shortest way to a state in which the property `broken` does not hold.
fn way_to(protocol: ProtocolModel, broken: &'static str) -> Option<Path<ModelState, ModelAction>> {
    let protocol = protocol.only(broken);
    assert_eq!(protocol.property(broken).expectation, Expectation::Always);
    protocol.checker().spawn_bfs().join().discovery(broken)
}

fn caught(mutant: Mutant, mode: Mode, budget: ModelBudget, broken: &'static str) {
    let protocol = ProtocolModel::new(mode, 3, budget);
    // It is the mutant that breaks it and nothing else.
    if let Some(path) = way_to(protocol.clone(), broken) {
        panic!("{broken:?} does not hold without {mutant:?} either:{}", story(path));
    }
    match way_to(protocol.with(mutant), broken) {
        Some(path) => println!("{mutant:?} in {mode:?} breaks {broken:?}:{}", story(path)),
        None => panic!("{mutant:?} in {mode:?} was not caught by {broken:?}"),
    }
}

fn limit(mode: Mode, budget: ModelBudget, broken: &'static str) {
    // All of one payload: the shortest way is not about conflicts.
    let mut protocol = ProtocolModel::new(mode, 3, budget);
    protocol.payloads = vec![0; 3];
    match way_to(protocol, broken) {
        Some(path) => println!("{mode:?} does not promise {broken:?}:{}", story(path)),
        None => panic!("{mode:?} keeps {broken:?} under {budget:?} after all: promise it"),
    }
}

/// A way through the model, one line a step. Workers are renamed from state to state.
fn story(path: Path<ModelState, ModelAction>) -> String {
    let line = |(world, action): (ModelState, Option<ModelAction>)| {
        let stages: Vec<_> = world.workers.iter().map(|worker| worker.stage).collect();
        let record = world.slot.0.as_ref().map(|record| (record.owner, record.fence.get()));
        let next = action.map_or_else(|| "this".to_owned(), |action| format!("{action:?}"));
        format!("\n  {:?} {record:?} {stages:?} -> {next}", world.phase())
    };
    path.into_vec().into_iter().map(line).collect()
}

/// Crashes at every step, leases over at any moment, zombies, late packets, handlers that do not know.
fn four_workers(mode: Mode) {
    let budget = ModelBudget {
        grants: size(4, 5),
        crashes: size(1, 2),
        abandons: 1,
        late_packets: 1,
        ticks: 1,
        ..NOTHING
    };
    holds(&format!("{mode:?}, workers"), ProtocolModel::new(mode, usize::from(size(4, 5)), budget));
}

#[test]
fn model_atomic_four_workers() {
    four_workers(Mode::Atomic);
}

#[test]
fn model_keyed_four_workers() {
    four_workers(Mode::Keyed);
}

#[test]
fn model_marked_four_workers() {
    four_workers(Mode::Marked);
}

#[test]
fn model_rerun_four_workers() {
    four_workers(Mode::Rerun);
}

/// Retention and memory end, operators forget and re-execute, callers go away or ask again.
fn several_lives(mode: Mode) {
    let budget = ModelBudget {
        grants: size(3, 4),
        crashes: 1,
        late_packets: size(0, 1),
        asks: 1,
        lives: 2,
        ..NOTHING
    };
    holds(&format!("{mode:?}, lives"), ProtocolModel::new(mode, 3, budget));
}

#[test]
fn model_atomic_several_lives() {
    several_lives(Mode::Atomic);
}

#[test]
fn model_keyed_several_lives() {
    several_lives(Mode::Keyed);
}

#[test]
fn model_marked_several_lives() {
    several_lives(Mode::Marked);
}

#[test]
fn model_rerun_several_lives() {
    several_lives(Mode::Rerun);
}

// A client that hangs up changes nothing: the effect goes on and nothing is released.
#[test]
fn model_cancelled_callers() {
    for mode in [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun] {
        let budget = ModelBudget { grants: size(3, 4), crashes: 1, cancels: size(1, 2), asks: 1, ..NOTHING };
        holds(&format!("{mode:?}, cancelled"), ProtocolModel::new(mode, usize::from(size(3, 4)), budget));
    }
}

// store_clock_jump: forwards is any lease that ends early; this is backwards.
#[test]
fn model_store_clock_steps_back() {
    for mode in [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun] {
        let budget = ModelBudget {
            crashes: 1,
            late_packets: 1,
            ticks: 1,
            clock_steps: size(1, 2),
            grants: size(3, 4),
            ..NOTHING
        };
        holds(&format!("{mode:?}, clock steps back"), ProtocolModel::new(mode, 3, budget));
    }
}

// failover_loses_claim: the receiver's key is what makes the loss of a record bearable.
#[test]
fn model_keyed_survives_a_lost_record() {
    let budget = ModelBudget {
        grants: size(4, 5),
        crashes: 1,
        ticks: size(0, 1),
        losses: size(1, 2),
        forced: 1,
        ..NOTHING
    };
    holds(
        "keyed, record lost or forgotten by force",
        ProtocolModel::new(Mode::Keyed, usize::from(size(4, 5)), budget),
    );
}

#[test]
fn model_rerun_survives_a_lost_record_with_fences_that_grow() {
    let budget = ModelBudget { losses: 2, crashes: 1, ..NOTHING };
    for broken in [name::FENCE_GROWS, name::OLD_FENCE, name::ONE_OWNER, name::REFUSAL] {
        assert!(way_to(ProtocolModel::new(Mode::Rerun, 3, budget), broken).is_none(), "{broken}");
    }
}

#[test]
fn model_mutant_fence_off() {
    caught(Mutant::FenceOff, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::FenceOff, Mode::Rerun, NOTHING, name::OLD_FENCE);
    caught(Mutant::FenceOff, Mode::Atomic, NOTHING, name::OLD_FENCE);
}

#[test]
fn model_mutant_begin_unfenced() {
    caught(Mutant::BeginUnfenced, Mode::Marked, NOTHING, name::ONE_EFFECT);
}

#[test]
fn model_mutant_plain_delete_on_release() {
    caught(Mutant::PlainDelete, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::PlainDelete, Mode::Atomic, NOTHING, name::ONE_EFFECT);
    caught(Mutant::PlainDelete, Mode::Atomic, NOTHING, name::ONE_ANSWER);
}

#[test]
fn model_mutant_fence_counter_reset() {
    let budget = ModelBudget { losses: 1, ..NOTHING };
    caught(Mutant::FenceReset, Mode::Keyed, budget, name::FENCE_GROWS);
    // Also where nothing was lost and a swept record starts again.
    caught(Mutant::FenceReset, Mode::Keyed, ModelBudget { lives: 1, ..NOTHING }, name::FENCE_GROWS);
}

#[test]
fn model_mutant_release_on_cancel() {
    caught(Mutant::ReleaseOnCancel, Mode::Marked, ModelBudget { cancels: 1, ..NOTHING }, name::ONE_EFFECT);
}

#[test]
fn model_mutant_zombie_answers_for_itself() {
    caught(Mutant::ZombieAnswers, Mode::Rerun, NOTHING, name::ONE_ANSWER);
    caught(Mutant::ZombieAnswers, Mode::Marked, NOTHING, name::ONE_ANSWER);
}

#[test]
fn model_mutant_settle_keeps_the_fence() {
    caught(
        Mutant::SettleKeepsFence,
        Mode::Marked,
        ModelBudget { crashes: 1, ..NOTHING },
        name::SETTLE_FENCES,
    );
}

#[test]
fn model_mutant_takeover_of_begun() {
    caught(Mutant::TakeoverOfBegun, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::TakeoverOfBegun, Mode::Marked, NOTHING, name::DOUBT_HOLDS);
}

#[test]
fn model_mutant_steal_held() {
    caught(Mutant::StealHeld, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::StealHeld, Mode::Keyed, NOTHING, name::HELD_STAYS);
}

#[test]
fn model_mutant_conflict_skipped_in_flight() {
    for mode in [Mode::Keyed, Mode::Marked, Mode::Rerun] {
        caught(Mutant::ConflictSkippedInFlight, mode, NOTHING, name::ONE_PAYLOAD);
    }
}

#[test]
fn model_mutant_conflict_skipped_on_replay() {
    caught(Mutant::ConflictSkippedOnReplay, Mode::Marked, NOTHING, name::OWN_PAYLOAD);
}

#[test]
fn model_mutant_stub_dropped_on_release() {
    caught(Mutant::StubDropped, Mode::Marked, ModelBudget { late_packets: 1, ..NOTHING }, name::LATE_PACKET);
}

#[test]
fn model_mutant_abandon_releases() {
    caught(Mutant::AbandonReleases, Mode::Marked, ModelBudget { abandons: 1, ..NOTHING }, name::ONE_EFFECT);
}

#[test]
fn model_mutant_effect_before_begin() {
    caught(Mutant::EffectBeforeBegin, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::EffectBeforeBegin, Mode::Marked, NOTHING, name::BEGIN_FIRST);
}

#[test]
fn model_mutant_last_writer_wins() {
    caught(Mutant::LastWriterWins, Mode::Rerun, NOTHING, name::DONE_STAYS);
    caught(Mutant::LastWriterWins, Mode::Rerun, NOTHING, name::ONE_ANSWER);
}

#[test]
fn model_mutant_expired_runs_again() {
    caught(Mutant::ExpiredRunsAgain, Mode::Marked, NOTHING, name::ONE_EFFECT);
    caught(Mutant::ExpiredRunsAgain, Mode::Keyed, NOTHING, name::EXPIRED_STAYS);
}

#[test]
fn model_mutant_sweep_takes_doubt() {
    caught(Mutant::SweepDoubt, Mode::Marked, NOTHING, name::ONE_EFFECT);
}

#[test]
fn model_mutant_renew_for_ever() {
    caught(Mutant::RenewForEver, Mode::Marked, ModelBudget { ticks: 4, ..NOTHING }, name::CLAIM_ENDS);
}

// A store that loses what it acknowledged: keyed survives (above), the others do not, and the docs say so.
#[test]
fn model_limit_lost_record() {
    let budget = ModelBudget { losses: 1, ..NOTHING };
    limit(Mode::Marked, budget, name::ONE_EFFECT);
    limit(Mode::Atomic, budget, name::ONE_EFFECT);
}

// A store that comes back empty has forgotten the epoch too, and derives a key that was used before.
#[test]
fn model_limit_record_lost_after_reexecution() {
    let budget = ModelBudget { losses: 1, lives: 1, ..NOTHING };
    limit(Mode::Keyed, budget, name::ONE_ANSWER);
}

// Why forget needs force where somebody may be at work.
#[test]
fn model_limit_forget_by_force() {
    limit(Mode::Marked, ModelBudget { forced: 1, ..NOTHING }, name::ONE_EFFECT);
}

// Why a probe may settle to run only where the call carried a key that the upstream honours.
#[test]
fn model_limit_settled_to_run_under_a_live_owner() {
    limit(Mode::Marked, ModelBudget { rash_settlements: 1, ..NOTHING }, name::ONE_EFFECT);
}
