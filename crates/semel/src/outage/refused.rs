//! Writes that a full or failing disk refuses, while reads go on. No probe shows that: a write needs space or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::server::{OutageEntry, Server};
use crate::sync::Mutex;
use crate::time::instant;

/// A write that needs space ends the outage if none was refused for this long: some find a gap and succeed meanwhile.
pub(super) const QUIET: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

/// Any other call ends it after this time: the refused kind of write may never be repeated. Longer than the interval of
/// health checks, which write a record.
pub(super) const LONG_QUIET: Duration =
    if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(60) };

/// Logs when a store begins to refuse writes, and when it has stopped.
#[derive(Debug)]
pub struct RefusedWrites {
    server: Arc<Server>,
    is_refusing: AtomicBool,
    state: Mutex<Option<Refusing>>,
}

#[derive(Debug)]
struct Refusing {
    entry: OutageEntry,
    last: Instant,
}

impl RefusedWrites {
    /// For the writes to this server.
    pub fn new(server: Arc<Server>) -> Self {
        Self { server, is_refusing: AtomicBool::new(false), state: Mutex::default() }
    }

    /// A write was refused.
    pub fn refused(&self, error: &str) {
        let mut state = self.state.lock();
        match &mut *state {
            Some(refusing) => refusing.last = instant(),
            None => *state = Some(Refusing { entry: self.server.begin(error), last: instant() }),
        }
        self.is_refusing.store(true, Ordering::Release);
    }

    /// A write that needs space succeeded: a new row.
    pub fn wrote(&self) {
        self.end_after(QUIET);
    }

    /// A call succeeded: a read, or a write that needs no space.
    pub fn answered(&self) {
        self.end_after(LONG_QUIET);
    }

    fn end_after(&self, quiet: Duration) {
        if !self.is_refusing.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let over = state.take_if(|refusing| instant().saturating_duration_since(refusing.last) >= quiet);
        if let Some(Refusing { entry, .. }) = over {
            self.is_refusing.store(false, Ordering::Release);
            entry.end();
        }
    }
}
