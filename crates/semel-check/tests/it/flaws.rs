//! APIs with one flaw fail the case that is meant for it; correct APIs of different styles fail no required case.

use semel_check::{BodyFormat, Grade, Level, Reason, Report, RunOptions, Runner, SUITES, Storyboard, suite};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::api::{self, Flaw, Style};
use crate::kit::Server;

/// Everything that the suite can ask for. The cases that wait for a clock run only where a flaw could show in them.
fn options(server: &Server, flaw: Flaw) -> RunOptions {
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
    if !whole && !matches!(flaw, Flaw::ExpiresEarly | Flaw::NeverExpires) {
        options.set.remove("brief_path");
    }
    if !whole && flaw != Flaw::CachesRateLimits {
        options.set.remove("rate_limited");
    }
    options
}

async fn run_with(options: RunOptions) -> Report {
    let suite = suite("ietf").expect("it is built in");
    Runner::new(options).unwrap().run(&[suite], &|_| {}).await.unwrap()
}

async fn run(flaw: Flaw) -> Report {
    let server = api::start(flaw).await;
    run_with(options(&server, flaw)).await
}

/// Steps that were not graded, by case.
fn skipped(report: &Report) -> Vec<String> {
    let steps = report.storyboards.iter().flat_map(|file| &file.steps);
    steps
        .filter(|step| step.grade == Grade::Skipped)
        .map(|step| format!("{}/{}: {}", step.phase, step.step, step.skip.as_ref().unwrap().detail))
        .collect()
}

/// The cases that compare a retry with the first answer.
const REPLAYS: &[&str] =
    &["replay", "conflict", "race_10", "race_100", "bare_key", "client_error", "crash_durability"];

