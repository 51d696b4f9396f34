//! The gateway: its listener, its upstreams, and the dialect of its clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use semel_http::capacity::CapacityLimits;
use semel_http::edge::{self, ClientTimeouts, EdgeLimits};
use semel_http::guard::Unmatched;
use semel_http::policy::{Ambiguous, OnDoubt, StoreDown};
use semel_http::proxy::{Forwarded, Host, Protocol, ProxyOptions, Upstream};
use semel_http::scope::VerifierBuilder;
use semel_http::{Codec, KeyedTools, Profile, RoutePolicy, Scope};

use super::certificate::Certificate;
use super::loopback;
use super::problem::{Problems, meant};
use super::reader::Table;
use super::routes::{self, Routes, Usual};
use super::secrets::{self, Environment};
use super::values::{
    address, choice, count, duration, one_or_several, parse_address, size, switch, text, texts,
};
use crate::cli::ServeArgs;

/// The settings of the gateway.
#[derive(Debug)]
pub(crate) struct GatewayConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: Upstream,
    /// Upstreams of routes, by the text in the file.
    pub(crate) upstreams: Vec<(String, Upstream)>,
    pub(crate) proxy: ProxyOptions,
    pub(crate) profile: Profile,
    pub(crate) scope: Scope,
    pub(crate) namespace: String,
    pub(crate) routes: Vec<RoutePolicy>,
    /// Every header that carries a key.
    pub(crate) key_headers: Vec<HeaderName>,
    pub(crate) fallback: RoutePolicy,
    pub(crate) tls: Option<Certificate>,
    pub(crate) limits: EdgeLimits,
    pub(crate) capacity: CapacityLimits,
    pub(crate) unmatched: Unmatched,
    /// The hosts that requests may be for; empty for any.
    pub(crate) hosts: Vec<String>,
    /// The protocols that connections may be upgraded to.
    pub(crate) upgrades: Vec<String>,
    /// Headers that the upstream trusts.
    pub(crate) trusted_headers: Vec<HeaderName>,
    pub(crate) timeouts: ClientTimeouts,
}

pub(super) const STORE_DOWN: [(&str, StoreDown); 2] =
    [("closed", StoreDown::Closed), ("open", StoreDown::Open)];

pub(super) const AMBIGUOUS: [(&str, Ambiguous); 2] =
    [("refuse", Ambiguous::Refuse), ("allow", Ambiguous::Allow)];

