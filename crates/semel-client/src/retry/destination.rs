//! Where calls go, and whether any may go there now.
//!
//! One [`Destinations`] is shared by everything that calls out: inline calls, queued deliveries, replays. They share
//! budget and breaker then, so that none of them runs a destination over that another one has given up.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::breaker::{Breaker, Circuit, CircuitDecision};
use super::budget::Budget;
use super::run::Stop;
use super::table::DestinationHealth;
use parking_lot::Mutex;
use semel::time::{Clock, SystemClock, Timestamp};

/// What a destination is granted. The defaults suit a service that serves many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How far back budget and breaker look.
    pub window: Duration,
    /// Retries for every hundred first tries.
    pub retry_percent: u32,
    /// Retries a second that are always granted.
    pub retries_per_second: u32,
    /// Percentage of failed calls at which the circuit breaker opens.
    pub failure_percent: u32,
    /// Minimum number of calls before the circuit breaker can open.
    pub failure_calls: u32,
    /// How long it stays open at first; doubled with every probe that fails.
    pub rest: Duration,
    /// How long it stays open at most.
    pub longest_rest: Duration,
    /// How many probes must succeed before it closes. One goes first, then two, then four.
    pub probes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(10),
            retry_percent: 20,
            retries_per_second: 10,
            failure_percent: 50,
            failure_calls: 20,
            rest: Duration::from_secs(5),
            longest_rest: Duration::from_secs(60),
            probes: 7,
        }
    }
}

impl Limits {
    /// With values that the breaker can use.
    fn checked(self) -> Self {
        Self {
            failure_percent: self.failure_percent.clamp(1, 100),
            failure_calls: self.failure_calls.max(1),
            longest_rest: self.longest_rest.max(self.rest),
            probes: self.probes.max(1),
            ..self
        }
    }

    fn budget(&self) -> Budget {
        Budget::new(self.window, self.retry_percent, self.retries_per_second)
    }
}

/// All destinations of a process. Cheap to clone; clones share everything.
///
/// Names come from configuration: a destination is kept for as long as the process lives.
#[derive(Clone)]
pub struct Destinations {
    inner: Arc<Registry>,
}

struct Registry {
    clock: Arc<dyn Clock>,
    limits: Limits,
    named: RwLock<HashMap<Arc<str>, Destination>>,
}

/// One of them. Cheap to clone; clones share budget and breaker.
#[derive(Clone)]
pub struct Destination {
    inner: Arc<DestinationInner>,
}

struct DestinationInner {
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    kept: Mutex<KeptDestination>,
}

struct KeptDestination {
    limits: Limits,
    budget: Budget,
    breaker: Breaker,
    totals: DestinationTotals,
}

#[derive(Clone, Copy, Debug, Default)]
struct DestinationTotals {
    firsts: u64,
    retries: u64,
    held_back: u64,
    dropped: u64,
}

/// Whether a call may go.
#[derive(Debug)]
#[must_use = "a permit that is dropped counts as a call that was given up"]
pub enum Admit {
    /// It may. Say by the permit how it ended.
    Go(Permit),
    /// The circuit breaker is open until then. The call used up no attempt.
    Wait {
        /// When to ask again.
        until: Timestamp,
    },
    /// The retry budget is spent until then. A caller that has to answer now gives up; one that can wait tries again then.
    Spent {
        /// When to ask again.
        until: Timestamp,
    },
}

/// The right to make one call.
#[must_use = "say by `done` how the call ended"]
pub struct Permit {
    destination: Destination,
    period: u64,
    open: bool,
}

/// How a destination stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DestinationState {
    /// Its name.
    pub name: Arc<str>,
    /// Its breaker.
    pub circuit: Circuit,
    /// How many retries are granted at present.
    pub budget_left: u64,
    /// Calls of the window that succeeded or failed.
    pub calls: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// First tries that were let go, ever.
    pub firsts: u64,
    /// Retries that were let go, ever.
    pub retries: u64,
    /// Calls that the breaker held back, ever.
    pub held_back: u64,
    /// Retries that the budget refused, ever.
    pub dropped: u64,
    /// How often the breaker opened.
    pub opened: u64,
}

impl Destinations {
    /// No destination yet; each gets these limits when it is first named.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_clock(limits, Arc::new(SystemClock))
    }

    /// The same on a clock of the caller's.
    #[must_use]
    pub fn with_clock(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { inner: Arc::new(Registry { clock, limits, named: RwLock::default() }) }
    }

    /// The destination of this name: the same for all who ask for it.
    #[must_use]
    pub fn get(&self, name: &str) -> Destination {
        if let Some(known) = self.inner.named.read().get(name) {
            return known.clone();
        }
        let mut named = self.inner.named.write();
        let name: Arc<str> = name.into();
        let known = named
            .entry(Arc::clone(&name))
            .or_insert_with(|| Destination::new(name, self.inner.limits, Arc::clone(&self.inner.clock)));
        known.clone()
    }

    /// The same, and these limits are its own from now on, for all who have it. Its breaker stands as it stood.
    #[must_use]
    pub fn get_with(&self, name: &str, limits: Limits) -> Destination {
        let destination = self.get(name);
        destination.adopt(limits);
        destination
    }

    /// How all of them stand, by name.
    #[must_use]
    pub fn states(&self) -> Vec<DestinationState> {
        let known: Vec<Destination> = self.inner.named.read().values().cloned().collect();
        let mut states: Vec<DestinationState> = known.iter().map(Destination::state).collect();
        states.sort_by(|one, other| one.name.cmp(&other.name));
        states
    }

    /// The clock by which they wait.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl fmt::Debug for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.states()).finish()
    }
}

