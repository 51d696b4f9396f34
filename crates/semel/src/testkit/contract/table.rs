//! The table of states and commands, cell by cell.

use std::sync::Arc;

use super::context::Context;
use super::expecting::{
    OTHER_PAYLOAD, PAYLOAD, PHASES, accepted, ask, ask_otherwise, complete, lost, outcome, writes,
};
use crate::record::{Command, Fence, Force, Grant, Mode, NewClaim, Owner, Phase, Ruling, Settlement};

/// A ruling without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Won,
    Busy,
    Replay,
    Conflict,
    InDoubt,
    Expired,
    Accepted,
    Lost,
    Refused,
}

fn says(ruling: &Ruling) -> Says {
    match ruling {
        Ruling::Won(_) => Says::Won,
        Ruling::Busy { .. } => Says::Busy,
        Ruling::Replay { .. } => Says::Replay,
        Ruling::Conflict => Says::Conflict,
        Ruling::InDoubt => Says::InDoubt,
        Ruling::Expired => Says::Expired,
        Ruling::Accepted { .. } => Says::Accepted,
        Ruling::Lost { .. } => Says::Lost,
        Ruling::Refused { .. } => Says::Refused,
    }
}

/// A claim by another, by the same owner again, and with another payload: the answer in every phase.
pub async fn claims_follow_the_table(context: &Context) {
    use Says::{Busy, Conflict, Expired, InDoubt, Lost, Replay, Won};
    for phase in PHASES {
        let [by_another, by_itself, otherwise, itself_otherwise] = match phase {
            Phase::Vacant => [Won, Lost, Won, Lost],
            Phase::Bound => [Won, Lost, Conflict, Conflict],
            Phase::Claimed | Phase::Begun => [Busy, Won, Conflict, Conflict],
            Phase::Lapsed => [Won, Won, Conflict, Conflict],
            Phase::InDoubt => [InDoubt, InDoubt, Conflict, Conflict],
            Phase::Done => [Replay, Replay, Conflict, Conflict],
            Phase::Expired => [Expired, Expired, Expired, Expired],
        };
        let terms = context.lasting(Mode::Marked);
        let placed = context.place(phase).await;
        let ruling = context.ask(placed.id, &ask(terms)).await;
        assert_eq!(says(&ruling), by_another, "a claim by another on {phase:?}");
        let placed = context.place(phase).await;
        let ruling = context.ask(placed.id, &placed.claim).await;
        assert_eq!(says(&ruling), by_itself, "a repeated claim on {phase:?}");
        let placed = context.place(phase).await;
        let ruling = context.ask(placed.id, &ask_otherwise(terms)).await;
        assert_eq!(says(&ruling), otherwise, "a claim with another payload on {phase:?}");
        let placed = context.place(phase).await;
        let changed_mind = NewClaim { fingerprint: OTHER_PAYLOAD, ..placed.claim };
        let ruling = context.ask(placed.id, &changed_mind).await;
        assert_eq!(says(&ruling), itself_otherwise, "a repeated claim with another payload on {phase:?}");
    }
}

/// Begin, renew, complete, release, bind and abandon by the last owner: answer and next phase in every phase.
pub async fn writes_of_the_owner_follow_the_table(context: &Context) {
    use Phase::{Begun, Bound, Claimed, Done, InDoubt, Lapsed, Vacant};
    for phase in PHASES {
        // None: lost, and the record stays as it was.
        let next = match phase {
            Phase::Claimed => [Begun, Claimed, Done, Vacant, Bound, Lapsed].map(Some),
            Phase::Begun => [Begun, Begun, Done, Vacant, Bound, InDoubt].map(Some),
            Phase::Lapsed => [None, None, Some(Done), Some(Vacant), Some(Bound), Some(Lapsed)],
            Phase::InDoubt => [None, None, Some(Done), Some(Vacant), Some(Bound), Some(InDoubt)],
            Phase::Vacant | Phase::Bound | Phase::Done | Phase::Expired => [None; 6],
        };
        for (number, next) in next.into_iter().enumerate() {
            let placed = context.place(phase).await;
            let before = context.record(placed.id).await;
            let command = writes(placed.grant, &outcome("late"))[number].clone();
            let name = format!("{command:?} on {phase:?}");
            let ruling = context.apply(placed.id, command).await;
            if let Some(next) = next {
                assert_eq!(says(&ruling), Says::Accepted, "{name}");
                assert_eq!(context.phase(placed.id).await, next, "after {name}");
            } else {
                assert_eq!(says(&ruling), Says::Lost, "{name}");
                assert_eq!(
                    context.record(placed.id).await,
                    before,
                    "{name} was refused and changed something"
                );
            }
        }
    }
}

