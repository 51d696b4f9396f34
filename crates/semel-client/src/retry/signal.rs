//! From what was seen of a try to what is done about it.

use std::time::Duration;

use super::hints::{Advice, Hints};
pub use super::table::DestinationHealth;
use super::table::{Kind, Repeat, Rule};

/// What was seen of one try: how it ended, and what the server said about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    kind: Kind,
    status: Option<u16>,
    hints: Hints,
}

impl Signal {
    /// It never reached a handler.
    #[must_use]
    pub const fn not_sent() -> Self {
        Self::of(Kind::NotSent)
    }

    /// It was sent, and the answer was cut.
    #[must_use]
    pub const fn cut() -> Self {
        Self::of(Kind::Cut)
    }

    /// It was sent, and no answer came in time.
    #[must_use]
    pub const fn timed_out() -> Self {
        Self::of(Kind::TimedOut)
    }

    /// It was answered with an HTTP status.
    #[must_use]
    pub const fn status(status: u16) -> Self {
        let mut signal = Self::of(Kind::of_status(status));
        signal.status = Some(status);
        signal
    }

    /// Any kind by name.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        Self { kind, status: None, hints: Hints { after: None, advice: None } }
    }

    /// With what the server said about trying again.
    #[must_use]
    pub const fn hints(mut self, hints: Hints) -> Self {
        self.hints = hints;
        self
    }

    /// Says which conflict a 409 is, where its body or the call tells. Anything but a 409 stays what it is.
    #[must_use]
    pub const fn conflict(mut self, kind: Kind) -> Self {
        if matches!(self.kind, Kind::Conflict) {
            self.kind = kind;
        }
        self
    }

    /// What was seen.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The status, where there was an answer.
    #[must_use]
    pub const fn http_status(&self) -> Option<u16> {
        self.status
    }

    /// When the server wants to be asked again.
    #[must_use]
    pub const fn after(&self) -> Option<Duration> {
        self.hints.after
    }

    /// What it means for a call: the line of [`TABLE`](super::TABLE), unless the server itself said what to do.
    #[must_use]
    pub fn judge(&self, repeat: Repeat) -> Judged {
        let row = self.kind.row();
        let column = |row: &super::RetryRow| match repeat {
            Repeat::Safe => row.safe,
            Repeat::Unsafe => row.bare,
        };
        let rule = match (column(row), self.hints.advice) {
            // It is done: nothing that is said about retrying changes that.
            (Rule::Success, _) => Rule::Success,
            (_, Some(Advice::Retry)) => column(Kind::ToldToRetry.row()),
            // What is not retried anyway keeps its own word for it: unknown stays unknown.
            (own @ (Rule::Unknown | Rule::Fatal), _) => own,
            (_, Some(Advice::Stop)) => column(Kind::ToldToStop.row()),
            (own, None) => own,
        };
        let after = self.hints.after;
        let verdict = match rule {
            Rule::Success => Verdict::Success,
            Rule::Retry => Verdict::Retry { after },
            Rule::RetryOnce => Verdict::RetryOnce { after },
            Rule::RetryIfTold if after.is_some() => Verdict::Retry { after },
            Rule::RetryIfTold | Rule::Unknown => Verdict::Unknown,
            Rule::InFlight => Verdict::InFlight { after },
            Rule::Fatal => Verdict::Fatal,
        };
        // The column of calls that may not be repeated says what may have happened, for all calls alike.
        let fate = match row.bare {
            Rule::Success => TryFate::Done,
            Rule::Retry | Rule::RetryOnce | Rule::Fatal => TryFate::Undone,
            Rule::RetryIfTold if after.is_some() => TryFate::Undone,
            Rule::RetryIfTold | Rule::InFlight | Rule::Unknown => TryFate::Unknown,
        };
        Judged { verdict, health: row.health, fate, kind: Some(self.kind), status: self.status }
    }
}

/// What is to be done after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is done.
    Success,
    /// Try again, with the same key, and not before the server's `after`.
    Retry {
        /// How long the server asked to be left alone.
        after: Option<Duration>,
    },
    /// Try again once, on another connection.
    RetryOnce {
        /// How long the server asked to be left alone.
        after: Option<Duration>,
    },
    /// Somebody works on the same key. Ask again with that key.
    InFlight {
        /// When the server expects to be done.
        after: Option<Duration>,
    },
    /// Nobody knows whether it happened, and it must not be repeated.
    Unknown,
    /// It failed for good.
    Fatal,
}

impl Verdict {
    /// Whether it may be tried again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Retry { .. } | Self::RetryOnce { .. } | Self::InFlight { .. })
    }

    /// When the server wants to be asked again.
    #[must_use]
    pub const fn after(&self) -> Option<Duration> {
        match self {
            Self::Retry { after } | Self::RetryOnce { after } | Self::InFlight { after } => *after,
            Self::Success | Self::Unknown | Self::Fatal => None,
        }
    }

    /// Its name in logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Retry { .. } | Self::RetryOnce { .. } => "retry",
            Self::InFlight { .. } => "in_flight",
            Self::Unknown => "unknown",
            Self::Fatal => "fatal",
        }
    }
}

/// Whether a try had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TryFate {
    /// Surely not.
    Undone,
    /// Nobody knows.
    Unknown,
    /// Surely.
    Done,
}

/// A verdict with its grounds. A classifier that only knows the verdict gives that: the rest is assumed with care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Judged {
    /// What is to be done.
    pub verdict: Verdict,
    /// What it says about the destination.
    pub health: DestinationHealth,
    /// Whether the effect happened.
    pub fate: TryFate,
    /// What was seen, where a [`Signal`] was judged.
    pub kind: Option<Kind>,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
}

impl Judged {
    /// The name of what was seen, for logs.
    #[must_use]
    pub fn class(&self) -> &'static str {
        self.kind.map_or(self.verdict.name(), Kind::name)
    }
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        let (health, fate) = match verdict {
            Verdict::Success => (DestinationHealth::Healthy, TryFate::Done),
            Verdict::Retry { .. } | Verdict::RetryOnce { .. } | Verdict::Unknown => {
                (DestinationHealth::Failing, TryFate::Unknown)
            }
            Verdict::InFlight { .. } => (DestinationHealth::Healthy, TryFate::Unknown),
            Verdict::Fatal => (DestinationHealth::Healthy, TryFate::Undone),
        };
        Self { verdict, health, fate, kind: None, status: None }
    }
}

impl From<Judged> for DestinationHealth {
    fn from(judged: Judged) -> Self {
        judged.health
    }
}

impl From<Verdict> for DestinationHealth {
    fn from(verdict: Verdict) -> Self {
        Judged::from(verdict).health
    }
}

impl From<Signal> for DestinationHealth {
    fn from(signal: Signal) -> Self {
        signal.kind.row().health
    }
}
