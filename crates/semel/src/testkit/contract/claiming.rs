//! Claims: which caller wins, waits, or gets a conflict.

use std::time::Duration;

use super::context::Context;
use super::expecting::{
    OTHER_PAYLOAD, PAYLOAD, accepted, ask, ask_and_begin, ask_otherwise, busy, complete, lost, outcome, won,
};
use crate::key::{Hint, Origin};
use crate::record::{Begin, Command, Epoch, Force, Mode, NewClaim, Owner, Phase, Ruling, Terms};
use crate::time::Clock;

/// The first claim of a key wins with the whole lease; the next gets the remaining time.
pub async fn claim_wins_once(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let claim = ask(terms);
    let win = context.win(id, &claim).await;
    assert_eq!(win.grant.owner(), claim.owner);
    assert_eq!((win.attempt, win.epoch), (1, Epoch::default()));
    context.expect_left(win.lease_left, terms.lease);
    context.expect_left(busy(context.ask(id, &ask(terms)).await), terms.lease);
    assert_eq!(context.phase(id).await, Phase::Claimed);
}

/// Fingerprint, owner, fence, terms and hint are stored unchanged.
pub async fn claim_is_kept_as_it_was_made(context: &Context) {
    let origin = || Origin::new("POST", "/v1/payments", Some("req-1"), Some("3f2a9c41"));
    for (mode, hint, begin, phase) in [
        (Mode::Atomic, Hint::new(""), Begin::Later, Phase::Claimed),
        (Mode::Keyed, Hint::new("ümlaut𝄞").with_origin(origin()), Begin::WithClaim, Phase::Begun),
        (Mode::Marked, Hint::new("a\0b'\";--"), Begin::Later, Phase::Claimed),
        (Mode::Rerun, Hint::new("k").with_origin(origin()), Begin::WithClaim, Phase::Begun),
    ] {
        let id = context.key();
        let terms = Terms { grace: Duration::ZERO, ..context.lasting(mode) };
        let claim = NewClaim { hint, begin, ..ask_otherwise(terms) };
        let win = context.win(id, &claim).await;
        let snapshot = context.get(id).await.expect("the store knows a claimed key");
        assert_eq!((snapshot.id, snapshot.phase()), (id, phase));
        let record = snapshot.record;
        assert_eq!((record.fingerprint, record.owner), (OTHER_PAYLOAD, claim.owner));
        assert_eq!((record.fence, record.attempt, record.epoch), (win.grant.fence(), 1, Epoch::default()));
        assert_eq!((*record.terms, record.hint), (terms, claim.hint));
        assert_eq!(record.lease_until, record.claimed_at.after(terms.lease));
        assert_eq!(record.expires_at, record.claimed_at.after(terms.retention));
        assert!(record.claimed_at <= snapshot.now, "claimed in the past of the store's clock");
        if let Some(clock) = context.manual_clock() {
            assert_eq!((record.claimed_at, snapshot.now), (clock.now(), clock.now()));
        }
    }
}

/// A claim whose reply was lost is sent again and gets its own claim back, not busy.
pub async fn repeated_claim_knows_itself(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let claim = ask(terms);
    let first = context.win(id, &claim).await;
    for _ in 0..3 {
        let again = context.win(id, &claim).await;
        assert_eq!((again.grant, again.attempt, again.epoch), (first.grant, 1, first.epoch));
    }
    accepted(context.apply(id, Command::Begin(first.grant)).await);
    assert_eq!(context.win(id, &claim).await.grant, first.grant);
    assert_eq!(context.phase(id).await, Phase::Begun, "repeating the claim does not take the mark back");
    accepted(context.apply(id, complete(first.grant, &outcome("kept"))).await);
}

/// A claim repeated with the begin mark sets it.
pub async fn repeated_claim_can_begin(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let claim = ask(terms);
    let first = context.win(id, &claim).await;
    let again = context.win(id, &NewClaim { begin: Begin::WithClaim, ..claim }).await;
    assert_eq!(again.grant, first.grant);
    assert_eq!(context.phase(id).await, Phase::Begun);
}

/// Another payload gets a conflict and leaves no trace, in every phase.
pub async fn conflict_changes_nothing(context: &Context) {
    let terms = context.lasting(Mode::Marked);
    for phase in [Phase::Bound, Phase::Claimed, Phase::Begun, Phase::Lapsed, Phase::InDoubt, Phase::Done] {
        let placed = context.place(phase).await;
        let before = context.record(placed.id).await;
        for _ in 0..2 {
            let ruling = context.ask(placed.id, &ask_otherwise(terms)).await;
            assert_eq!(ruling, Ruling::Conflict, "another payload on {phase:?}");
            assert_eq!(context.record(placed.id).await, before, "a conflict on {phase:?} changed the record");
        }
    }
}

