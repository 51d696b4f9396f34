//! Builds the policy of a route, and rejects settings that cannot work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use semel::record::{Mode, Terms, TermsError};

use super::{
    Ambiguous, CallTemplate, Derived, Fingerprinting, Guarding, HeaderRules, InFlight, InsertLimits,
    KeyRequired, OnDoubt, OnServerError, Pattern, Pin, PolicyError, Probe, RoutePolicy, StoreDown,
    StoredHeaders,
};
use crate::codec::Codec;
use crate::key_source::KeySource;
use crate::profile::Profile;
use crate::scope::Scope;

/// Settings of a route, on top of a profile's defaults. Created by [`RoutePolicy::builder`].
#[derive(Debug)]
#[must_use = "nothing is built until build is called"]
pub struct PolicyBuilder {
    profile: &'static str,
    retention_bounds: Option<(Duration, Duration)>,
    codec: Codec,
    pattern: Result<Pattern, PolicyError>,
    /// Handling of a key in doubt, if it was set.
    on_doubt: Option<OnDoubt>,
    /// `in_flight_max` of tools.
    tools: BTreeMap<String, Duration>,
    policy: RoutePolicy,
}

impl PolicyBuilder {
    pub(super) fn new(profile: &Profile, pattern: &str) -> Self {
        let everything = Pattern::parse("* /**").expect("a method and a path");
        let policy = RoutePolicy {
            pattern: everything,
            guarding: Guarding::Guarded,
            ambiguous: Ambiguous::Refuse,
            methods: profile.methods.clone(),
            upstream: None,
            key: profile.codec.key_source(profile),
            key_length: profile.key_length,
            required: KeyRequired::Optional,
            scope: None,
            derived: Derived { header: profile.key_header.clone(), provider: "upstream".to_owned() },
            terms: Terms {
                retention: profile.retention,
                grace: profile.grace,
                memory: profile.memory,
                ..Terms::default()
            },
            tool_terms: BTreeMap::new(),
            in_flight: profile.in_flight,
            wait: Duration::from_secs(5),
            pin: profile.pin,
            on_5xx: profile.on_5xx,
            on_doubt: profile.on_doubt,
            probe: None,
            verify: None,
            fingerprint: Fingerprinting::Exact,
            headers: HeaderRules::default(),
            uncompared: Vec::new(),
            stored_headers: StoredHeaders::All,
            request_limit: 1 << 20,
            response_limit: 1 << 20,
            refusal_limit: 4 << 10,
            body_timeout: Duration::from_secs(30),
            store_down: StoreDown::Closed,
            limits: profile.limits,
            expired: None,
        };
        Self {
            profile: profile.name,
            retention_bounds: profile.retention_bounds,
            codec: profile.codec.clone(),
            pattern: Pattern::parse(pattern),
            on_doubt: None,
            tools: BTreeMap::new(),
            policy,
        }
    }

    /// Where the key is, and whether a request without one is refused. Default: the profile's header, optional.
    pub fn key(mut self, source: KeySource, required: KeyRequired) -> Self {
        (self.policy.key, self.policy.required) = (source, required);
        self
    }

    /// Whether a request without a key is refused. Keeps the profile's key source.
    pub fn required(mut self, required: KeyRequired) -> Self {
        self.policy.required = required;
        self
    }

