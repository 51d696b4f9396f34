//! P13, G18: the drills, as anybody runs them.

use crate::kit::run;

#[test]
fn every_drill_passes_and_says_what_it_checked() {
    let output = run(&["drill", "all", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let told: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(told.len() >= 9, "{text}");
    for drill in told {
        assert_eq!(drill["passed"], true, "{drill}");
        assert!(drill["checks"].as_array().unwrap().len() >= 2, "{drill}");
    }
}

#[test]
fn an_unknown_drill_lists_them() {
    let output = run(&["drill", "nothing"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for name in
        ["target-down", "duplicate-messages", "broken-credentials", "replay-dead-letter", "cold-gate-burst"]
    {
        assert!(text.contains(name), "{text}");
    }
}
