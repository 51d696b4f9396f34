//! `[[target]]`: the receivers of events.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel_client::client::ClientBuildError;
use semel_client::retry::{Destinations, Limits, Retry};
use semel_pipeline::target::{
    EventTypes, Exhausted, HttpOptions, HttpTarget, HttpTargetError, Policy, SigningSecret, Targets,
};

use super::reader::{Located, Table};
use super::secrets::{self, Environment};
use super::transport;
use super::values::{choice, count, duration, duration_list, switch, text, texts};

const ON_EXHAUSTED: [(&str, Exhausted); 2] = [("dlq", Exhausted::Dlq), ("blocked", Exhausted::Blocked)];
/// Default number of attempts of a round.
const ATTEMPTS: u32 = 3;
/// Maximum number of pauses in a schedule, and maximum length of one.
const SCHEDULE: (usize, Duration) = (100, Duration::from_secs(30 * 24 * 60 * 60));

/// A validated target of the file.
#[derive(Clone, Debug)]
pub(crate) struct TargetConfig {
    pub(crate) name: String,
    target: Arc<HttpTarget>,
    events: EventTypes,
    policy: Policy,
    pub(super) security: Security,
}

/// The security properties of a target.
#[derive(Clone, Debug)]
pub(super) struct Security {
    /// The host, if the connection leaves the machine without TLS.
    pub(super) plain_host: Option<String>,
    /// True if deliveries are signed or carry a token.
    pub(super) authenticated: bool,
    pub(super) allow_link_local: bool,
}

/// The targets for the delivery loop.
///
/// # Errors
/// Never for targets of a file: their names were checked.
pub(crate) fn targets(read: &[TargetConfig], destinations: &Destinations) -> anyhow::Result<Targets> {
    read.iter().try_fold(Targets::new(), |targets, target| {
        let TargetConfig { name, target, events, policy, security: _ } = target;
        let with = targets.with(name, Arc::clone(target) as _, events.clone(), policy.clone(), destinations);
        Ok(with?)
    })
}

/// Reads all `[[target]]`s. `max_crashes` applies to all of them.
pub(super) fn read(
    root: &mut Table<'_>,
    max_crashes: u32,
    environment: &Environment<'_>,
) -> Vec<TargetConfig> {
    let problems = root.problems();
    let mut targets: Vec<TargetConfig> = Vec::new();
    for mut table in root.tables("target") {
        let name = table.need_located("name", name);
        let url = table.need_located("url", text);
        let events =
            table.get("events", |value| EventTypes::new(&texts(value)?).map_err(|error| error.to_string()));
        let policy = policy(&mut table, max_crashes);
        let secret = signing_secret(&mut table, environment);
        let bearer = secrets::read(&mut table, "bearer", environment);
        let ca = table.get("ca", text).map(PathBuf::from);
        let allow_link_local = table.get("allow_link_local", switch).unwrap_or_default();
        table.done();
        let (Some(name), Some(url)) = (name, url) else { continue };
        if targets.iter().any(|other| other.name == name.value) {
            let taken =
                format!("name: {:?} is taken by another target; deliveries are stored by name", name.value);
            problems.at(&name.span, taken);
            continue;
        }
        let plain_host =
            url.value.starts_with("http:").then(|| transport::hosts(&url.value)).into_iter().flatten();
        let security = Security {
            plain_host: plain_host.into_iter().find(|host| !transport::is_local(host)),
            authenticated: secret.is_some() || bearer.is_some(),
            allow_link_local,
        };
        let options = HttpOptions {
            secret,
            ca,
            allow_link_local,
            connections: usize::try_from(policy.concurrency).unwrap_or(usize::MAX),
            timeout: Some(policy.timeout),
        };
        // The URL is not repeated, because its query may contain a token.
        match HttpTarget::new(&url.value, bearer.as_ref().map(|(token, _)| token.as_str()), options) {
            Ok(target) => targets.push(TargetConfig {
                name: name.value,
                target: Arc::new(target),
                events: events.unwrap_or_else(EventTypes::all),
                policy,
                security,
            }),
            Err(HttpTargetError::Build(ClientBuildError::LinkLocal)) => problems.at(
                &url.span,
                format!(
                    "url: {}; if this is intended, set allow_link_local = true",
                    ClientBuildError::LinkLocal
                ),
            ),
            Err(error) => problems.at(&url.span, format!("url: {error}")),
        }
    }
    targets
}

fn name(value: &toml::de::DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let fits = name.len() <= 100
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if fits {
        Ok(name)
    } else {
        Err(format!("expected letters, digits, `.`, `_` or `-`, at most 100, found {name:?}"))
    }
}

