//! Pieces of HTML that pages share. Everything that comes from outside is escaped here, or by the template.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use askama::filters::HtmlSafe;
use semel::key::Hint;
use semel::time::{Clock as _, SystemClock, Timestamp};

use crate::admin::records::time;

/// Finished HTML: a template does not escape it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Html(String);

impl HtmlSafe for Html {}

impl Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Html {
    /// HTML that this program wrote. Never for text from outside.
    pub(super) fn trusted(html: impl Into<String>) -> Self {
        Self(html.into())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Any text.
    pub(super) fn text(text: impl Display) -> Self {
        Self(escape(&text.to_string()))
    }
}

/// A small value, or a reference to one: templates pass references, of any depth.
pub(super) trait Value<T> {
    fn value(&self) -> T;
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Value<$type> for $type {
            fn value(&self) -> $type {
                *self
            }
        }
    )*};
}

values!(u64, f64, Duration);

impl<T, V: Value<T>> Value<T> for &V {
    fn value(&self) -> T {
        (**self).value()
    }
}

/// Text without characters that mean something in HTML, also between quotes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// A text as one word of a shell.
pub(super) fn shell(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@,+%=".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A part of a path or query.
pub(super) fn encode(text: impl Display) -> String {
    let mut encoded = String::new();
    for byte in text.to_string().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// `?name=value&…` of the pairs that have a value.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> =
        given.map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// A moment as people read it, with the exact time on hover: `3 min ago`, `in 20 s`.
pub(super) fn when(moment: Timestamp) -> Html {
    let now = SystemClock.now();
    let text = if moment > now {
        format!("in {}", whole_unit(moment.left(now)))
    } else {
        format!("{} ago", whole_unit(now.left(moment)))
    };
    let exact = time(moment);
    let seconds = moment.as_micros() / 1_000_000;
    Html(format!("<time datetime=\"{exact}\" title=\"{exact}\" data-at=\"{seconds}\">{text}</time>"))
}

/// The time of day of a moment, in UTC.
pub(super) fn clock(moment: Timestamp) -> String {
    time(moment).get(11..19).unwrap_or_default().to_owned()
}

/// A moment that may not have come.
pub(super) fn when_some(moment: Option<Timestamp>) -> Html {
    moment.map_or_else(|| Html::trusted("–"), when)
}

fn whole_unit(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A duration with two or three digits: `850 µs`, `12.5 ms`, `1.2 s`, `3.5 min`.
pub(super) fn duration(duration: impl Value<Duration>) -> String {
    let seconds = duration.value().as_secs_f64();
    let units = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let Some((length, unit)) = units.into_iter().find(|(length, _)| seconds >= *length) else {
        return "0 s".to_owned();
    };
    format!("{} {unit}", short(seconds / length))
}

/// A number with one decimal where it is small.
fn short(number: f64) -> String {
    let text = if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") };
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A count with separated thousands: `1 234 567`, with narrow spaces.
pub(super) fn count(number: impl Value<u64>) -> String {
    let digits = number.value().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A number beside a link of the navigation, with a shape and a word; hidden while it is zero.
pub(super) fn nav_count(path: &str, number: impl Value<u64>) -> Html {
    let number = number.value();
    let hidden = if number == 0 { " hidden" } else { "" };
    let name = path.trim_start_matches('/');
    let (tone, word) = if name == "keys" { (Tone::Bad, "in doubt") } else { (Tone::Warn, "pending") };
    Html(format!(
        "<span class=\"count {}\" id=\"count-{name}\" title=\"{} {word}\" data-live{hidden}>{}{}<span class=\"sr\"> {word}</span></span>",
        tone.class(),
        count(number),
        tone.shape(),
        count(number)
    ))
}

/// A rate a second.
pub(super) fn rate(number: impl Value<f64>) -> String {
    let number = number.value();
    if number > 0.0 && number < 0.1 { "< 0.1".to_owned() } else { short(number) }
}

/// A share in per cent.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", short(share * 100.0))
}

/// A size: `812 B`, `1.5 KiB`.
pub(super) fn bytes(size: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(length, _)| size >= *length) {
        Some((length, unit)) => format!("{} {unit}", short(size as f64 / length as f64)),
        None => format!("{size} B"),
    }
}

/// How a state looks: colour and shape. The word is beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// A check in a disc.
    Ok,
    /// A triangle.
    Warn,
    /// A square on its tip.
    Bad,
    /// A ring with an arc: work in progress.
    Run,
    /// A clock: it waits.
    Wait,
    /// Two bars.
    Pause,
    /// An empty ring: nothing to say.
    Mute,
}

impl Tone {
    /// The CSS class.
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn | Self::Pause => "warn",
            Self::Bad => "bad",
            Self::Run => "run",
            Self::Wait => "wait",
            Self::Mute => "mute",
        }
    }

    /// The symbol in the page's sprite.
    const fn symbol(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
            Self::Run => "run",
            Self::Wait => "wait",
            Self::Pause => "pause",
            Self::Mute => "mute",
        }
    }

    /// Its shape alone.
    pub(super) fn shape(self) -> Html {
        Html(format!("<svg aria-hidden=\"true\"><use href=\"#i-{}\"/></svg>", self.symbol()))
    }

    /// The tone of a state of any kind, by its name in the API.
    pub(super) fn of(state: &str) -> Self {
        match state {
            "done" | "delivered" | "replayed" | "closed" | "ready" | "success" | "taken" => Self::Ok,
            "in_doubt" | "dlq" | "blocked" | "parked" | "open" | "failed_again" | "poison"
            | "non_retryable" | "conflict" | "exhausted" | "unavailable" => Self::Bad,
            "pending" | "half_open" | "lapsed" | "retry_wait" | "expired" | "refused" => Self::Warn,
            "running" | "begun" | "claimed" | "replaying" | "released" => Self::Run,
            "paused" => Self::Pause,
            "queued" | "idle" | "buffered" | "bound" => Self::Wait,
            _ => Self::Mute,
        }
    }
}