impl GatewayConfig {
    /// Reads the settings; `None` without an upstream.
    pub(super) fn read(
        root: &mut Table<'_>,
        args: &ServeArgs,
        environment: &Environment<'_>,
    ) -> Option<Self> {
        let problems = root.problems();
        let written = root.table("gateway");
        let is_written = written.is_some();
        let mut table = written.unwrap_or_else(|| Table::empty("[gateway]", problems));

        let listen = flag(args.listen.as_deref(), "--listen", problems, parse_address)
            .or(table.get("listen", address))
            .unwrap_or_else(|| loopback(8080));
        let parse = |text: &str| text.parse::<Upstream>().map_err(|error| error.to_string());
        let from_file = table.get("upstream", |value| parse(&text(value)?));
        let upstream = flag(args.upstream.as_deref(), "--upstream", problems, parse).or(from_file);
        let profile = flag(args.profile.as_deref(), "--profile", problems, profile)
            .or(table.get("profile", |value| profile(&text(value)?)))
            .unwrap_or_default();
        let mut profile = tools(&mut table, profile);
        if let Some(link) = table.get("documentation", documentation) {
            profile.documentation = (!link.is_empty()).then(|| link.into());
        }
        let scope = scope(&mut table, args, environment, &profile);
        let namespace = table.get("namespace", text).unwrap_or_else(|| "http".to_owned());
        let store_down = table.get("store_down", choice(&STORE_DOWN)).unwrap_or(StoreDown::Closed);
        let ambiguous = table.get("ambiguous", choice(&AMBIGUOUS)).unwrap_or_default();
        let ignore_case = table.get("ignore_case", switch).unwrap_or(false);
        let unmatched = [("fallback", Unmatched::Fallback), ("deny", Unmatched::Deny)];
        let unmatched = table.get("unmatched", choice(&unmatched)).unwrap_or_default();
        let hosts = table.get("hosts", hosts).unwrap_or_default();
        let upgrades =
            table.get("upgrades", upgrades).unwrap_or_else(|| edge::EdgeOptions::default().upgrades);
        let mut trusted_headers = edge::usually_trusted();
        trusted_headers.extend(table.get("trusted_headers", routes::headers).unwrap_or_default());
        let tls = Certificate::read(&mut table);
        let proxy = proxy(&mut table, &profile);
        let (limits, capacity) = limits(&mut table);
        let (timeouts, proxy) = read_timeouts(&mut table, proxy);
        let span = table.span();
        table.done();

        let mut usual = Usual::new(&profile, store_down, proxy.host);
        (usual.ambiguous, usual.ignore_case) = (ambiguous, ignore_case);
        usual.upstream.clone_from(&upstream);
        let Routes { policies: routes, upstreams, key_headers } = routes::read(root, &usual);
        // Headers that identify accounts must reach the upstream as they were compared.
        let scopes = scope.iter().chain(routes.iter().filter_map(RoutePolicy::scope));
        trusted_headers.extend(scopes.flat_map(Scope::headers).cloned());
        trusted_headers.extend(routes.iter().flat_map(RoutePolicy::also_compared));
        let fallback = usual.builder("* /**").build();
        let fallback = fallback.map_err(|error| problems.at(&span, error.to_string())).ok();
        if upstream.is_none() {
            let asked_for = args.listen.is_some() || args.profile.is_some() || args.scope.is_some();
            if is_written || !routes.is_empty() {
                problems.at(
                    &span,
                    "[gateway] needs `upstream`, as in \"http://127.0.0.1:3000\", or --upstream URL",
                );
            } else if asked_for {
                problems.flag("--upstream", "is required by the other gateway flags");
            }
        }
        Some(Self {
            listen,
            upstream: upstream?,
            upstreams,
            proxy,
            profile,
            scope: scope?,
            namespace,
            routes,
            key_headers,
            fallback: fallback?,
            tls,
            limits,
            capacity,
            unmatched,
            hosts,
            upgrades,
            trusted_headers,
            timeouts,
        })
    }

    /// The longest retention of all routes.
    pub(super) fn longest_retention(&self) -> Duration {
        let routes = self.routes.iter().chain([&self.fallback]);
        routes.map(|route| route.terms().retention).max().unwrap_or_default()
    }

    /// Warnings about settings that weaken a promise.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let routes =
            self.routes.iter().filter_map(|route| Some((format!("{}: ", route.pattern()), route.scope()?)));
        let scopes = [(String::new(), &self.scope)].into_iter().chain(routes);
        let mut warn = |text: String| warnings.push(text);
        if matches!(self.scope, Scope::SingleTenant) {
            warn("scope = \"single-tenant\": all clients are one principal, so a client that sends another's key and \
                  request gets the other's answer"
                .to_owned());
        }
        if self.tls.is_none() && !self.listen.ip().is_loopback() {
            warn(format!(
                "the gateway listens on {} without TLS: others on the network can read keys, credentials and answers",
                self.listen
            ));
        }
        for (place, scope) in scopes {
            if scope.is_freely_chosen() {
                warn(format!(
                    "{place}scope = \"{scope}\": clients can choose its value, so a client that sends another's value, key \
                     and request gets the other's answer; add \"authorization\" as the first part, or let a proxy in front \
                     set it"
                ));
            }
            if scope.takes_any_token() {
                warn(format!(
                    "{place}scope = \"{scope}\": every token that one of the keys has signed is accepted, even one for \
                     another service; set `issuer` or `audience` in `jwt`"
                ));
            }
        }
        for route in self.routes.iter().chain([&self.fallback]) {
            let pattern = route.pattern();
            if !route.uncompared().is_empty() {
                let names: Vec<&str> = route.uncompared().iter().map(HeaderName::as_str).collect();
                warn(format!(
                    "{pattern}: fingerprint_headers_exclude: requests that differ only in {} share one answer",
                    names.join(", ")
                ));
            }
            if route.store_down() == StoreDown::Open {
                warn(format!(
                    "{pattern}: store_down = \"open\": while the store is unavailable, requests are unprotected and retries \
                     run again"
                ));
            }
            if route.on_doubt() == OnDoubt::Release {
                warn(format!(
                    "{pattern}: on_doubt = \"release\": a call with an unknown result is executed again, which means at least \
                     once"
                ));
            }
            match route.terms().mode {
                semel::Mode::Rerun => warn(format!(
                    "{pattern}: mode = \"rerun\": a call whose owner was lost is executed again, which means at least once"
                )),
                semel::Mode::Keyed => warn(format!(
                    "{pattern}: mode = \"keyed\": one effect only if the upstream honours the derived key that it gets"
                )),
                semel::Mode::Marked | semel::Mode::Atomic => {}
            }
        }
        warnings
    }
}