fn policy(table: &mut Table<'_>, max_crashes: u32) -> Policy {
    let mut policy = Policy { max_crashes, ..Policy::default() };
    policy.on_exhausted = table.get("on_exhausted", choice(&ON_EXHAUSTED)).unwrap_or(policy.on_exhausted);
    policy.concurrency = table.get("concurrency", count(1, 10_000)).unwrap_or(policy.concurrency);
    policy.schedule = table.get("schedule", schedule).unwrap_or(policy.schedule);
    let problems = table.problems();
    let mut retry = table.table("retry").unwrap_or_else(|| Table::empty("[target.retry]", problems));
    let attempts = retry.get("max_attempts", count(1, 1_000)).unwrap_or(ATTEMPTS);
    let base = retry.located("base", duration);
    let cap = retry.located("cap", duration);
    let timeout = retry.located("timeout", duration);
    retry.done();
    let zero = |found: &Option<Located<Duration>>, name: &str| {
        if let Some(found) = found.as_ref().filter(|found| found.value.is_zero()) {
            problems.at(&found.span, format!("{name}: expected a value above 0"));
        }
    };
    zero(&base, "base");
    zero(&timeout, "timeout");
    let value = |found: Option<Located<Duration>>, usual: Duration| found.map_or(usual, |found| found.value);
    let span: Option<Range<usize>> = cap.as_ref().map(|cap| cap.span.clone());
    let (base, cap) = (value(base, Duration::from_millis(250)), value(cap, Duration::from_secs(5)));
    if cap < base {
        let why = "cap: expected at least `base`, since it is the longest pause";
        problems.at(&span.unwrap_or_else(|| table.span()), why);
    }
    policy.timeout = value(timeout, policy.timeout);
    policy.retry = Retry::default().attempts(attempts).base(base).cap(cap).timeout(policy.timeout);
    policy.limits = Some(breaker(table));
    policy
}

/// The pauses between the rounds of a delivery.
fn schedule(value: &toml::de::DeValue<'_>) -> Result<Vec<Duration>, String> {
    let (most, longest) = SCHEDULE;
    let pauses = duration_list(value)?;
    if pauses.len() > most {
        return Err(format!("expected at most {most} pauses, found {}", pauses.len()));
    }
    if pauses.iter().any(|pause| pause.is_zero() || *pause > longest) {
        return Err("expected pauses above 0s and of at most \"30d\"".to_owned());
    }
    Ok(pauses)
}

/// The circuit breaker of the target. Missing settings have their defaults, also after a reload.
fn breaker(table: &mut Table<'_>) -> Limits {
    let usual = Limits::default();
    let problems = table.problems();
    let Some(mut breaker) = table.table("breaker") else { return usual };
    let percent = breaker.get("failure_percent", count(1, 100));
    let calls = breaker.get("failure_calls", count(1, 1_000_000));
    let probes = breaker.get("probes", count(1, 1_000));
    let window = breaker.located("window", duration);
    let rest = breaker.located("rest", duration);
    let longest = breaker.located("longest_rest", duration);
    let span = breaker.span();
    breaker.done();
    for (found, name) in [(&window, "window"), (&rest, "rest"), (&longest, "longest_rest")] {
        if let Some(found) = found.as_ref().filter(|found| found.value.is_zero()) {
            problems.at(&found.span, format!("{name}: expected a value above 0"));
        }
    }
    let rested = rest.as_ref().map_or(usual.rest, |rest| rest.value);
    let at = longest.as_ref().or(rest.as_ref()).map_or(span, |found| found.span.clone());
    // Without `longest_rest`, a long `rest` is also the longest one.
    let longest = longest.map_or(usual.longest_rest.max(rested), |longest| longest.value);
    if longest < rested {
        let why = "longest_rest: expected at least `rest`, which doubles with every failed probe";
        problems.at(&at, why);
    }
    Limits {
        window: window.map_or(usual.window, |window| window.value),
        failure_percent: percent.unwrap_or(usual.failure_percent),
        failure_calls: calls.unwrap_or(usual.failure_calls),
        rest: rested,
        longest_rest: longest,
        probes: probes.unwrap_or(usual.probes),
        ..usual
    }
}

/// The secret that signs deliveries, validated when it is read. It is never repeated.
fn signing_secret(table: &mut Table<'_>, environment: &Environment<'_>) -> Option<SigningSecret> {
    let (secret, span) = secrets::read(table, "secret", environment)?;
    match SigningSecret::parse(&secret) {
        Ok(secret) => Some(secret),
        Err(error) => {
            table.problems().at(&span, format!("secret: {error}"));
            None
        }
    }
}
