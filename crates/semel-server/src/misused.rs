//! An unusable command line: the command exits with code 2, and nothing was started.

use std::fmt;

/// The mistake in the command line, followed by its cause if there is one.
#[derive(Debug)]
pub(crate) struct Misused(String);

impl Misused {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Misused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misused {}
