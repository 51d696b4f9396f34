//! Profiles: what an API promises its clients, as data.
//!
//! A profile says how each situation is told, what is pinned, for how long, which methods are guarded and how a key
//! looks. There is no `if` on a profile's name anywhere: to speak another dialect, take one and change its fields.
//!
//! ```
//! use http::StatusCode;
//! use semel_http::{Profile, Situation};
//!
//! let mut mine = Profile::ietf();
//! mine.name = "mine";
//! mine.telling_mut(Situation::Conflict).status = StatusCode::CONFLICT;
//! assert_eq!(mine.telling(Situation::Conflict).status, StatusCode::CONFLICT);
//! ```

mod adcp_mcp;
mod ietf;
mod stripe;
mod ucp;

use std::time::Duration;

use http::{HeaderName, Method, Response};

pub use self::adcp_mcp::ADCP_MUTATING_TOOLS;
use crate::body::Body;
use crate::codec::Codec;
use crate::policy::{InFlight, InsertLimits, OnDoubt, OnServerError, Pin};
use crate::problem::{Problem, Shape, Situation, Telling};
use crate::scope::Scope;

/// A dialect of idempotency: how situations are told, and the defaults of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name in configuration, documents and metrics.
    pub name: &'static str,
    /// The form of errors.
    pub shape: Shape,
    /// How each situation is told, in the order of [`Situation::ALL`].
    pub tellings: [Telling; Situation::ALL.len()],
    /// The header that carries the key, where a route names no other source.
    pub key_header: HeaderName,
    /// Headers by which a client selects one of the accounts behind its credential. They are parts of the scope where none is
    /// configured.
    pub account_headers: Vec<HeaderName>,
    /// How long a key may be.
    pub key_length: KeyLength,
    /// The methods that are guarded where no route says otherwise. Safe methods never are.
    pub methods: Vec<Method>,
    /// Which answers are kept.
    pub pin: Pin,
    /// What a 5xx means that is not pinned, 502 and 504 apart.
    pub on_5xx: OnServerError,
    /// What becomes of doubt.
    pub on_doubt: OnDoubt,
    /// What a duplicate meets while the first call runs.
    pub in_flight: InFlight,
    /// How long an answer is replayed.
    pub retention: Duration,
    /// How much longer it is replayed in fact.
    pub grace: Duration,
    /// How long after that the key answers "expired". Zero: it runs again.
    pub memory: Duration,
    /// Bounds on retention that a route must keep; the profile publishes them as a promise.
    pub retention_bounds: Option<(Duration, Duration)>,
    /// How much one principal may cause, where a route does not say otherwise.
    pub limits: Option<InsertLimits>,
    /// What is done when a store comes back with less than it had.
    pub store_loss: StoreLoss,
    /// How a request carries a call.
    pub codec: Codec,
}

/// What is done when a store that several processes share comes back with less than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// It is said aloud, and work goes on.
    Alarm,
    /// The same, and no new claim is granted for one retention: "never seen" could be "lost" (R6).
    Refuse,
}

/// How many characters a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLength {
    /// At least.
    pub min: usize,
    /// At most; 1024 is the most that a record can name.
    pub max: usize,
}

impl Profile {
    /// The profiles that are built in, by name.
    pub const NAMES: [&'static str; 5] = ["ietf", "stripe", "stripe-v2", "ucp", "adcp-mcp"];

    /// The built-in profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ietf" => Some(Self::ietf()),
            "stripe" => Some(Self::stripe()),
            "stripe-v2" => Some(Self::stripe_v2()),
            "ucp" => Some(Self::ucp()),
            "adcp-mcp" => Some(Self::adcp_mcp()),
            _ => None,
        }
    }

    /// Who asks, where nobody says otherwise: the credential, and the account behind it that is selected.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.account_headers.is_empty() {
            return Scope::default();
        }
        let accounts = self.account_headers.iter().cloned().map(Scope::Header);
        Scope::Parts([Scope::default()].into_iter().chain(accounts).collect())
    }

    /// How a situation is told.
    #[must_use]
    pub fn telling(&self, situation: Situation) -> &Telling {
        &self.tellings[situation as usize]
    }

    /// The same, to be changed.
    pub fn telling_mut(&mut self, situation: Situation) -> &mut Telling {
        &mut self.tellings[situation as usize]
    }

    /// A problem, told in this dialect.
    #[must_use]
    pub fn tell(&self, problem: &Problem) -> Response<Body> {
        problem.answer(self.shape, self.telling(problem.situation))
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::ietf()
    }
}
