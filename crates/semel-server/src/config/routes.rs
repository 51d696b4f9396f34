//! `[[route]]`: the settings of matching requests. The profile has the defaults.

use std::time::Duration;

use http::{HeaderName, StatusCode};
use semel::Mode;
use semel::canonical::Exclusions;
use semel_http::policy::{
    Absent, Ambiguous, CallTemplate, Fingerprinting, HeaderRules, InFlight, InsertLimits, KeyRequired,
    OnDoubt, OnServerError, Pin, PolicyBuilder, Probe, Rate, StoreDown, StoredHeaders,
};
use semel_http::proxy::{Host, Upstream};
use semel_http::scope::VerifierBuilder;
use semel_http::{KeySource, Profile, RoutePolicy, Scope};
use toml::de::DeValue;

use super::gateway::{AMBIGUOUS, STORE_DOWN};
use super::reader::Table;
use super::values::{choice, count, duration, durations, one_or_several, size, switch, text, texts};

const MODES: [(&str, Mode); 3] = [("marked", Mode::Marked), ("keyed", Mode::Keyed), ("rerun", Mode::Rerun)];
const IN_FLIGHT: [(&str, InFlight); 2] = [("wait", InFlight::Wait), ("reject", InFlight::Reject)];
const PINS: [(&str, Pin); 3] =
    [("success", Pin::Success), ("deterministic", Pin::Deterministic), ("all", Pin::All)];
const ON_5XX: [(&str, OnServerError); 3] =
    [("release", OnServerError::Release), ("doubt", OnServerError::Doubt), ("pin", OnServerError::Pin)];
const ON_DOUBT: [(&str, OnDoubt); 3] =
    [("hold", OnDoubt::Hold), ("probe", OnDoubt::Probe), ("release", OnDoubt::Release)];

/// The routes, and their settings for other parts.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) policies: Vec<RoutePolicy>,
    /// Upstreams of routes, by the text in the file.
    pub(super) upstreams: Vec<(String, Upstream)>,
    /// Every header that carries a key.
    pub(super) key_headers: Vec<HeaderName>,
}

/// Defaults of all routes.
pub(super) struct Usual<'a> {
    pub(super) profile: &'a Profile,
    pub(super) store_down: StoreDown,
    pub(super) headers: HeaderRules,
    pub(super) ambiguous: Ambiguous,
    pub(super) ignore_case: bool,
    /// The gateway's upstream.
    pub(super) upstream: Option<Upstream>,
}

impl<'a> Usual<'a> {
    pub(super) fn new(profile: &'a Profile, store_down: StoreDown, host: Host) -> Self {
        let mut headers = HeaderRules::default();
        if host == Host::Upstream {
            // The upstream's answer does not depend on the gateway's host name, so a retry may use another one.
            headers.fingerprint.retain(|name| *name != http::header::HOST);
        }
        Self {
            profile,
            store_down,
            headers,
            ambiguous: Ambiguous::default(),
            ignore_case: false,
            upstream: None,
        }
    }

    pub(super) fn builder(&self, pattern: &str) -> PolicyBuilder {
        let builder = RoutePolicy::builder(self.profile, pattern)
            .store_down(self.store_down)
            .headers(self.headers.clone())
            .ambiguous(self.ambiguous);
        if self.ignore_case { builder.ignore_case() } else { builder }
    }
}

/// Reads all routes in order.
pub(super) fn read(root: &mut Table<'_>, usual: &Usual<'_>) -> Routes {
    let problems = root.problems();
    let key_headers = vec![usual.profile.key_header.clone()];
    let mut routes = Routes { policies: Vec::new(), upstreams: Vec::new(), key_headers };
    for mut table in root.tables("route") {
        let pattern = table.need("match", text);
        let builder = usual.builder(pattern.as_deref().unwrap_or("* /**"));
        let builder = route(&mut table, builder, usual, &mut routes);
        let span = table.span();
        table.done();
        if pattern.is_some() {
            match builder.build() {
                Ok(route) => routes.policies.push(route),
                Err(error) => problems.at(&span, error.to_string()),
            }
        }
    }
    routes
}

