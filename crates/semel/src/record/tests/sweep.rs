//! What sweeping removes, and when.

use super::*;

#[test]
fn done_shrinks_then_goes() {
    let (mut slot, _) = Slot::done(Mode::Marked, A);
    let stands = slot.terms.retention + slot.terms.grace;
    assert_eq!(slot.stored().sweep_at(), Some(START.after(stands)));
    slot.pass(stands - Duration::from_micros(1));
    assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
    slot.pass(Duration::from_micros(1));
    let before = slot.stored().clone();
    let Sweep::Shrink(shrunk) = before.sweep(slot.now) else { panic!("not shrunk") };
    assert_eq!(shrunk, Record { state: State::Expired, ..before }, "only the outcome went");
    slot.sweep();
    assert_eq!(slot.stored().sweep_at(), Some(START.after(stands + slot.terms.memory)));
    slot.pass(slot.terms.memory);
    assert_eq!(slot.stored().sweep(slot.now), Sweep::Remove);
}

#[test]
fn a_stub_stays_for_in_flight_max_and_a_lease() {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    slot.pass(SECOND);
    assert!(accepted(&slot.apply(&Command::Release(grant))));
    let stub = slot.terms.in_flight_max + slot.terms.lease;
    assert_eq!(slot.stored().sweep_at(), Some(slot.now.after(stub)));
    slot.pass(stub - Duration::from_micros(1));
    assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
    slot.pass(Duration::from_micros(1));
    assert_eq!(slot.stored().sweep(slot.now), Sweep::Remove);
}

#[test]
fn doubt_is_never_swept() {
    let (mut slot, _) = Slot::begun(Mode::Marked, A);
    assert_eq!(slot.stored().sweep_at(), None);
    for _ in 0..100 {
        slot.pass(DAY * 365);
        assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
    }
}

#[test]
fn what_is_held_bound_or_lapsed_is_kept_as_long_as_it_says_something() {
    let (mut bound, grant) = Slot::begun(Mode::Keyed, A);
    assert!(accepted(&bound.apply(&Command::Release(grant))));
    let (lapsed, _) = Slot::begun(Mode::Rerun, A);
    let Terms { retention, memory, .. } = bound.terms;
    for (mut slot, says) in [(bound, retention), (lapsed, retention + memory)] {
        assert_eq!(slot.stored().sweep_at(), Some(START.after(says)));
        for _ in 0..100 {
            assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
            slot.pass(says / 100);
        }
        assert_eq!(slot.stored().sweep(slot.now), Sweep::Remove);
    }
}

// A claim that may be held for longer than its key is known is not swept while it is held.
#[test]
fn a_long_claim_outlives_a_short_memory() {
    let mut slot = Slot::new(Mode::Rerun);
    slot.terms =
        Terms { in_flight_max: HOUR, retention: slot.terms.lease, memory: Duration::ZERO, ..slot.terms };
    let grant = slot.win(A);
    while slot.now < START.after(HOUR) {
        assert!(accepted(&slot.apply(&Command::Renew(grant))));
        assert_eq!(slot.stored().sweep(slot.now), Sweep::Keep);
        assert!(matches!(slot.claim(B), Ruling::Busy { .. }));
        slot.pass(SECOND * 10);
    }
}
