//! The effect of time on a record: leases, retention, grace, memory, and clock jumps.

use super::*;

const MICRO: Duration = Duration::from_micros(1);

// The outcome until retention and grace end, then expired until memory ends, then new; each instant belongs to
// exactly one of them.
#[test]
fn retention_edge() {
    let (slot, _) = Slot::done(Mode::Marked, A);
    let Terms { retention, grace, memory, .. } = slot.terms;
    let at = |later: Duration| {
        let mut slot = slot.clone();
        slot.pass(later);
        (slot.phase(), slot.claim(B))
    };
    for (later, left) in [
        (Duration::ZERO, retention + grace),
        (retention - MICRO, grace + MICRO),
        (retention, grace),
        (retention + grace - MICRO, MICRO),
    ] {
        let replay = Ruling::Replay { outcome: outcome("done"), expires_in: left };
        assert_eq!(at(later), (Phase::Done, replay), "{later:?}");
    }
    for later in [retention + grace, retention + grace + memory - MICRO] {
        assert_eq!(at(later), (Phase::Expired, Ruling::Expired), "{later:?}");
    }
    for later in [retention + grace + memory, DAY * 400] {
        let (phase, ruling) = at(later);
        assert_eq!(phase, Phase::Vacant, "{later:?}");
        let Ruling::Won(win) = ruling else { panic!("{later:?}: {ruling:?}") };
        assert_eq!((win.attempt, win.epoch), (1, Epoch::default()));
    }
}

#[test]
fn without_memory_an_expired_key_is_new_at_once() {
    let (mut slot, _) = {
        let mut slot = Slot::new(Mode::Marked);
        slot.terms.memory = Duration::ZERO;
        slot.terms.grace = Duration::ZERO;
        let grant = slot.win(A);
        assert!(accepted(&slot.apply(&complete(grant, "done"))));
        (slot, grant)
    };
    slot.pass(slot.terms.retention);
    assert_eq!(slot.phase(), Phase::Vacant);
    slot.win(B);
}

#[test]
fn the_effect_may_say_how_long_its_outcome_is_kept() {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    let command =
        Command::Complete { grant, fingerprint: SAME, outcome: outcome("short"), retention: Some(HOUR) };
    slot.pass(SECOND);
    assert!(accepted(&slot.apply(&command)));
    assert_eq!(slot.stored().expires_at, START.after(SECOND + HOUR + slot.terms.grace));
    assert_eq!(slot.stored().forget_at, slot.stored().expires_at.after(slot.terms.memory));
}

// Swept or not, and with any payload, a late duplicate gets expired while the key is known.
#[test]
fn late_duplicate() {
    let (mut slot, _) = Slot::done(Mode::Marked, A);
    slot.pass(slot.terms.retention + slot.terms.grace);
    for sweep in [false, true] {
        if sweep {
            slot.sweep();
        }
        assert_eq!(slot.claim(B), Ruling::Expired);
        assert_eq!(slot.claim(A), Ruling::Expired, "its first owner too");
        assert_eq!(slot.apply(&claim(B, OTHER, slot.terms, Begin::Later)), Ruling::Expired);
    }
}

#[test]
fn a_lapsed_claim_nobody_took_expires_at_claim_time_plus_retention() {
    for mode in [Mode::Atomic, Mode::Keyed, Mode::Rerun] {
        let (mut slot, grant) = Slot::begun(mode, A);
        slot.now = START.after(slot.terms.retention - MICRO);
        assert_eq!(slot.phase(), Phase::Lapsed);
        slot.now = START.after(slot.terms.retention);
        assert_eq!(slot.phase(), Phase::Expired);
        assert_eq!(slot.apply(&complete(grant, "late")), LOST);
        slot.pass(slot.terms.memory);
        assert_eq!(slot.phase(), Phase::Vacant);
    }
    let (mut slot, _) = Slot::begun(Mode::Marked, A);
    slot.pass(DAY * 3650);
    assert_eq!(slot.phase(), Phase::InDoubt, "doubt never expires");
}

