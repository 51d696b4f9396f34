//! The value types of the rules: owner, fence, grant, epoch, mode, terms.

use std::fmt;
use std::time::Duration;

use crate::time::Timestamp;

/// How many bytes of a token identify its request. The others are random: two claims of one request are two owners.
const TAG: usize = 8;

fn tag(request_id: &str) -> [u8; TAG] {
    let mut tag = [0; TAG];
    let mut hasher = blake3::Hasher::new_derive_key("semel 2026 owner token of a request");
    hasher.update(request_id.as_bytes()).finalize_xof().fill(&mut tag);
    tag
}

/// A random token for one attempt to claim. A repeated claim call is recognised by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u8; 16]);

impl Owner {
    /// A new unique token.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// A new unique token that also identifies the request it was made for. The record that it claims can be found by
    /// the request's id ([`is_of_request`](Self::is_of_request)), without another entry in the store.
    pub fn of_request(request_id: &str) -> Self {
        let mut bytes: [u8; 16] = rand::random();
        bytes[..TAG].copy_from_slice(&tag(request_id));
        Self(bytes)
    }

    /// True if the token was made for a request with this id. A token of another request matches by chance once in
    /// 2⁶⁴ times.
    pub fn is_of_request(&self, request_id: &str) -> bool {
        self.0.starts_with(&tag(request_id))
    }

    /// The token with these bytes, for a token from another process.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The token's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Owner {
    /// Enough to tell owners apart in a log, too little to act as one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Owner({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// A number that grows with every claim of a key and never goes back.
///
/// Pass it to a resource that can compare numbers, and that resource refuses a late owner too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next fence: above this one, above the floor, and not below the store's clock. Expiry, a removed record or
    /// an emptied store therefore cannot make it go back.
    #[must_use]
    pub fn next(self, floor: Fence, now: Timestamp) -> Fence {
        Fence(self.0.saturating_add(1).max(floor.0.saturating_add(1)).max(now.as_micros()))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts explicit re-executions of a key. Derived keys differ from epoch to epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// The epoch with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number; 0 until an operator asks for a re-execution.
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(super) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Proof of a won claim. A write without one does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub(crate) owner: Owner,
    pub(crate) fence: Fence,
}

impl Grant {
    /// The grant that another process won. The rules refuse an invented grant.
    pub const fn from_parts(owner: Owner, fence: Fence) -> Self {
        Self { owner, fence }
    }

    /// The owner.
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// The fence.
    pub const fn fence(&self) -> Fence {
        self.fence
    }
}

/// How an effect behaves when its owner is lost, which determines the promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Effect and outcome commit in one transaction: exactly one effect, never in doubt.
    Atomic,
    /// The effect carries a derived key that its receiver honours: taken over, with one effect at the receiver.
    Keyed,
    /// An effect that began and lost its owner is in doubt: at most one effect, and an unknown result is reported as
    /// unknown.
    #[default]
    Marked,
    /// Taken over and run again: at least one effect, one outcome.
    Rerun,
}

/// The durations and the mode of a claim. Stored in the record, so that later writes need not repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The mode of the effect.
    pub mode: Mode,
    /// How long a claim is valid without a heartbeat.
    pub lease: Duration,
    /// How long a claim may be held, with heartbeats.
    pub in_flight_max: Duration,
    /// How long callers are answered with an outcome, counted from its completion.
    pub retention: Duration,
    /// How much longer the outcome is still given, so that the edge is soft.
    pub grace: Duration,
    /// How long after that the key is still known as expired.
    pub memory: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            lease: Duration::from_secs(30),
            in_flight_max: Duration::from_secs(60),
            retention: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(60),
            memory: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The longest allowed duration: a hundred years, so that sums cannot overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Terms {
    /// Checks that the durations are consistent.
    ///
    /// # Errors
    /// Names the invalid setting and its allowed values.
    pub fn check(&self) -> Result<(), TermsError> {
        let Self { mode: _, lease, in_flight_max, retention, grace, memory } = *self;
        let named = [
            ("lease", lease),
            ("in_flight_max", in_flight_max),
            ("retention", retention),
            ("grace", grace),
            ("memory", memory),
        ];
        if let Some((setting, _)) = named.into_iter().find(|(_, length)| *length > LONGEST) {
            return Err(TermsError::TooLong { setting });
        }
        if lease < Duration::from_millis(1) {
            return Err(TermsError::NoLease);
        }
        if in_flight_max < lease {
            return Err(TermsError::InFlightBelowLease { in_flight_max, lease });
        }
        if retention < lease {
            return Err(TermsError::RetentionBelowLease { retention, lease });
        }
        Ok(())
    }
}

/// Inconsistent durations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// The lease is zero, or shorter than the resolution of the clock.
    #[error(
        "lease must be at least 1ms: a claim without a lease is lost the moment it is won; the default is 30s"
    )]
    NoLease,
    /// A claim could not last as long as its own lease.
    #[error(
        "in_flight_max ({in_flight_max:?}) is shorter than lease ({lease:?}): raise in_flight_max or shorten the lease"
    )]
    InFlightBelowLease {
        /// The given value.
        in_flight_max: Duration,
        /// The given value.
        lease: Duration,
    },
    /// An outcome could expire while its owner still counts as alive.
    #[error(
        "retention ({retention:?}) is shorter than lease ({lease:?}): an outcome could be forgotten while its owner still counts as alive; raise retention or shorten the lease"
    )]
    RetentionBelowLease {
        /// The given value.
        retention: Duration,
        /// The given value.
        lease: Duration,
    },
    /// A waiter would wait longer than any claim can last.
    #[error(
        "wait ({wait:?}) is longer than in_flight_max ({in_flight_max:?}): no claim lives that long; shorten wait or raise in_flight_max"
    )]
    WaitAboveInFlight {
        /// The given value.
        wait: Duration,
        /// The given value.
        in_flight_max: Duration,
    },
    /// A duration beyond a hundred years.
    #[error("{setting} is longer than a hundred years: give a duration below that")]
    TooLong {
        /// The setting.
        setting: &'static str,
    },
}
