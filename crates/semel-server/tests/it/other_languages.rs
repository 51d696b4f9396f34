//! The packages for Python and TypeScript (`clients/`), on real servers.
//!
//! `scripts/clients` installs what they are tried with. `clients/contract` holds the cases that both follow. In full form:
//! `./scripts/prove other-languages`.

mod builds;
mod faults;
mod workers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::{Postgres, Redis};

use crate::foreign_apis::{OrdersApi, judge_api};
use crate::kit::{Semel, semel};
use crate::real_clients::installed;

/// The cases of the contract.
const CASES: usize = 31;

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

/// Runs the contract against a driver. The options say which cases it leaves out; it passes all others.
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
    let counted = |result: &str| printed.lines().filter(|line| line.starts_with(result)).count();
    // Two of the cases cancel a caller, which a blocking one cannot.
    let left_out = if options.is_empty() { 0 } else { 2 };
    assert_eq!((counted("ok "), counted("skipped ")), (CASES - left_out, left_out), "{printed}");
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

// The program of the page was written by hand and tried with one call. It followed four of the rules above it.
#[test]
fn the_program_of_the_claims_page_follows_the_contract() {
    let page = std::fs::read_to_string(repository("docs/reference/claims-api.md")).unwrap();
    let (_, rest) = page.split_once("```python\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.py");
    std::fs::write(&program, rest.split("```").next().unwrap()).unwrap();
    let mut driver = Command::new("python3");
    driver.arg(repository("crates/semel-server/tests/it/other_languages/page_driver.py")).arg(&program);
    let store = format!("embedded:{}", folder.path().join("data").display());
    follow_the_contract(&store, &["--without", "cancel"], &driver);
}

