//! Triggers, model-checked: `cargo nextest run -p semel-proof model::triggers`.
//!
//! `SEMEL_PROVE=1` makes the models larger. Three kinds of test, as for the claim protocol:
//!
//! - **promises**: every property holds in every reachable state, and every [`Milestone`] of the configuration is reached;
//! - **mutants**: one step is broken on purpose, and a named property must notice;
//! - **limits**: what is not promised, shown by the shortest way to it.
//!
//! A mutant is caught in a configuration whose promises another test checks, so that only the mutant can break them.

use semel_proof::triggers::{
    Milestone, ModelTrigger, TriggerAction, TriggerBudget, TriggerModel, TriggerMutant, TriggerState, name,
};
use stateright::{Checker, HasDiscoveries, Model, Path};

use super::size;

const NOTHING: TriggerBudget = TriggerBudget {
    crashes: 0,
    pauses: 0,
    resets: 0,
    cancels: 0,
    increments: 0,
    expiries: 0,
    failures: 0,
    losses: 0,
    sweeps: 0,
    claim_records_end: 0,
};

const PLAIN: ModelTrigger = ModelTrigger { payload: 0, wait: false, keyed: true };
const WAITS: ModelTrigger = ModelTrigger { wait: true, ..PLAIN };
const OTHER: ModelTrigger = ModelTrigger { payload: 1, ..PLAIN };
const KEYLESS: ModelTrigger = ModelTrigger { keyed: false, ..PLAIN };

fn first(callers: &[ModelTrigger], every_day: u8, proof: u8) -> &[ModelTrigger] {
    &callers[..usize::from(size(every_day, proof))]
}

fn callers_and_a_reset() -> TriggerModel {
    let callers = first(&[PLAIN, PLAIN, PLAIN], 2, 3);
    TriggerModel::new(callers, TriggerBudget { crashes: 1, pauses: 1, resets: 1, ..NOTHING })
}

fn claims_that_end() -> TriggerModel {
    TriggerModel::new(
        &[PLAIN, PLAIN, PLAIN],
        TriggerBudget { crashes: size(0, 1), pauses: size(1, 2), claim_records_end: 1, ..NOTHING },
    )
}

fn callers_waiter_and_drainer() -> TriggerModel {
    let budget = TriggerBudget { crashes: 1, pauses: size(2, 1), resets: size(0, 1), ..NOTHING };
    TriggerModel::new(&[PLAIN, PLAIN, WAITS], budget).drainers(usize::from(size(2, 1)))
}

fn cancel_and_drain() -> TriggerModel {
    let budget = TriggerBudget { crashes: 1, pauses: 2, cancels: 1, resets: size(0, 1), ..NOTHING };
    TriggerModel::new(&[PLAIN, WAITS], budget).drainers(2)
}

fn changes_drain_and_promotion() -> TriggerModel {
    let budget =
        TriggerBudget { crashes: 1, pauses: size(1, 2), increments: 2, cancels: size(0, 1), ..NOTHING };
    TriggerModel::new(&[PLAIN, WAITS], budget).drainers(2)
}

fn lifetime_and_backlog() -> TriggerModel {
    let budget = TriggerBudget { crashes: size(0, 1), pauses: size(0, 1), expiries: size(1, 2), ..NOTHING };
    TriggerModel::new(&[PLAIN, PLAIN, PLAIN], budget)
}

fn lifetime_and_waiter() -> TriggerModel {
    let budget = TriggerBudget { crashes: size(0, 1), pauses: 1, expiries: 1, cancels: 1, ..NOTHING };
    TriggerModel::new(&[PLAIN, WAITS], budget)
}

fn two_payloads() -> TriggerModel {
    let budget = TriggerBudget { crashes: size(1, 0), pauses: 1, expiries: size(0, 1), ..NOTHING };
    TriggerModel::new(&[PLAIN, PLAIN, OTHER], budget)
}