/// After a release any caller may claim, with any payload; a new life starts.
pub async fn released_key_is_free_for_any_payload(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let first = context.win(id, &ask_and_begin(terms)).await;
    accepted(context.apply(id, Command::Release(first.grant)).await);
    let second = context.win(id, &ask_otherwise(terms)).await;
    assert_eq!(second.attempt, 1, "a new life of the record starts a new count");
    assert!(second.grant.fence() > first.grant.fence());
    assert_eq!(context.ask(id, &ask(terms)).await, Ruling::Conflict, "it is the new payload's now");
}

/// After a bind the same payload may run again; the life continues.
pub async fn bound_key_is_free_for_its_payload(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let first = context.win(id, &ask_and_begin(terms)).await;
    accepted(context.apply(id, Command::Bind(first.grant)).await);
    assert_eq!(context.ask(id, &ask_otherwise(terms)).await, Ruling::Conflict);
    let second = context.win(id, &ask(terms)).await;
    assert_eq!(second.attempt, 2, "the same life of the record goes on");
    assert!(second.grant.fence() > first.grant.fence());
}

/// A bound key belongs to its payload until retention ends, and is then free.
pub async fn bound_key_is_free_for_all_after_retention(context: &Context) {
    let (id, terms) = (context.key(), context.ending(Mode::Marked));
    let first = context.win(id, &ask(terms)).await;
    accepted(context.apply(id, Command::Bind(first.grant)).await);
    context.pass(terms.retention / 2).await;
    assert_eq!(context.ask(id, &ask_otherwise(terms)).await, Ruling::Conflict);
    context.pass(terms.retention / 2).await;
    assert_eq!(context.phase(id).await, Phase::Vacant);
    assert_eq!(context.win(id, &ask_otherwise(terms)).await.attempt, 1);
}

/// In `keyed` a release leaves the key bound: the receiver has already seen the derived key with this payload.
pub async fn keyed_release_stays_bound(context: &Context) {
    for mode in [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun] {
        let (id, terms) = (context.key(), context.lasting(mode));
        let win = context.win(id, &ask_and_begin(terms)).await;
        accepted(context.apply(id, Command::Release(win.grant)).await);
        let expected = if mode == Mode::Keyed { Phase::Bound } else { Phase::Vacant };
        assert_eq!(context.phase(id).await, expected, "after a release in {mode:?}");
    }
}

/// A claim packet that arrives after its owner released the claim does not restore it.
pub async fn late_claim_of_a_released_owner_is_refused(context: &Context) {
    let terms = context.lasting(Mode::Marked);
    type Leave = fn(crate::record::Grant) -> Command;
    let ways: [Leave; 3] = [Command::Release, Command::Bind, |_| Command::Forget(Force::Yes)];
    for leave in ways {
        let id = context.key();
        let claim = ask(terms);
        let win = context.win(id, &claim).await;
        accepted(context.apply(id, leave(win.grant)).await);
        assert_eq!(lost(context.ask(id, &claim).await), None, "the late packet after {:?}", leave(win.grant));
        let next = won(context.ask(id, &ask(terms)).await);
        assert!(next.grant.fence() > win.grant.fence());
        busy(context.ask(id, &claim).await);
    }
}

/// Release, bind, takeover, settlement, forget and re-execution: every win has a higher fence than the last.
pub async fn fence_never_goes_back(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Rerun));
    let mut last = context.win(id, &ask(terms)).await.grant;
    for round in 0..30 {
        let leave = match round % 5 {
            0 => vec![Command::Release(last)],
            1 => vec![Command::Bind(last)],
            2 => vec![Command::Abandon(last)],
            3 => vec![complete(last, &outcome("done")), Command::Reexecute],
            _ => vec![complete(last, &outcome("done")), Command::Forget(Force::No)],
        };
        for command in leave {
            accepted(context.apply(id, command).await);
        }
        let next = context.win(id, &ask(terms)).await.grant;
        assert!(next.fence() > last.fence(), "{} after {} in round {round}", next.fence(), last.fence());
        assert_eq!(context.record(id).await.fence, next.fence());
        assert_eq!(context.record(id).await.fingerprint, PAYLOAD);
        last = next;
    }
}

/// The store's clock goes back by a day: fences still grow, and the owner can still finish.
pub async fn fence_survives_a_clock_that_steps_back(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let owner = Owner::random();
    let first = context.win(id, &NewClaim { owner, ..ask(terms) }).await;
    if let Some(clock) = context.manual_clock() {
        let day = 24 * 60 * 60 * 1_000_000;
        clock.set(crate::time::Timestamp::from_micros(clock.now().as_micros() - day));
    }
    busy(context.ask(id, &ask(terms)).await);
    accepted(context.apply(id, Command::Release(first.grant)).await);
    let second = context.win(id, &ask(terms)).await;
    assert!(second.grant.fence() > first.grant.fence());
    lost(context.apply(id, complete(first.grant, &outcome("old"))).await);
    accepted(context.apply(id, complete(second.grant, &outcome("new"))).await);
}