/// Each flaw, and the cases that find it. One of them is meant for it; the others meet it too.
const FLAWS: [(Flaw, &[&str]); 29] = [
    (
        Flaw::Naive,
        &[
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
        ],
    ),
    (Flaw::CachesErrors, &["error_release"]),
    (
        Flaw::IgnoresPayloads,
        &["conflict", "conflict_in_flight", "scope_isolation", "other_query", "other_endpoint"],
    ),
    (Flaw::ExecutesConflicts, &["conflict", "conflict_in_flight", "scope_isolation", "other_endpoint"]),
    (Flaw::ConflictReplacesAnswer, &["conflict", "bare_key", "remembers"]),
    (Flaw::IgnoresPayloadsInFlight, &["conflict_in_flight"]),
    (Flaw::Races, &["race_10", "race_100", "conflict_in_flight"]),
    (Flaw::RacesUnderLoad, &["race_100"]),
    (Flaw::FailsLosers, &["race_10", "race_100", "conflict_in_flight"]),
    (Flaw::RefusesRetries, REPLAYS),
    (Flaw::LeaksAcrossScopes, &["scope_isolation"]),
    (
        Flaw::LeaksInConflicts,
        &["conflict", "conflict_in_flight", "scope_isolation", "other_query", "other_endpoint"],
    ),
    (Flaw::Forgets, &["crash_durability", "remembers"]),
    (Flaw::RemembersFew, &["bare_key", "remembers"]),
    (
        Flaw::DeduplicatesContent,
        &[
            "fresh_key",
            "conflict",
            "conflict_in_flight",
            "scope_isolation",
            "other_endpoint",
            "key_case",
            "long_keys",
        ],
    ),
    (Flaw::CachesRateLimits, &["rate_limit"]),
    (Flaw::ExpiresEarly, &["expiry_edge"]),
    (Flaw::NeverExpires, &["expiry_edge"]),
    (Flaw::EchoesSecrets, &["first"]),
    (Flaw::ReplaysOtherStatus, &["replay"]),
    (Flaw::LosesLocation, &["replay"]),
    (Flaw::LosesContentType, &["replay"]),
    (Flaw::ChangesBody, REPLAYS),
    (Flaw::IgnoresCase, &["key_case"]),
    (Flaw::TruncatesAt64, &["long_keys"]),
    (Flaw::TruncatesAt255, &["long_keys", "malformed_key"]),
    (Flaw::IgnoresQuery, &["other_query"]),
    (Flaw::IgnoresPath, &["other_endpoint"]),
    (Flaw::RevalidatesErrors, &["client_error"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_flaw_is_found_by_the_case_meant_for_it() {
    let runs = FLAWS.map(|(flaw, cases)| {
        tokio::spawn(async move {
            let report = run(flaw).await;
            let found: Vec<String> = report.failed_cases().iter().map(|case| (*case).to_owned()).collect();
            (flaw, cases, found)
        })
    });
    let mut wrong = String::new();
    for run in runs {
        let (flaw, cases, found) = run.await.unwrap();
        if found != cases {
            wrong.push_str(&format!("{flaw:?}: expected {cases:?}, found {found:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correct_api_passes_every_case() {
    let report = run(Flaw::None).await;
    assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{}", semel_check::json(&report));
    assert!(report.is_good());
    // Only what this API does not have is skipped.
    assert_eq!(
        skipped(&report),
        ["missing_key/refused: needs --set key_required=…", "missing_key/status: needs --set key_required=…",]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn correct_apis_of_every_style_fail_no_required_case() {
    use Style::*;
    let styles = [
        (Waits, "", &[] as &[&str]),
        (Conflict409WithHint, "", &[]),
        (Conflict409, "", &[]),
        (TooEarly425, "", &[]),
        (BareKeysOnly, "bare keys", &["quoted_key"]),
        (UuidsOnly, "bare keys", &["quoted_key"]),
        (ShortKeys, "keys of 32 digits", &["quoted_key"]),
        (Conflict417, "", &["conflict", "other_endpoint"]),
        (ScopedByHeader, "", &[]),
        (ScopedByPath, "", &["other_endpoint"]),
        (FormWithOtherHeader, "", &[]),
        (RefusesQueries, "", &[]),
    ];
    for (style, notice, not_met) in styles {
        let server = api::correct(style).await;
        let mut options = RunOptions::new(server.url());
        options.auth = Some("first-principal".to_owned());
        options.set.insert("other_path".to_owned(), json!("/refunds"));
        if style == ScopedByHeader {
            options.headers.push(("X-Tenant".to_owned(), "acme".to_owned()));
        }
        if style == FormWithOtherHeader {
            options.key_header = Some("X-Request-Key".to_owned());
            options.body_format = BodyFormat::Form;
        }
        let report = run_with(options).await;
        assert!(report.is_good(), "{style:?}: {}", semel_check::json(&report));
        assert_eq!(report.failed_cases(), not_met, "{style:?}: {}", semel_check::json(&report));
        let notices = report.storyboards[0].notices.join("\n");
        assert!(notices.contains(notice) && notice.is_empty() == notices.is_empty(), "{style:?}: {notices}");
        // A missing hint is advice; it fails nothing.
        let advised = report.summary.advisory_failures > 0;
        assert_eq!(advised, matches!(style, Conflict409 | TooEarly425), "{style:?}");
    }
}

// With the answers of another race, a correct API failed a required case.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_without_all_answers_is_not_decided_and_compared_with_no_other_race() {
    let text = SUITES.iter().find(|suite| suite.name == "ietf").unwrap().text.replace("30000", "2000");
    for (style, why) in [
        (Style::SmallBacklog, "step_timeout: 60 of 100 not answered within 2s; not decided: raise"),
        (Style::ClosesExcess, "60 of 100 not answered: the connection broke"),
    ] {
        let server = api::correct(style).await;
        let suite = Storyboard::parse("ietf.yaml", &text).unwrap();
        let runner = Runner::new(RunOptions::new(server.url())).unwrap();
        let report = runner.run(&[suite], &|_| {}).await.unwrap();
        assert!(report.is_good(), "{style:?}: {}", semel_check::json(&report));
        let steps: Vec<_> =
            report.storyboards[0].steps.iter().filter(|step| step.phase == "race_100").collect();
        let skips: Vec<_> = steps.iter().map(|step| step.skip.as_ref().unwrap()).collect();
        assert!(skips[0].undecided && skips[0].detail.starts_with(why), "{:?}", skips[0]);
        assert_eq!((skips[1].reason, skips[1].undecided), (Reason::PrerequisiteFailed, false));
        assert_eq!(skips[1].detail, "depends on `racing`");
        for text in all_formats(&report) {
            assert!(text.contains("60 of 100 not answered"), "{text}");
        }
    }
}

// The answers that did arrive prove that there was more than one effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_with_two_effects_fails_even_if_some_answers_are_missing() {
    let text = SUITES.iter().find(|suite| suite.name == "ietf").unwrap().text.replace("30000", "2000");
    let server = api::serve(Flaw::Naive, Style::SmallBacklog).await;
    let suite = Storyboard::parse("ietf.yaml", &text).unwrap();
    let runner = Runner::new(RunOptions::new(server.url())).unwrap();
    let report = runner.run(&[suite], &|_| {}).await.unwrap();
    let race = report.storyboards[0].steps.iter().find(|step| step.phase == "race_100").unwrap();
    assert_eq!(race.grade, Grade::Failed, "{race:?}");
}

// Two cases have a step of the same name; a comparison means the one of its own case, or of a case that it depends on.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_never_means_the_step_of_another_case() {
    let server = api::start(Flaw::None).await;
    let ask = |key: &str| format!("request: {{method: POST, path: /orders, key: {key}, body: {{item: a}}}}");
    let text = format!(
        "id: names\ntransport: http\nphases:\n  - id: one\n    steps: [{{id: made, {}}}]\n  - id: two\n    depends_on: []\n    \
         steps: [{{id: made, {}}}]\n  - id: three\n    depends_on: [one]\n    \
         steps: [{{id: again, {}, validations: [{{check: body_equals_step, step: made}}]}}]\n",
        ask("one"),
        ask("two"),
        ask("one")
    );
    let report = crate::kit::run_text(&server.url(), &text).await;
    assert!(report.is_good(), "{}", semel_check::json(&report));
}

// The refusal of every query string proves nothing about keys.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_without_queries_is_not_asked_whether_it_compares_them() {
    let server = api::correct(Style::RefusesQueries).await;
    let report = run_with(options(&server, Flaw::CachesErrors)).await;
    let why = "the API refuses such a request, with 404";
    let expected = ["query_valid", "queried"].map(|step| format!("other_query/{step}: {why}"));
    let skipped: Vec<String> =
        skipped(&report).into_iter().filter(|step| step.starts_with("other_query")).collect();
    assert_eq!(skipped, expected);
}

// The harm of a case was told although only a recommendation in it was not met.
#[tokio::test(flavor = "multi_thread")]
async fn a_recommendation_is_told_by_its_own_name_and_without_the_harm_of_its_case() {
    let server = api::correct(Style::Conflict417).await;
    let report = run_with(RunOptions::new(server.url())).await;
    let [text, _, junit, page, comment] = all_formats(&report);
    for text in [&text, &junit, &page, &comment] {
        assert!(!text.contains("order B is confirmed"), "{text}");
        for jargon in ["body_equals_step", "http_status", "field_value", "header_value"] {
            assert!(!text.contains(jargon), "{jargon} in\n{text}");
        }
    }
    assert!(text.contains(
        "  ✓ conflict: A used key with another request is refused\n      ! status (recommended): "
    ));
    for line in [
        "| passed | `conflict`: A used key with another request is refused | required |",
        "| not met | `conflict/status`: The status is the one that clients expect | recommended |",
        "**`conflict/status`: The status is the one that clients expect** (recommended)",
    ] {
        assert!(comment.lines().any(|one| one == line), "{line} in\n{comment}");
    }
    assert!(page.contains("<td class=\"passed\">passed</td><td><code>conflict</code>: "), "{page}");
    assert!(page.contains("<td><code>conflict/status</code>: The status is"), "{page}");
    assert!(page.contains("<h3><code>conflict/status</code>: The status is"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_names_required_cases_without_a_verdict_and_what_they_need() {
    let server = api::start(Flaw::None).await;
    let report = run_with(RunOptions::new(server.url())).await;
    assert!(report.is_good());
    let [text, _, _, page, comment] = all_formats(&report);
    let end = "Required cases without a verdict:\n  scope_isolation: needs a second principal: --other-auth TOKEN\n  \
               crash_durability: needs a command that restarts the target: --restart CMD\n";
    assert!(text.ends_with(end), "{text}");
    assert!(
        comment.contains("\n- `crash_durability`: needs a command that restarts the target: --restart CMD\n")
    );
    assert!(comment.contains("| skipped | `client_error`: The refusal of an invalid request is stored (needs --set invalid_body=…) |"), "{comment}");
    assert!(
        page.contains("<li><code>scope_isolation</code>: needs a second principal: --other-auth TOKEN</li>")
    );
}

// docs/howto/check-an-api.md states these numbers.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_creates_as_many_objects_as_its_page_says() {
    for (flaw, expected) in [(Flaw::None, 16), (Flaw::Naive, 149)] {
        let server = api::start(flaw).await;
        run_with(RunOptions::new(server.url())).await;
        assert_eq!(made(&server).await, expected, "{flaw:?}");
    }
}

/// The number of orders so far: the API numbers them from 0.
async fn made(server: &Server) -> usize {
    let mut stream = TcpStream::connect(server.at).await.unwrap();
    let request = "POST /orders HTTP/1.1\r\nhost: api\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, number) = answer.split_once("\"order-").unwrap_or_else(|| panic!("{answer}"));
    number.split('"').next().unwrap().parse().unwrap()
}

/// The report in every format.
fn all_formats(report: &Report) -> [String; 5] {
    let text = semel_check::pretty(report, semel_check::Paint::Plain, semel_check::Verbosity::Explained);
    [
        text,
        semel_check::json(report),
        semel_check::junit(report),
        semel_check::html(report),
        semel_check::markdown(report),
    ]
}

/// The steps of a case that did not pass, with their levels.
fn unmet(report: &Report, case: &str) -> Vec<(String, Level)> {
    let steps = report.storyboards.iter().flat_map(|file| &file.steps);
    let unmet = steps.filter(|step| step.phase == case && step.grade == Grade::NotMet);
    unmet.map(|step| (step.step.clone(), step.level)).collect()
}

// Both were graded alike, although only one of them loses the second request.
#[tokio::test(flavor = "multi_thread")]
async fn keys_per_path_are_only_a_preference_and_the_answer_of_another_path_is_a_flaw() {
    let server = api::correct(Style::ScopedByPath).await;
    let per_path = run_with(options(&server, Flaw::None)).await;
    assert_eq!(unmet(&per_path, "other_endpoint"), [("refused".to_owned(), Level::Optional)]);
    let flawed = run(Flaw::IgnoresPath).await;
    assert_eq!(unmet(&flawed, "other_endpoint"), [("separate".to_owned(), Level::Recommended)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_in_words() {
    let report = run(Flaw::IgnoresPayloads).await;
    let text = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
    for line in [
        "refused: The key was used for another request: expected \"4xx\", got 201",
        "racing: One body was executed, the other refused: 10 requests, all answered 201",
        "queried: Refused, or a separate operation; never the first answer: got 201",
    ] {
        assert!(text.lines().any(|one| one.trim() == line), "{line} in\n{text}");
    }
    assert!(!text.contains("as expected"), "the precise check is enough:\n{text}");
    let report = run(Flaw::LeaksAcrossScopes).await;
    let text = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
    assert!(
        text.contains("same_request: It is a separate operation (member id): expected another value than "),
        "{text}"
    );
    let server = api::correct(Style::Conflict417).await;
    let report = run_with(options(&server, Flaw::None)).await;
    let text = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
    assert!(
        text.contains(
            "status (recommended): draft-07, section 2.7: another payload is 422: expected 422, got 417"
        ),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_is_told_in_a_sentence() {
    let report = run(Flaw::Races).await;
    let text = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
    let line = text.lines().find(|line| line.contains("100 requests, ")).expect("the race is told");
    assert!(line.contains(" effects: keys are not claimed before the handler runs"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_value_is_refused_before_anything_is_sent() {
    let server = Server::start(|_| async { panic!("nothing may be sent") }).await;
    let mut options = RunOptions::new(server.url());
    options.set.insert("pth".to_owned(), json!("/v1"));
    let suite = suite("ietf").expect("it is built in");
    let error = Runner::new(options).unwrap().run(&[suite], &|_| {}).await.unwrap_err().to_string();
    assert!(error.starts_with("--set pth: no such value; the values are: body, brief_path, "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_never_repeats_a_secret() {
    let report = run(Flaw::EchoesSecrets).await;
    assert_eq!(report.failed_cases(), ["first"]);
    for text in all_formats(&report) {
        assert!(!text.contains("first-principal"), "{text}");
    }
}