impl Destination {
    fn new(name: Arc<str>, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        let kept = KeptDestination {
            limits,
            budget: limits.budget(),
            breaker: Breaker::new(limits.checked()),
            totals: DestinationTotals::default(),
        };
        Self { inner: Arc::new(DestinationInner { name, clock, kept: Mutex::new(kept) }) }
    }

    fn adopt(&self, limits: Limits) {
        let mut kept = self.inner.kept.lock();
        if kept.limits != limits {
            kept.limits = limits;
            kept.budget = limits.budget();
            kept.breaker.adopt(limits.checked());
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.inner.name
    }

    /// Asks to make a first try. It adds to the budget for retries. Never [`Admit::Spent`].
    pub fn admit(&self) -> Admit {
        let now = self.now();
        let mut kept = self.inner.kept.lock();
        match kept.breaker.pass(now) {
            CircuitDecision::Go { period } => {
                kept.budget.first(now);
                kept.totals.firsts += 1;
                self.go(period)
            }
            CircuitDecision::Wait { until } => {
                kept.totals.held_back += 1;
                Admit::Wait { until }
            }
        }
    }

    /// Asks to try again what was tried before, now or long ago. It is taken from the budget.
    pub fn admit_retry(&self) -> Admit {
        let now = self.now();
        let mut kept = self.inner.kept.lock();
        if kept.budget.left(now) == 0 {
            kept.totals.dropped += 1;
            return Admit::Spent { until: now.after(kept.budget.step()) };
        }
        match kept.breaker.pass(now) {
            CircuitDecision::Go { period } => {
                kept.budget.retry(now);
                kept.totals.retries += 1;
                self.go(period)
            }
            CircuitDecision::Wait { until } => {
                kept.totals.held_back += 1;
                Admit::Wait { until }
            }
        }
    }

    /// Whether a retry in `wait` is sure not to be let go, why, and when one may be.
    pub(super) fn foresee(&self, wait: Duration) -> Option<(Stop, Duration)> {
        let now = self.now();
        let mut kept = self.inner.kept.lock();
        if kept.budget.left(now) == 0 {
            kept.totals.dropped += 1;
            return Some((Stop::Budget, kept.budget.step()));
        }
        match kept.breaker.circuit() {
            Circuit::Open { until } if until.left(now) > wait => {
                kept.totals.held_back += 1;
                Some((Stop::Open, until.left(now)))
            }
            Circuit::Open { .. } | Circuit::Closed | Circuit::HalfOpen => None,
        }
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> DestinationState {
        let now = self.now();
        let mut kept = self.inner.kept.lock();
        let (calls, failures) = kept.breaker.calls(now);
        let DestinationTotals { firsts, retries, held_back, dropped } = kept.totals;
        DestinationState {
            name: Arc::clone(&self.inner.name),
            circuit: kept.breaker.circuit(),
            budget_left: kept.budget.left(now),
            calls,
            failures,
            firsts,
            retries,
            held_back,
            dropped,
            opened: kept.breaker.opened,
        }
    }

    /// How long from now until a moment that [`Admit`] named.
    #[must_use]
    pub fn left(&self, until: Timestamp) -> Duration {
        until.left(self.now())
    }

    fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    fn go(&self, period: u64) -> Admit {
        Admit::Go(Permit { destination: self.clone(), period, open: true })
    }

    fn ended(&self, period: u64, health: Option<DestinationHealth>) {
        let now = self.now();
        let mut kept = self.inner.kept.lock();
        let before = kept.breaker.circuit();
        kept.breaker.ended(period, health, now);
        let after = kept.breaker.circuit();
        drop(kept);
        let destination = &*self.inner.name;
        match (before, after) {
            // A failed probe opens it again: the outage was logged when it began.
            (Circuit::Closed, Circuit::Open { .. }) => {
                tracing::warn!(target: "semel", destination, "circuit breaker opened: too many calls failed");
            }
            (Circuit::Open { .. } | Circuit::HalfOpen, Circuit::Closed) => {
                tracing::info!(target: "semel", destination, "circuit breaker closed");
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(f)
    }
}

impl Permit {
    /// Says how the call ended: a [`Signal`](super::Signal) or [`Judged`](super::Judged) says it exactly, a
    /// [`Verdict`](super::Verdict) nearly.
    pub fn done(mut self, health: impl Into<DestinationHealth>) {
        self.open = false;
        self.destination.ended(self.period, Some(health.into()));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.open {
            self.destination.ended(self.period, None);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.destination.inner.name)
    }
}
