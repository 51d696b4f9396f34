//! Policies: the validated settings of one route.
//!
//! A [`RoutePolicy`] starts from the defaults of a [`Profile`]; the builder overrides them. Everything is validated when the policy is
//! built, so a request never meets a setting that cannot work.
//!
//! ```
//! use std::time::Duration;
//! use semel_http::policy::{InFlight, KeyRequired};
//! use semel_http::{KeySource, Profile, RoutePolicy};
//!
//! let payments = RoutePolicy::builder(&Profile::ietf(), "POST /v1/payments")
//!     .key(KeySource::header("Idempotency-Key")?, KeyRequired::Required)
//!     .in_flight(InFlight::Reject)
//!     .retention(Duration::from_secs(48 * 60 * 60))
//!     .build()?;
//! # Ok::<(), semel_http::PolicyError>(())
//! ```

mod builder;
mod error;
pub(crate) mod path;
mod pattern;
mod template;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use semel::canonical::Exclusions;
use semel::record::{Mode, Terms};

pub use self::builder::PolicyBuilder;
pub use self::error::PolicyError;
pub use self::pattern::Pattern;
pub(crate) use self::pattern::PatternMatch;
pub use self::template::{CallTemplate, Template};
use crate::key_source::KeySource;
use crate::profile::{KeyLength, Profile};
use crate::scope::Scope;

/// The validated settings of one route. Built by [`RoutePolicy::builder`]; the guard reads them on every request.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    pub(crate) pattern: Pattern,
    pub(crate) guarding: Guarding,
    pub(crate) ambiguous: Ambiguous,
    pub(crate) methods: Vec<Method>,
    pub(crate) upstream: Option<Arc<str>>,
    pub(crate) key: KeySource,
    pub(crate) key_length: KeyLength,
    pub(crate) required: KeyRequired,
    pub(crate) scope: Option<Scope>,
    pub(crate) derived: Derived,
    pub(crate) terms: Terms,
    /// Terms of tools whose calls have another `in_flight_max`.
    pub(crate) tool_terms: BTreeMap<String, Arc<Terms>>,
    pub(crate) in_flight: InFlight,
    pub(crate) wait: Duration,
    pub(crate) pin: Pin,
    pub(crate) on_5xx: OnServerError,
    pub(crate) on_doubt: OnDoubt,
    pub(crate) probe: Option<Probe>,
    pub(crate) verify: Option<CallTemplate>,
    pub(crate) fingerprint: Fingerprinting,
    pub(crate) headers: HeaderRules,
    pub(crate) uncompared: Vec<HeaderName>,
    pub(crate) stored_headers: StoredHeaders,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) refusal_limit: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) store_down: StoreDown,
    pub(crate) limits: Option<InsertLimits>,
    pub(crate) expired: Option<StatusCode>,
}

/// Whether requests of a route are guarded at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// Requests with a key happen once.
    Guarded,
    /// All requests are passed on unchanged; the route only names an upstream.
    PassThrough,
}

/// Handling of requests that two servers may read differently: paths with dot segments, escaped slashes or backslashes, `\\`, `;`,
/// control characters or double escapes, and headers that override the method or the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ambiguous {
    /// They are refused as `ambiguous_request`.
    #[default]
    Refuse,
    /// They are passed on. A path is still refused if it can be read as one above the root, or as a path of another route.
    Allow,
}

/// Whether a request without a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequired {
    /// It is refused as `key_missing`.
    Required,
    /// It is passed on unprotected, and its answer says so.
    Optional,
}

/// Handling of a duplicate while the first call is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// It waits for the outcome, for at most `wait`.
    Wait,
    /// It is refused immediately.
    Reject,
}

/// Which answers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// 2xx.
    Success,
    /// 2xx, 3xx, and every 4xx that a retry would get again: not 401, 403, 408, 409, 421, 423, 425, 426, 428, 429.
    Deterministic,
    /// Every answer, including 5xx. Only 502 and 504 leave the key in doubt.
    All,
}

/// Meaning of a 5xx that is not stored. 502 and 504 always mean doubt: an intermediary lost the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnServerError {
    /// It had no effect; the key is released.
    Release,
    /// Its effect is unknown; the key is in doubt.
    Doubt,
    /// It is the outcome and is stored.
    Pin,
}

