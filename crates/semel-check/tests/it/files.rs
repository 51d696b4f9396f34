//! What is wrong with a file is told with its place; what is odd is mentioned.

use semel_check::{Grade, Reason, SUITES, Storyboard, suite, template};

use crate::kit::{Server, mistakes, reply, run_text};

#[test]
fn every_built_in_suite_and_the_template_can_be_read() {
    for known in SUITES {
        assert!(suite(known.name).is_some(), "{}", known.name);
    }
    Storyboard::parse("mine.yaml", &template("mine")).unwrap();
}

#[test]
fn mistakes_are_told_with_file_line_column_and_what_was_expected() {
    for (text, expected) in [
        ("id: [1", "test.yaml:"),
        ("", "test.yaml:1:1: expected a mapping; the file is empty"),
        ("- a\n", "test.yaml:1:1: expected a storyboard as a mapping, not a list"),
        ("title: x\ntransport: http\nphases: []\n", "test.yaml:1:1: expected `id` in a storyboard"),
        (
            "id: t\ntransport: carrier-pigeon\nphases: []\n",
            "test.yaml:2:12: expected `transport` to be http or mcp",
        ),
        ("id: t\ntransport: http\nrequires: []\nphases: []\n", "test.yaml:3:11: expected `requires`"),
        (
            "id: t\ntransport: http\nphases: 3\n",
            "test.yaml:3:9: expected `phases` of a storyboard to be a list, not 3",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    level: urgent\n    steps: []\n",
            "test.yaml:5:12: expected `level` to be required, recommended or optional",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    depends_on: [q]\n    steps: []\n",
            "expected `depends_on` of phase `p` to name earlier phases, not `q`",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n",
            "test.yaml:6:9: expected `request` in a step over http",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: x}\n",
            "test.yaml:7:25: expected `path` to begin with /",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /, body: 1, body_raw: x}\n",
            "expected `body` or `body_raw`, not both",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /}\n        validations: [{check: field_value, path: a}]\n",
            "test.yaml:8:23: expected `path`, and `value` or `allowed_values` for the check field_value",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /}\n        validations: [{check: cross_response_field_equal, path: a}]\n",
            "expected a step with `parallel_dispatch` or `repeat` for the check cross_response_field_equal",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /}\n        parallel_dispatch: {count: 1001}\n",
            "to be a whole number from 2 to 1000, not 1001",
        ),
        (
            "id: t\nphases:\n  - id: p\n    steps:\n      - id: s\n        task: x\n        parallel_dispatch: {count: 11}\n",
            "to be a whole number from 2 to 10, not 11",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /}\n        context_outputs: [{name: a, path: b, generate: uuid_v4}]\n",
            "expected exactly one of `path` and `generate` for the output `a`",
        ),
        (
            "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - id: s\n        request: {path: /}\n        validations: [{check: field_pattern, path: a, value: '('}]\n",
            "expected a valid regular expression",
        ),
        (
            "id: t\ntransport: http\nrequires_capability: {path: a}\nphases: []\n",
            "test.yaml:3:22: expected exactly one of equals, contains, not_contains, present",
        ),
    ] {
        let told = mistakes(text);
        assert!(told.contains(expected), "{text}\n{told}\n{expected}");
        assert!(told.starts_with("test.yaml:"), "{told}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_their_order() {
    let told =
        mistakes("id: t\ntransport: http\nphases:\n  - title: p\n    level: x\n    steps: [{title: s}]\n");
    assert_eq!(told.lines().count(), 4, "{told}");
    let mut lines: Vec<&str> = told.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, told.lines().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_members_are_mentioned_once_and_ignored() {
    let server = Server::start(|_| async { reply(200, &[], &serde_json::json!({})) }).await;
    let text = "id: t\ntransport: http\nmood: good\nphases:\n  - id: p\n    steps:\n      - {id: a, request: {path: /}, zz: 1}\n      \
                - {id: b, request: {path: /}, zz: 2}\n";
    let report = run_text(&server.url(), text).await;
    let notices = report.storyboards[0].notices.join("\n");
    assert!(notices.contains("`mood` is unknown here"), "{notices}");
    assert!(notices.contains("line 7: `zz` is unknown here and ignored (2 times)"), "{notices}");
    assert!(report.is_good() && report.summary.passed == 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_phases_and_one_with_unknown_references_do_not_apply() {
    let server = Server::start(|_| async { reply(200, &[], &serde_json::json!({})) }).await;
    let report = run_text(&server.url(), "id: t\ntransport: http\nphases: []\n").await;
    assert_eq!(report.storyboards[0].skip.as_ref().unwrap().reason, Reason::NoPhases);
    let told = semel_check::pretty(&report, semel_check::Paint::Plain, semel_check::Verbosity::Short);
    assert!(told.contains("nothing graded: 0 steps"), "{told}");
    let text = "id: t\ntransport: http\nphases:\n  - id: p\n    steps:\n      - {id: a, request: {path: '/{{prior_step.nobody.id}}'}}\n";
    let report = run_text(&server.url(), text).await;
    assert_eq!(report.storyboards[0].skip.as_ref().unwrap().reason, Reason::NotApplicable);
    assert_eq!(report.storyboards[0].steps[0].grade, Grade::Skipped);
}

// Never a panic: every built-in file, broken in many places, is read or refused.
#[test]
fn broken_files_are_refused_in_words() {
    let mut refused = 0;
    for known in SUITES {
        let text = known.text;
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).step_by(61).collect();
        for (number, place) in places.iter().enumerate() {
            let (before, after) = text.split_at(*place);
            let rest: String = after.chars().skip(1).collect();
            let insert =
                ["", "[", "\"", "\t", "\n  - ", ": ", "&x *x ", "$context.", "{{", "\u{0}"][number % 10];
            for broken in [before.to_owned(), format!("{before}{insert}{rest}")] {
                match Storyboard::parse("broken.yaml", &broken) {
                    Ok(_) => {}
                    Err(error) => {
                        assert!(error.to_string().starts_with("broken.yaml:"), "{error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn fuzz_storyboard() {
    let tokens = [
        "- ",
        ": ",
        "\n",
        "\n  ",
        "\n    ",
        "id: ",
        "phases:",
        "steps:",
        "task: ",
        "validations:",
        "check: ",
        "path: ",
        "value: ",
        "&a ",
        "*a",
        "|\n",
        ">\n",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "# ",
        "!!",
        "---\n",
        "$context.",
        "null",
        "1e9",
        "?",
        "\t",
    ];
    let fuzz = semel_testbed::fuzz::Fuzz::new("storyboard", include_str!("../../fuzz/storyboard.seeds"));
    fuzz.seed(include_str!("../../suites/template.yaml")).tokens(&tokens).run(|input| {
        let text = String::from_utf8_lossy(input);
        match Storyboard::parse("fuzz.yaml", &text) {
            Ok(_) => String::new(),
            // The first words of the first mistake: what follows quotes the file.
            Err(error) => {
                let error = error.to_string();
                assert!(!error.is_empty());
                let mistake = error.lines().find(|line| line.contains("fuzz.yaml:")).unwrap_or(&error);
                mistake.split(": ").nth(1).unwrap_or_default().split_whitespace().take(3).collect()
            }
        }
    });
}
