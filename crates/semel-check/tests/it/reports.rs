//! Reports for people, programs and build servers; secrets in none.

use semel_check::{
    Paint, Report, RunOptions, Runner, Storyboard, Verbosity, html, json, junit, markdown, pretty,
};
use serde_json::{Value, json as value};

use crate::kit::{Server, reply};

async fn report() -> Report {
    let server = Server::start(|asked| async move {
        match asked.path.as_str() {
            "/bad" => reply(
                200,
                &[("set-cookie", "sid=very-secret-cookie"), ("x-request-id", "r-1")],
                &value!({"id": "<b>&\"", "nested": [{"api_key": "key-in-answer", "echo": "tok-123456789"}]}),
            ),
            _ => reply(200, &[], &value!({"id": 1})),
        }
    })
    .await;
    let text = "id: shop\ntitle: The shop\ntransport: http\nphases:\n  - id: good\n    steps: [{id: a, request: {path: /good}}]\n  \
        - id: bad\n    title: It is bad\n    depends_on: []\n    explain: {suffers: Pain., fix: Mend it.}\n    steps:\n      \
        - {id: b, request: {path: /bad, headers: {X-Api-Key: header-secret-1}, body: {password: body-secret-1, amount: 5}}, validations: [{check: field_value, path: id, value: 1, description: The id is one}]}\n  \
        - id: wish\n    level: optional\n    depends_on: []\n    steps: [{id: c, request: {path: /good}, validations: [{check: field_present, path: zz}]}]\n  \
        - id: away\n    skip_if: '!context.zz'\n    steps: [{id: d, request: {path: /good}, reviewer_checks: [Look at it]}]\n";
    let mut options = RunOptions::new(server.url());
    options.auth = Some("tok-123456789".to_owned());
    let storyboard = Storyboard::parse("shop.yaml", text).unwrap();
    Runner::new(options).unwrap().run(&[storyboard], &|_| {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_story_three_times_and_never_a_secret() {
    let report = report().await;
    let people = pretty(&report, Paint::Plain, Verbosity::Explained);
    for part in [
        "The shop (shop)",
        "✓ good",
        "✗ bad: It is bad",
        "The id is one",
        "expected 1",
        "harm to a client: Pain.",
        "how to fix it: Mend it.",
        "asked:",
        "! wish",
        "(optional)",
        "– away",
        "needs --set zz=…",
        "for a human: Look at it",
        "FAILED: 4 steps against http://127.0.0.1:",
        "1 passed, 1 failed, 1 optional not met, 1 skipped (not_applicable 1)",
    ] {
        assert!(people.contains(part), "{part} in\n{people}");
    }
    assert!(!pretty(&report, Paint::Plain, Verbosity::Short).contains("Pain."));
    assert!(pretty(&report, Paint::Coloured, Verbosity::Short).contains("\x1b[31"));

    let page = html(&report);
    let comment = markdown(&report);
    for part in
        ["Idempotency check: Failed", "The id is one", "Pain.", "Mend it.", "Sent at", "&lt;b&gt;&amp;"]
    {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    for part in [
        "### Idempotency check failed",
        "| **failed** | `bad`: It is bad | required |",
        "- How to fix it: Mend it.",
    ] {
        assert!(comment.contains(part), "{part} in\n{comment}");
    }
    for text in [&page, &comment] {
        for secret in
            ["very-secret-cookie", "tok-123456789", "header-secret-1", "body-secret-1", "key-in-answer"]
        {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
    }
    assert!(!page.contains("<b>&\""), "{page}");

    let programs: Value = serde_json::from_str(&json(&report)).unwrap();
    assert_eq!(programs["storyboards"][0]["cases"][1]["explain"]["fix"], "Mend it.");
    assert!(junit(&report).contains("how to fix it: Mend it."));
    assert_eq!(programs["summary"]["failed"], 1);
    assert_eq!(programs["summary"]["optional_not_met"], 1);
    let bad = &programs["storyboards"][0]["steps"][1];
    assert_eq!(
        (&bad["storyboard"], &bad["phase"], &bad["step"]),
        (&value!("shop"), &value!("bad"), &value!("b"))
    );
    assert_eq!((&bad["passed"], &bad["extraction_path"]), (&value!(false), &value!("structured_content")));
    let failed = &bad["validations"][0];
    assert_eq!((&failed["expected"], &failed["json_pointer"]), (&value!(1), &value!("/id")));
    assert_eq!(failed["request"]["body"]["amount"], 5);
    assert_eq!(failed["response"]["status"], 200);
    assert_eq!(failed["response"]["headers"]["x-request-id"], "r-1");

    let builds = junit(&report);
    assert!(builds.contains("<testsuite name=\"shop\" tests=\"4\" failures=\"1\" skipped=\"2\""), "{builds}");
    assert!(builds.contains("classname=\"shop.bad\" name=\"b\""), "{builds}");
    assert!(builds.contains("&lt;b&gt;&amp;"), "{builds}");
    assert!(!builds.contains("<b>"), "{builds}");

    for text in [people, json(&report), builds] {
        for secret in
            ["tok-123456789", "very-secret-cookie", "key-in-answer", "header-secret-1", "body-secret-1"]
        {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
