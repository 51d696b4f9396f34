//! The properties that must always hold in a mode, and the states that must be reachable so that a pass is
//! meaningful.

use semel::record::{Mode, Phase};
use stateright::Property;

use super::store::ModelRule;
use super::world::{CallerVerdict, LIVES, ModelState, Stage};
use super::{ProtocolModel, world};

/// The names of the properties, so that a test names the one that must break.
pub mod name {
    /// `marked`, `atomic`, and at the receiver of `keyed`.
    pub const ONE_EFFECT: &str = "at most one effect";
    /// All answers within one life of a key are equal.
    pub const ONE_ANSWER: &str = "all answers agree";
    /// An answer is never given for an effect that did not happen.
    pub const ANSWER_MADE: &str = "an answer implies an effect";
    /// Another payload never gets the outcome.
    pub const OWN_PAYLOAD: &str = "another payload never gets the outcome";
    /// No effect by a worker whose begin was refused.
    pub const BEGIN_FIRST: &str = "no effect without an accepted begin";
    /// A completed outcome is not overwritten.
    pub const DONE_STAYS: &str = "done stays";
    /// Every granted fence is new and no fence goes back.
    pub const FENCE_GROWS: &str = "fences grow";
    /// No command from an old fence changes anything.
    pub const OLD_FENCE: &str = "an old fence changes nothing";
    /// A refusal leaves the record as it was.
    pub const REFUSAL: &str = "a refusal changes nothing";
    /// In doubt is not run again unless it was settled.
    pub const DOUBT_HOLDS: &str = "in doubt is not run again";
    /// A claim with a valid lease is not taken over.
    pub const HELD_STAYS: &str = "a held claim is not taken";
    /// An expired key is not run again while it is known.
    pub const EXPIRED_STAYS: &str = "expired is not run again";
    /// One payload per life of a record.
    pub const ONE_PAYLOAD: &str = "one payload per life";
    /// At most one worker holds the current grant.
    pub const ONE_OWNER: &str = "at most one owner";
    /// A settlement raises the fence.
    pub const SETTLE_FENCES: &str = "settling raises the fence";
    /// The late claim packet of the last owner wins nothing once its claim has ended.
    pub const LATE_PACKET: &str = "a late packet of the last owner is refused";
    /// No claim outlives `in_flight_max`.
    pub const CLAIM_ENDS: &str = "a claim ends at in_flight_max";
    /// `atomic` is never in doubt, nor is a mode with takeover.
    pub const NO_DOUBT: &str = "never in doubt";
}

fn always(name: &'static str, condition: fn(&ProtocolModel, &ModelState) -> bool) -> Property<ProtocolModel> {
    Property::always(name, condition)
}

fn sometimes(
    name: &'static str,
    condition: fn(&ProtocolModel, &ModelState) -> bool,
) -> Property<ProtocolModel> {
    Property::sometimes(name, condition)
}

