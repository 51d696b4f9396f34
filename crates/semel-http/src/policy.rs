//! Policies: the checked settings of one route.
//!
//! A [`RoutePolicy`] starts from a [`Profile`]'s defaults; what a builder is not told stays the profile's. Everything
//! is checked when it is built, so a request never meets a setting that cannot work.
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

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use semel::canonical::Exclusions;
use semel::record::{Mode, Terms};

pub use self::builder::PolicyBuilder;
pub use self::error::PolicyError;
pub(crate) use self::pattern::Found;
pub use self::pattern::Pattern;
pub use self::template::{CallTemplate, Template};
use crate::key_source::KeySource;
use crate::profile::{KeyLength, Profile};
use crate::scope::Scope;

/// The checked settings of one route. Made by [`RoutePolicy::builder`]; read by the guard on every request.
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
    /// Those with a key are made to happen once.
    Guarded,
    /// All of them are passed on untouched; the route only names an upstream.
    PassThrough,
}

/// What becomes of requests that two servers may read differently: paths with segments of dots, escaped slashes or backslashes, `\\`,
/// `;`, control characters or escapes of escapes, and headers by which a request says that it has another method or path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ambiguous {
    /// They are refused, as `ambiguous_request`.
    #[default]
    Refuse,
    /// They are passed on. A path is refused even then where it can be read as one above the root, or as one of another route.
    Allow,
}

/// Whether a request without a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequired {
    /// It is, as `key_missing`.
    Required,
    /// It is passed on unprotected, and its answer says so.
    Optional,
}

/// What a duplicate meets while the first call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// It waits for the outcome, at most `wait`.
    Wait,
    /// It is refused at once.
    Reject,
}

/// Which answers are kept and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// 2xx.
    Success,
    /// 2xx, 3xx and every 4xx that a retry would get again: not 401, 403, 408, 409, 421, 423, 425, 426, 428, 429.
    Deterministic,
    /// Every answer, 5xx too; 502 and 504 alone remain doubt.
    All,
}

/// What a 5xx means that is not pinned. 502 and 504 are doubt in any case: something in between lost the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnServerError {
    /// Nothing happened; the key is free again.
    Release,
    /// Nobody knows.
    Doubt,
    /// It is the outcome, and is replayed.
    Pin,
}

/// What becomes of a key in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDoubt {
    /// It stays so until somebody settles it.
    Hold,
    /// A retry has the upstream asked by the route's probe.
    Probe,
    /// It is run again once `in_flight_max` has passed: at least once.
    Release,
}

/// What happens while the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDown {
    /// Requests with a key are refused with 503.
    Closed,
    /// They are passed on unprotected, and their answers say so.
    Open,
}

/// What counts as the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fingerprinting {
    /// The same bytes.
    Exact,
    /// The same JSON value, without what is excluded.
    Json(Exclusions),
}

/// What happens to headers of a guarded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRules {
    /// Part of the fingerprint, because they change the answer.
    pub fingerprint: Vec<HeaderName>,
    /// Taken away before the request is passed on, because they change the answer and differ between retries.
    pub strip: Vec<HeaderName>,
}

/// Headers by which an upstream may tell accounts apart, whatever the scope: sessions, keys of an API, tenants. A request that
/// differs in one of them is another request.
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

/// Headers about the form of a message or the way it took.
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

/// Headers by which a client has a request taken for one of another method.
pub(crate) static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

impl Default for HeaderRules {
    /// Whatever can change an answer is either compared or does not reach the handler.
    fn default() -> Self {
        let names = |names: &[&'static str]| -> Vec<HeaderName> {
            names.iter().copied().map(HeaderName::from_static).collect()
        };
        let mut fingerprint = names(&FORM_HEADERS);
        fingerprint.extend(names(&["x-http-method-override", "x-original-url", "x-rewrite-url"]));
        // Behind those that were compared before: what is stored of requests without them stays the same.
        fingerprint.extend(METHOD_OVERRIDES.iter().filter(|name| *name != "x-http-method-override").cloned());
        fingerprint.extend(ACCOUNT_HEADERS.iter().cloned());
        Self {
            fingerprint,
            // A retry from another network has another address; a replay must be readable without gzip.
            strip: names(&["accept-encoding", "forwarded", "true-client-ip", "x-forwarded-for", "x-real-ip"]),
        }
    }
}