// A key with a short retention whose owner renewed to the limit and died: its successor still finds it lapsed.
#[test]
fn a_claim_renewed_to_its_limit_can_still_be_taken_over() {
    let mut slot = Slot::new(Mode::Rerun);
    let lease = slot.terms.lease;
    slot.terms.retention = lease;
    let grant = slot.win(A);
    slot.pass(lease - MICRO);
    assert!(accepted(&slot.apply(&Command::Renew(grant))));
    slot.now = START.after(slot.terms.in_flight_max);
    assert_eq!(slot.phase(), Phase::Lapsed);
    slot.pass(lease - MICRO);
    slot.clone().win(B);
    slot.pass(MICRO);
    assert_eq!(slot.claim(B), Ruling::Expired);
}

#[test]
fn the_lease_ends_on_its_microsecond() {
    let mut slot = Slot::new(Mode::Marked);
    slot.win(A);
    slot.pass(slot.terms.lease - MICRO);
    assert_eq!(slot.claim(B), Ruling::Busy { lease_left: MICRO });
    slot.pass(MICRO);
    slot.win(B);
}

#[test]
fn in_flight_max_caps_renewals() {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    let limit = START.after(slot.terms.in_flight_max);
    let mut accepted = 0;
    loop {
        match slot.apply(&Command::Renew(grant)) {
            Ruling::Accepted { lease_left } => {
                let until = slot.now.after(lease_left);
                assert!(until <= limit && lease_left <= slot.terms.lease);
                assert_eq!(slot.stored().lease_until, until);
                accepted += 1;
            }
            ruling => {
                assert_eq!(ruling, LOST);
                break;
            }
        }
        slot.pass(SECOND);
    }
    assert_eq!(slot.now, limit, "renewed every second, the claim stood until in_flight_max and no longer");
    assert_eq!(accepted, 60);
    assert_eq!(slot.phase(), Phase::InDoubt);
}

#[test]
fn a_claim_longer_than_its_limit_is_cut() {
    let mut slot = Slot::new(Mode::Marked);
    slot.terms.lease = HOUR;
    slot.terms.in_flight_max = SECOND;
    let Ruling::Won(win) = slot.claim(A) else { panic!("not won") };
    assert_eq!(win.lease_left, SECOND);
}

#[test]
fn a_renewal_never_shortens_a_lease() {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    slot.now = Timestamp::from_micros(START.as_micros() - 3_600_000_000);
    let before = slot.stored().lease_until;
    assert!(accepted(&slot.apply(&Command::Renew(grant))));
    assert_eq!(slot.stored().lease_until, before);
}

// A caller's time is not an input. A command contains durations, never a time; this stops compiling when that
// changes.
#[test]
fn gateway_clock_jump() {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    for command in [claim(A, SAME, slot.terms, Begin::Later), Command::Begin(grant), complete(grant, "done")]
    {
        match &command {
            Command::Claim(NewClaim { owner, fingerprint, terms, begin: _, hint: _ }) => {
                let Terms { mode: _, lease, in_flight_max, retention, grace, memory } = **terms;
                let _: [Duration; 5] = [lease, in_flight_max, retention, grace, memory];
                assert_eq!((*owner, *fingerprint), (A, SAME));
            }
            Command::Complete { grant: _, fingerprint: _, outcome: _, retention } => {
                assert_eq!(*retention, None::<Duration>);
            }
            Command::Begin(grant)
            | Command::Renew(grant)
            | Command::Release(grant)
            | Command::Bind(grant)
            | Command::Abandon(grant) => {
                let Grant { owner, fence: _ } = *grant;
                assert_eq!(owner, A);
            }
            Command::Settle(Settlement::Done(_) | Settlement::Run)
            | Command::SettleAttempt(_, Settlement::Done(_) | Settlement::Run)
            | Command::Forget(Force::No | Force::Yes | Force::Attempt(_))
            | Command::Reexecute => {}
        }
        // The same command is judged at the store's time alone, whenever its sender believes to send it.
        let mut twin = slot.clone();
        assert_eq!(slot.apply(&command), twin.apply(&command.clone()));
        assert_eq!(slot.record, twin.record);
    }
}

