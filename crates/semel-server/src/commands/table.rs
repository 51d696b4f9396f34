//! Tables for people: aligned columns that fit the terminal.

use super::screen::{colour_of, is_coloured, paint, write_line};

/// Columns are not cut below this width. A terminal that is too narrow for that gets one line per cell.
const NARROWEST: usize = 9;
/// A column of texts that continue on the next line has at least this width.
const NARROWEST_TEXT: usize = 24;
const GAP: &str = "  ";

/// What happens to the cells of the last column that do not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Cut,
    Wrap,
}

/// How a table is laid out.
enum Layout {
    /// In columns of these widths.
    Columns(Vec<usize>),
    /// One line per cell, because the columns do not fit.
    Records,
}

/// Prints rows below their titles. Cells are cut where the terminal is too narrow, but neither in the first column nor ids and times,
/// which people copy. Columns without content are left out.
pub(crate) fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    print(&titles, rows, Overflow::Cut)
}

/// As [`table`], but the cells of the last column are not cut: they continue on the next line.
pub(crate) fn table_of_texts<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    print(&titles, rows, Overflow::Wrap)
}

fn print<const N: usize>(titles: &[&str], rows: &[[String; N]], overflow: Overflow) -> anyhow::Result<()> {
    let rows: Vec<&[String]> = rows.iter().map(|row| row.as_slice()).collect();
    for line in Table::new(titles, &rows).lines(width(), overflow, is_coloured()) {
        write_line(&line)?;
    }
    if rows.is_empty() {
        eprintln!("nothing found");
    }
    Ok(())
}

/// The width to fit: `COLUMNS` if it is set, else that of the terminal. Nothing is cut in a pipe.
fn width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    set.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)))
        .filter(|width| *width > 0)
}

/// The columns with content.
struct Table<'a> {
    titles: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    fn new(titles: &[&'a str], rows: &[&'a [String]]) -> Self {
        let is_shown = |column: &usize| rows.is_empty() || rows.iter().any(|row| !row[*column].is_empty());
        let shown: Vec<usize> = (0..titles.len()).filter(is_shown).collect();
        Self {
            titles: shown.iter().map(|column| titles[*column]).collect(),
            rows: rows.iter().map(|row| shown.iter().map(|column| row[*column].as_str()).collect()).collect(),
        }
    }

    fn lines(&self, width: Option<usize>, overflow: Overflow, coloured: bool) -> Vec<String> {
        match self.layout(width, overflow) {
            Layout::Columns(widths) => {
                let lines = self.columns(&widths, overflow, coloured);
                lines.iter().flat_map(|line| line.split('\n').map(str::to_owned)).collect()
            }
            Layout::Records => self.records(width.unwrap_or(usize::MAX), coloured),
        }
    }

    fn layout(&self, width: Option<usize>, overflow: Overflow) -> Layout {
        let widest = |column: usize| {
            let cells = self.rows.iter().map(|row| length(row[column]));
            cells.chain([length(self.titles[column])]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.titles.len()).map(widest).collect();
        let is_whole = |column: &usize| *column == 0 || self.rows.iter().any(|row| is_id(row[*column]));
        let whole: Vec<usize> = (0..widths.len()).filter(is_whole).collect();
        let Some(limit) = width else { return Layout::Columns(widths) };
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > limit {
            let last = widths.len() - 1;
            let widest = match overflow {
                Overflow::Cut => {
                    let cuttable =
                        widths.iter_mut().enumerate().filter(|(column, _)| !whole.contains(column));
                    cuttable.map(|(_, width)| width).max().filter(|width| **width > NARROWEST)
                }
                Overflow::Wrap => widths.get_mut(last).filter(|width| last > 0 && **width > NARROWEST_TEXT),
            };
            let Some(widest) = widest else { return Layout::Records };
            *widest -= 1;
        }
        Layout::Columns(widths)
    }

    fn columns(&self, widths: &[usize], overflow: Overflow, coloured: bool) -> Vec<String> {
        let is_number =
            |column: usize| self.rows.iter().all(|row| row[column].bytes().all(|byte| byte.is_ascii_digit()));
        let numbers: Vec<bool> = (0..widths.len()).map(is_number).collect();
        let last = widths.len().saturating_sub(1);
        let indent: usize = widths[..last].iter().map(|width| width + GAP.len()).sum();
        let line = |cells: &[&str], colour: fn(&str) -> Option<u8>| {
            let mut text = String::new();
            for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
                let padding = " ".repeat(width.saturating_sub(length(cell)));
                let cell_lines = match overflow {
                    Overflow::Wrap if at == last => wrap(cell, *width),
                    _ => vec![cut(cell, if at == 0 { usize::MAX } else { *width })],
                };
                let painted: Vec<String> =
                    cell_lines.iter().map(|part| paint(part, colour(cell).filter(|_| coloured))).collect();
                let shown = painted.join(&format!("\n{}", " ".repeat(indent)));
                text += &if numbers[at] { format!("{padding}{shown}") } else { format!("{shown}{padding}") };
                text += if at == last { "" } else { GAP };
            }
            text.trim_end().to_owned()
        };
        let head = line(&self.titles, |_| Some(1));
        std::iter::once(head).chain(self.rows.iter().map(|row| line(row, colour_of))).collect()
    }

    /// One line per cell, with its title, and an empty line between two rows.
    fn records(&self, width: usize, coloured: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            let fields = self.titles.iter().zip(row).map(|(title, cell)| (*title, *cell, *cell));
            lines.extend(field_lines(&fields.collect::<Vec<_>>(), width, coloured));
        }
        lines
    }
}

