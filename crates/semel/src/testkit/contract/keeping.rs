//! Durability of data: outcomes byte for byte and for their retention, the secret, and all of it across a restart.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, Sharing};
use super::expecting::{
    KeyInPhase, OTHER_PAYLOAD, PAYLOAD, PHASES, accepted, ask, ask_and_begin, ask_otherwise, at_once,
    complete, counted, lost, outcome, replayed, won, writes,
};
use super::sweeping::sweep_all;
use crate::outcome::Outcome;
use crate::record::{Command, Force, Mode, Phase, Ruling, Terms};
use crate::secret::Secret;
use crate::store::Durability;
use crate::time::Timestamp;

/// Empty, binary, large, and with binary metadata: the answer is the stored outcome.
pub async fn outcome_is_replayed_byte_for_byte(context: &Context) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..1_200_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let outcomes = [
        Outcome::new("", ""),
        Outcome::new("json", "{}"),
        Outcome::new("binary", all_bytes.clone()).with_metadata(all_bytes.clone()),
        Outcome::new("zeros", vec![0; 70_000]),
        Outcome::new("kind with spaces, 'quotes' and ünïcode", all_bytes.repeat(3)),
        Outcome::new("metadata only", "").with_metadata(vec![0xff; 40_000]),
        Outcome::new("large", large),
    ];
    for outcome in outcomes.map(Arc::new) {
        let placed = context.done(&ask_and_begin(context.lasting(Mode::Marked)), &outcome).await;
        for number in 0..2 {
            let claim = Command::Claim(ask(context.lasting(Mode::Marked)));
            let ruling = super::context::apply(&*context.handle(number), placed.id, claim).await;
            assert!(replayed(ruling).0 == outcome, "{outcome:?} came back changed");
        }
        let snapshot = context.get(placed.id).await.expect("the store knows a done key");
        assert!(snapshot.record.outcome(snapshot.now) == Some(&outcome), "{outcome:?} reads back changed");
    }
}

/// An outcome without its body is still an outcome: the effect does not run again.
pub async fn tombstone_is_replayed(context: &Context) {
    for reason in ["", "the body has 12 MiB, the limit is 1 MiB", "ünïcode\0"] {
        let tombstone = Arc::new(Outcome::tombstone("http", reason).with_metadata([0, 1, 2]));
        let placed = context.done(&ask_and_begin(context.lasting(Mode::Marked)), &tombstone).await;
        let (shown, _) = replayed(context.ask(placed.id, &ask(*placed.claim.terms)).await);
        assert_eq!(shown, tombstone);
        assert_ne!(*shown, Outcome::new("http", reason).with_metadata([0, 1, 2]), "a body is not a reason");
    }
}

/// A complete whose reply was lost is sent again and accepted again.
pub async fn complete_is_repeatable(context: &Context) {
    let placed = context.done(&ask_and_begin(context.lasting(Mode::Marked)), &outcome("once")).await;
    let before = context.record(placed.id).await;
    for _ in 0..3 {
        accepted(context.apply(placed.id, complete(placed.grant, &outcome("once"))).await);
    }
    assert_eq!(context.record(placed.id).await, before, "repeating does not prolong anything");
}

/// Once completed, no write changes the outcome.
pub async fn outcome_never_changes(context: &Context) {
    let placed = context.done(&ask_and_begin(context.lasting(Mode::Marked)), &outcome("first")).await;
    let before = context.record(placed.id).await;
    let near = Arc::new(Outcome::new("text", "first").with_metadata("METa"));
    for other in [outcome("second"), outcome(""), near, Arc::new(Outcome::tombstone("text", "first"))] {
        for command in writes(placed.grant, &other) {
            let shown = matches!(command, Command::Complete { .. });
            let winner = lost(context.apply(placed.id, command).await);
            assert_eq!(winner, shown.then(|| outcome("first")));
        }
    }
    assert_eq!(replayed(context.ask(placed.id, &placed.claim).await).0, outcome("first"));
    assert_eq!(context.record(placed.id).await, before);
}