/// Handling of a key in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDoubt {
    /// It stays in doubt until an operator settles it.
    Hold,
    /// A retry triggers the route's probe of the upstream.
    Probe,
    /// It is executed again after `in_flight_max`: at least once.
    Release,
}

/// Handling of requests while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDown {
    /// Requests with a key are refused with 503.
    Closed,
    /// They are passed on unprotected, and their answers say so.
    Open,
}

/// How two requests are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fingerprinting {
    /// The same bytes.
    Exact,
    /// The same JSON value, without the excluded members.
    Json(Exclusions),
}

/// Handling of the headers of a guarded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRules {
    /// Part of the fingerprint, because they change the answer.
    pub fingerprint: Vec<HeaderName>,
    /// Removed before the request is passed on, because they change the answer and differ between retries.
    pub strip: Vec<HeaderName>,
}

/// Headers by which an upstream may distinguish accounts, whatever the scope: sessions, API keys, tenants. A request with another value
/// is another request.
pub static ACCOUNT_HEADERS: [HeaderName; 15] = [
    http::header::COOKIE,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-account"),
    HeaderName::from_static("x-account-id"),
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-auth-token"),
    HeaderName::from_static("x-customer-id"),
    HeaderName::from_static("x-org-id"),
    HeaderName::from_static("x-organization-id"),
    HeaderName::from_static("x-tenant"),
    HeaderName::from_static("x-tenant-id"),
    HeaderName::from_static("x-user"),
    HeaderName::from_static("x-user-id"),
    HeaderName::from_static("stripe-account"),
    HeaderName::from_static("stripe-context"),
];

/// Headers about the encoding of a message or its route through proxies.
pub(crate) const FORM_HEADERS: [&str; 11] = [
    "accept",
    "accept-charset",
    "accept-language",
    "content-encoding",
    "content-type",
    "host",
    "prefer",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
];

/// Headers that override the method of a request.
pub(crate) static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

impl Default for HeaderRules {
    /// Every header that can change an answer is either compared or removed.
    fn default() -> Self {
        let names = |names: &[&'static str]| -> Vec<HeaderName> {
            names.iter().copied().map(HeaderName::from_static).collect()
        };
        let mut fingerprint = names(&FORM_HEADERS);
        fingerprint.extend(names(&["x-http-method-override", "x-original-url", "x-rewrite-url"]));
        // After the headers that earlier versions compared, so that stored fingerprints of requests without them stay the same.
        fingerprint.extend(METHOD_OVERRIDES.iter().filter(|name| *name != "x-http-method-override").cloned());
        fingerprint.extend(ACCOUNT_HEADERS.iter().cloned());
        Self {
            fingerprint,
            // A retry from another network has another address, and a stored answer must be readable without gzip.
            strip: names(&["accept-encoding", "forwarded", "true-client-ip", "x-forwarded-for", "x-real-ip"]),
        }
    }
}

impl HeaderRules {
    /// Also compares these headers, and stops comparing `except`.
    #[must_use]
    pub fn comparing(mut self, more: Vec<HeaderName>, except: &[HeaderName]) -> Self {
        self.fingerprint.extend(more);
        let mut seen = Vec::new();
        self.fingerprint.retain(|name| {
            let is_new = !seen.contains(name);
            seen.push(name.clone());
            is_new && !except.contains(name)
        });
        self
    }
}

/// Which headers of an answer are stored. Connection headers, credentials, cookies, `Date` and rate limits never are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredHeaders {
    /// All others.
    All,
    /// Only these.
    Only(Vec<HeaderName>),
}

/// How a derived key is sent in mode `keyed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The header that carries it.
    pub header: HeaderName,
    /// The receiver: every provider gets its own derived keys.
    pub provider: String,
}

/// How the upstream is asked for the result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The request; `{key}` in its path is the key that was sent to the upstream.
    pub call: CallTemplate,
    /// Meaning of a 404.
    pub absent: Absent,
}

/// Meaning of an answer that the upstream does not know the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Nothing: the call may still be on its way.
    Unknown,
    /// The call had no effect and may run again. Only for an upstream that honours the key it gets, so that a late first call and the
    /// second one have one effect.
    Run,
}

/// A rate limit of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Sustained rate per second.
    pub per_second: u32,
    /// Maximum burst.
    pub burst: u32,
}

