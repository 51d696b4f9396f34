//! Leases: how long a claim is valid, which caller takes it over, and what a late owner may still do.

use std::time::Duration;

use super::context::Context;
use super::expecting::{
    accepted, ask, ask_and_begin, ask_otherwise, busy, complete, lost, outcome, replayed, won,
};
use crate::record::{Command, Mode, Phase, Ruling, Terms};

const MODES: [Mode; 4] = [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun];

/// Until its lease expires a claim cannot be taken over, to the last microsecond.
pub async fn claim_is_never_stolen_early(context: &Context) {
    for mode in MODES {
        let (id, terms) = (context.key(), context.ending(mode));
        let win = context.win(id, &ask_and_begin(terms)).await;
        context.pass(terms.lease / 2).await;
        busy(context.ask(id, &ask(terms)).await);
        if context.manual_clock().is_some() {
            context.pass(terms.lease / 2 - Duration::from_micros(1)).await;
            let left = busy(context.ask(id, &ask(terms)).await);
            assert_eq!(left, Duration::from_micros(1));
            accepted(context.apply(id, Command::Renew(win.grant)).await);
        }
        accepted(context.apply(id, complete(win.grant, &outcome("in time"))).await);
    }
}

/// A claim that never began goes to the next claim after its lease, in every mode; fence and attempt rise.
pub async fn lapsed_claim_goes_to_the_next(context: &Context) {
    let ids = MODES.map(|mode| (mode, context.key()));
    let mut wins = Vec::new();
    for (mode, id) in ids {
        wins.push(context.win(id, &ask(context.ending(mode))).await);
    }
    context.pass(context.ending(Mode::Marked).lease).await;
    for ((mode, id), first) in ids.into_iter().zip(wins) {
        assert_eq!(context.phase(id).await, Phase::Lapsed, "never begun, in {mode:?}");
        let terms = context.lasting(mode);
        assert_eq!(context.ask(id, &ask_otherwise(terms)).await, Ruling::Conflict, "still one payload's");
        let second = context.win(id, &ask(terms)).await;
        assert_eq!(second.attempt, 2);
        assert!(second.grant.fence() > first.grant.fence());
        context.expect_left(second.lease_left, terms.lease);
    }
}

/// Begun in `marked` and the owner lost: no caller runs it again, and all learn that it is in doubt.
pub async fn begun_and_lost_is_in_doubt(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let (at_once, later) = (context.key(), context.key());
    context.win(at_once, &ask_and_begin(terms)).await;
    let win = context.win(later, &ask(terms)).await;
    accepted(context.apply(later, Command::Begin(win.grant)).await);
    context.pass(terms.lease).await;
    for id in [at_once, later] {
        assert_eq!(context.phase(id).await, Phase::InDoubt);
        assert_eq!(context.ask(id, &ask(terms)).await, Ruling::InDoubt);
        assert_eq!(context.ask(id, &ask_otherwise(terms)).await, Ruling::Conflict);
    }
}

/// Begun in `keyed`, `rerun` or `atomic` and the owner lost: the next claim wins.
pub async fn begun_and_lost_is_taken_over_where_the_mode_allows(context: &Context) {
    let ids = [Mode::Atomic, Mode::Keyed, Mode::Rerun].map(|mode| (mode, context.key()));
    for (mode, id) in ids {
        context.win(id, &ask_and_begin(context.ending(mode))).await;
    }
    context.pass(context.ending(Mode::Rerun).lease).await;
    for (mode, id) in ids {
        assert_eq!(context.phase(id).await, Phase::Lapsed, "begun, in {mode:?}");
        assert_eq!(context.win(id, &ask_and_begin(context.lasting(mode))).await.attempt, 2);
    }
}

