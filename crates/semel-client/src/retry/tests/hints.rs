//! `Retry-After` in all its forms.

use proptest::prelude::*;

use super::*;
use semel::time::Timestamp;

/// Sun, 06 Nov 1994 08:49:37 GMT.
const THEN: u64 = 784_111_777;

type Headers = &'static [(&'static str, &'static str)];

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn read(headers: &[(&str, &'static str)]) -> Hints {
    let get = |name: &str| headers.iter().find(|(header, _)| *header == name).map(|(_, value)| *value);
    Hints::read(get, at(THEN))
}

fn after(headers: &[(&str, &'static str)]) -> Option<Duration> {
    read(headers).after
}

#[test]
fn all_three_forms_of_a_date_are_one() {
    for text in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "sun, 06 nov 1994 08:49:37 gmt",
        " Sun, 6 Nov 1994 08:49:37 GMT ",
    ] {
        assert_eq!(http_date(text), Some(at(THEN)), "{text}");
    }
    assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(at(0)));
    assert_eq!(http_date("Thu, 29 Feb 2024 12:00:00 GMT"), Some(at(1_709_208_000)));
    assert_eq!(http_date("Sun, 15 Nov 2026 15:00:00 GMT"), Some(at(1_794_754_800)));
    assert_eq!(http_date("Fri, 31 Dec 9999 23:59:59 GMT"), Some(at(253_402_300_799)));
    assert_eq!(http_date("Sat, 31 Dec 2016 23:59:60 GMT"), Some(at(1_483_228_800)), "a leap second");
}

#[test]
fn what_is_no_date_is_none() {
    for text in [
        "",
        "soon",
        "Sun, 06 Nov 1994",
        "Sun, 31 Feb 2024 00:00:00 GMT",
        "Thu, 29 Feb 2023 00:00:00 GMT",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nov 19940 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT GMT",
        "Sun Nov 6 08:49:37 1994 extra",
        "Sun, +6 Nov 1994 08:49:37 GMT",
        "2026-11-15T15:00:00Z",
    ] {
        assert_eq!(http_date(text), None, "{text}");
    }
}

#[test]
fn every_form_of_a_delay_is_read() {
    let table: [(Headers, Option<Duration>); 22] = [
        (&[], None),
        (&[("retry-after", "120")], Some(secs(120))),
        (&[("retry-after", " 1.5 ")], Some(ms(1500))),
        (&[("retry-after", "0")], Some(ms(0))),
        (&[("retry-after", "-5")], Some(ms(0))),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")], Some(secs(10))),
        (&[("retry-after", "Sunday, 06-Nov-94 08:49:47 GMT")], Some(secs(10))),
        (&[("retry-after", "Sun Nov  6 08:49:47 1994")], Some(secs(10))),
        (&[("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT")], Some(ms(0))),
        (&[("retry-after", "99999999999999999999")], Some(secs(366 * 86_400))),
        (&[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")], Some(secs(366 * 86_400))),
        (&[("retry-after", "inf")], None),
        (&[("retry-after", "NaN")], None),
        (&[("retry-after", "1e9")], None),
        (&[("retry-after", "soon")], None),
        (&[("retry-after-ms", "250")], Some(ms(250))),
        (&[("retry-after-ms", "1500"), ("retry-after", "1")], Some(ms(1500))),
        (&[("grpc-retry-pushback-ms", "40")], Some(ms(40))),
        (&[("ratelimit-reset", "30")], Some(secs(30))),
        (&[("x-ratelimit-reset", "784111787")], Some(secs(784_111_787))),
        (&[("x-ratelimit-reset", "30"), ("retry-after", "2")], Some(secs(2))),
        (&[("x-ratelimit-reset", "never")], None),
    ];
    for (headers, expected) in table {
        let expected = expected.map(|expected| expected.min(secs(366 * 86_400)));
        assert_eq!(after(headers), expected, "{headers:?}");
    }
    let late = |_: &str| Some("1794754810");
    let reset =
        Hints::read(|name| (name == "x-ratelimit-reset").then(|| late(name)).flatten(), at(1_794_754_800));
    assert_eq!(reset.after, Some(secs(10)), "a moment of the epoch");
}

// clock_skew: the server's own date is what its other date is counted from.
#[test]
fn a_date_is_counted_from_the_answers_own() {
    let headers =
        [("retry-after", "Sun, 06 Nov 2044 08:50:07 GMT"), ("date", "Sun, 06 Nov 2044 08:49:37 GMT")];
    assert_eq!(after(&headers), Some(secs(30)));
    let headers = [("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"), ("date", "yesterday")];
    assert_eq!(after(&headers), Some(secs(30)), "one that cannot be read is not there");
}

#[test]
fn advice_is_read() {
    let table: [(Headers, Option<Advice>); 8] = [
        (&[], None),
        (&[("x-should-retry", "true")], Some(Advice::Retry)),
        (&[("x-should-retry", "FALSE")], Some(Advice::Stop)),
        (&[("stripe-should-retry", "false")], Some(Advice::Stop)),
        (&[("x-should-retry", "maybe")], None),
        (&[("grpc-retry-pushback-ms", "-1")], Some(Advice::Stop)),
        (&[("grpc-retry-pushback-ms", "x")], Some(Advice::Stop)),
        (&[("grpc-retry-pushback-ms", "10")], None),
    ];
    for (headers, expected) in table {
        assert_eq!(read(headers).advice, expected, "{headers:?}");
    }
    assert_eq!(after(&[("grpc-retry-pushback-ms", "-1")]), None);
}

proptest! {
    // injection: whatever a server writes, reading it neither fails nor asks for more than a year.
    #[test]
    fn nothing_a_server_writes_breaks_it(text in "\\PC{0,40}", now in 0u64..5_000_000_000) {
        let hints = Hints::read(|_| Some(text.as_str()), at(now));
        prop_assert!(hints.after.is_none_or(|after| after <= secs(366 * 86_400)));
    }

    #[test]
    fn dates_are_read_as_they_are_written(day in 0u64..40_000, second in 0u64..86_400) {
        // Days are counted here by walking, there by arithmetic.
        let (mut year, mut left) = (1970, day);
        let leap = |year: u64| matches!((year % 4, year % 100, year % 400), (0, 1.., _) | (_, _, 0));
        while left >= 365 + u64::from(leap(year)) {
            left -= 365 + u64::from(leap(year));
            year += 1;
        }
        let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while left >= lengths[month] {
            left -= lengths[month];
            month += 1;
        }
        let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let text = format!(
            "Mon, {:02} {} {year} {:02}:{:02}:{:02} GMT",
            left + 1, names[month], second / 3600, second / 60 % 60, second % 60
        );
        prop_assert_eq!(http_date(&text), Some(at(day * 86_400 + second)));
    }
}
