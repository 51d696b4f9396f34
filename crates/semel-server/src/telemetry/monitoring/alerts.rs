//! The alert rules. docs/howto/alerts.md has a section for each of them: what it means, how to look closer, and what to do.

use std::fmt::Write as _;

use semel_http::observe::AnswerOutcome;
use semel_pipeline::letter::Status;
use serde::Serialize;
use serde_json::json;

use crate::telemetry::metrics::definitions as metric;
use crate::telemetry::metrics::definitions::Metric;

/// How quickly a person must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Now: requests are refused, or data is at risk.
    Critical,
    /// Today.
    Warning,
    /// It is a hint about clients or settings.
    Info,
}

/// An alert rule.
#[derive(Debug, Serialize)]
pub(crate) struct Alert {
    pub(crate) name: &'static str,
    pub(crate) severity: Severity,
    /// How long the condition holds before the alert fires.
    #[serde(rename = "for")]
    pub(crate) hold: &'static str,
    pub(crate) expr: String,
    pub(crate) summary: &'static str,
}

impl Alert {
    /// The heading of its section as an anchor.
    pub(crate) fn anchor(&self) -> String {
        self.name.to_lowercase()
    }
}

/// All alert rules.
pub(crate) fn alerts() -> Vec<Alert> {
    use Severity::{Critical, Info, Warning};
    let alert = |name, severity, hold, expr, summary| Alert { name, severity, hold, expr, summary };
    let (won, replayed) = (rate_of_signal("won"), rate_of_signal("replayed"));
    vec![
        alert(
            "SemelAbsent",
            Critical,
            "5m",
            format!("absent({})", metric::BUILD_INFO),
            "Prometheus sees no Semel server.",
        ),
        alert(
            "SemelRestarting",
            Warning,
            "0m",
            of_semel(&format!("changes({}[15m]) > 2", metric::PROCESS_START)),
            "A server was started more than twice within 15 minutes.",
        ),
        alert(
            "SemelStoreUnavailable",
            Critical,
            "1m",
            format!("{} == 0", metric::STORE_UP),
            "The store does not answer claims. Guarded requests get 503, or pass unprotected where store_down is open.",
        ),
        alert(
            "SemelOutage",
            Warning,
            "1m",
            format!("min by (job, store) ({}) == 0", metric::STORE_AVAILABLE),
            "{{ $labels.store }} is unavailable: a store, a ledger, a buffer or a source.",
        ),
        alert(
            "SemelUnprotectedRequests",
            Critical,
            "0m",
            grew(&metric::REQUESTS, Some(("outcome", AnswerOutcome::Unprotected.name()))),
            "Requests with a key passed without protection, because the store was unavailable and store_down is open.",
        ),
        alert(
            "SemelStoreLostData",
            Critical,
            "0m",
            format!("{} == 1", metric::STORE_LOST_DATA),
            "The Redis server returned with less data. Keys may run again.",
        ),
        alert(
            "SemelStoreFull",
            Critical,
            "0m",
            format!("{} == 1", metric::STORE_FULL),
            "The store has reached max_bytes. New keys are refused with 503.",
        ),
        alert(
            "SemelStoreNearlyFull",
            Warning,
            "15m",
            format!("{} / {} > 0.75", metric::STORE_BYTES, metric::STORE_MAX_BYTES),
            "The store has used three quarters of max_bytes. New keys are refused from seven eighths on.",
        ),
        alert(
            "SemelNewKeysRefused",
            Warning,
            "0m",
            grew(&metric::NEW_KEYS_REFUSED, None),
            "New keys were refused by max_bytes or new_keys_per_second.",
        ),
        alert(
            "SemelKeysInDoubt",
            Warning,
            "5m",
            format!("max by (job) ({}) > 0", metric::IN_DOUBT_KEYS),
            "{{ $value }} keys are in doubt. Their requests are refused until an operator settles them.",
        ),
        alert(
            "SemelOutcomesNotStored",
            Critical,
            "0m",
            grew(&metric::EVENTS, Some(("event", "complete_failed"))),
            "An effect happened and its outcome could not be stored.",
        ),
        alert(
            "SemelCallsRefused",
            Warning,
            "5m",
            format!(
                "{} or {}",
                grew(&metric::GATEWAY_CALLS_REFUSED, None),
                grew(&metric::GATEWAY_BODIES_REFUSED, None)
            ),
            "The gateway refuses requests at its limits on calls and bodies.",
        ),
        alert(
            "SemelReplayRateHigh",
            Info,
            "1h",
            format!("{replayed} / ({won} + {replayed}) > 0.05"),
            "More than 5 % of all calls were answered from the record. Clients retry too eagerly or time out too early.",
        ),
        alert(
            "SemelReplayRateZero",
            Info,
            "24h",
            format!("{replayed} == 0 and {won} > 0.1"),
            "No call was answered from the record for a day. The keys may differ between retries.",
        ),
        alert(
            "SemelCredentialsRotate",
            Warning,
            "0m",
            format!("increase({}[1h]) > 0", metric::ROTATED_CREDENTIALS),
            "Requests ran whose key and payload another credential had sent before.",
        ),
        alert(
            "SemelDeadLetters",
            Warning,
            "5m",
            format!("max by (job) ({}{{status=\"{}\"}}) > 0", metric::DEAD_LETTERS, Status::Pending.as_str()),
            "{{ $value }} dead letters wait for a decision.",
        ),
        alert(
            "SemelDeliveriesLate",
            Warning,
            "5m",
            format!("max by (job) ({}) > 300", metric::OLDEST_DUE),
            "A delivery has been due for more than five minutes.",
        ),
        alert(
            "SemelBreakerOpen",
            Warning,
            "5m",
            format!("{}{{state=\"open\"}} == 1", metric::BREAKER_STATE),
            "The circuit breaker of the target {{ $labels.target }} is open. Its deliveries wait.",
        ),
        alert(
            "SemelTargetPaused",
            Info,
            "1h",
            format!("max by (job, target) ({}) == 1", metric::TARGET_PAUSED),
            "The target {{ $labels.target }} has been paused for more than an hour. Its deliveries wait.",
        ),
        alert(
            "SemelBufferLate",
            Warning,
            "5m",
            format!("max by (job) ({}) > 120", metric::BUFFER_OLDEST),
            "A run has been in the buffer for more than two minutes.",
        ),
        alert(
            "SemelBufferLostData",
            Critical,
            "0m",
            format!("{} == 1", metric::BUFFER_LOST_DATA),
            "The Redis server of the buffer returned with less data. Runs that were answered with 202 may be lost.",
        ),
        alert(
            "SemelRunsLost",
            Critical,
            "0m",
            format!(
                "{} or {}",
                grew(&metric::TRIGGER_CLAIMS, Some(("outcome", "lost"))),
                grew(&metric::BUFFER_DRAINED, Some(("outcome", "collided")))
            ),
            "Redis lost a run, or a buffered run lost its key to another one.",
        ),
        alert(
            "SemelClaimsFailOpen",
            Warning,
            "0m",
            grew(&metric::TRIGGER_CLAIMS, Some(("outcome", "failed_open"))),
            "Triggers went on without a claim, because Redis was unavailable. The ledger decides alone.",
        ),
        alert(
            "SemelSourceFailing",
            Warning,
            "10m",
            grew(&metric::SOURCE_MESSAGES, Some(("outcome", "failure"))),
            "Messages of the stream {{ $labels.stream }} cannot be read or accepted.",
        ),
        alert(
            "SemelRunWaitersRefused",
            Warning,
            "0m",
            grew(&metric::RUN_WAITERS_REFUSED, None),
            "Callers of ?wait=true were refused, because too many were waiting.",
        ),
        alert(
            "SemelReloadRefused",
            Warning,
            "0m",
            grew(&metric::RELOADS, Some(("result", "refused"))),
            "A server refused to reload its configuration and runs with the old one.",
        ),
        alert(
            "SemelLoginsThrottled",
            Warning,
            "0m",
            grew(&metric::LOGINS_REFUSED, Some(("reason", "throttled"))),
            "An address sent many wrong tokens to the admin API.",
        ),
        alert(
            "SemelConnectionsClosed",
            Warning,
            "0m",
            grew(&metric::CONNECTIONS_CLOSED, None),
            "The listener {{ $labels.listener }} closed waiting connections at its limit.",
        ),
        alert(
            "SemelDescriptorsScarce",
            Warning,
            "5m",
            of_semel(&format!("{} / {} > 0.8", metric::PROCESS_OPEN_FDS, metric::PROCESS_MAX_FDS)),
            "A server uses more than 80 % of its file descriptors.",
        ),
        alert(
            "SemelTelemetryDropped",
            Info,
            "0m",
            format!("{} or {}", grew(&metric::LOG_LINES_DROPPED, None), grew(&metric::SPANS_DROPPED, None)),
            "Log lines or spans were dropped, because their receiver is too slow.",
        ),
    ]
}

