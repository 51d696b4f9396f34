//! What can be wrong with a file or a target, so that nothing can be graded.

use std::fmt;

/// A place in a file, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Place {
    /// The first character.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// One mistake in a file, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where.
    pub at: Place,
    /// What was expected.
    pub expected: String,
}

impl Mistake {
    pub(crate) fn new(at: Place, expected: impl Into<String>) -> Self {
        Self { at, expected: expected.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: expected {}", self.at.line, self.at.column, self.expected)
    }
}

/// Why nothing could be graded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file has mistakes.
    #[error("{}", mistakes.iter().map(|mistake| format!("{file}:{mistake}")).collect::<Vec<_>>().join("\n"))]
    File {
        /// The file's name.
        file: String,
        /// Every mistake found.
        mistakes: Vec<Mistake>,
    },
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Unreadable {
        /// The file's name.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// The target's address is none, or nobody answers there.
    #[error("the target cannot be used: {0}")]
    Target(String),
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
}
