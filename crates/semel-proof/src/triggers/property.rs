//! Properties that hold in every state.

use stateright::Property;

use super::state::{GENERATIONS, ModelDelivery, TriggerRule, TriggerState};
use super::{TriggerModel, action};

/// The names of the properties, so that a test names the one that must break.
pub mod name {
    /// In a final state every accepted run has ended, and no caller or client waits.
    pub const ENDS: &str = "every accepted run ends";
    /// A run is executed once, or cancelled, or dead-lettered.
    pub const ENDS_ONCE: &str = "a run ends in one way";
    /// While Redis answers, one run is accepted per key and generation.
    pub const ONE_ID: &str = "one id per key and generation";
    /// While Redis answers, at most one caller per generation is answered `cached: false`; exactly one if no process died.
    pub const ONE_FIRST: &str = "one caller is first";
    /// No id stands for two payloads.
    pub const OWN_PAYLOAD: &str = "no id for two runs";
    /// A trigger that began after a reset or an expiry is not answered with an older run.
    pub const CURRENT_RUN: &str = "no answer with a run of an ended generation";
    /// A run that was answered is in the ledger or in the buffer.
    pub const FOUND: &str = "an answered run is found";
    /// A repeated trigger of an acknowledged run is not answered with a conflict.
    pub const RETRY_FINDS: &str = "a repeated trigger finds its run";
    /// While Redis answers no run loses its key.
    pub const KEY_WON: &str = "no run loses its key";
    /// A generation ends only by a reset or by the end of a lifetime.
    pub const KEY_KEPT: &str = "a generation ends for a reason";
    /// A run whose cancellation was acknowledged is not executed.
    pub const CANCEL_HOLDS: &str = "a cancelled run is not executed";
    /// No acknowledged change is applied twice.
    pub const CHANGED_ONCE: &str = "no change is applied twice";
    /// No acknowledged change is lost.
    pub const CHANGE_KEPT: &str = "no change is lost";
    /// A waiting caller is answered with a run that is in the ledger.
    pub const WAITER_SERVED: &str = "a waiting caller's run is in the ledger";
    /// Not promised: the same as [`ONE_ID`] when Redis fails.
    pub const ONE_ID_WITHOUT_REDIS: &str = "one id even when Redis fails";
}

fn always(name: &'static str, condition: fn(&TriggerModel, &TriggerState) -> bool) -> Property<TriggerModel> {
    Property::always(name, condition)
}

pub(super) fn all() -> Vec<Property<TriggerModel>> {
    vec![
        always(name::ENDS, |model, state| !is_final(model, state) || all_ended(state)),
        always(name::ENDS_ONCE, ends_once),
        always(name::ONE_ID, |model, state| model.redis_failed(state) || one_id(model, state)),
        always(name::ONE_FIRST, one_first),
        always(name::OWN_PAYLOAD, |_, state| state.keeps(TriggerRule::OwnPayload)),
        always(name::CURRENT_RUN, |_, state| state.keeps(TriggerRule::CurrentRun)),
        always(name::FOUND, |_, state| state.keeps(TriggerRule::ChangeFinds) && all_found(state)),
        always(name::RETRY_FINDS, |_, state| state.keeps(TriggerRule::RetryFinds)),
        always(name::KEY_WON, |model, state| model.redis_failed(state) || no_key_lost(state)),
        always(name::KEY_KEPT, |_, state| state.keeps(TriggerRule::KeyKept)),
        always(name::CANCEL_HOLDS, |_, state| cancel_holds(state)),
        always(name::CHANGED_ONCE, |_, state| changes(state, |applied, answered| applied <= answered)),
        always(name::CHANGE_KEPT, change_kept),
        always(name::WAITER_SERVED, |_, state| state.keeps(TriggerRule::WaiterServed)),
    ]
}

/// Properties that do not hold.
pub(super) fn not_promised() -> Vec<Property<TriggerModel>> {
    vec![always(name::ONE_ID_WITHOUT_REDIS, one_id)]
}

fn is_final(model: &TriggerModel, state: &TriggerState) -> bool {
    let mut certain = Vec::new();
    action::list_certain(model, state, &mut certain);
    certain.is_empty()
}

fn all_ended(state: &TriggerState) -> bool {
    let ended = |run: u8| {
        let event = state.ledger.event(run);
        state.witness.lost.has(run) || event.is_some_and(|event| event.delivery != ModelDelivery::Queued)
    };
    state.witness.placed.iter().all(ended) && !action::is_unfinished(state)
}

fn ends_once(_: &TriggerModel, state: &TriggerState) -> bool {
    let one_way =
        |run: u8| state.ledger.event(run).is_some_and(|event| event.delivery == ModelDelivery::Executed);
    state.keeps(TriggerRule::ExecutedOnce) && state.witness.executed.iter().all(one_way)
}

fn one_id(model: &TriggerModel, state: &TriggerState) -> bool {
    let mut runs = [0_u8; GENERATIONS];
    for run in state.witness.placed.iter().filter(|run| model.is_keyed(*run)) {
        runs[usize::from(state.witness.era[usize::from(run)])] += 1;
    }
    runs.iter().all(|runs| *runs <= 1)
}

fn one_first(model: &TriggerModel, state: &TriggerState) -> bool {
    if model.redis_failed(state) {
        return true;
    }
    let process_died = state.left.crashes != model.budget.crashes;
    let exactly = !process_died && is_final(model, state);
    let answered = state.witness.answered;
    state.witness.firsts.iter().zip(0..).all(|(firsts, era)| {
        let of_era = |run: u8| model.is_keyed(run) && state.witness.era[usize::from(run)] == era;
        let some = answered.iter().any(of_era);
        *firsts <= 1 && (!exactly || *firsts == u8::from(some))
    })
}

fn all_found(state: &TriggerState) -> bool {
    state.witness.answered.iter().all(|run| {
        state.ledger.event(run).is_some() || state.redis.entry(run).is_some() || state.witness.lost.has(run)
    })
}

fn no_key_lost(state: &TriggerState) -> bool {
    state.ledger.events.iter().flatten().all(|event| !event.lost_key)
}

fn cancel_holds(state: &TriggerState) -> bool {
    let both = state.witness.cancelled.0 & state.witness.executed.0;
    both & !state.witness.lost.0 == 0
}

/// Compares the increments in the ledger with those acknowledged.
fn changes(state: &TriggerState, right: fn(u8, u8) -> bool) -> bool {
    let runs = state.ledger.events.iter().zip(state.witness.increments);
    runs.into_iter().all(|(event, answered)| event.is_none_or(|event| right(event.increments, answered)))
}

fn change_kept(model: &TriggerModel, state: &TriggerState) -> bool {
    let redis_lost = state.left.losses != model.budget.losses;
    redis_lost || !is_final(model, state) || changes(state, |applied, answered| applied >= answered)
}
