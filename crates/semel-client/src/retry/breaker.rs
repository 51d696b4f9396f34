//! A circuit breaker: leaves a destination alone that does not answer, then feels its way back.

use std::time::Duration;

use super::destination::Limits;
use super::slots::Slots;
use super::table::DestinationHealth;
use semel::time::Timestamp;

const SUCCESSES: usize = 0;
const FAILURES: usize = 1;

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Calls pass.
    Closed,
    /// No call passes before that moment.
    Open {
        /// When the first probe may go.
        until: Timestamp,
    },
    /// Some calls pass, to see.
    HalfOpen,
}

impl Circuit {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
pub(super) struct Breaker {
    limits: Limits,
    /// Calls that ended within the window: successes and failures.
    slots: Slots,
    state: BreakerState,
    /// Raised with every change. A call knows by it in which period it began, and a late end of an earlier one
    /// neither opens nor closes anything.
    period: u64,
    /// How long it rests when it opens next; doubled by every probe that fails.
    rest: Duration,
    /// How often it opened.
    pub(super) opened: u64,
}

#[derive(Clone, Copy, Debug)]
enum BreakerState {
    Closed,
    Open {
        since: Timestamp,
        until: Timestamp,
    },
    /// Number of probes in progress, and number of successful ones. One more may be out than came back, so that every wave is
    /// twice the one before and nobody is run over as soon as it stands.
    HalfOpen {
        out: u32,
        passed: u32,
    },
}

/// Whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitDecision {
    Go { period: u64 },
    Wait { until: Timestamp },
}

impl Breaker {
    pub(super) fn new(limits: Limits) -> Self {
        let slots = Slots::new(limits.window);
        Self { limits, slots, state: BreakerState::Closed, period: 0, rest: limits.rest, opened: 0 }
    }

    /// Goes by other settings from now on. It stands as it stood: nothing is let through because somebody read a config.
    pub(super) fn adopt(&mut self, limits: Limits) {
        if limits.window != self.limits.window {
            self.slots = Slots::new(limits.window);
        }
        // One that was doubled stays so, within the new bounds.
        self.rest = match self.rest == self.limits.rest {
            true => limits.rest,
            false => self.rest.clamp(limits.rest, limits.longest_rest),
        };
        self.limits = limits;
    }

    pub(super) fn pass(&mut self, now: Timestamp) -> CircuitDecision {
        if let BreakerState::Open { since, until } = self.state {
            // A clock that was put back must not keep it open for longer than it was meant to be.
            if now < until && now >= since {
                return CircuitDecision::Wait { until };
            }
            self.change(BreakerState::HalfOpen { out: 0, passed: 0 });
        }
        if let BreakerState::HalfOpen { out, passed } = &mut self.state {
            if out > passed {
                return CircuitDecision::Wait { until: now.after(self.slots.step().min(self.limits.rest)) };
            }
            *out += 1;
        }
        CircuitDecision::Go { period: self.period }
    }

    /// A call of that period ended. `None`: it was given up without a word.
    pub(super) fn ended(&mut self, period: u64, health: Option<DestinationHealth>, now: Timestamp) {
        if period != self.period {
            return;
        }
        match (&mut self.state, health) {
            (BreakerState::Closed, Some(DestinationHealth::Healthy)) => self.slots.add(now, SUCCESSES),
            (BreakerState::Closed, Some(DestinationHealth::Failing)) => {
                self.slots.add(now, FAILURES);
                let [successes, failures] = self.slots.sums(now);
                let calls = successes + failures;
                if calls >= u64::from(self.limits.failure_calls)
                    && failures * 100 >= calls * u64::from(self.limits.failure_percent)
                {
                    self.open(now);
                }
            }
            (BreakerState::HalfOpen { .. }, Some(DestinationHealth::Failing)) => {
                self.rest = (self.rest * 2).min(self.limits.longest_rest);
                self.open(now);
            }
            (BreakerState::HalfOpen { out, passed }, Some(DestinationHealth::Healthy)) => {
                *out = out.saturating_sub(1);
                *passed += 1;
                if *passed >= self.limits.probes {
                    self.rest = self.limits.rest;
                    self.slots.clear();
                    self.change(BreakerState::Closed);
                }
            }
            (BreakerState::HalfOpen { out, .. }, Some(DestinationHealth::Unclear) | None) => {
                *out = out.saturating_sub(1);
            }
            (BreakerState::Closed, Some(DestinationHealth::Unclear) | None)
            | (BreakerState::Open { .. }, _) => {}
        }
    }

    pub(super) fn circuit(&self) -> Circuit {
        match self.state {
            BreakerState::Closed => Circuit::Closed,
            BreakerState::Open { until, .. } => Circuit::Open { until },
            BreakerState::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    /// Calls that ended within the window: all, and those that failed.
    pub(super) fn calls(&mut self, now: Timestamp) -> (u64, u64) {
        let [successes, failures] = self.slots.sums(now);
        (successes + failures, failures)
    }

    fn open(&mut self, now: Timestamp) {
        self.opened += 1;
        self.slots.clear();
        self.change(BreakerState::Open { since: now, until: now.after(self.rest) });
    }

    fn change(&mut self, state: BreakerState) {
        self.state = state;
        self.period += 1;
    }
}
