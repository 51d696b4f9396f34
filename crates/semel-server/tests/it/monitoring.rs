//! `semel metrics`: what it lists is what a server has, what the files of the repository hold, and what the pages explain.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use semel_testbed::{Redis, wait};
use serde_json::Value;

use crate::kit::{PATIENCE, Semel, Sink, Upstream, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn items(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["metrics"], args, &["--json"]].concat());
    assert!(output.status.success());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    printed["items"].as_array().unwrap().clone()
}

/// The kind of each metric in a text of Prometheus.
fn kinds(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// The labels of each metric that has a series. Parts of a histogram count as the histogram.
fn labels(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let metric = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|ending| name.strip_suffix(ending).filter(|metric| kinds(text).contains_key(metric)));
        let inner = line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(inner, _)| inner);
        let named =
            inner.into_iter().flat_map(|inner| inner.split("\",")).filter_map(|pair| pair.split('=').next());
        found.entry(metric.unwrap_or(name)).or_default().extend(named.filter(|label| *label != "le"));
    }
    found
}

// Everything that a server can have: a gateway, limits, a Redis store, targets, a gate with a buffer, a stream and a collector.
#[test]
fn every_metric_of_a_server_is_defined_and_documented() {
    let (redis, sink, upstream) = (Redis::start().unwrap(), Sink::start(), Upstream::start());
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = \"{redis}\"\nmax_bytes = \"1GiB\"\n[ledger]\nurl = \"embedded:{ledger}\"\n\
         [[target]]\nname = \"crm\"\nurl = \"{sink}\"\n[gate]\nmode = \"on\"\nthreshold = 100\nbuffer = \"{redis}\"\n\
         [[source]]\nkind = \"redis-stream\"\nurl = \"{redis}\"\nstream = \"orders\"\ngroup = \"semel\"\n",
        upstream = upstream.url(),
        redis = redis.url(),
        ledger = folder.path().join("ledger").display(),
        sink = sink.url(),
    );
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    let admin = semel.admin();
    admin.post("/v1/events", r#"{"type":"a","dedupe_key":"k","payload":{}}"#).expect(201);
    let text = || admin.get("/metrics").text();
    wait::until("the first counts and the delivery", PATIENCE, || {
        let text = text();
        [
            "semel_store_bytes ",
            "semel_dead_letters{",
            "semel_deliveries_total{",
            "semel_breaker_state{",
            "semel_buffer_lost_data ",
        ]
        .iter()
        .all(|part| text.contains(part))
    })
    .unwrap_or_else(|_| panic!("{}", text()));
    let text = text();

    let page = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let defined = items(&["list"]);
    let (kinds, labels) = (kinds(&text), labels(&text));
    let mut names = BTreeSet::new();
    for metric in &defined {
        let name = metric["name"].as_str().unwrap();
        names.insert(name);
        assert_eq!(kinds.get(name).copied(), metric["kind"].as_str(), "{name}");
        assert!(page.contains(&format!("`{name}")), "docs/reference/metrics.md does not name {name}");
        if let Some(found) = labels.get(name) {
            let expected: BTreeSet<&str> =
                metric["labels"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert_eq!(*found, expected, "{name}");
        }
    }
    let rendered: BTreeSet<&str> = kinds.keys().copied().collect();
    assert_eq!(rendered, names, "a server has these metrics and no others");

    // A label value that no server has would make an alert that never fires.
    for alert in items(&["alerts"]) {
        let expr = alert["expr"].as_str().unwrap();
        for part in expr.split('{').skip(1) {
            let selector = part.split('}').next().unwrap();
            assert!(text.contains(selector), "{}: no series has {selector}", alert["name"]);
        }
    }
}

#[test]
fn every_alert_has_its_section() {
    let page = std::fs::read_to_string(root().join("docs/howto/alerts.md")).unwrap();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = items(&["alerts"]);
    let alerts: Vec<&str> = alerts.iter().map(|alert| alert["name"].as_str().unwrap()).collect();
    assert_eq!(sections, alerts, "one section for each, in the same order");
    for (name, section) in alerts.iter().zip(page.split("\n## ").skip(1)) {
        assert!(section.contains("emedy:"), "{name} has no remedy");
    }
    let rules = String::from_utf8(run(&["metrics", "alerts", "--runbook", "https://wiki/a"]).stdout).unwrap();
    assert!(rules.contains("runbook_url: \"https://wiki/a#semelkeysindoubt\""), "{rules}");
}

/// `SEMEL_WRITE=1` writes the files instead.
#[test]
fn the_files_of_the_repository_are_current() {
    for (args, file) in [
        (&["metrics", "alerts"], "deploy/prometheus/semel.rules.yml"),
        (&["metrics", "dashboard"], "deploy/grafana/semel.json"),
    ] {
        let path = root().join(file);
        let printed = run(args).stdout;
        if std::env::var_os("SEMEL_WRITE").is_some() {
            std::fs::write(&path, &printed).unwrap();
        }
        let stored = std::fs::read(&path).unwrap_or_default();
        assert!(
            stored == printed,
            "{file} is not what `semel {}` prints: run this test with SEMEL_WRITE=1",
            args.join(" ")
        );
    }
}
