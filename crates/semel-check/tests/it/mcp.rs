//! AdCP storyboards over MCP.

use semel_check::{Extraction, Grade, Reason, Report, RunOptions, Runner, Storyboard, suite};
use serde_json::json;

use crate::agent::{self, Flaw, Form, Knows, Style};
use crate::kit::run_text;

async fn run(name: &str, form: Form, knows: Knows) -> Report {
    let (server, _) = agent::start(form, knows, 120).await;
    let mut options = RunOptions::new(format!("{}/mcp", server.url()));
    options.auth = Some("first-principal".to_owned());
    options.other_auth = Some("second-principal".to_owned());
    if name == "adcp" {
        options.set.insert("bad_packages".to_owned(), json!([{"product_id": "no-such-product"}]));
    }
    options.restart = Some("true".to_owned());
    Runner::new(options).unwrap().run(&[suite(name).unwrap()], &|_| {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conforming_agent_passes_in_every_form() {
    for form in [Form::Json, Form::Events, Form::Text] {
        let report = run("adcp-idempotency", form, Knows::Idempotency).await;
        assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{form:?} {}", semel_check::json(&report));
        assert_eq!(report.summary.skipped, 0, "{form:?} {}", semel_check::json(&report));
        let read = report.storyboards[0].steps[0].extraction_path;
        let expected =
            if form == Form::Text { Extraction::TextFallback } else { Extraction::StructuredContent };
        assert_eq!(read, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conforming_agent_passes_the_hard_part() {
    let report = run("adcp", Form::Json, Knows::Idempotency).await;
    assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{}", semel_check::json(&report));
    let skipped: Vec<&str> = report.storyboards[0]
        .steps
        .iter()
        .filter(|step| step.grade == Grade::Skipped)
        .map(|step| step.phase.as_str())
        .collect();
    assert_eq!(
        skipped,
        [
            "in_flight_limit",
            "in_flight_bounds",
            "in_flight_bounds",
            "expiry_edge",
            "expiry_edge",
            "expiry_edge",
            "rate_limit"
        ]
    );
}

// Both policies of the protocol for a duplicate, and its releases.
#[tokio::test(flavor = "multi_thread")]
async fn correct_agents_of_every_style_fail_no_case() {
    for style in [Style::Waits, Style::Unavailable, Style::Release4] {
        let report = run("adcp", Form::Json, Knows::Style(style)).await;
        assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{style:?} {}", semel_check::json(&report));
    }
}

// Each flaw was hidden: requests that were told to wait were repeated until the answer looked right.
#[tokio::test(flavor = "multi_thread")]
async fn flaws_behind_a_call_in_progress_are_found() {
    let flaws = [
        (
            Flaw::ConflictAfterInFlight,
            &["conflict_in_flight"] as &[&str],
            "expected \"IDEMPOTENCY_CONFLICT at once\", got \"IDEMPOTENCY_IN_FLIGHT, then IDEMPOTENCY_CONFLICT",
        ),
        (
            Flaw::ConflictForSameRequest,
            &["race_10", "race_100", "conflict_in_flight"],
            "one kind must get it always, the others never",
        ),
        (Flaw::AnswersOtherRequest, &["conflict_in_flight"], "one kind must get it always, the others never"),
        // Which of the two sentences it is depends on the order of the requests.
        (Flaw::LastRequestWins, &["conflict_in_flight"], "racing: "),
        (Flaw::NoInFlightLimit, &["in_flight_limit"], "expected greater than 0, got nothing"),
        (Flaw::LimitAboveRetention, &["in_flight_bounds"], "at most replay_ttl_seconds"),
    ];
    // Most of the time they wait.
    let running: Vec<_> =
        flaws.iter().map(|(flaw, ..)| tokio::spawn(run("adcp", Form::Json, Knows::Flaw(*flaw)))).collect();
    for ((flaw, cases, sentence), report) in flaws.into_iter().zip(running) {
        let report = report.await.unwrap();
        assert_eq!(report.failed_cases(), cases, "{flaw:?} {}", semel_check::json(&report));
        let text = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
        assert!(text.contains(sentence), "{flaw:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_knows_nothing_of_idempotency_fails() {
    let report = run("adcp-idempotency", Form::Json, Knows::Nothing).await;
    assert_eq!(report.failed_cases(), ["discovery", "missing_key", "replay", "concurrent_retry"]);
    let hard = run("adcp", Form::Json, Knows::Nothing).await;
    assert_eq!(
        hard.failed_cases(),
        ["replay", "race_10", "race_100", "conflict_in_flight", "leak_scan", "crash_durability"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fixtures_are_seeded_in_order_and_keys_are_added_where_they_are_wanted() {
    let (server, agent) = agent::start(Form::Json, Knows::Idempotency, 1000).await;
    let text = "id: t\nprerequisites: {controller_seeding: true, test_kit: test-kits/nobody.yaml}\nfixtures:\n  \
        pricing_options: [{product_id: p, pricing_option_id: o, currency: USD}]\n  products: [{product_id: p, channels: [display]}]\n\
        phases:\n  - id: p\n    steps:\n      - {id: a, task: create_media_buy, sample_request: {packages: []}, validations: [{check: field_present, path: media_buy_id}]}\n      \
        - {id: b, task: get_adcp_capabilities, validations: [{check: cross_response_field_equal, path: adcp}]}\n      \
        - {id: c, task: list_moons, stateful: true}\n";
    let report = run_text(&server.url(), text).await;
    let steps = &report.storyboards[0].steps;
    assert_eq!(
        (steps[0].grade, steps[1].grade, steps[2].grade),
        (Grade::Passed, Grade::Skipped, Grade::Skipped)
    );
    assert_eq!(steps[2].skip.as_ref().unwrap().reason, Reason::MissingTool);
    assert!(report.storyboards[0].notices.iter().any(|notice| notice.contains("test-kits/nobody.yaml")));
    let log = agent.log.lock();
    let calls: Vec<_> = log
        .iter()
        .filter(|message| message["method"] == "tools/call")
        .map(|message| &message["params"])
        .collect();
    let scenarios: Vec<_> =
        calls[..3].iter().map(|call| call["arguments"]["scenario"].as_str().unwrap()).collect();
    assert_eq!(scenarios, ["list_scenarios", "seed_product", "seed_pricing_option"]);
    let params = &calls[2]["arguments"]["params"];
    assert_eq!(
        (&params["pricing_option_id"], &params["product_id"], &params["fixture"]["currency"]),
        (&json!("o"), &json!("p"), &json!("USD"))
    );
    assert_eq!(calls[3]["arguments"]["idempotency_key"].as_str().map(str::len), Some(36));
    assert!(calls[4]["arguments"].get("idempotency_key").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_target_cannot_do_is_not_applicable() {
    let (server, _) = agent::start(Form::Json, Knows::Idempotency, 1000).await;
    let step = "phases: [{id: p, steps: [{id: a, task: get_adcp_capabilities}]}]\n";
    for (head, reason) in [
        ("required_tools: [fly]", Reason::MissingTool),
        (
            "required_any_of_tools: [{tools: [get_adcp_capabilities, x]}, {tools: [fly]}]",
            Reason::RequirementUnmet,
        ),
        ("requires: [webhook_receiver]", Reason::RequirementUnmet),
        ("requires_capability: {path: adcp.moon, present: true}", Reason::NotApplicable),
        (
            "prerequisites: {controller_seeding: true}\nfixtures: {accounts: [{account_id: a}]}",
            Reason::NotApplicable,
        ),
    ] {
        let report = run_text(&server.url(), &format!("id: t\n{head}\n{step}")).await;
        assert_eq!(report.storyboards[0].skip.as_ref().map(|skip| skip.reason), Some(reason), "{head}");
        assert_eq!(report.summary.skipped, 1);
    }
    for head in [
        "required_tools: [fly, create_media_buy]",
        "requires: [controller, real_wire]",
        "requires_capability: {path: adcp.idempotency.supported, equals: true}",
    ] {
        let report = run_text(&server.url(), &format!("id: t\n{head}\n{step}")).await;
        assert_eq!(report.summary.passed, 1, "{head}");
    }
}

// The limiter of this agent sits higher than the attempts: no verdict.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_not_reached_is_not_judged() {
    let (server, _) = agent::start(Form::Json, Knows::Idempotency, 1000).await;
    let text = "id: t\nphases: [{id: p, steps: [{id: a, task: expect_rate_limit_not_replayed, requires_contract: rate_limit_trip_runner, \
        rate_limit_trip: {trip_target_task: create_media_buy, max_attempts: 50, trip_target_sample_request: {packages: []}}, \
        validations: [{check: replay_not_cached_rate_limit}]}]}]\n";
    let report = run_text(&server.url(), text).await;
    let skip = report.storyboards[0].steps[0].skip.clone().unwrap();
    assert_eq!((skip.reason, skip.detail.as_str()), (Reason::NotApplicable, "rate_limit_not_triggered"));
    let _ = Storyboard::parse("t.yaml", text).unwrap();
}