/// Prints titles with their texts, one below the other. Texts continue on the next line; empty ones are left out.
/// The third part of a field is the state that gives it its colour.
pub(crate) fn fields(fields: &[(&str, &str, &str)]) -> anyhow::Result<()> {
    let lines = field_lines(fields, width().unwrap_or(usize::MAX), is_coloured());
    lines.iter().try_for_each(|line| write_line(line))
}

fn field_lines(fields: &[(&str, &str, &str)], width: usize, coloured: bool) -> Vec<String> {
    let title_width = fields.iter().map(|(title, ..)| length(title)).max().unwrap_or(0);
    let room = width.saturating_sub(title_width + GAP.len()).max(NARROWEST);
    let mut lines = Vec::new();
    for (title, text, state) in fields.iter().filter(|(_, text, _)| !text.is_empty()) {
        let padding = " ".repeat(title_width - length(title));
        let mut start = format!("{}{padding}", paint(title, Some(1).filter(|_| coloured)));
        // One word is often an id: it stays in one piece, so that it can be copied.
        let parts = if text.contains(' ') { wrap(text, room) } else { vec![(*text).to_owned()] };
        for part in parts {
            lines.push(format!("{start}{GAP}{}", paint(&part, colour_of(state).filter(|_| coloured))));
            start = " ".repeat(title_width);
        }
    }
    lines
}

/// True for an id or a time: one long word with digits, and no path.
fn is_id(cell: &str) -> bool {
    const SHORTEST: usize = 20;
    let is_one_word = |cell: &str| !cell.contains([' ', '/', ',']);
    cell.len() >= SHORTEST && is_one_word(cell) && cell.bytes().filter(u8::is_ascii_digit).count() > 3
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Lines of at most this width, broken between words where that is possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is always a line");
            let used = length(line);
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= width {
                line.extend(std::iter::repeat_n(' ', gap).chain(rest));
                break;
            }
            if used > 0 {
                lines.push(String::new());
                continue;
            }
            // A word that is longer than a line.
            line.extend(rest.drain(..width));
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rows: &[[&str; 3]], width: Option<usize>, overflow: Overflow, coloured: bool) -> Vec<String> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        let rows: Vec<&[String]> = rows.iter().map(Vec::as_slice).collect();
        Table::new(&["ID", "STATE", "PATH"], &rows).lines(width, overflow, coloured)
    }

    #[test]
    fn a_table_fits_the_terminal_and_keeps_its_ids() {
        let rows = [["k123456789", "in_doubt", "/v1/payments/very/long"], ["k1", "done", "/é"]];
        assert_eq!(
            lines(&rows, None, Overflow::Cut, false),
            [
                "ID          STATE     PATH",
                "k123456789  in_doubt  /v1/payments/very/long",
                "k1          done      /é"
            ]
        );
        let narrow = lines(&rows, Some(33), Overflow::Cut, false);
        assert_eq!(narrow[1], "k123456789  in_doubt  /v1/paymen…");
        assert!(narrow.iter().all(|line| line.chars().count() <= 33), "{narrow:?}");
        assert_eq!(
            lines(&rows, Some(20), Overflow::Cut, false),
            [
                "ID     k123456789",
                "STATE  in_doubt",
                "PATH   /v1/payments/very/long",
                "",
                "ID     k1",
                "STATE  done",
                "PATH   /é"
            ],
            "one line per cell where columns would be unreadable"
        );
        let fields = [("ERROR", "the target is down", ""), ("NONE", "", "")];
        assert_eq!(field_lines(&fields, 18, false), ["ERROR  the target", "       is down"]);
    }

    #[test]
    fn texts_continue_on_the_next_line() {
        let rows = [["k1", "done", "a text of several words that is long"]];
        assert_eq!(
            lines(&rows, Some(37), Overflow::Wrap, false),
            ["ID  STATE  PATH", "k1  done   a text of several words", "           that is long"]
        );
        assert_eq!(lines(&rows, Some(25), Overflow::Wrap, false)[0], "ID     k1");
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 3), [""]);
    }

    #[test]
    fn empty_columns_are_left_out_and_states_have_colours() {
        let rows = [["k", "", "/a"]];
        assert_eq!(lines(&rows, None, Overflow::Cut, false), ["ID  PATH", "k   /a"]);
        assert_eq!(lines(&[], None, Overflow::Cut, false), ["ID  STATE  PATH"]);
        let rows = [["k", "done", "/a"]];
        let coloured = lines(&rows, None, Overflow::Cut, true);
        assert_eq!(coloured[1], "k   \x1b[32mdone\x1b[0m   /a", "aligned by what is seen");
    }

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let rows = [["k", "7", "/a"], ["l", "1200", "/b"]];
        assert_eq!(
            lines(&rows, None, Overflow::Cut, false),
            ["ID  STATE  PATH", "k       7  /a", "l    1200  /b"]
        );
    }
}