/// Rate limits of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsertLimits {
    /// New keys.
    pub writes: Rate,
    /// Answers from the record, conflicts and refusals.
    pub reads: Rate,
}

/// Meaning of a status for the record of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusVerdict {
    /// The answer is the outcome.
    Keep,
    /// The call had no effect.
    Release,
    /// The effect of the call is unknown.
    Doubt,
}

impl RoutePolicy {
    /// Starts a route from the defaults of `profile`. `pattern` is a method and a path: `POST /v1/payments`. `*` as the method means
    /// all guarded methods. `*` and `{x}` match one segment, `/**` at the end matches the rest.
    pub fn builder(profile: &Profile, pattern: &str) -> PolicyBuilder {
        PolicyBuilder::new(profile, pattern)
    }

    /// The policy of requests that no route matches.
    ///
    /// # Errors
    /// A profile with contradictory settings.
    pub fn fallback(profile: &Profile) -> Result<Self, PolicyError> {
        PolicyBuilder::new(profile, "* /**").build()
    }

    /// The requests that it matches.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The upstream it names.
    pub fn upstream(&self) -> Option<&str> {
        self.upstream.as_deref()
    }

    /// Its mode and durations.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// How long a duplicate waits; zero if it is refused immediately.
    pub fn wait(&self) -> Duration {
        match self.in_flight {
            InFlight::Wait => self.wait,
            InFlight::Reject => Duration::ZERO,
        }
    }

    /// How a key in doubt is handled, for warnings about weak promises.
    pub fn on_doubt(&self) -> OnDoubt {
        self.on_doubt
    }

    /// The scope, if it differs from the guard's.
    pub fn scope(&self) -> Option<&Scope> {
        self.scope.as_ref()
    }

    /// True if requests that two servers may read differently are passed on.
    pub fn passes_ambiguous(&self) -> bool {
        self.ambiguous == Ambiguous::Allow
    }

    /// Headers that are compared in addition to the default ones.
    pub fn also_compared(&self) -> Vec<HeaderName> {
        let usual = HeaderRules::default().fingerprint;
        self.headers.fingerprint.iter().filter(|name| !usual.contains(name)).cloned().collect()
    }

    /// Account headers that the configuration excludes from the comparison, for warnings.
    pub fn uncompared(&self) -> &[HeaderName] {
        &self.uncompared
    }

    /// How requests are handled while the store is unavailable, for warnings about weak promises.
    pub fn store_down(&self) -> StoreDown {
        self.store_down
    }

    /// True if a request with this method is guarded.
    pub fn guards(&self, method: &Method) -> bool {
        // Nearly every guarded method is among the first two.
        self.guarding == Guarding::Guarded && self.methods.iter().any(|guarded| guarded == method)
    }

    /// The longest `in_flight_max` of all calls: what the route can publish.
    pub(crate) fn longest_in_flight(&self) -> Duration {
        let tools = self.tool_terms.values().map(|terms| terms.in_flight_max);
        tools.fold(self.terms.in_flight_max, Duration::max)
    }

    /// True if the upstream gets a derived key.
    pub(crate) fn sends_derived_key(&self) -> bool {
        self.terms.mode == Mode::Keyed
    }

    /// The meaning of an answer with this status for the record.
    pub fn verdict(&self, status: StatusCode) -> StatusVerdict {
        match status.as_u16() {
            502 | 504 => StatusVerdict::Doubt,
            500.. if self.pin == Pin::All => StatusVerdict::Keep,
            500.. => match self.on_5xx {
                OnServerError::Release => StatusVerdict::Release,
                OnServerError::Doubt => StatusVerdict::Doubt,
                OnServerError::Pin => StatusVerdict::Keep,
            },
            _ if self.pin == Pin::All => StatusVerdict::Keep,
            200..300 => StatusVerdict::Keep,
            code if self.pin == Pin::Deterministic && is_deterministic(code) => StatusVerdict::Keep,
            _ => StatusVerdict::Release,
        }
    }
}

/// True if a retry would get the same 3xx or 4xx again.
fn is_deterministic(code: u16) -> bool {
    match code {
        401 | 403 | 408 | 409 | 421 | 423 | 425 | 426 | 428 | 429 => false,
        300..500 => true,
        _ => false,
    }
}
