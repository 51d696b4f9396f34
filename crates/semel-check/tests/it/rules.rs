//! Captures, values, cascades, gates, levels, invariants.

use std::sync::Arc;

use parking_lot::Mutex;
use semel_check::{CheckOutcome, Grade, Reason, RunOptions, Runner, Storyboard};
use serde_json::{Value, json};

use crate::kit::{Asked, Server, reply, run_text};

/// Answers 200 with what it was asked; `/fail` with 500, `/empty` with an empty id.
async fn echo() -> (Server, Arc<Mutex<Vec<Asked>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let of_server = Arc::clone(&log);
    let server = Server::start(move |asked: Asked| {
        let log = Arc::clone(&of_server);
        async move {
            log.lock().push(asked.clone());
            match asked.path.as_str() {
                "/fail" => reply(500, &[], &json!({"code": "oops"})),
                "/empty" => reply(200, &[], &json!({"id": ""})),
                "/.well-known/idempotency" => {
                    reply(200, &[], &json!({"supported": true, "methods": ["POST"]}))
                }
                _ => reply(200, &[], &json!({"id": "i-1", "n": 7, "asked": asked.json()})),
            }
        }
    })
    .await;
    (server, log)
}

fn grades(report: &semel_check::Report) -> Vec<(String, Grade)> {
    report.storyboards[0].steps.iter().map(|step| (step.step.clone(), step.grade)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn captured_values_travel_with_their_type_and_generated_ones_stay() {
    let (server, log) = echo().await;
    let text = "id: t\ntransport: http\ncontext: {tenant: acme}\nphases:\n  - id: p\n    steps:\n      \
        - {id: a, request: {path: /, body: {k: '$generate:uuid_v4#one'}}, context_outputs: [{name: n, path: n}, {name: g, generate: uuid_v4}]}\n      \
        - {id: b, request: {path: /$context.tenant, body: {n: $context.n, k: '$generate:uuid_v4#one', g: $context.g, id: '{{prior_step.a.id}}', f: '$generate:uuid_v4'}}}\n      \
        - {id: c, request: {path: /, body: {g: $context.g}}, context_inputs: [{key: n, inject_at: 'body.deep[0].n'}, {key: n, inject_at: 'flat'}], auth: {token: 'own-$context.n'}}\n";
    let report = run_text(&server.url(), text).await;
    assert!(report.is_good() && report.summary.passed == 3, "{}", semel_check::json(&report));
    let log = log.lock();
    let (a, b, c) = (log[0].json(), log[1].json(), log[2].json());
    assert_eq!(log[1].path, "/acme");
    assert_eq!((&b["n"], &b["k"], &b["id"]), (&json!(7), &a["k"], &json!("i-1")));
    assert_ne!(b["f"], b["k"]);
    assert_eq!((&c["g"], &c["deep"][0]["n"]), (&b["g"], &json!(7)));
    assert_eq!(c["flat"], 7);
    assert_eq!(log[2].header("authorization").as_deref(), Some("Bearer own-7"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_captured_fails_its_step_and_an_unfilled_value_is_never_sent() {
    let (server, log) = echo().await;
    for path in ["nobody", "asked", "id"] {
        let text = format!(
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      \
             - {{id: a, request: {{path: /empty}}, context_outputs: [{{name: x, path: {path}}}]}}\n  - id: q\n    depends_on: []\n    steps:\n      \
             - {{id: b, request: {{path: /, body: {{x: $context.x}}}}}}\n"
        );
        log.lock().clear();
        let report = run_text(&server.url(), &text).await;
        let steps = &report.storyboards[0].steps;
        assert_eq!(steps[0].validations[0].check, "capture_path_not_resolvable");
        assert_eq!(steps[1].validations[0].check, "unresolved_substitution");
        assert_eq!(steps[1].validations[0].expected, Some(json!("$context.x")));
        assert_eq!((steps[0].grade, steps[1].grade), (Grade::Failed, Grade::Failed));
        assert_eq!(log.lock().len(), 1, "only the first was sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_takes_what_builds_on_it_along_and_nothing_else() {
    let (server, _) = echo().await;
    let text = "id: t\ntransport: http\nphases:\n  - id: one\n    steps:\n      - {id: a, request: {path: /fail}}\n      - {id: b, request: {path: /}}\n      \
        - {id: c, stateful: false, request: {path: /}}\n  - id: two\n    steps: [{id: d, request: {path: /}}]\n  \
        - id: three\n    depends_on: []\n    steps: [{id: e, request: {path: /}}]\n  - id: four\n    depends_on: [three]\n    steps: [{id: f, request: {path: /}}]\n";
    let report = run_text(&server.url(), text).await;
    let expected = [
        ("a", Grade::Failed),
        ("b", Grade::Skipped),
        ("c", Grade::Passed),
        ("d", Grade::Skipped),
        ("e", Grade::Passed),
        ("f", Grade::Passed),
    ];
    assert_eq!(grades(&report), expected.map(|(step, grade)| (step.to_owned(), grade)));
    assert_eq!(report.storyboards[0].steps[1].skip.as_ref().unwrap().reason, Reason::PrerequisiteFailed);
    assert_eq!(report.summary.skipped_by_reason["prerequisite_failed"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_required_cases_fail_a_run() {
    let (server, _) = echo().await;
    for (level, grade, good) in [
        ("required", Grade::Failed, false),
        ("recommended", Grade::NotMet, true),
        ("optional", Grade::NotMet, true),
    ] {
        let text = format!(
            "id: t\ntransport: http\nphases:\n  - id: p\n    level: {level}\n    steps: [{{id: a, request: {{path: /fail}}}}]\n"
        );
        let report = run_text(&server.url(), &text).await;
        assert_eq!((report.storyboards[0].steps[0].grade, report.is_good()), (grade, good), "{level}");
        assert_eq!(report.failed_cases(), ["p"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expected_errors_and_unexpected_ones() {
    let (server, _) = echo().await;
    for (step, grade) in [
        ("{id: a, request: {path: /fail}, expect_error: true}", Grade::Passed),
        ("{id: a, request: {path: /}, expect_error: true}", Grade::Failed),
        ("{id: a, request: {path: /fail}}", Grade::Failed),
        ("{id: a, request: {path: /fail}, validations: [{check: http_status, value: 500}]}", Grade::Passed),
        ("{id: a, request: {path: /fail}, validations: [{check: field_present, path: code}]}", Grade::Failed),
        // An unknown check does not make a failure pass, nor a success.
        ("{id: a, request: {path: /fail}, validations: [{check: zz}]}", Grade::Failed),
        ("{id: a, request: {path: /}, validations: [{check: zz}]}", Grade::Skipped),
        (
            "{id: a, request: {path: /}, validations: [{check: field_present, path: zz, severity: advisory, permanent_advisory: {reason: r}}]}",
            Grade::Passed,
        ),
        (
            "{id: a, request: {path: /}, validations: [{check: field_present, path: zz, severity: advisory}]}",
            Grade::Failed,
        ),
    ] {
        let text = format!("id: t\ntransport: http\nphases:\n  - id: p\n    steps: [{step}]\n");
        let report = run_text(&server.url(), &text).await;
        assert_eq!(report.storyboards[0].steps[0].grade, grade, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_and_conditions_close_what_does_not_apply() {
    let (server, log) = echo().await;
    let gated = |gate: &str| {
        format!(
            "id: t\ntransport: http\nrequires_capability: {gate}\nphases:\n  - id: p\n    steps: [{{id: a, request: {{path: /}}}}]\n"
        )
    };
    let open = run_text(&server.url(), &gated("{path: supported, equals: true}")).await;
    assert_eq!(open.summary.passed, 1);
    log.lock().clear();
    let closed = run_text(&server.url(), &gated("{path: methods, contains: PUT}")).await;
    assert_eq!(closed.storyboards[0].skip.as_ref().unwrap().reason, Reason::NotApplicable);
    assert!(log.lock().iter().all(|asked| asked.path != "/"), "nothing was asked");
    let phases = "id: t\ntransport: http\nphases:\n  - {id: p, skip_if: '!context.slow', steps: [{id: a, request: {path: /}}]}\n  \
        - {id: q, requires_capability: {path: zz, present: true}, steps: [{id: b, request: {path: /}}]}\n  \
        - {id: r, skip_if: 'the moon is full', steps: [{id: c, request: {path: /}}]}\n  \
        - {id: s, steps: [{id: d, requires_contract: webhook_receiver_runner, request: {path: /}}]}\n  \
        - {id: u, steps: [{id: e, auth: other, request: {path: /}}]}\n  - {id: v, steps: [{id: f, restart: true}]}\n";
    let report = run_text(&server.url(), phases).await;
    let reasons: Vec<Option<Reason>> =
        report.storyboards[0].steps.iter().map(|step| step.skip.as_ref().map(|skip| skip.reason)).collect();
    let expected = [
        Some(Reason::NotApplicable),
        Some(Reason::NotApplicable),
        None,
        Some(Reason::UnsatisfiedContract),
        Some(Reason::NotApplicable),
        Some(Reason::NotApplicable),
    ];
    assert_eq!(reasons, expected);
    assert!(report.storyboards[0].notices.iter().any(|notice| notice.contains("is invalid")));
    for (requirement, reason) in
        [("moonlight", Reason::RequirementUnmet), ("controller", Reason::MissingTestController)]
    {
        let text = format!(
            "id: t\ntransport: http\nrequires: [{requirement}]\nphases: [{{id: p, steps: [{{id: a, request: {{path: /}}}}]}}]\n"
        );
        let report = run_text(&server.url(), &text).await;
        assert_eq!(report.storyboards[0].skip.as_ref().unwrap().reason, reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_of_which_one_is_taken() {
    let (server, _) = echo().await;
    let branch = |taken: &str| {
        format!(
            "id: t\ntransport: http\nphases:\n  - {{id: p, optional: true, branch_set: {{id: b, semantics: any_of}}, steps: [{{id: a, contributes: true, request: {{path: {taken}}}}}]}}\n  \
             - {{id: q, optional: true, branch_set: {{id: b, semantics: any_of}}, steps: [{{id: c, contributes: true, request: {{path: /fail}}}}]}}\n  \
             - {{id: r, depends_on: [], steps: [{{id: d, request: {{path: /}}, validations: [{{check: any_of, allowed_values: [b]}}]}}]}}\n"
        )
    };
    let one = run_text(&server.url(), &branch("/")).await;
    let expected = [("a", Grade::Passed), ("c", Grade::Skipped), ("d", Grade::Passed)];
    assert_eq!(grades(&one), expected.map(|(step, grade)| (step.to_owned(), grade)));
    let none = run_text(&server.url(), &branch("/fail")).await;
    let expected = [("a", Grade::NotMet), ("c", Grade::NotMet), ("d", Grade::Failed)];
    assert_eq!(grades(&none), expected.map(|(step, grade)| (step.to_owned(), grade)));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_from_outside_replace_the_files() {
    let (server, log) = echo().await;
    let text = "id: t\ntransport: http\ncontext: {path: /a, body: {x: 1}}\nphases: [{id: p, steps: [{id: a, request: {path: $context.path, body: $context.body}}]}]\n";
    let mut options = RunOptions::new(server.url());
    options.auth = Some("tok".to_owned());
    options.set.insert("path".to_owned(), json!("/b"));
    options.set.insert("body".to_owned(), json!({"y": [2]}));
    let storyboard = Storyboard::parse("t.yaml", text).unwrap();
    let report = Runner::new(options).unwrap().run(&[storyboard], &|_| {}).await.unwrap();
    assert!(report.is_good());
    let log = log.lock();
    assert_eq!((log[0].path.as_str(), log[0].json()), ("/b", json!({"y": [2]})));
    assert_eq!(log[0].header("authorization").as_deref(), Some("Bearer tok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn invariants_are_looked_at_after_every_step() {
    let server = Server::start(|asked: Asked| async move {
        match asked.path.as_str() {
            "/leaky" => {
                reply(422, &[], &json!({"code": "conflict", "title": "x", "original_request": {"amount": 5}}))
            }
            "/clean" => {
                reply(422, &[], &json!({"code": "conflict", "title": "x", "detail": "y", "status": 422}))
            }
            _ => reply(200, &[], &json!({"debug": asked.json()})),
        }
    })
    .await;
    let run = |step: &str| {
        format!(
            "id: t\ntransport: http\ninvariants: [idempotency.conflict_no_payload_leak, context.no_secret_echo, moon]\nphases: [{{id: p, steps: [{step}]}}]\n"
        )
    };
    let leaky = run_text(&server.url(), &run("{id: a, expect_error: true, request: {path: /leaky}}")).await;
    let validation = &leaky.storyboards[0].steps[0].validations[0];
    assert_eq!(
        (validation.check.as_str(), validation.outcome),
        ("idempotency.conflict_no_payload_leak", CheckOutcome::Failed)
    );
    assert_eq!(validation.json_pointer.as_deref(), Some("/original_request"));
    assert!(leaky.storyboards[0].notices.iter().any(|notice| notice.contains("`moon`")));
    let clean = run_text(&server.url(), &run("{id: a, expect_error: true, request: {path: /clean}}")).await;
    assert!(clean.is_good());
    let echo = run_text(
        &server.url(),
        &run("{id: a, request: {path: /e, body: {auth: {client_secret: hush-hush-1}}}}"),
    )
    .await;
    let validation = &echo.storyboards[0].steps[0].validations[0];
    assert_eq!(
        (validation.check.as_str(), validation.outcome),
        ("context.no_secret_echo", CheckOutcome::Failed)
    );
    assert!(!semel_check::json(&echo).contains("hush-hush-1"));
    let _: Value = serde_json::from_str(&semel_check::json(&echo)).unwrap();
}
