//! What we build on, and what stands in the tree: licences, doubles, size, forbidden text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::promises::sources;

/// Licences that let anybody ship Semel.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that may stand in the shipped tree in two versions, each with the reason why.
const DOUBLES: &[(&str, &str)] = &[
    ("block-buffer", "sqlx hashes with sha2 0.10"),
    ("cpufeatures", "sqlx hashes with sha2 0.10"),
    ("crypto-common", "sqlx hashes with sha2 0.10"),
    ("digest", "sqlx hashes with sha2 0.10"),
    ("getrandom", "ring still takes 0.2"),
    ("hashbrown", "sqlx and rusqlite take different ones"),
    ("hashlink", "sqlx and rusqlite take different ones"),
    ("sha2", "sqlx hashes with 0.10"),
    ("syn", "macros below sqlx still take 2"),
];

const MOST_PACKAGES: usize = 350;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

pub(crate) fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().expect("packages are a list")
}

pub(crate) fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

/// Whether one alternative of an SPDX expression is allowed as a whole.
fn is_allowed(licence: &str) -> bool {
    let plain = licence.replace(['(', ')'], " ").replace('/', " OR ");
    plain.split(" OR ").any(|all| all.split(" AND ").all(|one| ALLOWED.contains(&one.trim())))
}

#[test]
fn supply_chain_every_licence_is_allowed() {
    let metadata = metadata();
    let refused: Vec<String> = packages(&metadata)
        .iter()
        .filter(|package| !is_allowed(text(package, "license")))
        .map(|package| format!("{} ({})", text(package, "name"), text(package, "license")))
        .collect();
    assert!(refused.is_empty(), "licences to look at: {refused:?}");
}

#[test]
fn supply_chain_rules_for_cargo_deny_are_the_same() {
    let rules = std::fs::read_to_string(root().join("deny.toml")).expect("it is there");
    let section = |name: &str| {
        let from = rules.find(name).unwrap_or_else(|| panic!("{name} in deny.toml"));
        rules[from..].split("\n]").next().unwrap_or_default()
    };
    let quoted = |text: &str, nth: usize| -> BTreeSet<String> {
        text.lines().filter_map(|line| line.split('"').nth(nth)).map(str::to_owned).collect()
    };
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    assert_eq!(quoted(section("allow = ["), 1), owned(ALLOWED));
    let doubles: Vec<&str> = DOUBLES.iter().map(|(name, _)| *name).collect();
    assert_eq!(quoted(section("\nskip = ["), 1), owned(&doubles));
}

#[test]
fn licence_expressions_are_read_as_they_are_meant() {
    assert!(is_allowed("MIT OR GPL-3.0"));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!is_allowed("MIT AND GPL-3.0"));
    assert!(!is_allowed(""));
}

/// The packages that end up in a user's build: everything reached from shipped crates over normal dependencies.
fn shipped(metadata: &Value) -> BTreeSet<String> {
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("the tree is resolved")
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let is_shipped = |id: &&Value| {
        let package = packages(metadata).iter().find(|package| package["id"] == **id);
        package.is_some_and(|package| !package["publish"].is_array())
    };
    let members = metadata["workspace_members"].as_array().expect("members are a list");
    let mut todo: Vec<&str> = members.iter().filter(is_shipped).filter_map(Value::as_str).collect();
    assert!(!todo.is_empty(), "something is shipped");
    let mut reached = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !reached.insert(id.to_owned()) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().expect("dependencies are a list") {
            let kinds = dependency["dep_kinds"].as_array().expect("kinds are a list");
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                todo.push(text(dependency, "pkg"));
            }
        }
    }
    reached
}

#[test]
fn supply_chain_nothing_is_shipped_in_two_versions() {
    let metadata = metadata();
    let shipped = shipped(&metadata);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages(&metadata).iter().filter(|package| shipped.contains(text(package, "id"))) {
        versions.entry(text(package, "name")).or_default().insert(text(package, "version"));
    }
    let allowed = |name: &str| DOUBLES.iter().any(|(double, _)| *double == name);
    versions.retain(|name, versions| versions.len() > 1 && !allowed(name));
    assert!(
        versions.is_empty(),
        "in two versions: {versions:?}; bump one, or list it in DOUBLES with a reason"
    );
}

#[test]
fn the_tree_stays_small() {
    let count = packages(&metadata()).len();
    assert!(count < MOST_PACKAGES, "{count} packages: builds are slow on two cores, for our users too");
}

#[test]
fn supply_chain_every_crate_forbids_unsafe_code() {
    let metadata = metadata();
    for package in packages(&metadata).iter().filter(|package| package["source"].is_null()) {
        let manifest =
            std::fs::read_to_string(text(package, "manifest_path")).expect("a manifest can be read");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", text(package, "name"));
    }
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("the manifest can be read");
    assert!(workspace.contains("unsafe_code = \"forbid\""));
}

/// Every package of the lock file comes from the registry with a checksum, or is a part of this workspace.
#[test]
fn supply_chain_every_package_is_pinned() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("the lock file can be read");
    let packages: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    assert!(packages.len() > 100, "the lock file is read");
    let member = |name: &str| name.starts_with("semel");
    for package in packages {
        let value = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            line.map(|value| value.trim_end_matches('"'))
        };
        let name = value("name").expect("a package has a name");
        match (value("source"), value("checksum")) {
            (None, None) => assert!(member(name), "{name} has no source"),
            (Some(source), Some(checksum)) => {
                assert!(source.starts_with("registry+"), "{name} comes from {source}");
                assert_eq!(checksum.len(), 64, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Hash maps whose hasher an attacker could predict, each with the reason why no attacker chooses its keys.
const UNKEYED: &[(&str, &str)] = &[
    ("crates/semel/src/store/memory/shard.rs", "its keys are hashes under the secret of the deployment"),
    ("crates/semel-testbed/src/fuzz.rs", "seeds of the fuzzer, by test name"),
];

/// A client that can choose keys with equal hashes makes a map slow. Maps therefore hash under a random key.
#[test]
fn hash_flood_no_map_has_an_unkeyed_hasher() {
    const WORDS: [&str; 6] =
        ["BuildHasherDefault", "DefaultHasher", "FxHash", "rustc_hash", "AHash", "nohash"];
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("the crates are there") {
        sources(&entry.expect("a folder can be read").path().join("src"), &mut files);
    }
    assert!(files.len() > 300, "the sources are read");
    let mut found = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source can be read");
        if WORDS.iter().any(|word| text.contains(word)) {
            let name = file.strip_prefix(root()).expect("it is below").to_string_lossy().into_owned();
            found.insert(name);
        }
    }
    let known: BTreeSet<String> = UNKEYED.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, known, "list a map with its reason, or use the standard hasher");
}
