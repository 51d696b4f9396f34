//! Chaos: processes that work on one store while they, the store and the network fail by a schedule.
//!
//! ```text
//!   schedule ──► kills, stops, cuts ──► workers and gateways ──► store
//!   (seed)                                 │           │
//!                                   history (rows)   effects ──► witness ──► ledger
//!                                          └──────────► checker ◄───────────────┘
//! ```
//!
//! - [`schedule`]: the faults of a seed.
//! - [`worker`]: a process with many callers; [`puppet`]: a process that takes single steps, for faults that need an exact moment.
//! - [`history`]: what each process did and was told, in rows of fixed size.
//! - [`witness`]: the outside world, a process with its own ledger of effects.
//! - [`checker`]: reads both, once, and says which promises were broken.

pub mod checker;
pub mod history;
pub mod puppet;
pub mod schedule;
pub mod upstream;
pub mod witness;
pub mod worker;

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use semel::{Key, Mode};

/// A key of a chaos run. Each slot of workers counts its own keys, so that no two processes need to agree on the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChaosKey(pub u64);

/// How the effect of a key runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// In `marked`, as a function.
    Marked,
    /// In `marked`, with separate claim, begin and complete, as the gateway does.
    Stepwise,
    /// In `keyed`, at a receiver that honours keys.
    Keyed,
}

impl ChaosKey {
    /// The key with this number in a slot.
    pub fn new(slot: u8, number: u64) -> Self {
        Self(u64::from(slot) << 48 | number)
    }

    /// Its number in its slot.
    pub fn number(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// How its effect runs.
    pub fn kind(self) -> KeyKind {
        match self.number() % 5 {
            0 | 1 => KeyKind::Marked,
            2 => KeyKind::Stepwise,
            _ => KeyKind::Keyed,
        }
    }

    /// The mode of its effect.
    pub fn mode(self) -> Mode {
        match self.kind() {
            KeyKind::Marked | KeyKind::Stepwise => Mode::Marked,
            KeyKind::Keyed => Mode::Keyed,
        }
    }

    /// The key for the engine.
    pub fn name(self) -> Key {
        Key::new("chaos").value(self.0.to_string())
    }
}

/// The progress of all slots, shared by the processes of a run: for each slot how many keys it has used and how many calls it has made.
#[derive(Debug)]
pub struct Progress {
    file: std::fs::File,
}

impl Progress {
    /// Opens the file; creates it if it is missing.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// The number of keys that a slot has used.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn keys(&self, slot: u8) -> io::Result<u64> {
        self.read(slot, 0)
    }

    /// The number of calls that a slot has made.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn calls(&self, slot: u8) -> io::Result<u64> {
        self.read(slot, 8)
    }

    pub(crate) fn set_keys(&self, slot: u8, keys: u64) -> io::Result<()> {
        self.file.write_all_at(&keys.to_le_bytes(), u64::from(slot) * 16)
    }

    pub(crate) fn set_calls(&self, slot: u8, calls: u64) -> io::Result<()> {
        self.file.write_all_at(&calls.to_le_bytes(), u64::from(slot) * 16 + 8)
    }

    fn read(&self, slot: u8, offset: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, u64::from(slot) * 16 + offset) {
            Ok(()) => Ok(u64::from_le_bytes(bytes)),
            // Nothing was written for this slot yet.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Microseconds of the clock that all processes of a machine share.
pub(crate) fn micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000
}