fn redis_unavailable() -> TriggerModel {
    let budget =
        TriggerBudget { failures: size(1, 2), crashes: size(0, 1), cancels: 1, increments: 1, ..NOTHING };
    TriggerModel::new(&[PLAIN, PLAIN, OTHER], budget)
}

fn redis_unavailable_and_waiter() -> TriggerModel {
    let budget = TriggerBudget { failures: size(1, 2), pauses: 1, crashes: 1, resets: size(0, 1), ..NOTHING };
    TriggerModel::new(&[PLAIN, WAITS], budget)
}

fn redis_unavailable_and_reset() -> TriggerModel {
    let budget = TriggerBudget {
        failures: size(1, 2),
        resets: 1,
        expiries: size(0, 1),
        crashes: size(0, 1),
        ..NOTHING
    };
    TriggerModel::new(&[PLAIN, PLAIN], budget)
}

fn redis_loss() -> TriggerModel {
    let budget = TriggerBudget {
        losses: size(1, 2),
        crashes: size(0, 1),
        pauses: size(0, 1),
        increments: 1,
        ..NOTHING
    };
    TriggerModel::new(&[PLAIN, PLAIN, OTHER], budget)
}

fn tenant_list() -> TriggerModel {
    TriggerModel::new(
        first(&[KEYLESS, KEYLESS, KEYLESS], 2, 3),
        TriggerBudget { crashes: 1, losses: 1, ..NOTHING },
    )
    .listed()
    .gate_closed()
    .drainers(2)
}

fn row_swept() -> TriggerModel {
    let budget = TriggerBudget { resets: 1, expiries: 1, sweeps: 1, ..NOTHING };
    TriggerModel::new(first(&[PLAIN, PLAIN, PLAIN], 2, 3), budget)
}

fn holds(what: &str, model: TriggerModel, marks: &[Milestone]) {
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{what}: {} unique states, {} generated, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    if let Some((name, path)) = checker.discoveries().into_iter().next() {
        panic!("{what}: {name:?} does not hold:{}", story(path));
    }
    for mark in marks {
        assert!(checker.model().reached(*mark), "{what}: {mark:?} was not reached");
    }
}

fn caught(mutant: TriggerMutant, model: TriggerModel, broken: &'static str) {
    match way_to(model.with(mutant), broken) {
        Some(path) => println!("{mutant:?} breaks {broken:?}:{}", story(path)),
        None => panic!("{mutant:?} was not caught by {broken:?}"),
    }
}

fn limit(model: TriggerModel) {
    let broken = name::ONE_ID_WITHOUT_REDIS;
    match way_to(model, broken) {
        Some(path) => println!("{broken:?} is not promised:{}", story(path)),
        None => panic!("{broken:?} holds after all: promise it"),
    }
}

/// The shortest way to a state in which the property does not hold.
fn way_to(model: TriggerModel, broken: &'static str) -> Option<Path<TriggerState, TriggerAction>> {
    model.only(broken).checker().spawn_bfs().join().discovery(broken)
}

/// A way through the model, one line a step.
fn story(path: Path<TriggerState, TriggerAction>) -> String {
    let line = |(world, action): (TriggerState, Option<TriggerAction>)| {
        let callers: Vec<_> = world.callers.iter().map(|caller| caller.stage).collect();
        let next = action.map_or_else(|| "this".to_owned(), |action| format!("{action:?}"));
        let row = world.ledger.row.map(|row| (row.generation, row.holder));
        let buffered: Vec<_> = world.redis.entries.iter().map(Option::is_some).collect();
        format!("\n  {row:?} {buffered:?} {callers:?} {:?} -> {next}", world.drainers)
    };
    path.into_vec().into_iter().map(line).collect()
}

#[test]
fn model_callers_and_a_reset() {
    let marks = [
        Milestone::TakenOver,
        Milestone::Reserved,
        Milestone::Outdated,
        Milestone::StaleWrite,
        Milestone::OlderGeneration,
    ];
    holds("callers and a reset", callers_and_a_reset(), &marks);
}

#[test]
fn model_claims_that_end() {
    holds(
        "claims that end",
        claims_that_end(),
        &[Milestone::TakenOver, Milestone::PutTooLate, Milestone::Reserved],
    );
}

