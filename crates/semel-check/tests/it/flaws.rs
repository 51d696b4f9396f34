//! APIs with known flaws fail exactly the cases they should.

use semel_check::{Grade, Report, RunOptions, Runner, suite};
use serde_json::json;

use crate::api::{self, Flaw};

/// The whole suite, with everything given that it can ask for. The cases that wait for a clock are tried where a flaw could
/// show in them.
async fn run(name: &str, flaw: Flaw) -> Report {
    let server = api::start(flaw).await;
    let mut options = RunOptions::new(server.url());
    options.auth = Some("first-principal".to_owned());
    options.other_auth = Some("second-principal".to_owned());
    options.restart = Some(format!("curl -fsS -X POST {}/restart", server.url()));
    for (key, value) in [
        ("flaky_path", json!("/flaky")),
        ("invalid_body", json!({"invalid": true})),
        ("other_path", json!("/refunds")),
        ("brief_path", json!("/brief")),
        ("kept_for", json!(2)),
        ("expired_after", json!(2.5)),
        ("rate_limited", json!(true)),
    ] {
        options.set.insert(key.to_owned(), value);
    }
    let whole = matches!(flaw, Flaw::None | Flaw::Naive);
    if !whole && flaw != Flaw::ExpiresEarly {
        options.set.remove("brief_path");
    }
    if !whole && flaw != Flaw::CachesRateLimits {
        options.set.remove("rate_limited");
    }
    let suite = suite(name).expect("it is built in");
    Runner::new(options).unwrap().run(&[suite], &|_| {}).await.unwrap()
}

/// Steps that were not graded, by case.
fn skipped(report: &Report) -> Vec<String> {
    let steps = report.storyboards.iter().flat_map(|file| &file.steps);
    steps
        .filter(|step| step.grade == Grade::Skipped)
        .map(|step| format!("{}/{}: {}", step.phase, step.step, step.skip.as_ref().unwrap().detail))
        .collect()
}

async fn fails(flaw: Flaw, cases: &[&str]) {
    let report = run("ietf", flaw).await;
    assert_eq!(report.failed_cases(), cases, "{flaw:?}\n{}", semel_check::json(&report));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correct_api_passes_every_case() {
    let report = run("ietf", Flaw::None).await;
    assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{}", semel_check::json(&report));
    assert!(report.is_good());
    // Nothing was passed over: only what this API does not have is skipped.
    assert_eq!(skipped(&report), ["missing_key/refused: needs --set key_required=…"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_naive_api() {
    // Its failures, its limits and its expiry are as they are without keys; what it lacks is everything about repeats.
    let cases = [
        "replay",
        "conflict",
        "race_10",
        "race_100",
        "conflict_in_flight",
        "scope_isolation",
        "other_endpoint",
        "bare_key",
        "expiry_edge",
        "crash_durability",
        "malformed_key",
    ];
    fails(Flaw::Naive, &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_caches_errors() {
    fails(Flaw::CachesErrors, &["error_release"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_ignores_payloads() {
    fails(Flaw::IgnoresPayloads, &["conflict", "conflict_in_flight", "scope_isolation", "other_endpoint"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_races() {
    fails(Flaw::Races, &["race_10", "race_100", "conflict_in_flight"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_leaks_across_scopes() {
    fails(Flaw::LeaksAcrossScopes, &["scope_isolation"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_leaks_in_conflicts() {
    // The invariant looks at every conflict, so every case that makes one tells of it.
    fails(Flaw::LeaksInConflicts, &["conflict", "conflict_in_flight", "scope_isolation", "other_endpoint"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_forgets() {
    fails(Flaw::Forgets, &["crash_durability"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_expires_early() {
    fails(Flaw::ExpiresEarly, &["expiry_edge"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_caches_rate_limits() {
    fails(Flaw::CachesRateLimits, &["rate_limit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_deduplicates_content() {
    let report = run("ietf", Flaw::DeduplicatesContent).await;
    assert!(report.failed_cases().contains(&"fresh_key"), "{:?}", report.failed_cases());
    assert!(!report.is_good());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_echoes_secrets() {
    let report = run("ietf", Flaw::EchoesSecrets).await;
    assert_eq!(report.failed_cases(), ["first"]);
    // And the report does not do it again.
    for text in [
        semel_check::json(&report),
        semel_check::junit(&report),
        semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Explained),
    ] {
        assert!(!text.contains("first-principal"), "{text}");
    }
}
