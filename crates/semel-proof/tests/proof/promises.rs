//! What the documentation says about tests holds: every failure mode has one, and every command of the promises page exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::hygiene::root;

/// A test, or a module or case of tests: its crate, and its name as the test runner shows it.
type Name = (String, String);

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("a folder can be read").path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of all tests in the sources. A test that a macro writes is known by the line that names it.
fn tests() -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("the crates are there") {
        let folder = entry.expect("a folder can be read").path();
        let package = file_name(&folder);
        for part in ["src", "tests/it", "tests/proof"] {
            let (base, mut files) = (folder.join(part), Vec::new());
            sources(&base, &mut files);
            for file in files {
                let module = module_of(file.strip_prefix(&base).expect("it is below"));
                let text = std::fs::read_to_string(&file).expect("a source can be read");
                names.extend(tests_in(&module, &text).into_iter().map(|name| (package.clone(), name)));
            }
        }
    }
    names
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("it has a name").to_string_lossy().into_owned()
}

/// `events/killed.rs` is `events::killed::`, and `main.rs` is nothing.
fn module_of(path: &Path) -> String {
    let path = path.with_extension("");
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match parts.as_slice() {
        [only] if only == "main" || only == "lib" => String::new(),
        parts => format!("{}::", parts.join("::")),
    }
}

fn tests_in(module: &str, text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut is_test, mut prefix) = (false, String::new());
    for line in text.lines() {
        let (trimmed, indented) = (line.trim(), line.starts_with(' '));
        if !indented {
            prefix = match trimmed.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
                Some(inner) => {
                    names.push(format!("{module}{inner}"));
                    format!("{inner}::")
                }
                None if trimmed.is_empty() || trimmed == "}" => prefix,
                None => String::new(),
            };
        }
        if trimmed.starts_with("#[test") || trimmed.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = function(trimmed) {
            if is_test {
                names.push(format!("{module}{prefix}{name}"));
            }
            is_test = false;
        } else if indented && let Some(name) = macro_case(trimmed) {
            names.push(format!("{module}{prefix}{name}"));
        }
    }
    names
}

fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    line.split_once(['(', '<']).map(|(name, _)| name)
}

/// A line that is a name and nothing else, or a name with a colon: a case of a macro.
fn macro_case(line: &str) -> Option<&str> {
    let name = line.split_once(':').map_or_else(|| line.trim_end_matches(','), |(name, _)| name);
    let is_name = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    (name.contains('_') && name.bytes().all(is_name)).then_some(name)
}

/// Whether a word selects at least one test of the crate, as the test runner does it: it is a part of the name.
fn selects(tests: &BTreeSet<Name>, package: &str, word: &str) -> bool {
    tests.iter().any(|(of, name)| of == package && name.contains(word))
}

/// The cells of the rows of all tables, without backticks.
fn rows(page: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>()
    };
    page.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

#[test]
fn every_failure_mode_has_a_test() {
    let (page, tests) = (read("docs/reference/failure-modes.md"), tests());
    let (mut modes, mut missing) = (BTreeSet::new(), Vec::new());
    for row in rows(&page) {
        let [mode, package, test] = row.as_slice() else { panic!("three cells: {row:?}") };
        assert!(modes.insert(mode.clone()), "{mode} is listed twice");
        if !tests.contains(&(package.clone(), test.clone())) {
            missing.push(format!("{mode}: {package} has no test {test}"));
        }
    }
    assert!(modes.len() > 150, "the list is read: {}", modes.len());
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The long proofs by name, and what each selects: crate and word.
fn proofs() -> (BTreeSet<String>, Vec<Name>) {
    let script = read("scripts/prove");
    let list = script.split_once("names=(").and_then(|(_, rest)| rest.split_once(')')).expect("the names").0;
    let mut selected = Vec::new();
    for line in script.lines() {
        let Some((_, call)) = line.split_once("prove_tests semel") else { continue };
        let call = call.split(";;").next().unwrap_or_default();
        let mut words = call.split_whitespace();
        let package = match call.starts_with(' ') {
            true => "semel".to_owned(),
            false => format!("semel{}", words.next().unwrap_or_default()),
        };
        selected.extend(words.map(|word| (package.clone(), word.to_owned())));
    }
    (list.split_whitespace().map(str::to_owned).collect(), selected)
}

#[test]
fn every_proof_selects_tests() {
    let (names, selected) = proofs();
    assert!(names.len() > 20 && selected.len() > 50, "the script is read");
    let tests = tests();
    let missing: Vec<&Name> =
        selected.iter().filter(|(package, word)| !selects(&tests, package, word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_command_of_the_promises_exists() {
    let (names, _) = proofs();
    let (tests, mut seen) = (tests(), 0);
    for page in ["PROMISES.md", "docs/explanation/promises.md", "docs/reference/proof-results.md"] {
        let text = read(page);
        for rest in text.split("./scripts/prove ").skip(1) {
            let name = rest.split(['`', ' ', '\n', '|', ',', '.']).next().unwrap_or_default();
            assert!(name == "NAME" || name == "all" || names.contains(name), "{page}: no proof {name}");
            seen += 1;
        }
        for rest in text.split("nextest run -p ").skip(1) {
            let command = rest.split('`').next().unwrap_or_default();
            let package = command.split_whitespace().next().unwrap_or_default();
            let word =
                command.split_once("test(").and_then(|(_, rest)| rest.split_once(')')).map(|(word, _)| word);
            let word = word.unwrap_or_else(|| panic!("{page}: {command} selects tests by name"));
            assert!(selects(&tests, package, word), "{page}: {package} has no test {word}");
            seen += 1;
        }
    }
    assert!(seen > 20, "the pages are read: {seen}");
}

#[test]
fn every_proof_has_a_place_for_its_result() {
    let listed: Vec<String> =
        rows(&read("docs/reference/proof-results.md")).into_iter().map(|mut row| row.remove(0)).collect();
    let (names, _) = proofs();
    let known: BTreeSet<String> = listed.iter().filter(|name| names.contains(*name)).cloned().collect();
    assert_eq!(known, names, "each name of scripts/prove has a row");
}

#[test]
fn names_of_tests_are_read_from_sources() {
    let text = "#[test]\nfn one() {\n}\nfn helper() {\n}\ncases! {\n    by_a_macro,\n}\n\
                mod tests {\n    #[tokio::test]\n    async fn two() {\n    }\n\n    mod deep {\n    }\n}\n";
    assert_eq!(
        tests_in("a::", text),
        ["a::one", "a::by_a_macro", "a::tests", "a::tests::two"].map(str::to_owned)
    );
    assert_eq!(module_of(Path::new("events/killed.rs")), "events::killed::");
    assert_eq!(module_of(Path::new("main.rs")), "");
}
