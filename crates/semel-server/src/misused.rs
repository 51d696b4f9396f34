//! What was typed cannot be used: the command ends with exit code 2, and nothing was started.

use std::fmt;

/// Says what of the command line is wrong; the cause, if there is one, stands behind it.
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