#[test]
fn the_command_of_the_contract_page_plays_all_cases() {
    let page = std::fs::read_to_string(repository("clients/contract/README.md")).unwrap();
    let (_, rest) = page.split_once("```sh\n").unwrap();
    let command = rest.split("```").next().unwrap();
    let binary = semel().get_program().to_str().unwrap().to_owned();
    assert!(command.contains("--semel target/debug/semel "), "{command}");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command.replace("target/debug/semel", &binary)).current_dir(repository(""));
    let printed = succeed(shell.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert_eq!(printed.lines().filter(|line| line.starts_with("ok ")).count(), CASES, "{printed}");
    assert!(page.contains(&format!("in {CASES} situations")), "{page}");
    let overview = std::fs::read_to_string(repository("ARCHITECTURE.md")).unwrap();
    assert!(overview.contains(&format!(" {CASES} cases that a client")), "{CASES} cases");
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

/// The tables of `docs/howto/coming-from.md`.
struct SideBySide(String);

impl SideBySide {
    /// Measures each row for six times so many seconds.
    fn measure(seconds: &str) -> Self {
        let mut compare = python();
        compare.arg(repository("clients/bench/side_by_side.py")).arg("--semel").arg(semel().get_program());
        Self(succeed(compare.args(["--seconds", seconds])))
    }

    /// The cells of the row with this title.
    fn row(&self, title: &str) -> Vec<&str> {
        let line = self.0.lines().find(|line| line.contains(title));
        let line = line.unwrap_or_else(|| panic!("{title} in {}", self.0));
        line.trim_matches(['|', ' ']).split(" | ").collect()
    }

    /// How many times as many calls per second `@once` makes.
    fn ratio(&self, title: &str) -> f64 {
        let row = self.row(title);
        let [theirs, ours] = [row[1], row[2]].map(|cell| {
            let calls = cell.split(' ').next().unwrap_or_default().replace(',', "");
            calls.parse::<f64>().unwrap_or_else(|error| panic!("{cell}: {error}"))
        });
        ours / theirs
    }
}

// Without its figures: `replays_are_twice_as_fast_as_those_of_powertools` measures.
#[test]
fn once_answers_where_powertools_refuses_or_repeats() {
    let tables = SideBySide::measure("0.02");
    let table = &tables.0;
    for title in ["| first call |", "| first call, `durable=False` |", "| replay |"] {
        let cells = tables.row(title);
        assert_eq!(cells.len(), 5, "calls per second and CPU of both: {table}");
        assert!(cells[3].ends_with(" µs") && cells[4].ends_with(" µs"), "{table}");
    }
    let race = tables.row("50 callers");
    assert_eq!(race[1..3], ["1 answered, 49 refused", "50 answered, 0 refused"], "{table}");
    let killed = tables.row("owner killed, `marked`");
    assert!(killed[1].ends_with("2 effects") && killed[2].starts_with("InDoubtError"), "{table}");
    assert!(killed[2].ends_with("1 effect"), "{table}");
}

// A first call misses its goal of 1.5 ×, as the page says: its floor only notices that something broke.
#[test]
#[ignore = "measures, so nothing else may run: scripts/prove other-languages runs it alone"]
fn replays_are_twice_as_fast_as_those_of_powertools() {
    let tables = SideBySide::measure("1");
    println!("{}", tables.0);
    let [first, replay] = ["| first call |", "| replay |"].map(|title| tables.ratio(title));
    println!("first calls: {first:.2} ×, replays: {replay:.2} × Powertools");
    assert!(replay >= 2.0, "replays: {replay:.2} ×\n{}", tables.0);
    assert!(first >= 0.25, "first calls: {first:.2} ×\n{}", tables.0);
    assert_eq!(tables.row("50 callers")[2], "50 answered, 0 refused", "{}", tables.0);
}

// docs/reference/claims-api.md: the listener speaks HTTP/2 in plain text too, by prior knowledge.
#[test]
fn the_claims_api_speaks_http_2_without_tls() {
    let semel = Semel::start(&["--store", "memory:"]);
    for (status, version) in [("won", "--http2-prior-knowledge"), ("busy", "--http1.1")] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", version]);
        curl.args(["--write-out", "\n%{http_version}", "--data", r#"{"namespace": "n", "key": "k"}"#]);
        let said = succeed(curl.arg(format!("{}/v1/claims", semel.admin_url())));
        let (answer, spoken) = said.rsplit_once('\n').unwrap();
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        assert_eq!(answer["status"], status, "the same server behind both: {answer}");
        assert_eq!(spoken, if status == "won" { "2" } else { "1.1" });
    }
}

/// The words of the texts between `start` and `end` in a file.
fn words_of(path: &str, start: &str, end: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository(path)).unwrap();
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start} in {path}"));
    let (part, _) = rest.split_once(end).unwrap_or_else(|| panic!("{end} after {start} in {path}"));
    part.split('"').skip(1).step_by(2).flat_map(str::split_whitespace).map(str::to_owned).collect()
}

// A middleware that compares fewer headers than the gateway answers a request of another account from the record.
#[test]
fn middlewares_know_the_headers_that_the_gateway_knows() {
    let compared: BTreeSet<String> =
        semel_http::policy::HeaderRules::default().fingerprint.iter().map(ToString::to_string).collect();
    // Names of the gateway stand there as texts and as constants; the application server writes its own `server`.
    let gateway = "crates/semel-http/src/stored.rs";
    let source = std::fs::read_to_string(repository(gateway)).unwrap();
    let (_, function) = source.split_once("fn is_never_kept(").unwrap();
    let constants = function.split("_ =>").next().unwrap().split("header::").skip(1);
    let constant = |rest: &str| {
        let end = |letter: char| !(letter.is_ascii_uppercase() || letter == '_');
        rest.split(end).next().unwrap_or_default().to_lowercase().replace('_', "-")
    };
    let mut never_kept = words_of(gateway, "matches!(\n                name,", ")");
    never_kept.extend(constants.map(constant));
    never_kept.insert("server".to_owned());
    assert!(never_kept.len() > 15, "{never_kept:?}");

    let (python, typescript) = ("clients/python/src/semel/_gateway.py", "clients/typescript/src/gateway.ts");
    assert_eq!(words_of(python, "_COMPARED = ", ".split()"), compared);
    assert_eq!(words_of(typescript, "const COMPARED = ", ".split("), compared);
    assert_eq!(words_of(python, "_NEVER_KEPT = ", ".split()"), never_kept);
    assert_eq!(words_of(typescript, "const NEVER_KEPT = ", ".split("), never_kept);
}