    /// How the principal is found, instead of the guard's scope.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.policy.scope = Some(scope);
        self
    }

    /// The upstream, by its name in the proxy.
    pub fn upstream(mut self, name: impl Into<Arc<str>>) -> Self {
        self.policy.upstream = Some(name.into());
        self
    }

    /// Guards nothing: the route only names an upstream.
    pub fn pass_through(mut self) -> Self {
        self.policy.guarding = Guarding::PassThrough;
        self
    }

    /// Handling of requests that two servers may read differently. Default: they are refused.
    pub fn ambiguous(mut self, ambiguous: Ambiguous) -> Self {
        self.policy.ambiguous = ambiguous;
        self
    }

    /// Compares paths ignoring the case of ASCII letters, for upstreams that do so.
    pub fn ignore_case(mut self) -> Self {
        self.pattern = self.pattern.map(Pattern::ignoring_case);
        self
    }

    /// Handling of an effect whose owner is lost. Default: `marked`.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.policy.terms.mode = mode;
        self
    }

    /// The header that carries the derived key in mode `keyed`, and the provider it is derived for.
    pub fn derived_key(mut self, header: HeaderName, provider: impl Into<String>) -> Self {
        self.policy.derived = Derived { header, provider: provider.into() };
        self
    }

    /// Handling of a duplicate while the first call is in progress.
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.policy.in_flight = in_flight;
        self
    }

    /// How long a duplicate waits. Default: 5 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait;
        self
    }

    /// How long a claim is valid without a heartbeat. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.terms.lease = lease;
        self
    }

    /// Maximum duration of a call. Default: 60 s.
    pub fn in_flight_max(mut self, in_flight_max: Duration) -> Self {
        self.policy.terms.in_flight_max = in_flight_max;
        self
    }

    /// Maximum duration of a call of these tools, by name, where it differs from `in_flight_max`. Only for profiles with tool calls.
    pub fn in_flight_max_tools(mut self, tools: BTreeMap<String, Duration>) -> Self {
        self.tools = tools;
        self
    }

    /// How long an answer is stored.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.policy.terms.retention = retention;
        self
    }

    /// How much longer it is actually stored. Default: 60 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.terms.grace = grace;
        self
    }

    /// How long the key answers "expired" after that. Zero: the key can run again.
    pub fn memory(mut self, memory: Duration) -> Self {
        self.policy.terms.memory = memory;
        self
    }

    /// Which answers are stored.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.policy.pin = pin;
        self
    }

    /// Meaning of a 5xx that is not stored.
    pub fn on_5xx(mut self, on_5xx: OnServerError) -> Self {
        self.policy.on_5xx = on_5xx;
        self
    }

    /// Handling of a key in doubt. Default: the profile's. If that is to execute again and there is a probe, the probe.
    pub fn on_doubt(mut self, on_doubt: OnDoubt) -> Self {
        self.on_doubt = Some(on_doubt);
        self
    }

    /// How the upstream is asked for the result of a call.
    pub fn probe(mut self, probe: Probe) -> Self {
        self.policy.probe = Some(probe);
        self
    }

    /// A request with the client's credential that must succeed before an answer from the record.
    pub fn verify(mut self, call: CallTemplate) -> Self {
        self.policy.verify = Some(call);
        self
    }

    /// How two requests are compared. Default: byte for byte.
    pub fn fingerprint(mut self, fingerprint: Fingerprinting) -> Self {
        self.policy.fingerprint = fingerprint;
        self
    }

    /// Handling of headers that change an answer.
    pub fn headers(mut self, headers: HeaderRules) -> Self {
        self.policy.headers = headers;
        self
    }

    /// Records the headers that the configuration excludes from the comparison, for [`RoutePolicy::uncompared`].
    pub fn uncompared(mut self, names: Vec<HeaderName>) -> Self {
        self.policy.uncompared = names;
        self
    }

    /// Which headers of an answer are stored.
    pub fn stored_headers(mut self, stored: StoredHeaders) -> Self {
        self.policy.stored_headers = stored;
        self
    }

    /// Maximum size of the body of a request with a key, in bytes. Default: 1 MiB.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.policy.request_limit = bytes;
        self
    }

    /// Maximum size of the body of a stored answer, in bytes. A larger one leaves a tombstone. Default: 1 MiB.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.policy.response_limit = bytes;
        self
    }

    /// Maximum stored size of an answer with a status of 400 or above, head and body, in bytes. A larger one leaves a tombstone with
    /// the status. Default: 4 KiB, because any client can cause refusals, and they must not fill the store.
    pub fn refusal_limit(mut self, bytes: usize) -> Self {
        self.policy.refusal_limit = bytes;
        self
    }

    /// How long the body of a request with a key may take to arrive. Default: 30 s.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.policy.body_timeout = timeout;
        self
    }

    /// Handling of requests while the store is unavailable. Default: refuse them.
    pub fn store_down(mut self, store_down: StoreDown) -> Self {
        self.policy.store_down = store_down;
        self
    }

    /// Rate limits of one principal. Default: the profile's.
    pub fn limits(mut self, limits: InsertLimits) -> Self {
        self.policy.limits = Some(limits);
        self
    }

    /// Minimum and maximum length of a key.
    pub fn key_length(mut self, min: usize, max: usize) -> Self {
        self.policy.key_length = crate::profile::KeyLength { min, max };
        self
    }

    /// The status of an expired key: 410 or 412.
    pub fn expired(mut self, status: StatusCode) -> Self {
        self.policy.expired = Some(status);
        self
    }

    /// Validates all settings and builds the policy.
    ///
    /// # Errors
    /// The first setting that cannot work, with a hint how to fix it.
    pub fn build(self) -> Result<RoutePolicy, PolicyError> {
        let Self { profile, retention_bounds, codec, pattern, on_doubt, tools, mut policy } = self;
        policy.pattern = pattern?;
        policy.on_doubt = match (on_doubt, policy.on_doubt, &policy.probe) {
            (Some(said), _, _) => said,
            // An upstream with a probe is asked before a call is executed again.
            (None, OnDoubt::Release, Some(_)) => OnDoubt::Probe,
            (None, usual, _) => usual,
        };
        let text = policy.pattern.to_string();
        if policy.guarding == Guarding::Guarded
            && let Some(method) = policy.pattern.method()
        {
            if is_safe(method) {
                return Err(PolicyError::SafeMethod { method: method.to_string() });
            }
            policy.methods = vec![method.clone()];
        }
        policy.methods.retain(|method| !is_safe(method));
        let bounds = retention_bounds.map(|bounds| (profile, bounds));
        check_terms(&policy, &policy.terms, bounds, &text)?;
        if codec == Codec::Http && !tools.is_empty() {
            return Err(PolicyError::NoTools { pattern: text });
        }
        for (tool, in_flight_max) in tools {
            let lease = policy.terms.lease.min(in_flight_max);
            let terms = Terms { in_flight_max, lease, ..policy.terms };
            if let Err(error) = check_terms(&policy, &terms, bounds, &text) {
                return Err(PolicyError::Tool { tool, error: Box::new(error) });
            }
            policy.tool_terms.insert(tool, Arc::new(terms));
        }
        if policy.terms.mode == Mode::Atomic {
            return Err(PolicyError::Atomic);
        }
        let (min, max) = (policy.key_length.min, policy.key_length.max);
        if min == 0 || min > max || max > semel::key::MAX_VALUE {
            return Err(PolicyError::KeyLength { min, max });
        }
        check_limits(&policy)?;
        codec.check(&policy)?;
        if let KeySource::Route(template) = &policy.key {
            let spelled = template.to_string();
            if template.names().next().is_none() {
                return Err(PolicyError::TemplateConstant { template: spelled });
            }
            if let Some(name) = template.names().find(|name| !policy.pattern.names(name)) {
                return Err(PolicyError::TemplateName {
                    template: spelled,
                    name: name.to_owned(),
                    pattern: text,
                });
            }
        }
        match &policy.probe {
            Some(probe) if !probe.call.names_key() => {
                return Err(PolicyError::ProbeWithoutKey { call: probe.call.text().to_owned() });
            }
            None if policy.on_doubt == OnDoubt::Probe => return Err(PolicyError::NoProbe),
            _ => {}
        }
        if let Some(status) = policy.expired
            && !matches!(status, StatusCode::GONE | StatusCode::PRECONDITION_FAILED)
        {
            return Err(PolicyError::Expired { status: status.as_u16() });
        }
        Ok(policy)
    }
}

