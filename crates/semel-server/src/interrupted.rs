//! A command that was ended by Ctrl-C: it exits with code 130, as shells expect.

use std::fmt;

/// What the user must know about the interrupted work; often nothing.
#[derive(Debug, Default)]
pub(crate) struct Interrupted(Option<String>);

impl Interrupted {
    pub(crate) fn new(note: impl Into<String>) -> Self {
        Self(Some(note.into()))
    }

    /// True if there is nothing to say.
    pub(crate) fn is_silent(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(note) => write!(f, "interrupted: {note}"),
            None => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Interrupted {}
