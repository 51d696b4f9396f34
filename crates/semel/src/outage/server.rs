//! The log of outages: one pair of lines for each server, however many connections notice the outage.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::time::instant;

/// The servers that this process uses.
static SERVERS: Mutex<Vec<Weak<Server>>> = Mutex::new(Vec::new());

/// A server, or a folder, that holds data of this process. Stores, ledgers and clients of the same server share it.
pub struct Server {
    name: String,
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    used_for: BTreeSet<&'static str>,
    /// How many users notice an outage now.
    out: usize,
    since: Option<Instant>,
    outages: u64,
    /// The length of all outages that have ended.
    length: Duration,
}

/// The state of a server, for metrics.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Its URL without user and password.
    pub name: String,
    /// Its uses in this process, such as `ledger, store`.
    pub used_for: String,
    /// True unless there is an outage.
    pub is_available: bool,
    /// The number of outages.
    pub outages: u64,
    /// The length of all outages, including the current one.
    pub length: Duration,
}

/// An outage that one user of the server has noticed.
#[derive(Debug)]
#[must_use = "dropping it ends the outage without a log line"]
pub struct OutageEntry(Option<Arc<Server>>);

/// Whether the end of an outage is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndLine {
    Write,
    /// The user of the server was closed, and does not know how the outage ends.
    None,
}

/// The servers that this process uses, by name.
pub fn servers() -> Vec<ServerStatus> {
    let known: Vec<Arc<Server>> = SERVERS.lock().iter().filter_map(Weak::upgrade).collect();
    let mut all: Vec<ServerStatus> = known.iter().map(|server| server.status()).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

impl Server {
    /// The server with this URL, which contains no password. `used_for` is its use in one or two words.
    pub fn of(name: impl Into<String>, used_for: &'static str) -> Arc<Self> {
        let name = name.into();
        let mut servers = SERVERS.lock();
        servers.retain(|server| server.strong_count() > 0);
        let known = servers.iter().filter_map(Weak::upgrade).find(|server| server.name == name);
        let server = known.unwrap_or_else(|| {
            let server = Arc::new(Self { name, state: Mutex::default() });
            servers.push(Arc::downgrade(&server));
            server
        });
        drop(servers);
        server.state.lock().used_for.insert(used_for);
        server
    }

    /// Its URL without user and password.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins an outage. Only the first of concurrent ones is logged.
    pub fn begin(self: &Arc<Self>, error: &str) -> OutageEntry {
        let mut state = self.state.lock();
        state.out += 1;
        if state.out == 1 {
            state.since = Some(instant());
            state.outages += 1;
            let used_for = state.used_for();
            tracing::warn!(target: "semel", store = self.name, used_for, error, "store unavailable");
        } else {
            tracing::debug!(target: "semel", store = self.name, error, "store unavailable for another user of it");
        }
        drop(state);
        OutageEntry(Some(Arc::clone(self)))
    }

    fn leave(&self, line: EndLine) {
        let mut state = self.state.lock();
        state.out -= 1;
        let Some(since) = state.since.filter(|_| state.out == 0) else { return };
        let length = instant().saturating_duration_since(since);
        state.since = None;
        state.length += length;
        if line == EndLine::Write {
            let used_for = state.used_for();
            let duration_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(target: "semel", store = self.name, used_for, duration_ms, "store available again");
        }
    }

    fn status(&self) -> ServerStatus {
        let state = self.state.lock();
        let current = state.since.map(|since| instant().saturating_duration_since(since));
        ServerStatus {
            name: self.name.clone(),
            used_for: state.used_for(),
            is_available: current.is_none(),
            outages: state.outages,
            length: state.length + current.unwrap_or_default(),
        }
    }
}

impl ServerState {
    fn used_for(&self) -> String {
        self.used_for.iter().copied().collect::<Vec<_>>().join(", ")
    }
}

impl OutageEntry {
    /// Ends the outage for this user. The end for the last user is logged.
    pub fn end(mut self) {
        if let Some(server) = self.0.take() {
            server.leave(EndLine::Write);
        }
    }
}

impl Drop for OutageEntry {
    fn drop(&mut self) {
        if let Some(server) = self.0.take() {
            server.leave(EndLine::None);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.name).finish()
    }
}
