//! The dashboard for Grafana. Every metric is on it.

use serde_json::{Value, json};

use crate::telemetry::metrics::definitions as metric;
use crate::telemetry::metrics::definitions::{Metric, MetricKind};

/// The columns of Grafana's grid.
const COLUMNS: u64 = 24;

/// A row of panels below a title.
struct DashboardRow {
    title: &'static str,
    panels: Vec<Panel>,
}

/// A panel with its queries.
struct Panel {
    title: &'static str,
    kind: PanelKind,
    unit: Unit,
    /// Expressions of Prometheus, each with the name of its series.
    queries: Vec<(String, String)>,
}

#[derive(Clone, Copy)]
enum PanelKind {
    /// The last value, in green, or in red from `alarm` on.
    Stat {
        alarm: Alarm,
    },
    Chart,
}

/// When a single value is red.
#[derive(Clone, Copy)]
enum Alarm {
    Never,
    /// It should be zero.
    AboveZero,
    /// It should be one.
    BelowOne,
}

#[derive(Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    Seconds,
    Bytes,
    Share,
}

impl Unit {
    /// Its name in Grafana.
    fn name(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "ops",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::Share => "percentunit",
        }
    }
}

/// The dashboard as JSON, to import in Grafana or to provision.
pub(crate) fn dashboard() -> Value {
    let mut panels = Vec::new();
    let (mut top, mut id) = (0, 0);
    let mut next_id = || {
        id += 1;
        id
    };
    for row in rows() {
        let place = json!({ "x": 0, "y": top, "w": COLUMNS, "h": 1 });
        panels.push(
            json!({ "id": next_id(), "type": "row", "title": row.title, "collapsed": false, "gridPos": place, "panels": [] }),
        );
        top += 1;
        let (mut left, mut highest) = (0, 0);
        for panel in &row.panels {
            let (width, height) = panel.size();
            if left + width > COLUMNS {
                (left, top, highest) = (0, top + highest, 0);
            }
            panels.push(panel.json(next_id(), &json!({ "x": left, "y": top, "w": width, "h": height })));
            (left, highest) = (left + width, highest.max(height));
        }
        top += highest;
    }
    json!({
        "uid": "semel",
        "title": "Semel",
        "description": "Written by `semel metrics dashboard`.",
        "tags": ["semel"],
        "schemaVersion": 39,
        "editable": true,
        "timezone": "utc",
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables() },
        "panels": panels,
    })
}

