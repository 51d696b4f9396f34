//! The whole table, written down a second time.

use super::*;

const fn hinted(after: Duration) -> Hints {
    Hints { after: Some(after), advice: None }
}

// Every kind, for a call that may be repeated and for one that may not.
#[test]
fn every_outcome_has_its_verdict() {
    use Verdict::{Fatal, InFlight, Retry, RetryOnce, Success, Unknown};
    const NONE: Option<Duration> = None;
    let expected: [(Signal, Verdict, Verdict, TryFate); 38] = [
        (Signal::not_sent(), Retry { after: NONE }, Retry { after: NONE }, TryFate::Undone),
        (Signal::cut(), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::timed_out(), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(200), Success, Success, TryFate::Done),
        (Signal::status(204), Success, Success, TryFate::Done),
        (Signal::status(301), Fatal, Unknown, TryFate::Unknown),
        (Signal::status(303), Fatal, Unknown, TryFate::Unknown),
        (Signal::status(400), Fatal, Fatal, TryFate::Undone),
        (Signal::status(401), Fatal, Fatal, TryFate::Undone),
        (Signal::status(403), Fatal, Fatal, TryFate::Undone),
        (Signal::status(404), Fatal, Fatal, TryFate::Undone),
        (Signal::status(408), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(409), Fatal, Fatal, TryFate::Undone),
        (Signal::status(409).conflict(Kind::InFlight), InFlight { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(409).conflict(Kind::Exists), Success, Success, TryFate::Done),
        (Signal::status(409).conflict(Kind::Duplicate), Fatal, Unknown, TryFate::Unknown),
        (Signal::status(409).conflict(Kind::InDoubt), Unknown, Unknown, TryFate::Unknown),
        (Signal::status(410), Fatal, Fatal, TryFate::Undone),
        (Signal::status(421), RetryOnce { after: NONE }, RetryOnce { after: NONE }, TryFate::Undone),
        (Signal::status(422), Fatal, Fatal, TryFate::Undone),
        (Signal::status(425), Retry { after: NONE }, Retry { after: NONE }, TryFate::Undone),
        (Signal::status(429), Retry { after: NONE }, Retry { after: NONE }, TryFate::Undone),
        (
            Signal::status(429).hints(hinted(ms(7))),
            Retry { after: Some(ms(7)) },
            Retry { after: Some(ms(7)) },
            TryFate::Undone,
        ),
        (Signal::status(499), Fatal, Fatal, TryFate::Undone),
        (Signal::status(500), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(501), Fatal, Fatal, TryFate::Undone),
        (Signal::status(502), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(503), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (
            Signal::status(503).hints(hinted(ms(0))),
            Retry { after: Some(ms(0)) },
            Retry { after: Some(ms(0)) },
            TryFate::Undone,
        ),
        (Signal::status(504), Retry { after: NONE }, Unknown, TryFate::Unknown),
        (Signal::status(505), Fatal, Fatal, TryFate::Undone),
        (Signal::status(507), Fatal, Unknown, TryFate::Unknown),
        (Signal::status(511), Fatal, Fatal, TryFate::Undone),
        (Signal::status(599), Fatal, Unknown, TryFate::Unknown),
        (Signal::of(Kind::ToldToRetry), Retry { after: NONE }, Retry { after: NONE }, TryFate::Undone),
        (Signal::of(Kind::ToldToStop), Fatal, Fatal, TryFate::Undone),
        (Signal::status(100), Fatal, Unknown, TryFate::Unknown),
        (Signal::status(777), Fatal, Unknown, TryFate::Unknown),
    ];
    for (signal, safe, bare, fate) in expected {
        assert_eq!(signal.judge(Repeat::Safe).verdict, safe, "{signal:?} where it may be repeated");
        assert_eq!(signal.judge(Repeat::Unsafe).verdict, bare, "{signal:?} where it may not");
        assert_eq!(signal.judge(Repeat::Safe).fate, fate, "{signal:?}");
        assert_eq!(signal.judge(Repeat::Unsafe).fate, fate, "the fate is the same for all: {signal:?}");
    }
    let named: std::collections::HashSet<Kind> = expected.iter().map(|(signal, ..)| signal.kind()).collect();
    for row in TABLE {
        assert!(named.contains(&row.kind), "{} has no line in this test", row.name);
    }
}

#[test]
fn the_table_is_in_order_and_its_names_are_its_own() {
    for (index, row) in TABLE.iter().enumerate() {
        assert_eq!(row.kind as usize, index, "{}", row.name);
        assert_eq!(TABLE.iter().filter(|other| other.name == row.name).count(), 1, "{}", row.name);
    }
    for status in 0..=999 {
        let _ = Kind::of_status(status).row();
    }
}

// "a request sent without a key whose outcome is unknown is not retried", whatever the table says elsewhere.
#[test]
fn what_may_have_happened_is_never_repeated_without_a_key() {
    for row in TABLE {
        let judged = Signal::of(row.kind).judge(Repeat::Unsafe);
        if judged.fate == TryFate::Unknown {
            assert!(!judged.verdict.is_retryable(), "{}", row.name);
        }
    }
}

// A server's own word beats its status, but not what is done.
#[test]
fn vendor_hints_beat_the_status() {
    let told = |advice| Hints { after: Some(secs(1)), advice: Some(advice) };
    for repeat in [Repeat::Safe, Repeat::Unsafe] {
        for row in TABLE {
            let retry = Signal::of(row.kind).hints(told(Advice::Retry)).judge(repeat).verdict;
            let stop = Signal::of(row.kind).hints(told(Advice::Stop)).judge(repeat).verdict;
            if matches!(row.kind, Kind::Success | Kind::Exists) {
                assert_eq!((retry, stop), (Verdict::Success, Verdict::Success));
            } else {
                assert_eq!(retry, Verdict::Retry { after: Some(secs(1)) }, "{}", row.name);
                assert!(matches!(stop, Verdict::Fatal | Verdict::Unknown), "{}: {stop:?}", row.name);
            }
        }
    }
}

// What the breaker is fed.
#[test]
fn the_breaker_is_told_of_silence_and_5xx_alone() {
    for signal in [Signal::not_sent(), Signal::timed_out(), Signal::cut()] {
        assert_eq!(DestinationHealth::from(signal), DestinationHealth::Failing);
    }
    for status in 200..600 {
        let expected = match status {
            429 => DestinationHealth::Unclear,
            500.. => DestinationHealth::Failing,
            _ => DestinationHealth::Healthy,
        };
        assert_eq!(DestinationHealth::from(Signal::status(status)), expected, "{status}");
    }
}
