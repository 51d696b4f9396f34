//! Outages of a server: found once, logged once, ended by a probe.
//!
//! ```text
//!   call fails ─► report ─► one task probes ─┬─► the server answers: no outage, the caller may try again
//!                                            └─► no answer for longer than the grace ─► outage: one warning
//!                                                        ┌───────────────────────────────┘
//!                                                        ├─► calls fail at once, and nothing is sent
//!                                                        └─► the task probes on ─► answer ─► one note with the duration
//! ```
//!
//! Only the probe begins and ends an outage. A broken connection, a slow statement or a full pool is therefore no
//! outage, and a flood of failed calls is one. A caller that waits for the verdict knows whether its error belongs to an
//! outage that is logged already ([`Error::is_logged`](crate::store::Error::is_logged)).

#[cfg(feature = "postgres")]
mod postgres;
mod refused;
mod server;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

pub use self::refused::RefusedWrites;
pub use self::server::{OutageEntry, Server, ServerStatus, servers};
use crate::backoff::Backoff;
use crate::store::{BoxFuture, Error, ErrorKind};
use crate::sync::Mutex;
use crate::time::instant;

/// The waits between two probes. The longest is how late the end of an outage may be noticed.
const PROBES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// A probe opens a connection: a busy machine may need a while.
const SHORTEST_PROBE: Duration = Duration::from_millis(500);

/// Knows whether a server can be used over the connections of one store, ledger or client.
pub struct Availability {
    server: Arc<Server>,
    timing: Timing,
    /// Where probes run; by default the runtime of the call that reports a failure.
    runtime: Option<Handle>,
    probe: Box<dyn Fn() -> BoxFuture<'static, Result<(), ProbeFailure>> + Send + Sync>,
    state: Mutex<State>,
    /// What calls need to know of the state, without its lock: one of the constants below.
    level: AtomicU8,
    changed: Notify,
    #[cfg(feature = "postgres")]
    refused_writes: RefusedWrites,
}

/// Nothing is known to be wrong.
const CALM: u8 = 0;
/// A failure waits for a verdict, or the server refuses calls itself.
const WATCHED: u8 = 1;
/// The server does not answer: calls are refused here.
const UNREACHABLE: u8 = 2;

/// The times of an [`Availability`].
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A call without an answer for this long is reported.
    pub slow: Duration,
    /// A probe without an answer for this long has failed.
    pub probe: Duration,
    /// A server that answers within this time after the first report had no outage: callers wait for it.
    pub grace: Duration,
}

impl Timing {
    /// For calls that may wait for `timeout`. A server that answers within it is never unavailable; one that refuses
    /// connections is after a fifth of it.
    pub fn within(timeout: Duration) -> Self {
        let fifth = timeout / 5;
        Self { slow: fifth, probe: (fifth * 4).max(SHORTEST_PROBE), grace: fifth }
    }
}

/// Why a probe failed.
#[derive(Clone, Debug)]
pub struct ProbeFailure {
    /// How far the probe came.
    pub reach: Reach,
    /// The failure and what to do, without user data.
    pub message: String,
}

/// How far calls come during an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing answers. Calls would wait for a timeout, so they are refused before they are sent.
    Unreachable,
    /// The server answers, and refuses writes: it is full, or a part of it is down. Calls are sent: reads may succeed.
    Refusing,
}

/// The result of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it decides whether the failure is logged and whether a retry can help"]
pub enum Verdict {
    /// The server answers. A retry can help.
    Available,
    /// An outage is known and logged.
    Outage,
}

/// A call without an answer.
#[derive(Clone, Debug)]
pub enum NoAnswer {
    /// An outage was known already. Nothing was sent.
    NotSent(String),
    /// An outage became known during the call.
    Outage(String),
    /// The time limit was reached.
    TimedOut,
}

#[derive(Default)]
struct State {
    /// The number of reports, and how many of them have a verdict.
    reported: u64,
    judged: u64,
    /// The number of reports when a call was last answered.
    answered: u64,
    /// When the first report without a verdict came.
    waiting_since: Option<Instant>,
    outage: Option<KnownOutage>,
    /// When a probe was last answered.
    probe_answered: Option<Instant>,
    /// The number of outages that have ended.
    ended: u64,
    is_probing: bool,
}

struct KnownOutage {
    reach: Reach,
    message: String,
    entry: OutageEntry,
}

/// Whether the task continues to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextProbe {
    None,
    Soon,
}