/// A flag's value, checked.
fn flag<T>(
    given: Option<&str>,
    name: &str,
    problems: &Problems<'_>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    match parse(given?) {
        Ok(value) => Some(value),
        Err(expected) => {
            problems.flag(name, expected);
            None
        }
    }
}

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).ok_or_else(|| {
        let hint = meant(name, Profile::NAMES.iter().copied())
            .map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
        format!("expected one of {}, found {name:?}{hint}", Profile::NAMES.join(", "))
    })
}

/// `tools = ["create_media_buy"]`: the tools that need a key, for profiles with tool calls. Every call with a key is guarded.
fn tools(table: &mut Table<'_>, mut profile: Profile) -> Profile {
    let Some(given) = table.located("tools", texts) else { return profile };
    match &mut profile.codec {
        Codec::Mcp { tools } => *tools = KeyedTools::Named(given.value),
        _ => table.problems().at(
            &given.span,
            format!("tools: is for profiles with tool calls, and {:?} has none", profile.name),
        ),
    }
    profile
}

/// The scope, with the keys that verify a JWT. The flag separates parts with commas.
fn scope(
    table: &mut Table<'_>,
    args: &ServeArgs,
    environment: &Environment<'_>,
    profile: &Profile,
) -> Option<Scope> {
    let problems = table.problems();
    let verifier = verifier(table, environment);
    let written = table.located("scope", one_or_several);
    let (parts, place) = match (&args.scope, written) {
        (Some(flag), _) => (flag.split(',').map(str::to_owned).collect(), None),
        (None, Some(written)) => (written.value, Some(written.span)),
        (None, None) => (Vec::new(), None),
    };
    if verifier.is_some() && !parts.iter().any(|part| part.starts_with("jwt:")) {
        let scope = if parts.is_empty() { profile.scope().to_string() } else { parts.join(",") };
        problems.at(
            &table.span(),
            format!("jwt: is not used, because scope is {scope:?}; set scope = \"jwt:sub\""),
        );
    }
    if parts.is_empty() && args.scope.is_none() && place.is_none() {
        return Some(profile.scope());
    }
    match Scope::parse_parts(&parts, verifier) {
        Ok(scope) => Some(scope),
        Err(error) => {
            match place {
                Some(span) => problems.at(&span, format!("scope: {error}")),
                None => problems.flag("--scope", error.to_string()),
            }
            None
        }
    }
}

fn verifier(table: &mut Table<'_>, environment: &Environment<'_>) -> Option<VerifierBuilder> {
    let mut jwt = table.table("jwt")?;
    let file = |value: &toml::de::DeValue<'_>| {
        let path = text(value)?;
        std::fs::read(&path).map_err(|error| format!("{path}: {error}"))
    };
    let mut verifier = VerifierBuilder::new();
    if let Some(jwks) = jwt.get("jwks", file) {
        verifier = verifier.jwks(&jwks);
    }
    if let Some((secret, _)) = secrets::read(&mut jwt, "secret", environment) {
        verifier = verifier.secret(secret.as_bytes());
    }
    if let Some(issuer) = jwt.get("issuer", text) {
        verifier = verifier.issuer(&issuer);
    }
    if let Some(audience) = jwt.get("audience", text) {
        verifier = verifier.audience(&audience);
    }
    jwt.done();
    Some(verifier)
}

/// A URL, a path of the API, or `""` for none.
fn documentation(value: &toml::de::DeValue<'_>) -> Result<String, String> {
    let link = text(value)?;
    let known = ["/", "http://", "https://"].iter().any(|start| link.starts_with(start));
    let sound = known && link.parse::<http::Uri>().is_ok() && !link.contains(['<', '>', '"']);
    if sound || link.is_empty() {
        return Ok(link);
    }
    Err(format!(
        "{link:?} is not a link: write \"https://docs.example.com/idempotency\", a path, or \"\" for none"
    ))
}