#[test]
fn model_callers_waiter_and_drainer() {
    let marks =
        [Milestone::Promoted, Milestone::PromotionWaited, Milestone::AcceptedTwice, Milestone::TakenOver];
    holds("callers, waiter and drainer", callers_waiter_and_drainer(), &marks);
}

#[test]
fn model_cancel_and_drain() {
    let marks = [
        Milestone::CancelledInBuffer,
        Milestone::CancelWaited,
        Milestone::Promoted,
        Milestone::AcceptedTwice,
    ];
    holds("cancel and drain", cancel_and_drain(), &marks);
}

#[test]
fn model_changes_drain_and_promotion() {
    let marks = [
        Milestone::ChangedInTransit,
        Milestone::Promoted,
        Milestone::PromotionWaited,
        Milestone::AcceptedTwice,
    ];
    holds("changes, drain and promotion", changes_drain_and_promotion(), &marks);
}

#[test]
fn model_lifetime_and_backlog() {
    let marks = [Milestone::Expired, Milestone::OlderGeneration, Milestone::Outdated, Milestone::StaleWrite];
    holds("lifetime and backlog", lifetime_and_backlog(), &marks);
}

#[test]
fn model_lifetime_and_waiter() {
    let marks =
        [Milestone::Expired, Milestone::OlderGeneration, Milestone::Promoted, Milestone::CancelledInBuffer];
    holds("lifetime and waiter", lifetime_and_waiter(), &marks);
}

#[test]
fn model_two_payloads() {
    holds("two payloads", two_payloads(), &[Milestone::Conflict, Milestone::TakenOver, Milestone::Reserved]);
}

#[test]
fn model_redis_unavailable() {
    let marks = [Milestone::Alone, Milestone::LostKey, Milestone::LostKeyFound, Milestone::Conflict];
    holds("Redis unavailable", redis_unavailable(), &marks);
}

#[test]
fn model_redis_unavailable_and_waiter() {
    let marks = [Milestone::Alone, Milestone::LostKey, Milestone::Promoted];
    holds("Redis unavailable and waiter", redis_unavailable_and_waiter(), &marks);
}

#[test]
fn model_redis_unavailable_and_reset() {
    let marks = [Milestone::Alone, Milestone::UnconfirmedFound, Milestone::OlderGeneration];
    holds("Redis unavailable and a reset", redis_unavailable_and_reset(), &marks);
}

#[test]
fn model_redis_loss() {
    holds("Redis loss", redis_loss(), &[Milestone::LostKey, Milestone::LostKeyFound, Milestone::Duplicate]);
}

#[test]
fn model_tenant_list() {
    holds("tenant list", tenant_list(), &[Milestone::NotListed, Milestone::Left, Milestone::Stayed]);
}

#[test]
fn model_row_swept() {
    holds("row swept", row_swept(), &[Milestone::Swept, Milestone::Expired]);
}

// Accepted as live and cancelled afterwards: a worker is faster.
#[test]
fn model_mutant_cancel_after_accept() {
    caught(TriggerMutant::CancelAfterAccept, cancel_and_drain(), name::CANCEL_HOLDS);
}

#[test]
fn model_mutant_wait_without_a_claim() {
    caught(TriggerMutant::WaitWithoutClaim, callers_waiter_and_drainer(), name::ONE_ID);
    caught(TriggerMutant::WaitWithoutClaim, callers_waiter_and_drainer(), name::ONE_FIRST);
}

// It loses a change that comes between its read and its remove, and counts twice what a drainer brings as well.
#[test]
fn model_mutant_promotion_without_a_lease() {
    caught(TriggerMutant::PromoteWithoutLease, changes_drain_and_promotion(), name::CHANGE_KEPT);
    caught(TriggerMutant::PromoteWithoutLease, changes_drain_and_promotion(), name::CHANGED_ONCE);
}

#[test]
fn model_mutant_wait_not_promoted() {
    caught(TriggerMutant::WaitNotPromoted, callers_waiter_and_drainer(), name::WAITER_SERVED);
}

