//! What commands print for people: tables that fit the terminal, times and durations, and questions.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use semel::time::{Clock as _, SystemClock};

use crate::misused::Misused;

/// Columns are not cut below this width.
const NARROWEST: usize = 6;
const GAP: &str = "  ";

/// A closed pipe (`| head`) ends the command without an error.
pub(crate) fn write_line(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("standard output is closed")
}

/// Prints rows below their titles, with aligned columns that fit the terminal. Columns without content are left out.
pub(crate) fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    let rows: Vec<&[String]> = rows.iter().map(|row| row.as_slice()).collect();
    for line in lay_out(&titles, &rows, width(), is_coloured()) {
        write_line(&line)?;
    }
    if rows.is_empty() {
        eprintln!("nothing found");
    }
    Ok(())
}

/// The lines of a table. The first column is never cut: it holds the id to copy.
fn lay_out(titles: &[&str], rows: &[&[String]], width: Option<usize>, coloured: bool) -> Vec<String> {
    let is_shown = |column: &usize| rows.is_empty() || rows.iter().any(|row| !row[*column].is_empty());
    let shown: Vec<usize> = (0..titles.len()).filter(is_shown).collect();
    let widest = |column: &usize| {
        let cells = rows.iter().map(|row| row[*column].chars().count());
        cells.chain([titles[*column].chars().count()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = shown.iter().map(widest).collect();
    if let Some(limit) = width {
        while widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1) > limit {
            let widest = widths.iter_mut().skip(1).max().filter(|width| **width > NARROWEST);
            let Some(widest) = widest else { break };
            *widest -= 1;
        }
    }
    let line = |cells: Vec<&str>, colour: fn(&str) -> Option<u8>| {
        let mut text = String::new();
        for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let cut = cut(cell, if at == 0 { usize::MAX } else { *width });
            match colour(cell).filter(|_| coloured) {
                Some(colour) => text += &format!("\x1b[{colour}m{cut}\x1b[0m"),
                None => text += &cut,
            }
            text += &padding;
            text += if at + 1 < cells.len() { GAP } else { "" };
        }
        text.trim_end().to_owned()
    };
    let head = line(shown.iter().map(|column| titles[*column]).collect(), |_| Some(1));
    let body =
        rows.iter().map(|row| line(shown.iter().map(|column| row[*column].as_str()).collect(), colour_of));
    std::iter::once(head).chain(body).collect()
}

/// The colour of a state, as a number of ECMA-48.
fn colour_of(cell: &str) -> Option<u8> {
    match cell {
        "in_doubt" | "dlq" | "dead" | "failed" | "blocked" | "parked" | "open" | "down" => Some(31),
        "paused" | "half_open" | "pending" | "retrying" | "lapsed" | "poison" => Some(33),
        "done" | "delivered" | "replayed" | "closed" | "ready" | "ok" => Some(32),
        _ => None,
    }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// The width to fit: `COLUMNS` if it is set, else that of the terminal. Nothing is cut in a pipe.
fn width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    set.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)))
        .filter(|width| *width > 0)
}

fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
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

/// The time since a moment that the server gave, as `3h 12m`; empty if it is none.
pub(crate) fn age(moment: &str) -> String {
    let now = Duration::from_micros(SystemClock.now().as_micros());
    seconds_of(moment).map_or_else(String::new, |then| readable(now.saturating_sub(then)))
}

/// The time since 1970 of `2026-11-16T21:30:12.345Z`.
fn seconds_of(moment: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| moment.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
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
pub(crate) fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Misused::new(
            "standard input is not a terminal: add --yes to do this without a question",
        )
        .into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut said = String::new();
    std::io::stdin().lock().read_line(&mut said).context("standard input")?;
    match said.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &[[&str; 3]], width: Option<usize>, coloured: bool) -> Vec<String> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        let rows: Vec<&[String]> = rows.iter().map(Vec::as_slice).collect();
        lay_out(&["ID", "STATE", "PATH"], &rows, width, coloured)
    }

    #[test]
    fn a_table_fits_the_terminal_and_keeps_its_ids() {
        let rows = [["0123456789", "in_doubt", "/v1/payments/very/long"], ["1", "done", "/é"]];
        assert_eq!(
            lines(&rows, None, false),
            [
                "ID          STATE     PATH",
                "0123456789  in_doubt  /v1/payments/very/long",
                "1           done      /é"
            ]
        );
        let narrow = lines(&rows, Some(32), false);
        assert_eq!(narrow[1], "0123456789  in_doubt  /v1/payme…");
        assert!(narrow.iter().all(|line| line.chars().count() <= 32), "{narrow:?}");
        let tiny = lines(&rows, Some(10), false);
        assert_eq!(tiny[1], "0123456789  in_do…  /v1/p…", "readable rather than nothing");
    }

    #[test]
    fn empty_columns_are_left_out_and_states_have_colours() {
        let rows = [["1", "", "/a"]];
        assert_eq!(lines(&rows, None, false), ["ID  PATH", "1   /a"]);
        assert_eq!(lines(&[], None, false), ["ID  STATE  PATH"]);
        let rows = [["1", "done", "/a"]];
        assert_eq!(lines(&rows, None, true)[1], "1   \x1b[32mdone\x1b[0m   /a", "aligned by what is seen");
    }

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
    }
}