impl Availability {
    /// `probe` must use a server the way a write does: only its success ends an outage.
    pub fn new(
        server: Arc<Server>,
        timing: Timing,
        runtime: Option<Handle>,
        probe: impl Fn() -> BoxFuture<'static, Result<(), ProbeFailure>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            #[cfg(feature = "postgres")]
            refused_writes: RefusedWrites::new(Arc::clone(&server)),
            server,
            timing,
            runtime,
            probe: Box::new(probe),
            state: Mutex::default(),
            level: AtomicU8::new(CALM),
            changed: Notify::new(),
        })
    }

    /// Why a call must not be sent now.
    pub fn refusal(&self) -> Option<String> {
        if self.level.load(Ordering::Acquire) != UNREACHABLE {
            return None;
        }
        let state = self.state.lock();
        let unreachable = state.outage.as_ref().filter(|outage| outage.reach == Reach::Unreachable);
        unreachable.map(|outage| outage.message.clone())
    }

    /// The number of outages that have ended. Connections from before one may be broken without a sign.
    pub fn ended_outages(&self) -> u64 {
        self.state.lock().ended
    }

    /// The server has answered a call.
    pub fn answered(&self) {
        #[cfg(feature = "postgres")]
        self.refused_writes.answered();
        if self.level.load(Ordering::Acquire) != CALM {
            let mut state = self.state.lock();
            state.answered = state.reported;
        }
    }

    /// The server has stored a new row: it does not refuse writes for want of space.
    #[cfg(feature = "postgres")]
    pub fn wrote(&self) {
        self.refused_writes.wrote();
    }

    /// Reports a call that failed or is slow, without waiting for the verdict.
    pub fn report(self: &Arc<Self>) {
        let _ = self.add_report();
    }

    /// Reports a slow call, unless the server has just answered a probe: an overloaded one must not get many of them.
    fn report_slow(self: &Arc<Self>) {
        let answered = self.state.lock().probe_answered;
        if answered.is_none_or(|at| instant().saturating_duration_since(at) >= self.timing.slow) {
            self.report();
        }
    }

    /// Reports a failed call, and waits for the verdict of a probe that began after it.
    pub async fn judge(self: &Arc<Self>) -> Verdict {
        let number = self.add_report();
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.outage.is_some() {
                    return Verdict::Outage;
                }
                if state.judged >= number {
                    return Verdict::Available;
                }
            }
            changed.await;
        }
    }

    /// Runs a call until it ends, for at most `limit`, and no longer than until an outage is known. A slow one is
    /// reported. Needs a tokio runtime.
    ///
    /// # Errors
    /// There was no answer. The call was dropped.
    pub async fn watch<T>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl Future<Output = T>,
    ) -> Result<T, NoAnswer> {
        if let Some(message) = self.refusal() {
            return Err(NoAnswer::NotSent(message));
        }
        let (mut call, mut unreachable) = (pin!(call), pin!(self.unreachable()));
        let slow = self.timing.slow.min(limit);
        tokio::select! {
            biased;
            answer = &mut call => return Ok(answer),
            message = &mut unreachable => return Err(NoAnswer::Outage(message)),
            () = sleep(slow) => {}
        }
        self.report_slow();
        tokio::select! {
            biased;
            answer = &mut call => Ok(answer),
            message = &mut unreachable => Err(NoAnswer::Outage(message)),
            () = sleep(limit - slow) => Err(NoAnswer::TimedOut),
        }
    }

    /// Runs a call that has its own timeouts. During an outage it is not sent. Its failure is marked as logged if it
    /// belongs to an outage. Needs no runtime.
    ///
    /// # Errors
    /// The call's, or `Unavailable` during an outage.
    pub async fn guard<T>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if let Some(message) = self.refusal() {
            return Err(Error::new(ErrorKind::Unavailable, message).logged());
        }
        match call.await {
            Ok(answer) => {
                self.answered();
                Ok(answer)
            }
            Err(error) if error.is_logged() || !may_be_outage(error.kind()) => Err(error),
            Err(error) => Err(match self.judge().await {
                Verdict::Available => error,
                Verdict::Outage => error.logged(),
            }),
        }
    }

    /// Returns once calls are refused, with the reason.
    async fn unreachable(&self) -> String {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(message) = self.refusal() {
                return message;
            }
            changed.await;
        }
    }

    /// Adds a report, and starts the task that judges it.
    fn add_report(self: &Arc<Self>) -> u64 {
        let (number, start) = {
            let mut state = self.state.lock();
            state.reported += 1;
            if state.outage.is_some() {
                state.judged = state.reported;
            } else {
                state.waiting_since.get_or_insert_with(instant);
                self.level.store(WATCHED, Ordering::Release);
            }
            let start = state.outage.is_none() && !state.is_probing;
            state.is_probing |= start;
            (state.reported, start)
        };
        if start {
            let probing = ProbingTask(Some(Arc::downgrade(self)));
            match self.runtime.clone().or_else(|| Handle::try_current().ok()) {
                Some(runtime) => drop(runtime.spawn(probing.run())),
                // Without a runtime nothing can be probed. Dropping the task gives the verdict.
                None => drop(probing),
            }
        }
        number
    }

    /// Draws the conclusion from a probe that began when there were `covered` reports.
    fn conclude(&self, covered: u64, probed: Result<(), ProbeFailure>) -> NextProbe {
        let mut locked = self.state.lock();
        let state = &mut *locked;
        let mut ended = None;
        let next = match probed {
            Ok(()) => {
                ended = state.outage.take();
                state.probe_answered = Some(instant());
                state.ended += u64::from(ended.is_some());
                state.judge(covered)
            }
            Err(ProbeFailure { reach, message }) => match &mut state.outage {
                Some(outage) => {
                    (outage.reach, outage.message) = (reach, message);
                    NextProbe::Soon
                }
                // Other calls were answered meanwhile: the probe met a limit, such as one on connections.
                None if reach == Reach::Unreachable && state.answered >= covered => state.judge(covered),
                None => {
                    let since = state.waiting_since.unwrap_or_else(instant);
                    if instant().saturating_duration_since(since) >= self.timing.grace {
                        let entry = self.server.begin(&message);
                        state.outage = Some(KnownOutage { reach, message, entry });
                        (state.judged, state.waiting_since) = (state.reported, None);
                    }
                    NextProbe::Soon
                }
            },
        };
        self.level.store(state.level(), Ordering::Release);
        drop(locked);
        if let Some(KnownOutage { entry, .. }) = ended {
            entry.end();
        }
        self.changed.notify_waiters();
        next
    }
}