impl HeaderRules {
    /// Compares these headers too, and none of `except`.
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

/// Which headers of an answer are kept. Never kept are those of the connection, credentials, cookies, `Date` and
/// rate limits.
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
    /// Who receives it: every provider gets keys of its own.
    pub provider: String,
}

/// How the upstream is asked what became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The call; `{key}` in its path is the key that was sent upstream.
    pub call: CallTemplate,
    /// What a 404 means.
    pub absent: Absent,
}

/// What it means that the upstream knows nothing of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Nothing: the call may still be under way to it.
    Unknown,
    /// It did not happen and may run again. Only for an upstream that honours the key it was sent, so that a late
    /// first call and the second one are one effect.
    Run,
}

/// How often one principal may do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Sustained, a second.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// Bounds on what one principal may cause (R8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsertLimits {
    /// New keys.
    pub writes: Rate,
    /// Replays, conflicts and refusals.
    pub reads: Rate,
}

/// What a status means for the record of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the outcome.
    Keep,
    /// Nothing happened.
    Release,
    /// Nobody knows.
    Doubt,
}

impl RoutePolicy {
    /// Starts a route from the defaults of `profile`. `pattern` is a method and a path: `POST /v1/payments`; `*` as
    /// the method stands for all guarded ones; `*` and `{x}` match one segment, `/**` at the end matches the rest.
    pub fn builder(profile: &Profile, pattern: &str) -> PolicyBuilder {
        PolicyBuilder::new(profile, pattern)
    }

    /// The policy of requests that no route matches.
    ///
    /// # Errors
    /// A profile whose own settings cannot stand together.
    pub fn fallback(profile: &Profile) -> Result<Self, PolicyError> {
        PolicyBuilder::new(profile, "* /**").build()
    }

    /// Which requests it is for.
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

    /// How long a duplicate waits; zero where it is refused at once.
    pub fn wait(&self) -> Duration {
        match self.in_flight {
            InFlight::Wait => self.wait,
            InFlight::Reject => Duration::ZERO,
        }
    }

    /// What becomes of doubt on it, for whoever warns of weak promises.
    pub fn on_doubt(&self) -> OnDoubt {
        self.on_doubt
    }

    /// Who asks, where it is another than the guard's.
    pub fn scope(&self) -> Option<&Scope> {
        self.scope.as_ref()
    }

    /// Whether requests that two servers may read differently are passed on.
    pub fn passes_ambiguous(&self) -> bool {
        self.ambiguous == Ambiguous::Allow
    }

    /// Headers that are compared beside the usual ones.
    pub fn also_compared(&self) -> Vec<HeaderName> {
        let usual = HeaderRules::default().fingerprint;
        self.headers.fingerprint.iter().filter(|name| !usual.contains(name)).cloned().collect()
    }

    /// Headers that select an account and were taken out of the comparison by hand, for warnings.
    pub fn uncompared(&self) -> &[HeaderName] {
        &self.uncompared
    }

    /// What happens on it while the store is away, for whoever warns of weak promises.
    pub fn store_down(&self) -> StoreDown {
        self.store_down
    }

    /// Whether a call of this method is guarded here.
    pub fn guards(&self, method: &Method) -> bool {
        // Nearly every guarded method is among the first two.
        self.guarding == Guarding::Guarded && self.methods.iter().any(|guarded| guarded == method)
    }

    /// Whether the key that goes upstream is a derived one.
    pub(crate) fn sends_derived_key(&self) -> bool {
        self.terms.mode == Mode::Keyed
    }

    /// What an answer with this status means for the record.
    pub fn verdict(&self, status: StatusCode) -> Verdict {
        match status.as_u16() {
            502 | 504 => Verdict::Doubt,
            500.. if self.pin == Pin::All => Verdict::Keep,
            500.. => match self.on_5xx {
                OnServerError::Release => Verdict::Release,
                OnServerError::Doubt => Verdict::Doubt,
                OnServerError::Pin => Verdict::Keep,
            },
            _ if self.pin == Pin::All => Verdict::Keep,
            200..300 => Verdict::Keep,
            code if self.pin == Pin::Deterministic && is_deterministic(code) => Verdict::Keep,
            _ => Verdict::Release,
        }
    }
}

/// Whether a retry would get the same 3xx or 4xx again.
fn is_deterministic(code: u16) -> bool {
    match code {
        401 | 403 | 408 | 409 | 421 | 423 | 425 | 426 | 428 | 429 => false,
        300..500 => true,
        _ => false,
    }
}
