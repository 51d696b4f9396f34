//! How long the pauses are.

use proptest::prelude::*;

use super::*;

#[test]
fn the_defaults_are_those_of_the_contract() {
    let Retry { attempts, base, cap, timeout, deadline, .. } = Retry::default();
    assert_eq!((attempts, base, cap, timeout, deadline), (3, ms(250), secs(5), secs(10), secs(30)));
    let defaults = Limits::default();
    assert_eq!((defaults.window, defaults.retry_percent, defaults.retries_per_second), (secs(10), 20, 10));
    assert_eq!((defaults.failure_percent, defaults.failure_calls), (50, 20));
}

#[test]
fn backoff_doubles_up_to_its_cap() {
    let retry = Retry::default();
    let longest = |attempt| retry.delay_at(attempt, None, 1.0, 0.0).wait;
    let expected = [ms(250), ms(500), secs(1), secs(2), secs(4), secs(5), secs(5)];
    for (attempt, expected) in (1..).zip(expected) {
        assert_eq!(longest(attempt), expected, "{attempt}");
    }
    assert_eq!(longest(u32::MAX), secs(5));
    assert_eq!(retry.delay_at(3, None, 0.0, 0.0).wait, ms(0), "full jitter begins at nothing");
}

#[test]
fn the_later_of_the_two_counts() {
    let retry = Retry::default();
    let server = retry.delay_at(1, Some(secs(2)), 1.0, 0.0);
    assert_eq!(server, Delay { wait: secs(2), source: DelaySource::Server });
    let own = retry.delay_at(5, Some(secs(2)), 1.0, 0.0);
    assert_eq!(own, Delay { wait: secs(4), source: DelaySource::Backoff });
    let absurd = retry.delay_at(1, Some(secs(1 << 40)), 1.0, 1.0);
    assert_eq!(absurd.wait, secs(24 * 60 * 60), "a day, and not a century");
}

proptest! {
    // Never below what the server asked for, never above the cap, jitter upwards only.
    #[test]
    fn delays_keep_their_bounds(
        attempt in 1u32..100,
        hint in prop::option::of(0u64..200_000_000),
        (base, cap, hint_cap) in (0u64..20_000, 0u64..60_000, 0u64..100_000_000),
        (own, above) in (0.0f64..=1.0, 0.0f64..=1.0),
    ) {
        let retry = Retry::default().base(ms(base)).cap(ms(cap)).hint_cap(ms(hint_cap));
        let hint = hint.map(ms);
        let Delay { wait, source } = retry.delay_at(attempt, hint, own, above);
        match hint {
            None => prop_assert!(wait <= ms(cap)),
            Some(hint) => {
                let granted = hint.min(ms(hint_cap));
                prop_assert!(wait >= granted, "{wait:?} undercuts {granted:?}");
                prop_assert!(wait <= ms(cap.max(hint_cap)));
                prop_assert!(wait <= (granted + granted / 10).max(ms(cap)));
                prop_assert_eq!(source == DelaySource::Server, wait >= granted && {
                    let alone = retry.delay_at(attempt, None, own, above).wait;
                    alone <= granted
                });
            }
        }
    }

    // The pauses of many callers that failed together are spread over the whole range.
    #[test]
    fn jitter_spreads(attempt in 1u32..6) {
        let retry = Retry::default();
        let most = retry.delay_at(attempt, None, 1.0, 0.0).wait;
        let waits: Vec<_> = (0..200).map(|_| retry.delay(attempt, None).wait).collect();
        prop_assert!(waits.iter().any(|wait| *wait < most / 3) && waits.iter().any(|wait| *wait > most / 3 * 2));
    }
}