#[test]
fn model_mutant_drain_ignores_the_id() {
    caught(TriggerMutant::AcceptIgnoresId, callers_waiter_and_drainer(), name::ENDS_ONCE);
}

#[test]
fn model_mutant_payload_not_compared() {
    caught(TriggerMutant::PayloadNotCompared, two_payloads(), name::OWN_PAYLOAD);
}

#[test]
fn model_mutant_collision_aliases_the_run() {
    caught(TriggerMutant::CollisionAliases, redis_unavailable(), name::ENDS);
    caught(TriggerMutant::CollisionAliases, redis_unavailable(), name::FOUND);
}

#[test]
fn model_mutant_collision_overwrites_metadata() {
    caught(TriggerMutant::CollisionOverwrites, redis_unavailable(), name::CHANGE_KEPT);
    caught(TriggerMutant::CollisionOverwrites, redis_unavailable(), name::CHANGED_ONCE);
}

#[test]
fn model_mutant_drain_ignores_the_generation() {
    caught(TriggerMutant::DrainIgnoresGeneration, callers_and_a_reset(), name::KEY_WON);
    caught(TriggerMutant::DrainIgnoresGeneration, callers_and_a_reset(), name::CURRENT_RUN);
    caught(TriggerMutant::DrainIgnoresGeneration, lifetime_and_backlog(), name::KEY_KEPT);
}

#[test]
fn model_mutant_lifetime_counted_from_the_drain() {
    caught(TriggerMutant::LifetimeFromDrain, lifetime_and_backlog(), name::CURRENT_RUN);
}

#[test]
fn model_mutant_buffer_frees_an_expired_key() {
    caught(TriggerMutant::BufferFreesExpiredKey, lifetime_and_backlog(), name::ONE_ID);
    caught(TriggerMutant::BufferFreesExpiredKey, lifetime_and_backlog(), name::KEY_WON);
}

#[test]
fn model_mutant_direct_write_answers_an_expired_holder() {
    caught(TriggerMutant::AcceptAnswersExpired, lifetime_and_backlog(), name::CURRENT_RUN);
}

// A run is drained, or written directly, between a caller's look into the ledger and its put.
#[test]
fn model_mutant_ledger_changes_without_a_note() {
    caught(TriggerMutant::AckLeavesNoNote, callers_and_a_reset(), name::ONE_ID);
    caught(TriggerMutant::AckLeavesNoNote, callers_and_a_reset(), name::KEY_WON);
    caught(TriggerMutant::WriteLeavesNoNote, callers_and_a_reset(), name::ONE_ID);
    caught(TriggerMutant::WriteLeavesNoNote, callers_and_a_reset(), name::KEY_WON);
}

#[test]
fn model_mutant_reset_without_a_generation() {
    caught(TriggerMutant::ResetWithoutGeneration, callers_and_a_reset(), name::CURRENT_RUN);
    caught(TriggerMutant::ResetWithoutGeneration, callers_and_a_reset(), name::KEY_WON);
    caught(TriggerMutant::ResetWithoutGeneration, callers_and_a_reset(), name::ONE_ID);
}

// An owner that was paused before its put adds a run of the old generation: allowed, since its trigger began before the
// reset ended. Closing the generation spares that run; no promise rests on it.
#[test]
fn model_reset_may_leave_the_old_generation_open() {
    let model = callers_and_a_reset().with(TriggerMutant::ResetLeavesGenerationOpen);
    holds("reset leaves the old generation open", model, &[Milestone::OlderGeneration]);
}

#[test]
fn model_mutant_tenant_leaves_without_comparison() {
    caught(TriggerMutant::LeaveWithoutComparison, tenant_list(), name::ENDS);
}

#[test]
fn model_mutant_tenant_announced_after_the_put() {
    caught(TriggerMutant::AnnounceAfterPut, tenant_list(), name::ENDS);
}

