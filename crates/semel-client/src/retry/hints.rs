//! What a server says about when to come back, in all the forms that are met.

use std::time::Duration;

use semel::time::Timestamp;

/// Nobody means more than this; it also keeps sums of durations far from overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What a server said about trying again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// How long it asked to be left alone. Zero where it named the past.
    pub after: Option<Duration>,
    /// What it said outright. It beats the status.
    pub advice: Option<Advice>,
}

/// A server's own word on whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Try again.
    Retry,
    /// Do not try again.
    Stop,
}

impl Hints {
    /// Reads the headers of an answer by `get`, which is given names in lower case.
    ///
    /// The delay is the longest of `retry-after-ms`, `retry-after` (seconds, decimals, any of the three date forms) and
    /// `grpc-retry-pushback-ms`; without these, of a rate limit's reset. A date is counted from the answer's own `date`,
    /// so that a wrong clock on either side does no harm, and from `now` where there is none. What is past is zero, what
    /// cannot be read is not there. `x-should-retry`, `stripe-should-retry` and a negative pushback are the advice.
    #[must_use]
    pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>, now: Timestamp) -> Self {
        let get = |name: &str| get(name).map(str::trim);
        let sent = get("date").and_then(http_date).unwrap_or(now);
        let pushback = get("grpc-retry-pushback-ms").map(|text| text.parse::<i64>().map_err(drop));
        let told = [
            get("retry-after-ms").and_then(number).map(|ms| ms / 1_000.0).map(seconds),
            get("retry-after").and_then(|text| delay(text, sent)),
            pushback.and_then(|ms| ms.ok().filter(|ms| *ms >= 0)).map(|ms| seconds(ms as f64 / 1_000.0)),
        ];
        let reset = || {
            let resets = ["ratelimit-reset", "x-ratelimit-reset"];
            resets.into_iter().find_map(|name| reset(get(name)?, sent))
        };
        let after = told.into_iter().flatten().max().or_else(reset);
        let said = ["x-should-retry", "stripe-should-retry"].into_iter().find_map(|name| match get(name)? {
            text if text.eq_ignore_ascii_case("true") => Some(Advice::Retry),
            text if text.eq_ignore_ascii_case("false") => Some(Advice::Stop),
            _ => None,
        });
        // By its own rules, a pushback that is negative or cannot be read means: do not.
        let pushed = pushback.and_then(|ms| ms.map_or(true, |ms| ms < 0).then_some(Advice::Stop));
        Self { after, advice: said.or(pushed) }
    }
}

/// A `Retry-After` value: seconds, with decimals and signs as some servers write them, or a date.
fn delay(text: &str, sent: Timestamp) -> Option<Duration> {
    match number(text) {
        Some(number) => Some(seconds(number)),
        None => http_date(text).map(|moment| moment.left(sent).min(LONGEST)),
    }
}

/// A rate limit's reset: seconds from now, or a moment of the Unix epoch, which no number of seconds reaches.
fn reset(text: &str, sent: Timestamp) -> Option<Duration> {
    const EPOCHS_FROM: f64 = 1_000_000_000.0;
    let number = number(text)?;
    if number < EPOCHS_FROM {
        return Some(seconds(number));
    }
    Some(Timestamp::default().after(Duration::from_secs(number as u64)).left(sent).min(LONGEST))
}

/// Digits, a sign and a point; not "inf", "nan" or an exponent, which the standard parser takes too.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+'));
    if plain { text.parse().ok() } else { None }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.max(0.0)).map_or(LONGEST, |delay| delay.min(LONGEST))
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Reads an HTTP date in any of its three forms: `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`,
/// `Sun Nov  6 08:49:37 1994`. The day of the week is not believed either way. Before 1970 is 1970.
#[must_use]
pub fn http_date(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (year, month, day, time) = match text.split_once(',') {
        Some((_, rest)) => {
            let mut parts = rest.split([' ', '-']).filter(|part| !part.is_empty());
            let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
            let (time, zone) = (parts.next()?, parts.next()?);
            if !matches!(zone.to_ascii_uppercase().as_str(), "GMT" | "UTC" | "Z") || parts.next().is_some() {
                return None;
            }
            (year, month, day, time)
        }
        None => {
            let mut parts = text.split_ascii_whitespace().skip(1);
            let (month, day, time, year) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            if parts.next().is_some() {
                return None;
            }
            (year, month, day, time)
        }
    };
    let year = match (year.len(), digits(year)?) {
        (4, year) => year,
        // Two digits: what would be far in the future is meant to be past. Fifty years is the rule's own border,
        // counted from a year that this code will outlive.
        (2, year) if year < 77 => 2000 + year,
        (2, year) => 1900 + year,
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| month.eq_ignore_ascii_case(name))? as u64 + 1;
    let day = digits(day)?;
    let mut clock = time.split(':');
    let (hour, minute, second) = (digits(clock.next()?)?, digits(clock.next()?)?, digits(clock.next()?)?);
    // A leap second is the second after.
    if clock.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if day == 0 || day > days_in(year, month) {
        return None;
    }
    let days = days_since_1970(year, month, day);
    let secs = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Timestamp::default().after(Duration::from_secs(secs)))
}

fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > 4 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    if year < 1970 {
        return 0;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let of_years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    let of_months: u64 = (1..month).map(|month| days_in(year, month)).sum();
    of_years + of_months + day - 1
}