impl State {
    /// The server answers: gives the first `covered` reports their verdict.
    fn judge(&mut self, covered: u64) -> NextProbe {
        self.judged = self.judged.max(covered);
        if self.judged < self.reported {
            self.waiting_since = Some(instant());
            return NextProbe::Soon;
        }
        self.waiting_since = None;
        self.is_probing = false;
        NextProbe::None
    }

    fn level(&self) -> u8 {
        match &self.outage {
            Some(KnownOutage { reach: Reach::Unreachable, .. }) => UNREACHABLE,
            Some(_) => WATCHED,
            None if self.judged < self.reported => WATCHED,
            None => CALM,
        }
    }
}

/// Probes until the server answers, or until nobody uses it.
struct ProbingTask(Option<Weak<Availability>>);

impl ProbingTask {
    async fn run(mut self) {
        let mut backoff = PROBES;
        while let Some(availability) = self.availability() {
            let covered = availability.state.lock().reported;
            let limit = availability.timing.probe;
            let probed = timeout(limit, (availability.probe)()).await.unwrap_or_else(|_| {
                let (name, ms) = (availability.server.name(), limit.as_millis());
                let message = format!("{name} did not answer within {ms} ms");
                Err(ProbeFailure { reach: Reach::Unreachable, message })
            });
            if availability.conclude(covered, probed) == NextProbe::None {
                // From now on another task may probe.
                self.0 = None;
                return;
            }
            drop(availability);
            backoff.wait().await;
        }
    }

    fn availability(&self) -> Option<Arc<Availability>> {
        self.0.as_ref()?.upgrade()
    }
}

impl Drop for ProbingTask {
    /// Its runtime has ended. Nobody knows whether the outage continues, so the next call finds out.
    fn drop(&mut self) {
        let Some(availability) = self.availability() else { return };
        let mut state = availability.state.lock();
        (state.judged, state.waiting_since, state.is_probing) = (state.reported, None, false);
        let left = state.outage.take();
        availability.level.store(CALM, Ordering::Release);
        drop(state);
        drop(left);
        availability.changed.notify_waiters();
    }
}

/// True if such an error can be part of an outage.
fn may_be_outage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Full)
}

impl fmt::Debug for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Availability").field("server", &self.server.name()).finish_non_exhaustive()
    }
}
