//! Errors of a file or a target that prevent grading.

use std::fmt;

/// A position in a file, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePlace {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl FilePlace {
    /// The first character.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// One mistake in a file, and the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Its position.
    pub at: FilePlace,
    /// What was expected.
    pub expected: String,
}

impl Mistake {
    pub(crate) fn new(at: FilePlace, expected: impl Into<String>) -> Self {
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
        /// The cause.
        source: std::io::Error,
    },
    /// The address of the target is invalid, or nothing answers there.
    #[error("cannot use the target: {0}")]
    Target(String),
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
}
