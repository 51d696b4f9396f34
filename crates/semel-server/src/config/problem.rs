//! Mistakes in a config file, with their positions.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Collects mistakes, so that all of them are reported together.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    file: &'a str,
    text: &'a str,
    found: RefCell<Vec<ConfigProblem>>,
    /// Every key that was read, so that a test can compare them with the schema.
    #[cfg(test)]
    asked: RefCell<std::collections::BTreeSet<String>>,
}

/// One mistake. Never contains the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigProblem {
    /// The file, or the flag.
    pub(crate) place: String,
    /// Line and column, counted from 1; `None` for a flag.
    pub(crate) position: Option<(usize, usize)>,
    /// What is wrong and what was expected.
    pub(crate) message: String,
}

/// An invalid config, with every mistake in it.
#[derive(Debug)]
pub(crate) struct Invalid(pub(crate) Vec<ConfigProblem>);

impl<'a> Problems<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self {
            file,
            text,
            found: RefCell::default(),
            #[cfg(test)]
            asked: RefCell::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn note_asked(&self, path: String) {
        self.asked.borrow_mut().insert(path);
    }

    #[cfg(test)]
    pub(super) fn asked(&self) -> std::collections::BTreeSet<String> {
        self.asked.borrow().clone()
    }

    /// Reports a mistake at these bytes of the file.
    pub(super) fn at(&self, span: &Range<usize>, message: impl Into<String>) {
        let position = Some(position(self.text, span.start));
        self.add(ConfigProblem { place: self.file.to_owned(), position, message: message.into() });
    }

    /// Reports a mistake in a flag.
    pub(super) fn flag(&self, flag: &str, message: impl Into<String>) {
        self.add(ConfigProblem { place: flag.to_owned(), position: None, message: message.into() });
    }

    /// Reports a mistake without a position.
    pub(super) fn whole(&self, message: impl Into<String>) {
        self.add(ConfigProblem { place: self.file.to_owned(), position: None, message: message.into() });
    }

    fn add(&self, problem: ConfigProblem) {
        self.found.borrow_mut().push(problem);
    }

    /// `Ok` without mistakes; otherwise all mistakes in the order of the file.
    pub(super) fn into_result(self) -> Result<(), Invalid> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|problem| problem.position);
        if found.is_empty() { Ok(()) } else { Err(Invalid(found)) }
    }
}

/// Line and column of a byte, counted from 1; columns in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// The name among `known` that was probably meant.
pub(super) fn meant<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (typed.len() / 3).max(1);
    known
        .into_iter()
        .map(|name| (distance(typed, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The Levenshtein distance.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_from_one_and_in_characters() {
        let text = "a = 1\nä = \"ö\" x\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, text.find('x').unwrap()), (2, 9));
        assert_eq!(position(text, text.len() + 9), (3, 1));
    }

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["listen", "upstream", "profile"];
        assert_eq!(meant("lissten", known), Some("listen"));
        assert_eq!(meant("upstraem", known), Some("upstream"));
        assert_eq!(meant("retention", known), None);
    }
}