fn route(
    table: &mut Table<'_>,
    mut route: PolicyBuilder,
    usual: &Usual<'_>,
    routes: &mut Routes,
) -> PolicyBuilder {
    if let Some(url) = table.get("upstream", upstream) {
        let (name, upstream) = url;
        // One upstream has one limit on calls, however its URL is written.
        if usual.upstream.as_ref() != Some(&upstream) {
            if !routes.upstreams.iter().any(|(_, known)| *known == upstream) {
                routes.upstreams.push((name, upstream.clone()));
            }
            if let Some((name, _)) = routes.upstreams.iter().find(|(_, known)| *known == upstream) {
                route = route.upstream(name.as_str());
            }
        }
    }
    if table.get("guard", switch) == Some(false) {
        route = route.pass_through();
    }
    route = set(route, table.get("ambiguous", choice(&AMBIGUOUS)), PolicyBuilder::ambiguous);
    let mode = table.get("mode", choice(&MODES));
    route = set(route, mode, PolicyBuilder::mode);
    route = key(table, route, usual.profile, &mut routes.key_headers);
    route = set(route, table.get("scope", scope), PolicyBuilder::scope);
    route = set(route, table.get("in_flight", choice(&IN_FLIGHT)), PolicyBuilder::in_flight);
    let lengths: [(&'static str, Setter); 7] = [
        ("wait", PolicyBuilder::wait),
        ("lease", PolicyBuilder::lease),
        ("in_flight_max", PolicyBuilder::in_flight_max),
        ("retention", PolicyBuilder::retention),
        ("grace", PolicyBuilder::grace),
        ("memory", PolicyBuilder::memory),
        ("body_timeout", PolicyBuilder::body_timeout),
    ];
    for (name, apply) in lengths {
        route = set(route, table.get(name, duration), apply);
    }
    let tools = table.get("in_flight_max_tools", durations);
    route = set(route, tools, PolicyBuilder::in_flight_max_tools);
    route = set(route, table.get("pin", choice(&PINS)), PolicyBuilder::pin);
    route = set(route, table.get("on_5xx", choice(&ON_5XX)), PolicyBuilder::on_5xx);
    route = set(route, table.get("on_doubt", choice(&ON_DOUBT)), PolicyBuilder::on_doubt);
    route = set(route, table.get("store_down", choice(&STORE_DOWN)), PolicyBuilder::store_down);
    route = set(route, table.get("request_limit", size), PolicyBuilder::request_limit);
    route = set(route, table.get("response_limit", size), PolicyBuilder::response_limit);
    route = set(route, table.get("refusal_limit", size), PolicyBuilder::refusal_limit);
    route = set(route, table.get("verify", call), PolicyBuilder::verify);
    route = set(route, table.get("expired", count(400, 499)), |route, code| {
        set(route, StatusCode::from_u16(code).ok(), PolicyBuilder::expired)
    });
    route = probe(table, route, mode.unwrap_or_default());
    route = fingerprint(table, route, &usual.headers);
    route = set(route, table.get("stored_headers", headers), |route, names| {
        route.stored_headers(StoredHeaders::Only(names))
    });
    route = set(route, limits(table), PolicyBuilder::limits);
    route
}

/// Sets a duration of a route.
type Setter = fn(PolicyBuilder, Duration) -> PolicyBuilder;

fn set<T>(
    route: PolicyBuilder,
    given: Option<T>,
    apply: impl FnOnce(PolicyBuilder, T) -> PolicyBuilder,
) -> PolicyBuilder {
    match given {
        Some(value) => apply(route, value),
        None => route,
    }
}

fn upstream(value: &DeValue<'_>) -> Result<(String, Upstream), String> {
    let url = text(value)?;
    let upstream = url.parse().map_err(|error: semel_http::proxy::UpstreamError| error.to_string())?;
    Ok((url, upstream))
}

/// The scope of a route. JWT settings are those of the gateway.
fn scope(value: &DeValue<'_>) -> Result<Scope, String> {
    Scope::parse_parts(&one_or_several(value)?, None::<VerifierBuilder>).map_err(|error| error.to_string())
}

fn call(value: &DeValue<'_>) -> Result<CallTemplate, String> {
    CallTemplate::parse(&text(value)?).map_err(|error| error.to_string())
}

pub(super) fn headers(value: &DeValue<'_>) -> Result<Vec<HeaderName>, String> {
    let name = |name: String| {
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not a header name"))
    };
    texts(value)?.into_iter().map(name).collect()
}

/// `key = { header = "…" | json = "…" | content = { exclude = […] } | route = "…", required = true, … }`
fn key(
    table: &mut Table<'_>,
    mut route: PolicyBuilder,
    profile: &Profile,
    key_headers: &mut Vec<HeaderName>,
) -> PolicyBuilder {
    let problems = table.problems();
    let Some(mut key) = table.table("key") else { return route };
    let span = key.span();
    let said = |result: Result<KeySource, semel_http::PolicyError>| result.map_err(|error| error.to_string());
    let header = key.get("header", |value| said(KeySource::header(&text(value)?)));
    let json = key.get("json", |value| said(KeySource::json(&text(value)?)));
    let template = key.get("route", |value| Ok(KeySource::route(&text(value)?)));
    let content = key.table("content").and_then(|mut content| {
        let exclude = content.get("exclude", texts).unwrap_or_default();
        content.done();
        match KeySource::content(&exclude) {
            Ok(source) => Some(source),
            Err(error) => {
                problems.at(&span, format!("key: {error}"));
                None
            }
        }
    });
    let required = match key.get("required", switch) {
        Some(true) => KeyRequired::Required,
        Some(false) | None => KeyRequired::Optional,
    };
    let (min, max) = (key.get("min_length", count(1, 1_024)), key.get("max_length", count(1, 1_024)));
    if let (Some(min), Some(max)) = (min.or(max.map(|_| 1)), max.or(min.map(|_| 255))) {
        route = route.key_length(min, max);
    }
    // For mode keyed: the header of the derived key, and the provider that it is derived for.
    let derived = key.get("derived_header", |value| {
        let name = text(value)?;
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not a header name"))
    });
    let provider = key.get("provider", text);
    key.done();
    let mut sources = [header, json, template, content].into_iter().flatten();
    match (sources.next(), sources.next()) {
        (_, Some(_)) => problems.at(&span, "key: expected only one of header, json, content, route"),
        (Some(source), None) => {
            if let KeySource::Header(name) = &source
                && !key_headers.contains(name)
            {
                key_headers.push(name.clone());
            }
            route = route.key(source, required);
        }
        (None, None) => route = route.required(required),
    }
    if derived.is_some() || provider.is_some() {
        let header = derived.unwrap_or_else(|| profile.key_header.clone());
        route = route.derived_key(header, provider.unwrap_or_else(|| "upstream".to_owned()));
    }
    route
}

/// `probe = "GET /by-key/{key}"`; `probe_absent` is the meaning of its 404.
fn probe(table: &mut Table<'_>, route: PolicyBuilder, mode: Mode) -> PolicyBuilder {
    let absent = table.located("probe_absent", choice(&[("unknown", Absent::Unknown), ("run", Absent::Run)]));
    let Some(call) = table.get("probe", call) else {
        if let Some(absent) = absent {
            table
                .problems()
                .at(&absent.span, "probe_absent: says what a 404 of `probe` means, and there is no probe");
        }
        return route;
    };
    // A second call is safe only if the upstream honours the key that it gets.
    let usual = if mode == Mode::Keyed { Absent::Run } else { Absent::Unknown };
    route.probe(Probe { call, absent: absent.map_or(usual, |absent| absent.value) })
}

/// `fingerprint = "exact" | "json"`, its excluded members, and its headers.
fn fingerprint(table: &mut Table<'_>, mut route: PolicyBuilder, usual: &HeaderRules) -> PolicyBuilder {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        Exact,
        Json,
    }
    let problems = table.problems();
    let word = table.get("fingerprint", choice(&[("exact", Word::Exact), ("json", Word::Json)]));
    let exclude = table.located("fingerprint_exclude", texts);
    match (word, exclude) {
        (Some(Word::Json), exclude) => {
            let (pointers, span) =
                exclude.map_or_else(|| (Vec::new(), table.span()), |exclude| (exclude.value, exclude.span));
            match Exclusions::new(&pointers) {
                Ok(exclusions) => route = route.fingerprint(Fingerprinting::Json(exclusions)),
                Err(error) => problems.at(&span, format!("fingerprint_exclude: {error}")),
            }
        }
        (_, Some(exclude)) => {
            problems.at(
                &exclude.span,
                "fingerprint_exclude: leaves members of JSON out, so it needs fingerprint = \"json\"",
            );
        }
        (Some(Word::Exact), None) => route = route.fingerprint(Fingerprinting::Exact),
        (None, None) => {}
    }
    let compared = table.get("fingerprint_headers", headers).unwrap_or_default();
    let except = table.get("fingerprint_headers_exclude", headers).unwrap_or_default();
    let mut rules = usual.clone().comparing(compared, &except);
    rules.strip = table.get("strip_headers", headers).unwrap_or(rules.strip);
    route.headers(rules).uncompared(except)
}

/// `limits = { writes = { per_second = 10, burst = 100 }, reads = { … } }`
fn limits(table: &mut Table<'_>) -> Option<InsertLimits> {
    let mut limits = table.table("limits")?;
    let mut rate = |name| {
        let Some(mut rate) = limits.table(name) else {
            limits.need(name, |_| Ok(()));
            return None;
        };
        let most = u64::from(u32::MAX);
        let (per_second, burst) =
            (rate.need("per_second", count(1, most)), rate.need("burst", count(1, most)));
        rate.done();
        Some(Rate { per_second: per_second?, burst: burst? })
    };
    let (writes, reads) = (rate("writes"), rate("reads"));
    limits.done();
    Some(InsertLimits { writes: writes?, reads: reads? })
}
