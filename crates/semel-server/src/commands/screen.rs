//! What commands print for people: lines, colours, times and durations, and questions.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use semel::time::{Clock as _, SystemClock};

use crate::misused::Misused;

/// Standard output was closed by its reader, as `| head` does. The command ends without a message.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Prints a line.
///
/// # Errors
/// [`OutputClosed`] if nobody reads it.
pub(crate) fn write_line(line: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        written => written.context("standard output"),
    }
}

/// The colour of a state, as a number of ECMA-48.
pub(super) fn colour_of(cell: &str) -> Option<u8> {
    match cell {
        "in_doubt" | "dlq" | "dead" | "failed" | "blocked" | "parked" | "open" | "down" => Some(31),
        "paused" | "half_open" | "pending" | "retrying" | "lapsed" | "poison" => Some(33),
        "done" | "delivered" | "replayed" | "closed" | "ready" | "ok" => Some(32),
        _ => None,
    }
}

/// When output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// The choice of the command line.
static COLOURS: OnceLock<ColorChoice> = OnceLock::new();

/// Sets whether output has colours. Called once, at the start.
pub(crate) fn choose_colours(choice: ColorChoice) {
    let _ = COLOURS.set(choice);
}

/// True if output has colours.
pub(crate) fn is_coloured() -> bool {
    match COLOURS.get().copied().unwrap_or_default() {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            std::io::stdout().is_terminal() && !is_refused
        }
    }
}

/// A text in this colour, if there is one.
pub(super) fn paint(text: &str, colour: Option<u8>) -> String {
    match colour {
        Some(colour) => format!("\x1b[{colour}m{text}\x1b[0m"),
        None => text.to_owned(),
    }
}

/// An error with its causes, each said once: some repeat the text of their cause.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// A line without characters that control the terminal.
pub(crate) fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// A duration in its two largest units: `3h 12m`, `41s`, `250ms`.
pub(crate) fn readable(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let Some(first) = units.iter().position(|(_, length)| millis >= *length) else { return "0s".to_owned() };
    let (unit, length) = units[first];
    let rest = millis % length;
    match units.get(first + 1) {
        Some((next, shorter)) if unit != "s" && rest / shorter > 0 => {
            format!("{}{unit} {}{next}", millis / length, rest / shorter)
        }
        _ => format!("{}{unit}", millis / length),
    }
}

/// A moment that the server gave, to the second: `2026-11-16T21:30:12Z`.
pub(crate) fn moment(text: &str) -> String {
    match text.split_once('.') {
        Some((seconds, fraction)) if fraction.ends_with('Z') => format!("{seconds}Z"),
        _ => text.to_owned(),
    }
}

/// The time since a moment that the server gave, as `3h 12m`; empty if it is none.
pub(crate) fn age(moment: &str) -> String {
    let now = Duration::from_micros(SystemClock.now().as_micros());
    seconds_of(moment).map_or_else(String::new, |then| readable(now.saturating_sub(then)))
}

/// The time until a moment that the server gave; zero if it has passed.
pub(crate) fn left(moment: &str) -> Duration {
    let now = Duration::from_micros(SystemClock.now().as_micros());
    seconds_of(moment).map_or(Duration::ZERO, |then| then.saturating_sub(now))
}

/// The time since a day or moment in UTC: `today`, `yesterday`, `2026-11-18`, `2026-11-18T03:00:00Z`. `None` for another text, or a
/// moment to come.
pub(crate) fn time_since(text: &str) -> Option<Duration> {
    const DAY: u64 = 86_400;
    let now = Duration::from_micros(SystemClock.now().as_micros());
    let today = Duration::from_secs(now.as_secs() / DAY * DAY);
    let then = match text {
        "today" => today,
        "yesterday" => today.checked_sub(Duration::from_secs(DAY))?,
        day if day.len() == 10 => seconds_of(&format!("{day}T00:00:00Z"))?,
        moment if moment.ends_with('Z') => seconds_of(moment)?,
        _ => return None,
    };
    now.checked_sub(then)
}

/// The time since 1970 of `2026-11-16T21:30:12.345Z`.
fn seconds_of(moment: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| moment.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Hinnant's days_from_civil, for years that are not negative.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day.checked_sub(1)?;
    let of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + of_year;
    let days = (year / 400 * 146_097 + of_era).checked_sub(719_468)?;
    Some(Duration::from_secs(days * 86_400 + hour * 3_600 + minute * 60 + second))
}

/// Asks before a change that cannot be taken back. `yes` skips the question.
///
/// # Errors
/// The answer is no, or nobody can be asked.
pub(crate) async fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Misused::new(
            "standard input is not a terminal: add --yes to do this without a question",
        )
        .into());
    }
    let question = format!("{question} [y/N] ");
    // On a thread of its own, so that Ctrl-C ends the command.
    match tokio::task::spawn_blocking(move || ask(&question)).await??.as_str() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was changed"),
    }
}

/// Asks on the terminal. Returns the line without its end.
///
/// # Errors
/// Standard input cannot be read, or has ended.
pub(crate) fn ask(question: &str) -> anyhow::Result<String> {
    eprint!("{question}");
    std::io::stderr().flush()?;
    let mut said = String::new();
    if std::io::stdin().lock().read_line(&mut said).context("standard input")? == 0 {
        bail!("standard input has ended");
    }
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_ages_are_readable() {
        for (millis, expected) in [
            (0, "0s"),
            (250, "250ms"),
            (41_900, "41s"),
            (60_000, "1m"),
            (11_532_000, "3h 12m"),
            (2 * 86_400_000 + 3_600_000, "2d 1h"),
        ] {
            assert_eq!(readable(Duration::from_millis(millis)), expected);
        }
        assert_eq!(seconds_of("2026-11-18T11:06:40.123Z"), Some(Duration::from_secs(1_795_000_000)));
        assert_eq!(seconds_of("2000-02-29T00:00:00.000Z"), Some(Duration::from_secs(951_782_400)));
        assert_eq!(age("soon"), "");
        for moment in ["1970-01-02", "1970-01-01T00:00:00Z", "today", "yesterday"] {
            assert!(time_since(moment).is_some(), "{moment}");
        }
        let since = ["yesterday", "today"].map(|day| time_since(day).unwrap().as_secs());
        assert_eq!(since[0] - since[1], 86_400);
        for wrong in ["2999-01-01", "2026-13-01", "18.11.2026", "soon", "2026-11-18T03:00"] {
            assert_eq!(time_since(wrong), None, "{wrong}");
        }
        assert_eq!(moment("2026-11-18T11:06:40.123456Z"), "2026-11-18T11:06:40Z");
        assert_eq!(moment("soon"), "soon");
    }

    #[test]
    fn causes_are_said_once() {
        let refused = || std::io::Error::other("refused");
        let error = anyhow::Error::new(refused()).context("no answer: refused").context("the store");
        assert_eq!(with_causes(&error), "the store: no answer: refused");
        assert_eq!(with_causes(&anyhow::Error::new(refused()).context("the store")), "the store: refused");
    }
}
