//! The guide to the claims API does what it says.

use std::process::Command;

use crate::kit::Semel;

const GUIDE: &str = include_str!("../../../../docs/claims-api.md");

/// The code blocks of a language, in their order.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    GUIDE
        .split(fence.as_str())
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_shell_commands_work() {
    let semel = Semel::start(&["--store", "memory:"]);
    let script = format!("set -eu\n{}", blocks("sh").join("\n"));
    let output = Command::new("bash").arg("-c").arg(script).env("ADMIN", semel.admin_url()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for expected in
        ["\"status\":\"won\"", "\"status\":\"begun\"", "\"status\":\"done\"", "\"status\":\"replay\""]
    {
        assert!(said.contains(expected), "{expected} in {said}");
    }
}

#[test]
fn the_python_worker_works() {
    let semel = Semel::start(&["--store", "memory:"]);
    let output = Command::new("python3")
        .arg("-c")
        .arg(blocks("python").join("\n"))
        .env("ADMIN", semel.admin_url())
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        ["charging 1200", "{'receipt': 'r-1'}", "{'receipt': 'r-1'}"]
    );
}