/// What a user chooses at the top: the data source, and the servers.
fn variables() -> Value {
    let servers = |name: &str, query: String| {
        json!({
            "name": name, "label": name, "type": "query", "datasource": datasource(), "query": query, "refresh": 2,
            "multi": true, "includeAll": true, "allValue": ".*",
            "current": { "text": ["All"], "value": ["$__all"] },
        })
    };
    json!([
        { "name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus" },
        servers("job", format!("label_values({}, job)", metric::BUILD_INFO)),
        servers("instance", format!("label_values({}{{job=~\"$job\"}}, instance)", metric::BUILD_INFO)),
    ])
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

impl Panel {
    fn size(&self) -> (u64, u64) {
        match self.kind {
            PanelKind::Stat { .. } => (3, 4),
            PanelKind::Chart => (8, 8),
        }
    }

    fn json(&self, id: u64, place: &Value) -> Value {
        let queries = self.queries.iter().zip('A'..).map(|((expr, legend), name)| {
            json!({ "refId": name.to_string(), "datasource": datasource(), "expr": expr, "legendFormat": legend })
        });
        let queries: Vec<Value> = queries.collect();
        let mut defaults = json!({ "unit": self.unit.name(), "min": 0 });
        let (kind, options) = match self.kind {
            PanelKind::Stat { alarm } => {
                defaults["thresholds"] = json!({ "mode": "absolute", "steps": alarm.steps() });
                ("stat", json!({ "reduceOptions": { "calcs": ["lastNotNull"] }, "colorMode": "background" }))
            }
            PanelKind::Chart => {
                defaults["custom"] = json!({ "fillOpacity": 10, "showPoints": "never" });
                let legend = json!({ "displayMode": "list", "placement": "bottom" });
                ("timeseries", json!({ "legend": legend, "tooltip": { "mode": "multi", "sort": "desc" } }))
            }
        };
        json!({
            "id": id, "type": kind, "title": self.title, "datasource": datasource(), "gridPos": place,
            "fieldConfig": { "defaults": defaults, "overrides": [] }, "options": options, "targets": queries,
        })
    }
}

impl Alarm {
    fn steps(self) -> Value {
        let step = |value: Option<u32>, color: &str| json!({ "value": value, "color": color });
        match self {
            Self::Never => json!([step(None, "blue")]),
            Self::AboveZero => json!([step(None, "green"), step(Some(1), "red")]),
            Self::BelowOne => json!([step(None, "red"), step(Some(1), "green")]),
        }
    }
}

/// A metric of the chosen servers.
fn chosen(metric: &Metric, ending: &str, selected: &str) -> String {
    let comma = if selected.is_empty() { "" } else { ", " };
    format!("{metric}{ending}{{job=~\"$job\", instance=~\"$instance\"{comma}{selected}}}")
}

/// The sum over servers, or the rate of a counter; one series for each set of values of the labels.
fn sum(metric: &Metric) -> (String, String) {
    let labels = metric.labels.join(", ");
    let by = if labels.is_empty() { String::new() } else { format!(" by ({labels})") };
    let value = match metric.kind {
        MetricKind::Counter => format!("rate({}[$__rate_interval])", chosen(metric, "", "")),
        MetricKind::Gauge | MetricKind::Histogram => chosen(metric, "", ""),
    };
    let legend = metric.labels.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" ");
    (format!("sum{by} ({value})"), if legend.is_empty() { metric.name.to_owned() } else { legend })
}

/// The largest or smallest value of the servers, which all count the same.
fn one(function: &str, metric: &Metric, selected: &str) -> (String, String) {
    (format!("{function} ({})", chosen(metric, "", selected)), metric.name.to_owned())
}

/// Each server for itself.
fn each(metric: &Metric) -> (String, String) {
    let value = chosen(metric, "", "");
    let value = match metric.kind {
        MetricKind::Counter => format!("rate({value}[$__rate_interval])"),
        MetricKind::Gauge | MetricKind::Histogram => value,
    };
    (value, "{{instance}}".to_owned())
}

/// Quantiles of a histogram, by its labels.
fn quantiles(metric: &Metric) -> Vec<(String, String)> {
    let by: Vec<&str> = ["le"].into_iter().chain(metric.labels.iter().copied()).collect();
    let legend: String = metric.labels.iter().map(|label| format!(" {{{{{label}}}}}")).collect();
    let rate = format!("rate({}[$__rate_interval])", chosen(metric, "_bucket", ""));
    let quantile = |(q, name): (&str, &str)| {
        (format!("histogram_quantile({q}, sum by ({}) ({rate}))", by.join(", ")), format!("{name}{legend}"))
    };
    [("0.5", "median"), ("0.99", "99 %")].map(quantile).into()
}

