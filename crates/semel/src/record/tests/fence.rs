//! A fence grows with every claim and never goes back, whatever happens to clock and store.

use super::*;

const CYCLES: u64 = 1_000;

/// Runs a thousand claims with `between` each two of them and checks that every fence is above the last.
fn cycles(mut between: impl FnMut(&mut Slot, Grant, u64)) {
    let mut slot = Slot::new(Mode::Marked);
    let mut highest = Fence::default();
    for cycle in 0..CYCLES {
        let owner = Owner::from_bytes(u128::from(cycle).to_le_bytes());
        let grant = slot.win(owner);
        assert!(grant.fence > highest, "cycle {cycle}: {} after {highest}", grant.fence);
        highest = grant.fence;
        between(&mut slot, grant, cycle);
    }
}

fn step_back(slot: &mut Slot, by: Duration) {
    slot.now = Timestamp::from_micros(slot.now.as_micros().saturating_sub(by.as_micros() as u64));
}

#[test]
fn token_regress_expiry() {
    cycles(|slot, _, _| slot.pass(slot.terms.lease));
}

#[test]
fn token_regress_release_in_the_same_microsecond() {
    cycles(|slot, grant, _| assert!(accepted(&slot.apply(&Command::Release(grant)))));
}

#[test]
fn token_regress_clock_step_back() {
    cycles(|slot, grant, cycle| {
        assert!(accepted(&slot.apply(&Command::Release(grant))));
        step_back(slot, if cycle % 2 == 0 { HOUR } else { SECOND });
    });
}

#[test]
fn token_regress_removed_record_with_floor() {
    cycles(|slot, grant, _| {
        assert!(accepted(&slot.apply(&Command::Release(grant))));
        slot.pass(slot.terms.in_flight_max + slot.terms.lease);
        slot.sweep();
        assert_eq!(slot.record, None);
        // Only the floor remembers, and the clock does not help.
        step_back(slot, DAY);
    });
}

#[test]
fn token_regress_store_emptied() {
    cycles(|slot, _, _| {
        // Neither record nor floor survive; the clock of a store that comes back has advanced.
        slot.record = None;
        slot.floor = Fence::default();
        slot.pass(Duration::from_micros(1));
    });
}

#[test]
fn token_regress_settle_forget_reexecute() {
    cycles(|slot, grant, cycle| {
        let before = slot.stored().fence;
        match cycle % 3 {
            0 => {
                assert!(accepted(&slot.apply(&Command::Begin(grant))));
                slot.pass(slot.terms.lease);
                assert!(accepted(&slot.apply(&Command::Settle(Settlement::Run))));
                step_back(slot, HOUR);
            }
            1 => assert!(accepted(&slot.apply(&Command::Forget(Force::Yes)))),
            _ => {
                assert!(accepted(&slot.apply(&complete(grant, "done"))));
                assert!(accepted(&slot.apply(&Command::Reexecute)));
            }
        }
        assert!(slot.stored().fence >= before);
    });
}

#[test]
fn a_fence_is_above_everything_known() {
    let now = Timestamp::from_micros(100);
    for (before, floor, next) in [(0, 0, 100), (99, 0, 100), (100, 0, 101), (7, 300, 301), (500, 300, 501)] {
        assert_eq!(Fence::new(before).next(Fence::new(floor), now), Fence::new(next));
    }
}