/// Writes with the wrong owner, an old fence or an unknown fence: lost in every phase, nothing changed.
pub async fn writes_of_others_change_nothing(context: &Context) {
    for phase in PHASES {
        let placed = context.place(phase).await;
        let before = context.record(placed.id).await;
        let fence = placed.grant.fence();
        let strangers = [
            Grant::from_parts(Owner::random(), fence),
            Grant::from_parts(placed.grant.owner(), Fence::new(fence.get() - 1)),
            Grant::from_parts(placed.grant.owner(), Fence::new(fence.get() + 1)),
        ];
        for stranger in strangers {
            for command in writes(stranger, &outcome("forged")) {
                let name = format!("{command:?} on {phase:?}");
                let shown = matches!(command, Command::Complete { .. }) && phase == Phase::Done;
                let winner = lost(context.apply(placed.id, command).await);
                assert_eq!(winner, shown.then(|| Arc::clone(&placed.outcome)), "the winner shown to {name}");
                assert_eq!(
                    context.record(placed.id).await,
                    before,
                    "{name} was refused and changed something"
                );
            }
        }
    }
}

/// Forget, settle and re-execute: answer and next phase in every phase.
pub async fn operators_follow_the_table(context: &Context) {
    use Phase::{Bound, Done, Vacant};
    for phase in PHASES {
        // None: refused, and the record stays as it was.
        let next = match phase {
            Phase::Vacant | Phase::Bound => [Some(Vacant), Some(Vacant), None, None, None],
            Phase::Claimed | Phase::Begun | Phase::Lapsed => [None, Some(Vacant), None, None, None],
            Phase::InDoubt => [None, Some(Vacant), Some(Done), Some(Bound), None],
            Phase::Done | Phase::Expired => [Some(Vacant), Some(Vacant), None, None, Some(Bound)],
        };
        for (command, next) in operator_commands().into_iter().zip(next) {
            let placed = context.place(phase).await;
            let before = context.record(placed.id).await;
            let name = format!("{command:?} on {phase:?}");
            let ruling = context.apply(placed.id, command).await;
            if let Some(next) = next {
                assert_eq!(says(&ruling), Says::Accepted, "{name}");
                assert_eq!(context.phase(placed.id).await, next, "after {name}");
            } else {
                assert_eq!(ruling, Ruling::Refused { phase }, "{name}");
                assert_eq!(
                    context.record(placed.id).await,
                    before,
                    "{name} was refused and changed something"
                );
            }
        }
    }
}

/// An unknown key: writes are lost, operators are refused, and no record is created.
pub async fn unknown_keys_follow_the_table(context: &Context) {
    let id = context.key();
    assert_eq!(context.get(id).await, None, "a key nobody used");
    let grant = Grant::from_parts(Owner::random(), Fence::new(1));
    for command in writes(grant, &outcome("forged")) {
        let name = format!("{command:?}");
        assert_eq!(lost(context.apply(id, command).await), None, "{name} on an unknown key");
    }
    for command in operator_commands() {
        let name = format!("{command:?}");
        let refused = Ruling::Refused { phase: Phase::Vacant };
        assert_eq!(context.apply(id, command).await, refused, "{name} on an unknown key");
    }
    assert_eq!(context.get(id).await, None, "refused commands leave no record");
    let claim = ask(context.lasting(Mode::Marked));
    let grant = context.win(id, &claim).await.grant;
    assert_eq!(claim.fingerprint, PAYLOAD);
    accepted(context.apply(id, complete(grant, &outcome("first"))).await);
}

fn operator_commands() -> [Command; 5] {
    [
        Command::Forget(Force::No),
        Command::Forget(Force::Yes),
        Command::Settle(Settlement::Done(outcome("settled"))),
        Command::Settle(Settlement::Run),
        Command::Reexecute,
    ]
}
