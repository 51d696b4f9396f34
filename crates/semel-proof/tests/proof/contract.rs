//! The command that shows what holds where: it tells a good store from a broken one.

use std::process::{Command, Output};

fn contract(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel-contract")).args(words).output().expect("it can be started")
}

const CASES: [&str; 6] =
    ["--case", "claim_wins_once", "--case", "complete_is_repeatable", "--case", "complete_wakes"];

#[test]
fn stores_that_hold_make_a_table_and_a_good_end() {
    let output = contract(&[&["memory", "embedded", "encrypted"], &CASES[..]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}");
    let mut lines = table.lines();
    let words = |line: Option<&str>| {
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(words(lines.next()), ["case", "memory", "embedded", "encrypted"]);
    for case in ["claim_wins_once", "complete_is_repeatable", "complete_wakes"] {
        assert_eq!(words(lines.next()), [case, "ok", "ok", "ok"]);
    }
    assert!(table.ends_with("\n9 passed, 0 failed\n"), "{table}");
}

#[test]
fn a_broken_store_makes_a_bad_end() {
    let output = contract(&[&["memory", "broken"], &CASES[..]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    let row = table.lines().find(|line| line.starts_with("complete_is_repeatable")).unwrap_or_default();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["complete_is_repeatable", "ok", "FAILED"]);
    assert!(table.contains("FAILED  broken: complete_is_repeatable\n  "), "it says why: {table}");
}

#[test]
fn unknown_words_are_named() {
    for words in [["nosuch", ""], ["--case", "nosuch"]] {
        let output = contract(&words);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("`nosuch`"), "{words:?}");
    }
    let list = contract(&["--list"]);
    assert!(
        String::from_utf8_lossy(&list.stdout)
            .contains("stores: memory embedded redis redis-cluster postgres")
    );
}