fn rows() -> Vec<DashboardRow> {
    use Unit::{Bytes, Count, PerSecond, Seconds, Share};
    let stat = |title, alarm, unit, query| Panel {
        title,
        kind: PanelKind::Stat { alarm },
        unit,
        queries: vec![query],
    };
    let chart = |title, unit, queries| Panel { title, kind: PanelKind::Chart, unit, queries };
    let sums = |metrics: &[&Metric]| metrics.iter().map(|metric| sum(metric)).collect::<Vec<_>>();
    vec![
        DashboardRow {
            title: "Overview",
            panels: vec![
                stat(
                    "Servers",
                    Alarm::BelowOne,
                    Count,
                    (format!("count ({})", chosen(&metric::BUILD_INFO, "", "")), "servers".into()),
                ),
                stat("Store", Alarm::BelowOne, Count, one("min", &metric::STORE_UP, "")),
                stat("Keys in doubt", Alarm::AboveZero, Count, one("max", &metric::IN_DOUBT_KEYS, "")),
                stat(
                    "Pending dead letters",
                    Alarm::AboveZero,
                    Count,
                    one("max", &metric::DEAD_LETTERS, "status=\"pending\""),
                ),
                stat(
                    "Open breakers",
                    Alarm::AboveZero,
                    Count,
                    (
                        format!("sum ({})", chosen(&metric::BREAKER_STATE, "", "state=\"open\"")),
                        "open".into(),
                    ),
                ),
                stat("Oldest due delivery", Alarm::Never, Seconds, one("max", &metric::OLDEST_DUE, "")),
                stat("Store full", Alarm::AboveZero, Count, one("max", &metric::STORE_FULL, "")),
                stat("Store lost data", Alarm::AboveZero, Count, one("max", &metric::STORE_LOST_DATA, "")),
            ],
        },
        DashboardRow {
            title: "Gateway",
            panels: vec![
                chart("Answers by outcome", PerSecond, sums(&[&metric::REQUESTS])),
                chart(
                    "Calls and waiting callers",
                    Count,
                    sums(&[&metric::GATEWAY_CALLS, &metric::IN_FLIGHT, &metric::WAITERS]),
                ),
                chart("Share answered from the record", Share, vec![each(&metric::REPLAY_RATIO)]),
                chart("Time from claim to stored outcome", Seconds, quantiles(&metric::EFFECT_SECONDS)),
                chart("Time waited for another caller", Seconds, quantiles(&metric::WAIT_SECONDS)),
                chart(
                    "Refused at limits",
                    PerSecond,
                    sums(&[&metric::GATEWAY_CALLS_REFUSED, &metric::GATEWAY_BODIES_REFUSED]),
                ),
                chart("Request bodies in memory", Bytes, vec![each(&metric::GATEWAY_BYTES)]),
                chart("Rotated credentials", PerSecond, sums(&[&metric::ROTATED_CREDENTIALS])),
            ],
        },
        DashboardRow {
            title: "Keys and store",
            panels: vec![
                chart("Signals of the engine", PerSecond, sums(&[&metric::EVENTS])),
                chart("Answers of the claims API", PerSecond, sums(&[&metric::CLAIMS])),
                chart(
                    "Size of the store",
                    Bytes,
                    vec![each(&metric::STORE_BYTES), one("max", &metric::STORE_MAX_BYTES, "")],
                ),
                chart("Stores that answer", Count, vec![by_labels("min", &metric::STORE_AVAILABLE)]),
                chart("Outages", PerSecond, sums(&[&metric::OUTAGES])),
                chart("Share of time in an outage", Share, sums(&[&metric::OUTAGE_SECONDS])),
                chart("New keys refused", PerSecond, sums(&[&metric::NEW_KEYS_REFUSED])),
            ],
        },
        DashboardRow {
            title: "Events and deliveries",
            panels: vec![
                chart("Attempts by result", PerSecond, sums(&[&metric::ATTEMPTS])),
                chart("Duration of attempts", Seconds, quantiles(&metric::ATTEMPT_SECONDS)),
                chart("Deliveries that have not ended", Count, vec![by_labels("max", &metric::DELIVERIES)]),
                chart("Dead letters", Count, vec![by_labels("max", &metric::DEAD_LETTERS)]),
                chart("Deliveries in progress", Count, vec![each(&metric::DELIVERIES_IN_HAND)]),
                chart("Paused targets", Count, vec![by_labels("max", &metric::TARGET_PAUSED)]),
                chart("Breakers opened", PerSecond, sums(&[&metric::BREAKER_OPENED])),
            ],
        },
        DashboardRow {
            title: "Triggers, buffer and streams",
            panels: vec![
                chart("Triggers by destination", PerSecond, sums(&[&metric::TRIGGERS])),
                chart("Claims of triggers", PerSecond, sums(&[&metric::TRIGGER_CLAIMS])),
                chart("Decisions of the gate", PerSecond, sums(&[&metric::GATE_DECISIONS])),
                chart(
                    "Runs in the buffer",
                    Count,
                    vec![one("max", &metric::BUFFER_QUEUED, ""), one("max", &metric::BUFFER_IN_TRANSIT, "")],
                ),
                chart(
                    "Age of the oldest buffered run",
                    Seconds,
                    vec![one("max", &metric::BUFFER_OLDEST, "")],
                ),
                chart("Drained runs by result", PerSecond, sums(&[&metric::BUFFER_DRAINED])),
                chart("Redis of the buffer lost data", Count, vec![each(&metric::BUFFER_LOST_DATA)]),
                chart(
                    "Callers waiting for runs",
                    Count,
                    sums(&[&metric::RUN_WAITERS, &metric::RUN_WAITERS_MAX, &metric::TRIGGER_WAITERS]),
                ),
                chart(
                    "Reads and refusals of waiting callers",
                    PerSecond,
                    sums(&[&metric::RUN_WAITER_READS, &metric::RUN_WAITERS_REFUSED]),
                ),
                chart("Maximum wait for a run", Seconds, vec![one("max", &metric::RUN_WAIT_MAX, "")]),
                chart("Stream messages by result", PerSecond, sums(&[&metric::SOURCE_MESSAGES])),
            ],
        },
        DashboardRow {
            title: "Servers",
            panels: vec![
                chart("Versions", Count, sums(&[&metric::BUILD_INFO])),
                chart("CPU", Share, vec![each(&metric::PROCESS_CPU)]),
                chart("Memory", Bytes, vec![each(&metric::PROCESS_RESIDENT), each(&metric::PROCESS_VIRTUAL)]),
                chart("Threads", Count, vec![each(&metric::PROCESS_THREADS)]),
                chart(
                    "File descriptors",
                    Count,
                    vec![each(&metric::PROCESS_OPEN_FDS), each(&metric::PROCESS_MAX_FDS)],
                ),
                chart("Connections", Count, sums(&[&metric::CONNECTIONS_MAX])),
                chart("Connections closed at the limit", PerSecond, sums(&[&metric::CONNECTIONS_CLOSED])),
                chart("Answers of the admin API", PerSecond, sums(&[&metric::ADMIN_REQUESTS])),
                chart("Pages of the console", Count, sums(&[&metric::CONSOLE_STREAMS])),
                chart("Refused logins", PerSecond, sums(&[&metric::LOGINS_REFUSED])),
                chart("Reloads", PerSecond, sums(&[&metric::RELOADS])),
                chart(
                    "Dropped log lines and spans",
                    PerSecond,
                    sums(&[&metric::LOG_LINES_DROPPED, &metric::SPANS_DROPPED]),
                ),
                chart(
                    "Time since the start",
                    Seconds,
                    vec![(
                        format!("time() - {}", chosen(&metric::PROCESS_START, "", "")),
                        "{{instance}}".into(),
                    )],
                ),
            ],
        },
    ]
}

/// The servers count the same: one value for each set of values of the labels.
fn by_labels(function: &str, metric: &Metric) -> (String, String) {
    let (_, legend) = sum(metric);
    (format!("{function} by ({}) ({})", metric.labels.join(", "), chosen(metric, "", "")), legend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::definitions::METRICS;

    #[test]
    fn every_metric_is_on_the_dashboard() {
        let text = dashboard().to_string();
        let is_shown = |metric: &&&Metric| {
            ["", "_bucket"].iter().any(|ending| text.contains(&format!("{metric}{ending}{{")))
        };
        let missing: Vec<&str> =
            METRICS.iter().filter(|metric| !is_shown(metric)).map(|metric| metric.name).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn panels_do_not_overlap() {
        let dashboard = dashboard();
        let mut taken = std::collections::HashSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
            assert!(x + w <= COLUMNS, "{panel}");
            for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(place), "{panel}");
            }
        }
    }
}