/// A heartbeat restores the whole lease, begun or not.
pub async fn renew_extends_the_lease(context: &Context) {
    // A longer `in_flight_max`, so that only the lease matters.
    let usual = context.ending(Mode::Marked);
    let terms = Terms { in_flight_max: usual.lease * 20, retention: usual.lease * 20, ..usual };
    let id = context.key();
    let win = context.win(id, &ask(terms)).await;
    for round in 0..4 {
        context.pass(terms.lease / 2).await;
        let left = accepted(context.apply(id, Command::Renew(win.grant)).await);
        context.expect_left(left, terms.lease);
        context.expect_left(busy(context.ask(id, &ask(terms)).await), terms.lease);
        if round == 1 {
            accepted(context.apply(id, Command::Begin(win.grant)).await);
        }
    }
    assert_eq!(context.phase(id).await, Phase::Begun, "renewing leaves the mark alone");
}

/// Heartbeats do not extend a claim beyond `in_flight_max`.
pub async fn renew_ends_at_in_flight_max(context: &Context) {
    let usual = context.ending(Mode::Marked);
    let terms = Terms { in_flight_max: usual.lease + usual.lease / 2, ..usual };
    let id = context.key();
    let win = context.win(id, &ask_and_begin(terms)).await;
    context.pass(terms.lease / 2).await;
    context.expect_left(accepted(context.apply(id, Command::Renew(win.grant)).await), terms.lease);
    context.pass(terms.lease / 4).await;
    let left = accepted(context.apply(id, Command::Renew(win.grant)).await);
    context.expect_left(left, terms.lease * 3 / 4);
    context.pass(terms.lease * 3 / 4).await;
    assert_eq!(lost(context.apply(id, Command::Renew(win.grant)).await), None);
    assert_eq!(context.phase(id).await, Phase::InDoubt);
}

/// After its lease, without another claim, an owner may complete or release, but not begin or renew.
pub async fn owner_may_come_back_while_nobody_claimed(context: &Context) {
    let terms = context.ending(Mode::Rerun);
    let finishing = context.key();
    let claim = ask_and_begin(terms);
    let finish = context.win(finishing, &claim).await.grant;
    let leaving = context.key();
    let leave = context.win(leaving, &ask(terms)).await.grant;
    context.pass(terms.lease).await;
    for (id, grant) in [(finishing, finish), (leaving, leave)] {
        assert_eq!(lost(context.apply(id, Command::Begin(grant)).await), None, "begin after the lease");
        assert_eq!(lost(context.apply(id, Command::Renew(grant)).await), None, "renew after the lease");
    }
    accepted(context.apply(finishing, complete(finish, &outcome("late, but the only one"))).await);
    assert_eq!(replayed(context.ask(finishing, &claim).await).0, outcome("late, but the only one"));
    accepted(context.apply(leaving, Command::Release(leave)).await);
    assert_eq!(context.phase(leaving).await, Phase::Vacant);
}

/// An effect in doubt is done when its own owner comes back and completes it.
pub async fn owner_may_come_back_from_doubt(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let (id, claim) = (context.key(), ask_and_begin(terms));
    let grant = context.win(id, &claim).await.grant;
    context.pass(terms.lease).await;
    assert_eq!(context.phase(id).await, Phase::InDoubt);
    accepted(context.apply(id, complete(grant, &outcome("it came back"))).await);
    assert_eq!(replayed(context.ask(id, &claim).await).0, outcome("it came back"));
}

/// A late owner whose claim was taken over changes nothing any more, and gets the winner's outcome once there is one.
pub async fn late_owner_is_refused_after_a_takeover(context: &Context) {
    let terms = context.ending(Mode::Rerun);
    let id = context.key();
    let late = context.win(id, &ask_and_begin(terms)).await.grant;
    context.pass(terms.lease).await;
    let owner = context.win(id, &ask_and_begin(context.lasting(Mode::Rerun))).await.grant;
    let before = context.record(id).await;
    for command in super::expecting::writes(late, &outcome("zombie")) {
        let name = format!("{command:?}");
        assert_eq!(lost(context.apply(id, command).await), None, "{name} by the late owner");
        assert_eq!(context.record(id).await, before, "{name} by the late owner changed something");
    }
    accepted(context.apply(id, complete(owner, &outcome("winner's"))).await);
    let shown = lost(context.apply(id, complete(late, &outcome("zombie"))).await);
    assert_eq!(shown, Some(outcome("winner's")));
    lost(context.apply(id, Command::Release(late)).await);
    assert_eq!(context.phase(id).await, Phase::Done);
}

