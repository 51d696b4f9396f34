//! The packages for Python and TypeScript (`clients/`), on real servers.
//!
//! `scripts/clients` installs what they are tried with. `clients/contract` holds the cases that both follow. In full form:
//! `./scripts/prove other-languages`.

mod faults;
mod packages;
mod workers;

use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::{Postgres, Redis};

use crate::foreign_apis::{OrdersApi, judge_api};
use crate::kit::{Semel, semel};
use crate::real_clients::installed;

/// A file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().join(path)
}

/// Python with the packages of the tests, and this one.
fn python() -> Command {
    let mut command = Command::new(installed().join("venv/bin/python"));
    command.env("PYTHONPATH", repository("clients/python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The compiled TypeScript package. Dropped, it is removed.
struct Compiled(tempfile::TempDir);

impl Compiled {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
        let mut compiler = Command::new(installed().join("node_modules/.bin/tsc"));
        compiler.arg("-p").arg(repository("clients/typescript"));
        compiler.arg("--typeRoots").arg(installed().join("node_modules/@types"));
        succeed(compiler.arg("--outDir").arg(folder.path().join("dist")));
        Self(folder)
    }

    /// Node, which is told where the package is.
    fn node(&self) -> Command {
        let mut command = Command::new("node");
        command.env("SEMEL_CLIENT", self.0.path().join("dist/index.js"));
        command
    }
}

/// Runs a command that must succeed. Returns what it printed.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{printed}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// Runs the contract against a driver.
#[track_caller]
fn follow_the_contract(store: &str, options: &[&str], driver: &Command) {
    let mut runner = python();
    runner.arg(repository("clients/contract/run.py")).arg("--semel").arg(semel().get_program());
    runner.args(["--store", store]).args(options).arg("--").arg(driver.get_program()).args(driver.get_args());
    // The clock of the worker's machine jumps by a day, back and forth.
    runner.env("CLOCK_JUMP", "86400");
    for (name, value) in driver.get_envs() {
        runner.env(name, value.unwrap_or_default());
    }
    let printed = succeed(&mut runner);
    assert!(printed.lines().filter(|line| line.starts_with("ok")).count() >= 29, "{printed}");
}

/// True in the full form, which tries every driver on both stores.
fn is_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

fn on_redis(options: &[&str], driver: &Command) {
    let redis = Redis::start().unwrap();
    follow_the_contract(&redis.url(), options, driver);
}

fn on_postgres(options: &[&str], driver: &Command) {
    let postgres = Postgres::start().unwrap();
    follow_the_contract(&postgres.url(), options, driver);
}

#[test]
fn blocking_callers_of_python_follow_the_contract() {
    let mut driver = python();
    driver.arg(repository("clients/python/tests/driver.py"));
    on_redis(&["--without", "cancel"], &driver);
    if is_full() {
        on_postgres(&["--without", "cancel"], &driver);
    }
}

#[test]
fn asyncio_callers_of_python_follow_the_contract() {
    let mut driver = python();
    driver.arg(repository("clients/python/tests/driver.py")).arg("--async");
    on_postgres(&[], &driver);
    if is_full() {
        on_redis(&[], &driver);
    }
}

#[test]
fn typescript_follows_the_contract() {
    let compiled = Compiled::new();
    let mut driver = compiled.node();
    driver.arg(repository("clients/typescript/tests/driver.mjs"));
    on_redis(&[], &driver);
    if is_full() {
        on_postgres(&[], &driver);
    }
}

// The middlewares are judged as published packages are.
#[test]
fn middlewares_of_python_behave_like_the_gateway() {
    let semel = Semel::start(&["--store", "memory:"]);
    for framework in ["asgi", "django"] {
        let mut orders = python();
        orders.arg(repository("clients/python/tests/orders.py")).arg(framework);
        let api = OrdersApi::spawn(with_server(orders, &semel));
        assert_eq!(judge_api(&api, framework, &[], &[]), 1, "{framework}");
    }
}

#[test]
fn middlewares_of_typescript_behave_like_the_gateway() {
    let (semel, compiled) = (Semel::start(&["--store", "memory:"]), Compiled::new());
    for framework in ["express", "fastify"] {
        let mut orders = compiled.node();
        orders.arg(repository("clients/typescript/tests/orders.mjs")).arg(installed()).arg(framework);
        let api = OrdersApi::spawn(with_server(orders, &semel));
        assert_eq!(judge_api(&api, framework, &[], &[]), 1, "{framework}");
    }
}

fn with_server(mut command: Command, semel: &Semel) -> Command {
    command.env("SEMEL_ADMIN", semel.admin_url()).env_remove("SEMEL_TOKEN").env_remove("SEMEL_ADMIN_CA");
    command
}

// The table of docs/howto/coming-from.md, without its figures: a test does not measure.
#[test]
fn once_answers_where_powertools_refuses_or_repeats() {
    let mut compare = python();
    compare.arg(repository("clients/bench/side_by_side.py")).arg("--semel").arg(semel().get_program());
    let table = succeed(compare.args(["--seconds", "0.02"]));
    let row = |title: &str| -> Vec<String> {
        let line =
            table.lines().find(|line| line.contains(title)).unwrap_or_else(|| panic!("{title} in {table}"));
        line.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect()
    };
    for title in ["| first call |", "| first call, `durable=False` |", "| replay |"] {
        let cells = row(title);
        assert_eq!(cells.len(), 5, "calls per second and CPU of both: {table}");
        assert!(cells[3].ends_with(" µs") && cells[4].ends_with(" µs"), "{table}");
    }
    let race = row("50 callers");
    assert_eq!(race[1..3], ["1 answered, 49 refused", "50 answered, 0 refused"], "{table}");
    let killed = row("owner killed, `marked`");
    assert!(killed[1].ends_with("2 effects") && killed[2].starts_with("InDoubtError"), "{table}");
    assert!(killed[2].ends_with("1 effect"), "{table}");
}