pub(super) fn of(mode: Mode) -> Vec<Property<ProtocolModel>> {
    let mut properties = vec![
        always(name::ONE_ANSWER, |_, world| world.keeps(ModelRule::Answers)),
        always(name::ANSWER_MADE, |_, world| world.keeps(ModelRule::AnswerMade)),
        always(name::OWN_PAYLOAD, |_, world| world.keeps(ModelRule::PayloadAnswer)),
        always(name::BEGIN_FIRST, |_, world| world.keeps(ModelRule::BeginFirst)),
        always(name::DONE_STAYS, |_, world| world.keeps(ModelRule::DoneStays)),
        always(name::FENCE_GROWS, |_, world| world.keeps(ModelRule::FenceGrows)),
        always(name::OLD_FENCE, |_, world| world.keeps(ModelRule::OldFence)),
        always(name::REFUSAL, |_, world| world.keeps(ModelRule::Refusal)),
        always(name::DOUBT_HOLDS, |_, world| world.keeps(ModelRule::DoubtHolds)),
        always(name::HELD_STAYS, |_, world| world.keeps(ModelRule::HeldStays)),
        always(name::EXPIRED_STAYS, |_, world| world.keeps(ModelRule::ExpiredStays)),
        always(name::ONE_PAYLOAD, |_, world| world.keeps(ModelRule::OnePayload)),
        always(name::SETTLE_FENCES, |_, world| world.keeps(ModelRule::SettleFences)),
        always(name::LATE_PACKET, |_, world| world.keeps(ModelRule::LatePacket)),
        always(name::ONE_OWNER, |_, world| current_owners(world) <= 1),
        always(name::CLAIM_ENDS, |_, world| claim_ends(world)),
        sometimes("a takeover", |_, world| taken_over(world)),
        sometimes("a late owner after a takeover", |_, world| late_owner(world)),
        sometimes("a conflict", |_, world| told(world, CallerVerdict::Conflict)),
        sometimes("a replay", |_, world| answered(world) > 1 && world.life().effects == 1),
        sometimes("everybody of one payload answered", |_, world| everybody(world)),
    ];
    if mode == Mode::Rerun {
        properties.push(sometimes("an effect that was repeated", |_, world| world.life().effects > 1));
    } else {
        properties.push(always(name::ONE_EFFECT, |_, world| one_effect(world)));
    }
    if mode == Mode::Marked {
        properties.extend([
            sometimes("in doubt", |_, world| told(world, CallerVerdict::InDoubt)),
            sometimes("in doubt, and it happened", |_, world| {
                world.phase() == Phase::InDoubt && world.life().effects > 0
            }),
            sometimes("an answer that a person wrote", |_, world| {
                world.life().answer.is_some_and(|made| made.settled)
            }),
        ]);
    } else {
        properties.push(always(name::NO_DOUBT, |_, world| world.phase() != Phase::InDoubt));
    }
    properties
}

/// The states that only a run with more than one life can reach.
pub(super) fn of_several_lives() -> Vec<Property<ProtocolModel>> {
    vec![
        sometimes("expired", |_, world| told(world, CallerVerdict::Expired)),
        sometimes("a second life", |_, world| world.witness.life > 0),
        sometimes("a second epoch", |_, world| {
            world.slot.0.as_ref().is_some_and(|record| record.epoch.get() > 0)
        }),
        sometimes("an answer in a second life", |_, world| {
            world.witness.life > 0 && world.life().answer.is_some()
        }),
    ]
}

fn one_effect(world: &ModelState) -> bool {
    let lives: &[world::Life; LIVES] = &world.witness.lives;
    lives.iter().all(|life| life.effects <= 1)
}

fn current_owners(world: &ModelState) -> usize {
    let Some(record) = &world.slot.0 else { return 0 };
    let holds = |worker: &world::ModelWorker| {
        worker.grant().is_some_and(|grant| grant.owner() == record.owner && grant.fence() == record.fence)
    };
    world.workers.iter().filter(|worker| holds(worker)).count()
}

fn claim_ends(world: &ModelState) -> bool {
    let in_flight = matches!(world.phase(), Phase::Claimed | Phase::Begun);
    world
        .slot
        .0
        .as_ref()
        .filter(|_| in_flight)
        .is_none_or(|record| record.lease_until <= record.claimed_at.after(record.terms.in_flight_max))
}

fn taken_over(world: &ModelState) -> bool {
    world.slot.0.as_ref().is_some_and(|record| record.attempt > 1)
}

fn late_owner(world: &ModelState) -> bool {
    let Some(record) = &world.slot.0 else { return false };
    let late = |worker: &world::ModelWorker| worker.grant().is_some_and(|grant| grant.fence() < record.fence);
    taken_over(world) && world.workers.iter().any(late)
}

fn told(world: &ModelState, verdict: CallerVerdict) -> bool {
    world.workers.iter().any(|worker| worker.stage == Stage::Told(verdict))
}

fn answered(world: &ModelState) -> usize {
    world.workers.iter().filter(|worker| matches!(worker.stage, Stage::Answered)).count()
}

fn everybody(world: &ModelState) -> bool {
    let done = |worker: &world::ModelWorker| match worker.stage {
        Stage::Answered => true,
        Stage::Told(CallerVerdict::Conflict) => worker.payload == 1,
        _ => false,
    };
    world.workers.iter().all(done)
}
