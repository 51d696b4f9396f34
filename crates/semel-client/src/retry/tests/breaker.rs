//! The breaker.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn opened(clock: &ManualClock, destinations: &Destinations) -> Destination {
    let destination = destinations.get("acquirer");
    for _ in 0..20 {
        go(destination.admit()).done(Signal::status(503));
        clock.advance(ms(10));
    }
    assert!(matches!(destination.state().circuit, Circuit::Open { .. }));
    destination
}

#[test]
fn it_opens_at_half_of_twenty_calls() {
    let (_clock, destinations) = clocked(Limits::default());
    let destination = destinations.get("acquirer");
    for _ in 0..10 {
        go(destination.admit()).done(Signal::status(200));
    }
    for failed in 1..=10 {
        assert_eq!(destination.state().circuit, Circuit::Closed, "{failed}");
        go(destination.admit()).done(Signal::timed_out());
    }
    let state = destination.state();
    assert!(matches!(state.circuit, Circuit::Open { .. }));
    assert_eq!((state.opened, state.firsts), (1, 20));
}

#[test]
fn fewer_calls_or_a_smaller_share_do_not_open_it() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = destinations.get("few");
    for _ in 0..100 {
        // Nineteen a window, all failed.
        (0..19).for_each(|_| go(destination.admit()).done(Signal::not_sent()));
        clock.advance(secs(10));
    }
    let other = destinations.get("small share");
    for _ in 0..1_000 {
        go(other.admit()).done(Signal::not_sent());
        (0..2).for_each(|_| go(other.admit()).done(Signal::status(200)));
    }
    assert!(destinations.states().iter().all(|state| state.circuit == Circuit::Closed));
}

#[test]
fn refusals_and_limits_do_not_open_it() {
    let (_clock, destinations) = clocked(Limits::default());
    let destination = destinations.get("acquirer");
    for status in (0..100).flat_map(|_| [400, 401, 404, 409, 422, 429]) {
        go(destination.admit()).done(Signal::status(status));
    }
    assert_eq!(destination.state().circuit, Circuit::Closed);
}

// Deferring while the breaker is open consumes no attempts.
#[test]
fn an_open_breaker_burns_no_attempts() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = opened(&clock, &destinations);
    let mut attempts = 0;
    for _ in 0..50 {
        match destination.admit_retry() {
            Admit::Go(permit) => {
                attempts += 1;
                permit.done(Signal::status(200));
                break;
            }
            Admit::Wait { until } => {
                let left = destination.left(until);
                assert!(left > Duration::ZERO && left <= secs(5));
                clock.advance(left);
            }
            Admit::Spent { .. } => panic!("nothing was spent"),
        }
    }
    assert_eq!(attempts, 1);
    let state = destination.state();
    assert_eq!((state.firsts, state.retries), (20, 1));
}

#[test]
fn it_feels_its_way_back() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = opened(&clock, &destinations);
    clock.advance(secs(5));
    for wave in [1, 2, 4] {
        let permits: Vec<Permit> = (0..wave).map(|_| go(destination.admit())).collect();
        assert_eq!(destination.state().circuit, Circuit::HalfOpen);
        assert!(matches!(destination.admit(), Admit::Wait { .. }), "no more than {wave} at once");
        permits.into_iter().for_each(|permit| permit.done(Signal::status(200)));
    }
    assert_eq!(destination.state().circuit, Circuit::Closed);
    assert_eq!(destination.state().failures, 0, "it starts again from zero");
}

#[test]
fn a_failed_probe_makes_it_rest_twice_as_long_up_to_a_minute() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = opened(&clock, &destinations);
    clock.advance(secs(5));
    for rest in [10, 20, 40, 60, 60] {
        go(destination.admit()).done(Signal::not_sent());
        let Admit::Wait { until } = destination.admit() else { panic!("open") };
        assert_eq!(destination.left(until), secs(rest));
        clock.advance(secs(rest));
    }
    // Well again: the next time it opens, it rests as at first.
    while destination.state().circuit != Circuit::Closed {
        go(destination.admit()).done(Signal::status(200));
    }
    opened(&clock, &destinations);
    let Admit::Wait { until } = destination.admit() else { panic!("open") };
    assert!(destination.left(until) <= secs(5));
}

// A probe whose caller went away says nothing: its place is free, and the breaker stands as it stood.
#[test]
fn a_probe_that_was_given_up_frees_its_place() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = opened(&clock, &destinations);
    clock.advance(secs(5));
    drop(go(destination.admit()));
    assert_eq!(destination.state().circuit, Circuit::HalfOpen);
    go(destination.admit()).done(Signal::status(200));
}

// Calls that began before it opened end after: neither do they close it, nor make its rest longer.
#[test]
fn late_ends_of_an_earlier_period_change_nothing() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = destinations.get("acquirer");
    let slow: Vec<Permit> = (0..10).map(|_| go(destination.admit())).collect();
    opened(&clock, &destinations);
    clock.advance(secs(5));
    let probe = go(destination.admit());
    slow.into_iter().enumerate().for_each(|(i, permit)| {
        permit.done(if i % 2 == 0 { Signal::status(200) } else { Signal::not_sent() });
    });
    assert_eq!(destination.state().circuit, Circuit::HalfOpen);
    probe.done(Signal::status(200));
    assert_eq!(destination.state().circuit, Circuit::HalfOpen);
}

#[test]
fn a_clock_put_back_does_not_keep_it_open() {
    let (clock, destinations) = clocked(Limits::default());
    let destination = opened(&clock, &destinations);
    clock.set(semel::time::Timestamp::from_micros(900_000_000_000_000));
    assert!(matches!(destination.admit(), Admit::Go(_)));
}

#[test]
fn many_threads_share_one() {
    let destinations = Destinations::new(Limits { failure_calls: u32::MAX, ..Limits::default() });
    let gone = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let destination = destinations.get("shared");
                for _ in 0..1_000 {
                    go(destination.admit()).done(Signal::status(500));
                    if let Admit::Go(permit) = destination.admit_retry() {
                        gone.fetch_add(1, Ordering::Relaxed);
                        permit.done(Signal::status(500));
                    }
                }
            });
        }
    });
    let state = destinations.get("shared").state();
    assert_eq!((state.firsts, state.retries), (4_000, u64::from(gone.load(Ordering::Relaxed))));
    assert!(state.retries <= 800, "{}", state.retries);
}

// A reloaded configuration changes the limits of a breaker, and neither opens nor closes it.
#[test]
fn other_limits_are_taken_up_where_it_stands() {
    let (clock, destinations) = clocked(Limits::default());
    let strict = Limits { failure_calls: 2, rest: secs(1), ..Limits::default() };
    let one = destinations.get("acquirer");
    let same = destinations.get_with("acquirer", strict);
    for _ in 0..2 {
        assert_eq!(one.state().circuit, Circuit::Closed);
        go(one.admit()).done(Signal::status(503));
    }
    let Circuit::Open { until } = same.state().circuit else { panic!("{same:?}") };
    assert_eq!(same.left(until), secs(1));
    let again = destinations.get_with("acquirer", Limits::default());
    assert_eq!(again.state().circuit, Circuit::Open { until }, "it stands as it stood");
    clock.advance(secs(1));
    go(again.admit()).done(Signal::status(503));
    let Circuit::Open { until } = again.state().circuit else { panic!("{again:?}") };
    assert_eq!(again.left(until), secs(10), "and rests by the new ones");
}
