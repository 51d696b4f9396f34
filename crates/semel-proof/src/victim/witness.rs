//! The outside world: an append-only file that only effects write to, never the store.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where effects leave their traces. In `keyed` it acts as the receiver that honours keys.
#[derive(Debug)]
pub struct Witness {
    file: File,
    rows: Vec<EffectTrace>,
}

/// A trace of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectTrace {
    /// The step of the effect.
    pub step: String,
    /// The name that the effect used: the key, or the derived key.
    pub name: String,
    /// The fence of the attempt that caused it.
    pub fence: u64,
}

impl Witness {
    /// Opens the file; creates it if it is missing.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file, rows: rows(path)? })
    }

    /// Takes a step, even if it was taken before.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn act(&mut self, step: &str, name: &str, fence: u64) -> io::Result<EffectTrace> {
        let row = EffectTrace { step: step.to_owned(), name: name.to_owned(), fence };
        let mut line = serde_json::to_string(&row)?;
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        self.rows.push(row.clone());
        Ok(row)
    }

    /// Takes a step unless it was taken under this name before, and returns the step that was taken, like a receiver
    /// that honours keys.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn act_once(&mut self, step: &str, name: &str, fence: u64) -> io::Result<EffectTrace> {
        match self.rows.iter().find(|row| row.step == step && row.name == name) {
            Some(taken) => Ok(taken.clone()),
            None => self.act(step, name, fence),
        }
    }
}

/// Every trace, oldest first. A missing file has none.
///
/// # Errors
/// The error of the file system, or an invalid line.
pub fn rows(path: &Path) -> io::Result<Vec<EffectTrace>> {
    match std::fs::read_to_string(path) {
        Ok(text) => text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
