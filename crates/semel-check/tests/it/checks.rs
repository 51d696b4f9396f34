//! Every kind of check, holding and not holding.

use semel_check::{CheckOutcome, Grade};
use serde_json::json;

use crate::kit::{Server, reply, run_text};

const ANSWER: &str =
    r#"{"id": "order-7", "n": 3, "list": [{"a": 1, "b": 2}, {"a": 2}], "none": null, "known": ["x", "y"]}"#;

async fn server() -> Server {
    Server::start(|asked| async move {
        let body: serde_json::Value = serde_json::from_str(ANSWER).unwrap();
        match asked.path.as_str() {
            "/refused" => reply(409, &[], &json!({"code": "conflict", "status": 409})),
            "/x" => reply(200, &[], &json!("x")),
            _ => reply(201, &[("x-kind", "order"), ("retry-after", "2")], &body),
        }
    })
    .await
}

/// How one check comes out on the answer above.
async fn outcome(server: &Server, path: &str, check: &str) -> (CheckOutcome, Grade) {
    let text = format!(
        "id: t\ntransport: http\ncontext: {{ known: [order-7, order-8], three: 3, seven: order-7 }}\nphases:\n  - id: p\n    \
         steps:\n      - id: before\n        request: {{ path: /other }}\n      - id: s\n        \
         request: {{ path: {path} }}\n        validations:\n          - {check}\n"
    );
    let report = run_text(&server.url(), &text).await;
    let step = &report.storyboards[0].steps[1];
    let written = step.validations.iter().find(|validation| check.contains(&validation.check));
    (written.unwrap_or_else(|| panic!("{check}: {:?}", step.validations)).outcome, step.grade)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_passes_and_fails() {
    let server = server().await;
    for (passes, fails) in [
        ("{check: field_present, path: id}", "{check: field_present, path: 'list[5].a'}"),
        ("{check: field_present, path: /list/0/a}", "{check: field_present, path: none}"),
        ("{check: field_absent, path: nobody}", "{check: field_absent, path: id}"),
        (
            "{check: field_pattern, path: id, value: '^order-[0-9]+$'}",
            "{check: field_pattern, path: id, value: '^x'}",
        ),
        ("{check: field_value, path: n, value: 3.0}", "{check: field_value, path: n, value: '3'}"),
        (
            "{check: field_value, path: id, allowed_values: [a, order-7]}",
            "{check: field_value, path: zz, value: 1}",
        ),
        (
            "{check: field_value, path: id, value: $context.seven}",
            "{check: field_value, path: id, value: $context.three}",
        ),
        (
            "{check: field_value_or_absent, path: zz, value: 1}",
            "{check: field_value_or_absent, path: n, value: 1}",
        ),
        (
            "{check: field_contains, path: 'list[*]', value: {a: 2}}",
            "{check: field_contains, path: 'list[*]', value: {a: 9}}",
        ),
        (
            "{check: field_contains, path: 'list[*].a', value: 2}",
            "{check: field_contains, path: 'nobody[*]', value: 2}",
        ),
        ("{check: array_length, path: list, value: 2}", "{check: array_length, path: list, min: 3}"),
        ("{check: array_length, path: list, min: 1, max: 2}", "{check: array_length, path: id, value: 1}"),
        ("{check: envelope_field_present, path: id}", "{check: envelope_field_present, path: zz}"),
        ("{check: envelope_field_absent, path: zz}", "{check: envelope_field_absent, path: id}"),
        (
            "{check: envelope_field_pattern, path: id, value: order}",
            "{check: envelope_field_pattern, path: id, value: '^7'}",
        ),
        ("{check: http_status, value: 201}", "{check: http_status, value: 200}"),
        (
            "{check: http_status_in, allowed_values: [200, 201]}",
            "{check: http_status_in, allowed_values: ['4xx']}",
        ),
        ("{check: status_code, value: 201}", "{check: status_code, value: 500}"),
        ("{check: header_present, header: X-Kind}", "{check: header_present, header: X-Nobody}"),
        ("{check: header_absent, header: X-Nobody}", "{check: header_absent, header: X-Kind}"),
        (
            "{check: header_value, header: x-kind, value: order}",
            "{check: header_value, header: x-kind, value: other}",
        ),
        (
            "{check: header_value, header: retry-after, value: 2}",
            "{check: header_value, header: x-kind, pattern: '^x'}",
        ),
        ("{check: body_equals_step, step: before}", "{check: body_equals_step, step: nobody}"),
        ("{check: body_excludes, value: order-8}", "{check: body_excludes, allowed_values: [zzz, order-7]}"),
        (
            "{check: field_less_than, path: n, value: 4}",
            "{check: field_less_than, path: n, context_key: three}",
        ),
        ("{check: field_greater_than, path: n, value: 2}", "{check: field_greater_than, path: id, value: 2}"),
        (
            "{check: field_equals_context, path: id, context_key: seven}",
            "{check: field_equals_context, path: id, context_key: nobody}",
        ),
        (
            "{check: field_differs_context, path: id, context_key: three}",
            "{check: field_differs_context, path: id, context_key: seven}",
        ),
        (
            "{check: field_in_context_array, path: id, context_key: known}",
            "{check: field_in_context_array, path: n, context_key: known}",
        ),
        (
            "{check: any_of, checks: [{check: http_status, value: 500}, {check: field_present, path: id}]}",
            "{check: any_of, checks: [{check: http_status, value: 500}, {check: field_present, path: zz}]}",
        ),
        (
            "{check: any_of, path: n, allowed_values: [1, 3]}",
            "{check: any_of, path: n, allowed_values: [1, 2]}",
        ),
        (
            "{check: response_schema, schema: {type: object, required: [id], properties: {n: {type: integer, maximum: 3}}}}",
            "{check: response_schema, schema: {type: object, properties: {list: {items: {required: [b]}}}}}",
        ),
        (
            "{check: response_schema, schema: {oneOf: [{type: string}, {required: [id]}], not: {required: [zz]}}}",
            "{check: response_schema, schema: {type: object, additionalProperties: false, properties: {id: {}}}}",
        ),
    ] {
        let (held, grade) = outcome(&server, "/order", passes).await;
        assert_eq!((held, grade), (CheckOutcome::Passed, Grade::Passed), "{passes}");
        let (held, grade) = outcome(&server, "/order", fails).await;
        assert_eq!((held, grade), (CheckOutcome::Failed, Grade::Failed), "{fails}");
    }
    let code = outcome(&server, "/refused", "{check: error_code, value: conflict}").await;
    assert_eq!(code, (CheckOutcome::Passed, Grade::Passed));
    let code = outcome(&server, "/refused", "{check: error_code, allowed_values: [other]}").await;
    assert_eq!(code, (CheckOutcome::Failed, Grade::Failed));
    let code = outcome(&server, "/order", "{check: error_code, value: conflict}").await;
    assert_eq!(code, (CheckOutcome::Failed, Grade::Failed), "a success has no code");
    let different = outcome(&server, "/x", "{check: body_equals_step, step: before}").await;
    assert_eq!(different, (CheckOutcome::Failed, Grade::Failed));
}

// Never a false pass: what cannot be judged is said to be so.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_judged_is_not_applicable() {
    let server = server().await;
    for check in [
        "{check: moon_is_full, path: id}",
        "{check: response_schema}",
        "{check: response_schema, schema: {$ref: 'https://example.com/schema.json'}}",
        "{check: response_schema, schema: {if: {required: [id]}}}",
        "{check: any_of, checks: [{check: moon_is_full}]}",
    ] {
        let (held, grade) = outcome(&server, "/order", check).await;
        assert_eq!((held, grade), (CheckOutcome::NotApplicable, Grade::Skipped), "{check}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_across_answers() {
    let server = Server::start(|asked| async move {
        let turn = asked.header("x-turn").unwrap_or_default();
        match asked.path.as_str() {
            "/same" => reply(200, &[], &json!({"id": 1})),
            "/fresh" => reply(200, &[], &json!({"id": asked.header("idempotency-key")})),
            "/some" if turn == "b" => reply(200, &[], &json!({})),
            "/some" => reply(200, &[], &json!({"id": 1})),
            _ => reply(200, &[], &json!({})),
        }
    })
    .await;
    for (path, check, expected) in [
        ("/same", "{check: cross_response_field_equal, path: id}", CheckOutcome::Passed),
        (
            "/same",
            "{check: cross_response_count_distinct, path: id, allowed_values: [1]}",
            CheckOutcome::Passed,
        ),
        (
            "/same",
            "{check: cross_response_count_distinct, path: id, allowed_values: [2, 4]}",
            CheckOutcome::Failed,
        ),
        ("/fresh", "{check: cross_response_field_equal, path: id}", CheckOutcome::Failed),
        (
            "/fresh",
            "{check: cross_response_count_distinct, path: id, allowed_values: [4]}",
            CheckOutcome::Passed,
        ),
        ("/some", "{check: cross_response_field_equal, path: id}", CheckOutcome::Failed),
        (
            "/some",
            "{check: cross_response_count_distinct, path: id, allowed_values: [1]}",
            CheckOutcome::Passed,
        ),
        ("/some", "{check: cross_response_one_request, path: id}", CheckOutcome::Passed),
        ("/same", "{check: cross_response_one_request, path: id}", CheckOutcome::Failed),
        ("/none", "{check: cross_response_one_request, path: id}", CheckOutcome::Failed),
        ("/none", "{check: cross_response_field_equal, path: id}", CheckOutcome::Failed),
        (
            "/none",
            "{check: cross_response_count_distinct, path: id, allowed_values: [0, 1]}",
            CheckOutcome::Failed,
        ),
    ] {
        let text = format!(
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {{ path: {path} }}\n        \
             parallel_dispatch:\n          count: 4\n          same_idempotency_key: false\n          \
             vary: [{{ headers: {{ x-turn: a }} }}, {{ headers: {{ x-turn: b }} }}]\n        validations: [{check}]\n"
        );
        let report = run_text(&server.url(), &text).await;
        assert_eq!(report.storyboards[0].steps[0].validations[0].outcome, expected, "{path} {check}");
    }
}