fn is_safe(method: &Method) -> bool {
    // CONNECT is not safe, but the guard cannot read a tunnel.
    method.is_safe() || method == Method::CONNECT
}

/// The profile that publishes its retention, with the bounds that it promises.
type Published = (&'static str, (Duration, Duration));

fn check_terms(
    policy: &RoutePolicy,
    terms: &Terms,
    published: Option<Published>,
    pattern: &str,
) -> Result<(), PolicyError> {
    let wrong = |error| PolicyError::Terms { pattern: pattern.to_owned(), error };
    terms.check().map_err(wrong)?;
    let (wait, in_flight_max, retention) = (policy.wait(), terms.in_flight_max, terms.retention);
    if wait > in_flight_max {
        return Err(wrong(TermsError::WaitAboveInFlight { wait, in_flight_max }));
    }
    let Some((profile, (least, most))) = published else { return Ok(()) };
    if !(least..=most).contains(&retention) {
        return Err(PolicyError::Retention { profile, least, most, given: retention });
    }
    if in_flight_max > retention {
        return Err(PolicyError::InFlightAboveRetention { profile, in_flight_max, retention });
    }
    if in_flight_max < Duration::from_secs(1) {
        return Err(PolicyError::InFlightTooShort { profile, in_flight_max });
    }
    Ok(())
}

fn check_limits(policy: &RoutePolicy) -> Result<(), PolicyError> {
    const LARGEST: usize = 1 << 30;
    for (setting, bytes) in
        [("request_limit", policy.request_limit), ("response_limit", policy.response_limit)]
    {
        if bytes > LARGEST {
            return Err(PolicyError::TooLarge { setting, bytes });
        }
    }
    let mut zero = None;
    if policy.body_timeout.is_zero() {
        zero = Some("body_timeout");
    }
    if let Some(InsertLimits { writes, reads }) = policy.limits {
        for (setting, rate) in [("writes", writes), ("reads", reads)] {
            if rate.burst == 0 || rate.per_second == 0 {
                zero = Some(setting);
            }
        }
    }
    match zero {
        Some(setting) => Err(PolicyError::Zero { setting }),
        None => Ok(()),
    }
}