/// A refused owner gets the stored outcome only if it has the same payload.
pub async fn refused_owner_sees_the_winner_of_its_payload_only(context: &Context) {
    let placed = context.done(&ask_and_begin(context.lasting(Mode::Marked)), &outcome("winner's")).await;
    for (fingerprint, shown) in [(PAYLOAD, Some(outcome("winner's"))), (OTHER_PAYLOAD, None)] {
        let late =
            Command::Complete { grant: placed.grant, fingerprint, outcome: outcome("late"), retention: None };
        assert_eq!(lost(context.apply(placed.id, late).await), shown);
    }
}

/// Retention counts from the completion, not from the claim, and the grace is added.
pub async fn retention_counts_from_complete(context: &Context) {
    let usual = context.ending(Mode::Marked);
    let terms = Terms { lease: usual.retention, in_flight_max: usual.retention, ..usual };
    let (id, claim) = (context.key(), ask_and_begin(terms));
    let grant = context.win(id, &claim).await.grant;
    context.pass(terms.retention / 2).await;
    accepted(context.apply(id, complete(grant, &outcome("kept"))).await);
    let (_, left) = replayed(context.ask(id, &claim).await);
    context.expect_left(left, terms.retention + terms.grace);
    let record = context.record(id).await;
    assert_eq!(record.expires_at, record.changed_at.after(terms.retention).after(terms.grace));
    assert_eq!(record.forget_at, record.expires_at.after(terms.memory));
    // After the retention counted from the claim, with the grace; well before the one counted from the completion.
    context.pass(terms.retention / 2 + terms.grace).await;
    assert_eq!(replayed(context.ask(id, &claim).await).0, outcome("kept"));
    context.pass(terms.retention / 2).await;
    assert_eq!(context.ask(id, &claim).await, Ruling::Expired);
}

/// An effect may choose the retention of its outcome, longer or shorter.
pub async fn retention_of_the_effect_wins(context: &Context) {
    let terms = Terms { grace: Duration::ZERO, ..context.lasting(Mode::Marked) };
    for retention in [Duration::ZERO, Duration::from_secs(1800), Duration::from_secs(90_000)] {
        let (id, claim) = (context.key(), ask_and_begin(terms));
        let grant = context.win(id, &claim).await.grant;
        let command = Command::Complete {
            grant,
            fingerprint: PAYLOAD,
            outcome: outcome("kept"),
            retention: Some(retention),
        };
        accepted(context.apply(id, command).await);
        let ruling = context.ask(id, &claim).await;
        if retention.is_zero() {
            assert_eq!(ruling, Ruling::Expired);
        } else {
            context.expect_left(replayed(ruling).1, retention);
        }
    }
}

/// The outcome is given to the last microsecond of retention and grace, the key is expired to the last of memory,
/// then vacant.
pub async fn expired_is_remembered_then_vacant(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let placed = context.done(&ask_and_begin(terms), &outcome("kept")).await;
    let again = ask(terms);
    let instant = Duration::from_micros(1);
    if context.manual_clock().is_some() {
        context.pass(terms.retention + terms.grace - instant).await;
        assert_eq!(replayed(context.ask(placed.id, &again).await), (outcome("kept"), instant));
        context.pass(instant).await;
        assert_eq!(context.ask(placed.id, &again).await, Ruling::Expired);
        context.pass(terms.memory - instant).await;
        assert_eq!(context.ask(placed.id, &again).await, Ruling::Expired);
        context.pass(instant).await;
    } else {
        context.pass(terms.retention + terms.grace).await;
        assert_eq!(context.ask(placed.id, &again).await, Ruling::Expired);
        context.pass(terms.memory).await;
    }
    assert_eq!(context.phase(placed.id).await, Phase::Vacant);
    let next = context.win(placed.id, &again).await;
    assert_eq!(next.attempt, 1, "a new life");
    assert!(next.grant.fence() > placed.grant.fence());
}