fn proxy(table: &mut Table<'_>, profile: &Profile) -> ProxyOptions {
    let mut proxy = ProxyOptions { host: profile.host, ..ProxyOptions::default() };
    let protocols = [("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)];
    proxy.protocol = table.get("upstream_protocol", choice(&protocols)).unwrap_or(proxy.protocol);
    proxy.ca = table.get("upstream_ca", text).map(PathBuf::from);
    let hosts = [("upstream", Host::Upstream), ("client", Host::Client)];
    proxy.host = table.get("host", choice(&hosts)).unwrap_or(proxy.host);
    let forwarded =
        [("replace", Forwarded::Replace), ("append", Forwarded::Append), ("remove", Forwarded::Remove)];
    proxy.forwarded = table.get("forwarded", choice(&forwarded)).unwrap_or(proxy.forwarded);
    proxy.via = table.get("via", text);
    proxy
}

fn limits(table: &mut Table<'_>) -> (EdgeLimits, CapacityLimits) {
    let (mut limits, mut capacity) = (EdgeLimits::default(), CapacityLimits::default());
    let Some(mut table) = table.table("limits") else { return (limits, capacity) };
    limits.connections = table.get("connections", count(1, 1_000_000)).unwrap_or(limits.connections);
    limits.streams = table.get("streams", count(1, 10_000)).unwrap_or(limits.streams);
    limits.headers = table.get("headers", count(1, 10_000)).unwrap_or(limits.headers);
    limits.head_bytes = table.get("head", size).unwrap_or(limits.head_bytes);
    limits.target_bytes = table.get("target", size).unwrap_or(limits.target_bytes);
    limits.body_bytes = table.get("body", size).unwrap_or(limits.body_bytes);
    capacity.calls = table.get("calls", count(1, 1_000_000)).unwrap_or(capacity.calls);
    capacity.calls_per_upstream =
        table.get("calls_per_upstream", count(1, 1_000_000)).unwrap_or(capacity.calls_per_upstream);
    capacity.buffered_bytes = table.get("buffered", buffered).unwrap_or(capacity.buffered_bytes);
    table.done();
    (limits, capacity)
}

/// Names or addresses, with or without a port.
fn hosts(value: &toml::de::DeValue<'_>) -> Result<Vec<String>, String> {
    let sound = |host: String| match host.parse::<http::uri::Authority>() {
        Ok(authority) if authority.as_str() == host && !host.contains('@') => Ok(host),
        _ => Err(format!("{host:?} is not a host: write \"api.example.com\" or \"127.0.0.1:8080\"")),
    };
    texts(value)?.into_iter().map(sound).collect()
}

/// Names of protocols. HTTP/2 is not allowed: in a tunnel, its requests would bypass every policy.
fn upgrades(value: &toml::de::DeValue<'_>) -> Result<Vec<String>, String> {
    let sound = |protocol: String| {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(&byte);
        let name = protocol.to_ascii_lowercase();
        if name == "h2c" || name == "h2" || name.starts_with("http") {
            Err(format!(
                "{protocol:?} would let requests bypass every policy; clients can speak HTTP/2 without it"
            ))
        } else if protocol.bytes().all(is_name) {
            Ok(protocol)
        } else {
            Err(format!("{protocol:?} is not the name of one protocol, such as \"websocket\""))
        }
    };
    texts(value)?.into_iter().map(sound).collect()
}

/// Maximum size of request bodies in memory. With less than a small body, nearly every request would be refused.
fn buffered(value: &toml::de::DeValue<'_>) -> Result<u64, String> {
    const LEAST: u64 = 64 << 10;
    match size(value)? {
        bytes if bytes < LEAST => Err(format!("expected at least \"64KiB\", found {bytes} bytes")),
        bytes => Ok(bytes),
    }
}

fn read_timeouts(table: &mut Table<'_>, mut proxy: ProxyOptions) -> (ClientTimeouts, ProxyOptions) {
    let mut timeouts = ClientTimeouts::default();
    let Some(mut table) = table.table("timeouts") else { return (timeouts, proxy) };
    let mut set = |key, place: &mut Duration| {
        if let Some(length) = table.get(key, duration) {
            *place = length;
        }
    };
    set("head", &mut timeouts.head);
    set("body", &mut timeouts.body);
    set("idle", &mut timeouts.idle);
    set("write", &mut timeouts.write);
    set("tunnel", &mut proxy.tunnel);
    set("connect", &mut proxy.connect);
    set("read", &mut proxy.read);
    proxy.total = table.get("total", duration);
    table.done();
    (timeouts, proxy)
}
