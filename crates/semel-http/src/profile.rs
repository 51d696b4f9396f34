//! Profiles: the promises of an API to its clients, as data.
//!
//! A profile defines how each situation is presented, which answers are stored and for how long, which methods are guarded, and the
//! form of a key. No code depends on a profile's name: for another dialect, change the fields of an existing profile.
//!
//! ```
//! use http::StatusCode;
//! use semel_http::{Profile, Situation};
//!
//! let mut mine = Profile::ietf();
//! mine.name = "mine";
//! mine.text_mut(Situation::Conflict).status = StatusCode::CONFLICT;
//! assert_eq!(mine.text(Situation::Conflict).status, StatusCode::CONFLICT);
//! ```

#[cfg(feature = "mcp")]
mod adcp_mcp;
mod ietf;
mod stripe;
mod ucp;

use std::borrow::Cow;
use std::time::Duration;

use http::header::LINK;
use http::{HeaderName, HeaderValue, Method, Response};

#[cfg(feature = "mcp")]
pub use self::adcp_mcp::ADCP_MUTATING_TOOLS;
use crate::body::Body;
use crate::codec::Codec;
use crate::policy::{InFlight, InsertLimits, OnDoubt, OnServerError, Pin};
use crate::problem::{Problem, Shape, Situation, SituationText};
use crate::proxy::Host;
use crate::scope::Scope;

/// A dialect of idempotency: how situations are presented, and the defaults of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name in configuration, documents and metrics.
    pub name: &'static str,
    /// The format of errors.
    pub shape: Shape,
    /// How each situation is presented, in the order of [`Situation::ALL`].
    pub texts: [SituationText; Situation::ALL.len()],
    /// The header that carries the key, unless a route names another source.
    pub key_header: HeaderName,
    /// A header that identifies callers who send no credential. It is an alternative to `authorization` in the default scope.
    pub agent_header: Option<HeaderName>,
    /// Headers with which a client selects one of the accounts behind its credential. They are part of the default scope.
    pub account_headers: Vec<HeaderName>,
    /// Minimum and maximum length of a key.
    pub key_length: KeyLength,
    /// The methods that are guarded by default. Safe methods never are.
    pub methods: Vec<Method>,
    /// Which answers are stored.
    pub pin: Pin,
    /// Meaning of a 5xx that is not stored, except 502 and 504.
    pub on_5xx: OnServerError,
    /// Handling of a key in doubt.
    pub on_doubt: OnDoubt,
    /// Handling of a duplicate while the first call is in progress.
    pub in_flight: InFlight,
    /// How long an answer is stored.
    pub retention: Duration,
    /// How much longer it is actually stored.
    pub grace: Duration,
    /// How long the key answers "expired" after that. Zero: the key can run again.
    pub memory: Duration,
    /// Bounds for the retention of a route; the profile publishes them as a promise.
    pub retention_bounds: Option<(Duration, Duration)>,
    /// The default rate limits of one principal.
    pub limits: Option<InsertLimits>,
    /// Handling of a store that has lost data.
    pub store_loss: StoreLoss,
    /// How a request carries a call.
    pub codec: Codec,
    /// The `Host` header that the upstream sees, unless the gateway is configured otherwise.
    pub host: Host,
    /// Where clients can read about refusals: the target of their `Link` header. A path is one of the API itself.
    pub documentation: Option<Cow<'static, str>>,
}

/// Handling of a shared store that has lost data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// An error is logged, and work continues.
    Alarm,
    /// In addition, no new claim is granted for one retention, because a key without a record may have been lost.
    Refuse,
}

/// Minimum and maximum length of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLength {
    /// Minimum number of characters.
    pub min: usize,
    /// Maximum number of characters, at most 1024.
    pub max: usize,
}

impl Profile {
    /// The names of the built-in profiles.
    pub const NAMES: &'static [&'static str] = &[
        "ietf",
        "stripe",
        "stripe-v2",
        "ucp",
        #[cfg(feature = "mcp")]
        "adcp-mcp",
    ];

    /// The built-in profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ietf" => Some(Self::ietf()),
            "stripe" => Some(Self::stripe()),
            "stripe-v2" => Some(Self::stripe_v2()),
            "ucp" => Some(Self::ucp()),
            #[cfg(feature = "mcp")]
            "adcp-mcp" => Some(Self::adcp_mcp()),
            _ => None,
        }
    }

    /// The default scope: the credential, and the account that the request selects.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if let Some(agent) = &self.agent_header {
            return Scope::AnyOf([Scope::Header(agent.clone()), Scope::default()].into());
        }
        if self.account_headers.is_empty() {
            return Scope::default();
        }
        let accounts = self.account_headers.iter().cloned().map(Scope::Header);
        Scope::Parts([Scope::default()].into_iter().chain(accounts).collect())
    }

    /// How a situation is presented.
    #[must_use]
    pub fn text(&self, situation: Situation) -> &SituationText {
        &self.texts[situation as usize]
    }

    /// Mutable access to how a situation is presented.
    pub fn text_mut(&mut self, situation: Situation) -> &mut SituationText {
        &mut self.texts[situation as usize]
    }

    /// A problem in the format of this dialect.
    #[must_use]
    pub fn answer(&self, problem: &Problem) -> Response<Body> {
        let mut answer = problem.answer(self.shape, self.text(problem.situation));
        if let Some(link) = &self.documentation
            && let Ok(value) = HeaderValue::try_from(format!("<{link}>; rel=\"describedby\""))
        {
            answer.headers_mut().insert(LINK, value);
        }
        answer
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::ietf()
    }
}
