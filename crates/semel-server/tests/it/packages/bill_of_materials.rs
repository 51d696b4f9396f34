//! The bill of materials and the licences name everything that is in the binary.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::artifacts::{VERSION, artifact, linter, root};
use super::run;

/// Reads a file with the library of the format's authors, which contains the schema.
const VALIDATE: &str = "
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(problem and f'{problem.data.message} at {list(problem.data.absolute_path)}')
";

#[test]
fn it_follows_the_schema_and_lists_every_package() {
    let file = artifact(".cdx.json");
    run(linter("python").args(["-c", VALIDATE]).arg(&file));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["metadata"]["component"]["name"], "semel");
    assert_eq!(document["metadata"]["component"]["version"], VERSION);
    let components = document["components"].as_array().unwrap();
    let name = |component: &Value| {
        format!("{} {}", component["name"].as_str().unwrap(), component["version"].as_str().unwrap())
    };
    let listed: BTreeSet<String> = components.iter().map(name).collect();

    // Cargo's own opinion, asked in another way: the lines of the build plan's tree, with their doubles.
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-p", "semel-server", "-e", "normal", "--prefix", "none", "--no-dedupe"])
        .current_dir(root())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let wanted: BTreeSet<String> = tree
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| format!("{name} {}", rest.split(' ').next().unwrap()))
        .filter(|package| !package.starts_with("semel-server "))
        .collect();
    assert_eq!(listed, wanted);

    for component in components {
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let is_ours = component["name"].as_str().unwrap().starts_with("semel");
        assert_eq!(component["hashes"][0]["content"].is_string(), !is_ours, "{component}");
    }
    // C code that a scanner for Rust would miss.
    let bundled: Vec<&str> =
        components.iter().filter_map(|component| component["components"][0]["name"].as_str()).collect();
    assert_eq!(bundled, ["mimalloc", "sqlite"]);
    let references: BTreeSet<&str> = document["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["ref"].as_str().unwrap())
        .collect();
    assert_eq!(references.len(), components.len() + 1, "each with its dependencies");
}

#[test]
fn every_foreign_package_has_its_licence_in_the_tarball() {
    let document: Value = serde_json::from_slice(&std::fs::read(artifact(".cdx.json")).unwrap()).unwrap();
    let texts = run(Command::new("tar").arg("-xzf").arg(artifact(".tar.gz")).args([
        "--to-stdout",
        "--wildcards",
        "*/THIRD-PARTY-LICENSES",
    ]));
    for component in document["components"].as_array().unwrap() {
        let (name, version) = (component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        if name.starts_with("semel") {
            continue;
        }
        let start = format!("{name} {version} ");
        let line = texts.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{start} in the licences"));
        assert!(line.ends_with(']') && !line.contains("[]"), "with the numbers of its texts: {line}");
    }
    assert!(texts.contains("Permission is hereby granted"), "the texts themselves");
}