// A clock jump forwards: an early end of the lease is safe in every mode.
#[test]
fn store_clock_jump_forwards() {
    for jump in [HOUR, HOUR * 23] {
        // Not begun: the successor runs, the owner is stopped at its begin.
        let mut slot = Slot::new(Mode::Marked);
        let early = slot.win(A);
        slot.pass(jump);
        let next = slot.win(B);
        assert_eq!(slot.apply(&Command::Begin(early)), LOST);
        assert!(accepted(&slot.apply(&Command::Begin(next))));

        // Begun in marked: in doubt, and the owner, which is alive, settles it itself.
        let (mut slot, grant) = Slot::begun(Mode::Marked, A);
        slot.pass(jump);
        assert_eq!(slot.claim(B), Ruling::InDoubt);
        assert!(accepted(&slot.apply(&complete(grant, "done"))));
        assert!(matches!(slot.claim(B), Ruling::Replay { .. }));

        // Keyed: taken over, one outcome.
        let (mut slot, early) = Slot::begun(Mode::Keyed, A);
        slot.pass(jump);
        let next = slot.win(B);
        assert!(accepted(&slot.apply(&complete(next, "done"))));
        assert_eq!(slot.apply(&complete(early, "done, too")), lost_to("done"));
    }
}

// A clock jump backwards: a late end of the lease only delays.
#[test]
fn store_clock_jump_backwards() {
    for jump in [HOUR, DAY] {
        let back = |slot: &mut Slot| {
            slot.now = Timestamp::from_micros(slot.now.as_micros() - jump.as_micros() as u64);
        };
        let (mut slot, grant) = Slot::begun(Mode::Marked, A);
        back(&mut slot);
        assert_eq!(slot.claim(B), Ruling::Busy { lease_left: jump + slot.terms.lease });
        assert!(accepted(&slot.apply(&Command::Renew(grant))));
        assert!(accepted(&slot.apply(&complete(grant, "done"))));
        assert!(matches!(slot.claim(B), Ruling::Replay { .. }));

        // In doubt, then the clock goes back: the owner's claim is valid again, and no other caller runs.
        let (mut slot, _) = Slot::begun(Mode::Marked, A);
        slot.pass(slot.terms.lease);
        assert_eq!(slot.claim(B), Ruling::InDoubt);
        back(&mut slot);
        assert!(matches!(slot.claim(B), Ruling::Busy { .. }));

        // Taken over, then back: the old grant stays invalid.
        let (mut slot, old) = Slot::begun(Mode::Rerun, A);
        slot.pass(slot.terms.lease);
        let new = slot.win(B);
        back(&mut slot);
        assert_eq!(slot.apply(&complete(old, "old")), LOST);
        assert!(accepted(&slot.apply(&complete(new, "new"))));
    }
}

#[test]
fn durations_of_centuries_do_not_overflow() {
    let mut slot = Slot::new(Mode::Keyed);
    slot.terms = Terms {
        mode: Mode::Keyed,
        lease: Duration::MAX,
        in_flight_max: Duration::MAX,
        retention: Duration::MAX,
        grace: Duration::MAX,
        memory: Duration::MAX,
    };
    let grant = slot.win(A);
    assert!(accepted(&slot.apply(&Command::Renew(grant))));
    assert!(accepted(&slot.apply(&complete(grant, "done"))));
    assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
    assert_eq!(slot.stored().forget_at, Timestamp::from_micros(u64::MAX));
}
