//! How often, how soon, and how long in all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::observe::RetryObserver;

/// Moments that far ahead can still be reckoned with; longer settings are cut to it.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A policy for retries. The default is for calls that somebody waits for: three attempts of at most 10 s, pauses of 250 ms
/// doubled up to 5 s with full jitter, 30 s in all.
#[derive(Clone)]
#[must_use = "a policy does nothing until it runs something"]
pub struct Retry {
    pub(super) attempts: u32,
    pub(super) base: Duration,
    pub(super) cap: Duration,
    pub(super) hint_cap: Duration,
    pub(super) timeout: Duration,
    pub(super) deadline: Duration,
    pub(super) observer: Option<Arc<dyn RetryObserver>>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 3,
            base: Duration::from_millis(250),
            cap: Duration::from_secs(5),
            hint_cap: Duration::from_secs(24 * 60 * 60),
            timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            observer: None,
        }
    }
}

/// How long to pause, and who wanted it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// How long.
    pub wait: Duration,
    /// Who.
    pub source: DelaySource,
}

/// Who decided on a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelaySource {
    /// The policy's own backoff.
    Backoff,
    /// The server asked for longer.
    Server,
}

impl DelaySource {
    /// Its name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::Server => "server",
        }
    }
}

impl Retry {
    /// One try and no more.
    pub fn none() -> Self {
        Self::default().attempts(1)
    }

    /// How often to try, the first time included. Zero is one.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The first pause, doubled with every further one.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base.min(LONGEST);
        self
    }

    /// The longest pause of its own. A server may ask for longer.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap.min(LONGEST);
        self
    }

    /// The longest pause that a server is granted; a day by default. Where somebody waits, the deadline is shorter.
    pub fn hint_cap(mut self, cap: Duration) -> Self {
        self.hint_cap = cap.min(LONGEST);
        self
    }

    /// How long one try may take. It is cancelled then.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(LONGEST);
        self
    }

    /// How long everything may take together, pauses included.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(LONGEST);
        self
    }

    /// Tells somebody every decision.
    pub fn observe(mut self, observer: Arc<dyn RetryObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// How often it tries at most.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// The pause after attempt `attempt` (1 is the first), where the server asked for `hint`.
    ///
    /// It is the later of the two: a full-jittered backoff of at most `cap`, and what the server asked for, which is cut to
    /// `hint_cap`. The server's is lengthened by up to a tenth, never shortened, so that those who were told the same
    /// moment do not all come at it.
    #[must_use]
    pub fn delay(&self, attempt: u32, hint: Option<Duration>) -> Delay {
        self.delay_at(attempt, hint, rand::random(), rand::random())
    }

    /// The same, with both dice given: from 0 to 1 each.
    pub(super) fn delay_at(&self, attempt: u32, hint: Option<Duration>, own: f64, above: f64) -> Delay {
        let doubled = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let backoff = self.base.saturating_mul(doubled).min(self.cap).mul_f64(own.clamp(0.0, 1.0));
        let Some(hint) = hint.map(|hint| hint.min(self.hint_cap)) else {
            return Delay { wait: backoff, source: DelaySource::Backoff };
        };
        if backoff > hint {
            return Delay { wait: backoff, source: DelaySource::Backoff };
        }
        let longer = hint.saturating_add((hint / 10).mul_f64(above.clamp(0.0, 1.0)));
        Delay { wait: longer.min(self.hint_cap), source: DelaySource::Server }
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("attempts", &self.attempts)
            .field("base", &self.base)
            .field("cap", &self.cap)
            .field("hint_cap", &self.hint_cap)
            .field("timeout", &self.timeout)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