/// The owner is lost, and its successor too: the third wins, fences rise, the others are refused.
pub async fn second_owner_lost_too(context: &Context) {
    let terms = context.ending(Mode::Keyed);
    let id = context.key();
    let mut grants = Vec::new();
    for attempt in 1..=2 {
        let win = context.win(id, &ask_and_begin(terms)).await;
        assert_eq!(win.attempt, attempt);
        grants.push(win.grant);
        context.pass(terms.lease).await;
    }
    let third = context.win(id, &ask_and_begin(context.lasting(Mode::Keyed))).await;
    assert_eq!(third.attempt, 3);
    assert!(grants[0].fence() < grants[1].fence() && grants[1].fence() < third.grant.fence());
    for late in grants {
        lost(context.apply(id, Command::Release(late)).await);
        lost(context.apply(id, complete(late, &outcome("late"))).await);
    }
    accepted(context.apply(id, complete(third.grant, &outcome("third"))).await);
}

/// An owner that abandons its claim ends its lease immediately; repeating it does no harm.
pub async fn abandoned_claim_ends_now(context: &Context) {
    for (claim, phase) in [
        (ask(context.lasting(Mode::Marked)), Phase::Lapsed),
        (ask_and_begin(context.lasting(Mode::Marked)), Phase::InDoubt),
        (ask_and_begin(context.lasting(Mode::Keyed)), Phase::Lapsed),
    ] {
        let id = context.key();
        let grant = context.win(id, &claim).await.grant;
        for _ in 0..2 {
            accepted(context.apply(id, Command::Abandon(grant)).await);
            assert_eq!(context.phase(id).await, phase);
        }
        let next = context.ask(id, &ask(*claim.terms)).await;
        match phase {
            Phase::InDoubt => assert_eq!(next, Ruling::InDoubt),
            _ => assert!(won(next).grant.fence() > grant.fence()),
        }
    }
}

/// A claim that lapsed and was never claimed again expires at claim time + retention.
pub async fn lapsed_claim_expires_from_its_claim(context: &Context) {
    let terms = context.ending(Mode::Rerun);
    let id = context.key();
    context.win(id, &ask_and_begin(terms)).await;
    context.pass(terms.retention / 2).await;
    assert_eq!(context.phase(id).await, Phase::Lapsed);
    context.pass(terms.retention / 2).await;
    assert_eq!(context.phase(id).await, Phase::Expired);
    assert_eq!(context.ask(id, &ask(terms)).await, Ruling::Expired);
    context.pass(terms.memory).await;
    assert_eq!(context.win(id, &ask_otherwise(context.lasting(Mode::Rerun))).await.attempt, 1);
}

/// Doubt does not go away with time.
pub async fn doubt_never_expires(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let id = context.key();
    context.win(id, &ask_and_begin(terms)).await;
    context.pass(terms.retention + terms.grace + terms.memory + terms.in_flight_max + terms.lease).await;
    assert_eq!(context.phase(id).await, Phase::InDoubt);
    assert_eq!(context.ask(id, &ask(terms)).await, Ruling::InDoubt);
}

/// A lost owner blocks a key for a lease, not for the retention; an outcome is stored for the retention, not for a
/// lease.
pub async fn lease_is_not_retention(context: &Context) {
    let terms = context.ending(Mode::Rerun);
    let (blocked, claim) = (context.key(), ask_and_begin(terms));
    context.win(blocked, &claim).await;
    let kept = context.done(&claim, &outcome("kept")).await;
    context.pass(terms.lease).await;
    won(context.ask(blocked, &ask(context.lasting(Mode::Rerun))).await);
    context.pass(terms.lease).await;
    assert_eq!(replayed(context.ask(kept.id, &ask(terms)).await).0, kept.outcome);
}