// Announced, everything lost, put: the number is greater than what the empty buffer knows, and no drainer ever comes.
#[test]
fn model_mutant_number_instead_of_token() {
    caught(TriggerMutant::NumberInsteadOfToken, tenant_list(), name::ENDS);
}

#[test]
fn model_numbers_are_enough_while_redis_keeps_its_data() {
    let mut model = tenant_list().with(TriggerMutant::NumberInsteadOfToken);
    model.budget.losses = 0;
    holds("numbers without loss", model, &[Milestone::NotListed, Milestone::Left, Milestone::Stayed]);
}

#[test]
fn model_mutant_numbers_start_again() {
    caught(TriggerMutant::NumbersStartAgain, tenant_list(), name::ENDS);
}

#[test]
fn model_mutant_exhausted_rounds_bypass_the_claim() {
    caught(TriggerMutant::RoundsBypassClaim, callers_waiter_and_drainer(), name::ONE_ID);
    caught(TriggerMutant::RoundsBypassClaim, callers_waiter_and_drainer(), name::ONE_FIRST);
}

#[test]
fn model_mutant_winner_does_not_read_the_ledger() {
    caught(TriggerMutant::WinnerSkipsLedger, lifetime_and_backlog(), name::ONE_ID);
    caught(TriggerMutant::WinnerSkipsLedger, lifetime_and_backlog(), name::KEY_WON);
}

#[test]
fn model_mutant_changes_without_numbers() {
    caught(TriggerMutant::ChangesNotNumbered, changes_drain_and_promotion(), name::CHANGED_ONCE);
}

#[test]
fn model_mutant_number_set_back() {
    caught(TriggerMutant::NumberSetBack, changes_drain_and_promotion(), name::CHANGED_ONCE);
}

#[test]
fn model_mutant_stale_write_accepted() {
    caught(TriggerMutant::StaleWriteAccepted, callers_and_a_reset(), name::ONE_ID);
    caught(TriggerMutant::StaleWriteAccepted, callers_and_a_reset(), name::KEY_WON);
}

#[test]
fn model_mutant_put_ignores_notes() {
    caught(TriggerMutant::PutIgnoresNotes, callers_and_a_reset(), name::ONE_ID);
    caught(TriggerMutant::PutIgnoresNotes, callers_and_a_reset(), name::ONE_FIRST);
}

#[test]
fn model_mutant_direct_write_without_a_reservation() {
    caught(TriggerMutant::NoReservation, callers_and_a_reset(), name::ONE_ID);
    caught(TriggerMutant::NoReservation, callers_and_a_reset(), name::ONE_FIRST);
}

#[test]
fn model_mutant_direct_write_skips_the_buffer() {
    caught(TriggerMutant::DirectWriteSkipsBuffer, callers_waiter_and_drainer(), name::ONE_ID);
}

#[test]
fn model_mutant_late_put_accepted() {
    caught(TriggerMutant::LatePutAccepted, claims_that_end(), name::ONE_ID);
}

#[test]
fn model_mutant_reservation_ends_with_the_claim() {
    caught(TriggerMutant::ReservationEndsWithClaim, claims_that_end(), name::ONE_ID);
}

#[test]
fn model_mutant_ledger_before_buffer() {
    caught(TriggerMutant::LedgerBeforeBuffer, redis_unavailable(), name::RETRY_FINDS);
}

// Its run would be placed again under the new generation, and a trigger after the reset answered with it.
#[test]
fn model_mutant_unconfirmed_put_forgotten() {
    caught(TriggerMutant::UnconfirmedForgotten, redis_unavailable_and_reset(), name::CURRENT_RUN);
}

#[test]
fn model_mutant_row_swept_too_early() {
    caught(TriggerMutant::SweepTooEarly, row_swept(), name::CURRENT_RUN);
}

// Without Redis the ledger decides alone: one key may get two runs. Only one of them owns the key; the other one is a
// dead letter that its own callers still find.
#[test]
fn model_limit_redis_unavailable() {
    limit(redis_unavailable());
}

#[test]
fn model_limit_redis_loss() {
    limit(redis_loss());
}