/// An expired key answers expired to every payload: it no longer distinguishes them. The late owner learns nothing.
pub async fn expired_says_nothing_of_payloads(context: &Context) {
    let placed = context.place(Phase::Expired).await;
    for claim in [ask(*placed.claim.terms), ask_otherwise(*placed.claim.terms)] {
        assert_eq!(context.ask(placed.id, &claim).await, Ruling::Expired);
    }
    let late = context.apply(placed.id, complete(placed.grant, &placed.outcome)).await;
    assert_eq!(lost(late), None, "an expired outcome is not given out");
}

/// Many processes start concurrently, each with its own secret: all get the same one.
pub async fn secret_is_kept_by_the_first_writer(context: &Context) {
    let kept = at_once(16, |number| {
        let store = context.handle(number);
        async move { *store.secret(Secret::random()).await.expect("a healthy store").expose() }
    })
    .await;
    assert!(kept.iter().all(|secret| *secret == kept[0]), "two processes got different secrets");
    let late = Secret::from_bytes([7; 32]);
    assert_eq!(context.store().secret(late).await.expect("a healthy store").expose(), &kept[0]);
}

/// Every acknowledged write is there after the store was closed and opened: records in every phase, grants that
/// are still valid, stubs, the secret. A store without durability declares it.
pub async fn acknowledged_writes_survive(context: &Context) {
    if !context.can_reopen() {
        assert_eq!(
            context.store().durability(),
            Durability::Process,
            "a store that claims to survive needs a way to be opened again: see Context::reopen"
        );
        return;
    }
    let mut placed: Vec<(Phase, KeyInPhase, _)> = Vec::new();
    for phase in PHASES {
        let made = context.place(phase).await;
        let record = context.record(made.id).await;
        placed.push((phase, made, record));
    }
    let forgotten = context.place(Phase::Done).await;
    accepted(context.apply(forgotten.id, Command::Forget(Force::No)).await);
    let secret = *context.store().secret(Secret::random()).await.expect("a healthy store").expose();

    for _ in 0..2 {
        context.open_again().await;
        for (phase, made, record) in &placed {
            let snapshot = context.get(made.id).await;
            let snapshot =
                snapshot.unwrap_or_else(|| panic!("the {phase:?} record is gone after opening again"));
            assert_eq!((snapshot.phase(), &counted(snapshot)), (*phase, record), "after opening again");
        }
        let kept = context.store().secret(Secret::random()).await.expect("a healthy store");
        assert_eq!(kept.expose(), &secret, "another secret after opening again");
        lost(context.ask(forgotten.id, &forgotten.claim).await);
    }
    for (phase, made, _) in &placed {
        let ruling = context.apply(made.id, complete(made.grant, &made.outcome)).await;
        match phase {
            Phase::Claimed | Phase::Begun | Phase::Lapsed | Phase::InDoubt | Phase::Done => {
                accepted(ruling);
            }
            Phase::Vacant | Phase::Bound | Phase::Expired => assert_eq!(lost(ruling), None),
        }
    }
    let next = won(context.ask(forgotten.id, &ask(context.lasting(Mode::Marked))).await);
    assert!(next.grant.fence() > forgotten.grant.fence(), "a restart took a fence back");
}

/// A removed record leaves its fence behind, also across a restart and a clock that was set back.
pub async fn swept_fences_survive(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let id = context.key();
    let first = context.win(id, &ask(terms)).await;
    let begun_at = context.get(id).await.expect("just claimed").now;
    accepted(context.apply(id, Command::Release(first.grant)).await);
    context.pass(terms.in_flight_max + terms.lease).await;
    sweep_all(context).await;
    if context.sharing() == Sharing::Alone {
        assert_eq!(context.get(id).await, None, "the stub has served");
    }
    if context.can_reopen() {
        context.open_again().await;
    }
    if let Some(clock) = context.manual_clock() {
        clock.set(Timestamp::from_micros(begun_at.as_micros() - 3_600_000_000));
    }
    let second = context.win(id, &ask(terms)).await;
    assert!(second.grant.fence() > first.grant.fence(), "a swept record took its fence along");
}