/// A counter grew within the last ten minutes.
fn grew(counter: &Metric, selected: Option<(&str, &str)>) -> String {
    let selected = selected.map(|(label, value)| format!("{{{label}=\"{value}\"}}")).unwrap_or_default();
    format!("increase({counter}{selected}[10m]) > 0")
}

fn rate_of_signal(event: &str) -> String {
    format!("sum by (job) (rate({}{{event=\"{event}\"}}[1h]))", metric::EVENTS)
}

/// Other programs have metrics of the same name.
fn of_semel(expr: &str) -> String {
    format!("{expr} and on (job, instance) {}", metric::BUILD_INFO)
}

/// The rules in the format of Prometheus. `runbook` is the address of docs/howto/alerts.md.
pub(crate) fn rules(runbook: &str) -> String {
    let mut text = String::from(
        "# Alert rules for Prometheus, written by `semel metrics alerts`. Name the file in `rule_files` of prometheus.yml.\n\
         groups:\n  - name: semel\n    rules:\n",
    );
    for alert in alerts() {
        let Alert { name, severity, hold, expr, summary } = &alert;
        // A text of JSON is a text of YAML.
        let (expr, summary) = (json!(expr), json!(summary));
        let link = json!(format!("{runbook}#{}", alert.anchor()));
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expr}\n        for: {hold}\n        labels:\n          severity: {}\n        \
             annotations:\n          summary: {summary}\n          runbook_url: {link}\n",
            json!(severity)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::definitions::{METRICS, MetricKind};

    /// Each name of a metric in an expression, with what stands before and behind it.
    fn uses(expr: &str) -> Vec<(&str, &str, &str)> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let (mut found, mut at) = (Vec::new(), 0);
        while at < expr.len() {
            let length = expr.bytes().skip(at).take_while(|byte| is_name(*byte)).count();
            let name = &expr[at..at + length];
            if name.starts_with("semel_") || name.starts_with("process_") {
                found.push((&expr[..at], name, &expr[at + length..]));
            }
            at += length.max(1);
        }
        found
    }

    // What Prometheus refuses or silently never fires: an unknown metric, a label that it does not have, a counter without its growth.
    #[test]
    fn expressions_use_metrics_as_they_are_defined() {
        let alerts = alerts();
        for Alert { name, expr, .. } in &alerts {
            let uses = uses(expr);
            assert!(!uses.is_empty(), "{name}: {expr}");
            for (before, used, behind) in uses {
                let metric = METRICS.iter().find(|metric| metric.name == used);
                let metric = metric.unwrap_or_else(|| panic!("{name}: {used} is not a metric"));
                let grows = ["increase(", "rate("].iter().any(|function| before.ends_with(function));
                assert_eq!(grows, metric.kind == MetricKind::Counter, "{name}: {expr}");
                if let Some((selector, _)) = behind.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                    let (label, _) = selector.split_once("=\"").expect("one label with a value");
                    assert!(metric.labels.contains(&label), "{name}: {used} has no label {label}");
                }
            }
            let open = expr.matches('(').count() + expr.matches('[').count() + expr.matches('{').count();
            let closed = expr.matches(')').count() + expr.matches(']').count() + expr.matches('}').count();
            assert_eq!(open, closed, "{name}: {expr}");
        }
        let mut names: Vec<&str> = alerts.iter().map(|alert| alert.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), alerts.len(), "no name is used twice");
    }
}
