//! The packages build, install into an empty folder, pass strict type checks, and their READMEs run.

use std::path::Path;
use std::process::Command;

use super::{python, repository, succeed, with_server};
use crate::kit::{Semel, Sink};
use crate::real_clients::installed;

/// A server with a ledger and a target, as the READMEs use it.
struct Bench {
    semel: Semel,
    folder: tempfile::TempDir,
    _sink: Sink,
}

impl Bench {
    fn start() -> Self {
        let (folder, sink) = (tempfile::tempdir().unwrap(), Sink::start());
        let config = folder.path().join("semel.toml");
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[[target]]\nname = \"ledger\"\nurl = \"{}\"\n",
            folder.path().join("data").display(),
            sink.url(),
        );
        std::fs::write(&config, text).unwrap();
        Self { semel: Semel::with_config(&config, &[]), folder, _sink: sink }
    }
}

/// The blocks of a README in this language, as one program.
fn blocks(readme: &str, language: &str) -> String {
    let text = std::fs::read_to_string(repository(readme)).unwrap();
    let start = format!("```{language}\n");
    let blocks = text.split(&start).skip(1).map(|rest| rest.split("\n```").next().unwrap());
    blocks.collect::<Vec<_>>().join("\n")
}

#[test]
fn python_builds_installs_and_its_readme_runs() {
    let bench = Bench::start();
    let (source, wheels, site) = (
        bench.folder.path().join("python"),
        bench.folder.path().join("wheels"),
        bench.folder.path().join("site"),
    );
    // A copy: the build leaves files in the folder.
    succeed(Command::new("cp").arg("-r").arg(repository("clients/python")).arg(&source));
    let pip = |arguments: &[&str], path: &Path| {
        let mut pip = python();
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments).arg(path);
        succeed(&mut pip);
    };
    pip(&["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels.to_str().unwrap()], &source);
    let wheel = std::fs::read_dir(&wheels).unwrap().next().unwrap().unwrap().path();
    pip(&["install", "--no-deps", "--no-index", "--target", site.to_str().unwrap()], &wheel);
    let licences =
        std::fs::read_dir(&site).unwrap().map(|entry| entry.unwrap().path().join("licenses/LICENSE"));
    assert!(licences.filter(|place| place.exists()).count() == 1, "the package has its licence");
    let program = bench.folder.path().join("readme.py");
    std::fs::write(&program, blocks("clients/python/README.md", "python")).unwrap();
    let mut run = with_server(python(), &bench.semel);
    let printed = succeed(run.env("PYTHONPATH", &site).arg(&program));
    assert_eq!(printed.matches("charging").count(), 1, "{printed}");
    // The type annotations reach those that install it.
    let mut mypy = python();
    mypy.env("PYTHONPATH", &site).env("MYPYPATH", &site).args(["-m", "mypy", "--strict", "--no-incremental"]);
    // Django has no types of its own.
    mypy.arg("--disable-error-code=import-untyped");
    succeed(mypy.current_dir(bench.folder.path()).arg(&program));
}

#[test]
fn python_passes_the_strict_type_check() {
    let mut mypy = python();
    succeed(mypy.args(["-m", "mypy", "--no-incremental"]).current_dir(repository("clients/python")));
}

#[test]
fn typescript_builds_installs_and_its_readme_runs() {
    let bench = Bench::start();
    let (source, app) = (bench.folder.path().join("source"), bench.folder.path().join("app"));
    succeed(Command::new("cp").arg("-r").arg(repository("clients/typescript")).arg(&source));
    std::os::unix::fs::symlink(installed().join("node_modules"), source.join("node_modules")).unwrap();
    // Compiles it, strictly, as its configuration says.
    let packed = succeed(Command::new("npm").args(["pack", "--silent"]).current_dir(&source));
    let packed = packed.lines().last().unwrap_or_default();
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("package.json"), r#"{"type": "module", "private": true}"#).unwrap();
    let mut install = Command::new("npm");
    install.args(["install", "--silent", "--offline", "--no-audit", "--no-fund", "--ignore-scripts"]);
    succeed(install.arg(source.join(packed.trim())).current_dir(&app));
    assert!(app.join("node_modules/@semel/client/LICENSE").exists(), "the package has its licence");
    // The frameworks, with their types.
    for name in std::fs::read_dir(installed().join("node_modules")).unwrap() {
        let name = name.unwrap();
        let place = app.join("node_modules").join(name.file_name());
        if !place.exists() {
            std::os::unix::fs::symlink(name.path(), place).unwrap();
        }
    }
    std::fs::write(app.join("readme.ts"), blocks("clients/typescript/README.md", "ts")).unwrap();
    let mut compiler = Command::new(installed().join("node_modules/.bin/tsc"));
    compiler.args([
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--skipLibCheck",
        "--types",
        "node",
        "readme.ts",
    ]);
    succeed(compiler.current_dir(&app));
    let mut node = with_server(Command::new("node"), &bench.semel);
    succeed(node.arg("readme.js").current_dir(&app));
}

// What the server says of itself and what the package believes are the same.
#[test]
fn types_of_typescript_are_those_of_the_server() {
    let semel = Semel::start(&["--store", "memory:"]);
    let mut check = Command::new("node");
    check.arg(repository("clients/typescript/scripts/types.mjs")).arg(semel.admin_url()).arg("--check");
    succeed(&mut check);
}