/// A state as shape and word.
pub(super) fn state(tone: Tone, word: &str) -> Html {
    Html(format!("<span class=\"state {}\">{}{}</span>", tone.class(), tone.shape(), escape(word)))
}

/// A state by its name in the API, in words for people.
pub(super) fn named(name: &str) -> Html {
    state(Tone::of(name), &word(name))
}

/// The result of an attempt.
pub(super) fn attempt(class: &str) -> Html {
    let (tone, word) = match class {
        "success" => (Tone::Ok, "delivered"),
        "transient" => (Tone::Warn, "failed, may pass"),
        "permanent" => (Tone::Bad, "refused for good"),
        "unknown" => (Tone::Warn, "no clear answer"),
        "crashed" => (Tone::Bad, "worker lost"),
        "deferred" => (Tone::Mute, "not sent"),
        _ => (Tone::Run, "running"),
    };
    state(tone, word)
}

/// The result of an item of a replay.
pub(super) fn item(name: &str) -> Html {
    match name {
        "pending" => state(Tone::Wait, "not started"),
        "skipped_completed" => state(Tone::Mute, "delivered before"),
        "skipped_inflight" => state(Tone::Mute, "in progress elsewhere"),
        name => named(name),
    }
}

/// What a plan does with an item.
pub(super) fn planned(action: &str) -> Html {
    match action {
        "run" => state(Tone::Run, "send"),
        "skip" => state(Tone::Mute, "skip"),
        _ => state(Tone::Bad, "conflict"),
    }
}

/// A name of the API as words: `retry_wait` is "retry wait".
pub(super) fn word(name: &str) -> String {
    match name {
        "dlq" => "dead letter".to_owned(),
        "exhausted" => "all attempts failed".to_owned(),
        "non_retryable" => "refused for good".to_owned(),
        name => name.replace('_', " "),
    }
}

/// A name of the API as the label of a tab.
pub(super) fn label(name: &str) -> String {
    let word = word(name);
    let mut characters = word.chars();
    characters
        .next()
        .map_or_else(String::new, |first| format!("{}{}", first.to_uppercase(), characters.as_str()))
}

/// The first characters of a key. An ellipsis follows where they may not be all of it.
pub(super) fn hint(hint: &Hint) -> String {
    let ellipsis = if hint.as_str().chars().count() >= Hint::LENGTH { "…" } else { "" };
    format!("{hint}{ellipsis}")
}

/// The beginning of an id for a narrow column: the random part tells ids apart, the end is kept.
pub(super) fn short_id(id: impl Display) -> String {
    let id = id.to_string();
    match id.split_once('_') {
        Some((kind, rest)) if rest.len() > 12 => format!("{kind}_…{}", &rest[rest.len() - 8..]),
        None if id.len() == 32 && id.is_ascii() => format!("{}…", &id[..12]),
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(duration(Duration::from_micros(850)), "850 µs");
        assert_eq!(duration(Duration::from_micros(12_500)), "12 ms");
        assert_eq!(duration(Duration::from_millis(1_234)), "1.2 s");
        assert_eq!(duration(Duration::from_secs(210)), "3.5 min");
        assert_eq!(duration(Duration::ZERO), "0 s");
        assert_eq!(count(1_234_567).replace('\u{202f}', " "), "1 234 567");
        assert_eq!((count(12), rate(0.04), rate(12.4)), ("12".into(), "< 0.1".into(), "12".into()));
        assert_eq!((bytes(812), bytes(1_536)), ("812 B".into(), "1.5 KiB".into()));
    }

    #[test]
    fn text_from_outside_is_inert() {
        let text = "\"><script>alert('x')</script>&";
        assert_eq!(
            Html::text(text).to_string(),
            "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;"
        );
        assert_eq!(query(&[("a", "<&>"), ("b", "")]), "?a=%3C%26%3E");
        assert!(!named("<b>").to_string().contains("<b>"));
    }

    #[test]
    fn a_key_has_an_ellipsis_where_it_may_go_on() {
        assert_eq!(hint(&Hint::new("order-1")), "order-1");
        assert_eq!(hint(&Hint::new("order-10")), "order-10…");
        assert_eq!(hint(&Hint::new("order-1000")), "order-10…");
    }

    #[test]
    fn ids_are_shortened_where_they_differ_least() {
        assert_eq!(short_id("dlq_01JD0000000000000012345678"), "dlq_…12345678");
        assert_eq!(short_id("0123456789abcdef0123456789abcdef"), "0123456789ab…");
        assert_eq!(short_id("req-1"), "req-1");
    }
}
