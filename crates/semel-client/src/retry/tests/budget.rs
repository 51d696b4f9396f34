//! The budget for retries.

use proptest::prelude::*;

use super::*;

/// A breaker that never opens.
fn budget_only() -> Limits {
    Limits { failure_calls: u32::MAX, ..Limits::default() }
}

// Everything fails, everybody wants to try twice more, and the destination gets at most 1.2 times the traffic.
#[test]
fn a_storm_is_amplified_by_a_fifth_at_most() {
    for per_second in [100, 1_000, 5_000] {
        let (clock, destinations) = clocked(budget_only());
        let destination = destinations.get("acquirer");
        let mut sent = 0u64;
        for _ in 0..60 * per_second {
            clock.advance(secs(1) / per_second);
            go(destination.admit()).done(Signal::timed_out());
            sent += 1;
            for _ in 0..2 {
                if let Admit::Go(permit) = destination.admit_retry() {
                    permit.done(Signal::timed_out());
                    sent += 1;
                }
            }
        }
        let firsts = u64::from(60 * per_second);
        let state = destination.state();
        assert_eq!((state.firsts, state.firsts + state.retries), (firsts, sent));
        assert!(sent * 10 <= firsts * 12, "{per_second} a second: {sent} calls for {firsts}");
        assert!(sent * 100 >= firsts * 115, "the budget is there to be used: {sent} calls for {firsts}");
        assert_eq!(state.dropped, 3 * firsts - sent);
    }
}

#[test]
fn quiet_times_have_their_ten_a_second() {
    let (clock, destinations) = clocked(budget_only());
    let destination = destinations.get("acquirer");
    let retries = || (0..1_000).filter(|_| matches!(destination.admit_retry(), Admit::Go(_))).count();
    for _ in 0..30 {
        assert_eq!(retries(), 10, "with no first try at all");
        let Admit::Spent { until } = destination.admit_retry() else { panic!("spent") };
        clock.advance(destination.left(until));
    }
}

#[test]
fn one_destination_does_not_pay_for_another() {
    let (_clock, destinations) = clocked(budget_only());
    let (one, other) = (destinations.get("one"), destinations.get("other"));
    while let Admit::Go(permit) = one.admit_retry() {
        permit.done(Verdict::Success);
    }
    assert!(matches!(other.admit_retry(), Admit::Go(_)));
    assert_eq!(destinations.get("one").state().budget_left, 0, "the same for all who name it");
    let names: Vec<_> = destinations.states().iter().map(|state| state.name.to_string()).collect();
    assert_eq!(names, ["one", "other"]);
}

#[test]
fn a_clock_put_back_does_not_freeze_the_budget() {
    let (clock, destinations) = clocked(budget_only());
    let destination = destinations.get("acquirer");
    while let Admit::Go(permit) = destination.admit_retry() {
        permit.done(Verdict::Success);
    }
    let back = semel::time::Timestamp::from_micros(900_000_000_000_000);
    clock.set(back);
    assert!(matches!(destination.admit_retry(), Admit::Go(_)));
}

proptest! {
    // Whatever the order of first tries, retries and time: a fifth of the first tries, and one a second.
    #[test]
    fn no_order_of_calls_overdraws_it(steps in prop::collection::vec((0u8..3, 0u64..2_000), 1..400)) {
        let limits = Limits { retries_per_second: 1, ..budget_only() };
        let (clock, destinations) = clocked(limits);
        let destination = destinations.get("d");
        let mut now = 0u64;
        let (mut firsts, mut retries) = (0u64, 0u64);
        for (what, step) in steps {
            match what {
                0 => (0..20).for_each(|_| { go(destination.admit()).done(Verdict::Success); firsts += 1 }),
                1 => if let Admit::Go(permit) = destination.admit_retry() {
                    permit.done(Verdict::Success);
                    retries += 1;
                    // One a second is always granted.
                    let most = firsts / 5 + now / 1_000 + 2;
                    prop_assert!(retries <= most, "{retries} retries for {firsts} after {now} ms");
                },
                _ => { clock.advance(ms(step)); now += step }
            }
        }
    }
}
