//! The documentation does what it says: its commands run, its configurations are accepted, its links lead somewhere.
//!
//! The shell blocks of a page run in their order, in one script and an empty folder, with the ports of the page replaced by free
//! ones. Comments that no reader sees prepare them:
//!
//! - `<!-- test`, lines of shell, `-->`: run before the next block.
//! - `<!-- needs redis -->`, `<!-- needs postgres -->`: a server for the page, on the port that it names.
//! - `<!-- needs artifacts -->`: the files of a release in the folder, made of the binary under test.
//! - `<!-- test skip: why -->`: the next block is not run. [`SKIPPED`] lists them all.
//!
//! A `curl -i` with `# 201` behind it must be answered with 201. Blocks of TOML pass `semel config check`, blocks of SQL run where the
//! page has a PostgreSQL. Blocks of Rust are compiled by `semel-proof`.

mod links;
mod pages;
mod recipes;
mod words;

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use semel_testbed::{Postgres, Redis};

use self::pages::{Block, Page, pages, root};
use crate::kit::{Semel, semel};
use crate::packages::artifacts::artifacts;

/// The ports that pages use.
const PORTS: [u16; 8] = [3000, 5432, 6379, 8080, 8081, 9000, 9001, 9002];

/// The blocks that cannot run in a test, by their pages.
const SKIPPED: [&str; 7] = [
    "docs/howto/harden-for-production.md",
    "docs/howto/harden-for-production.md",
    "docs/howto/install.md",
    "docs/howto/install.md",
    "docs/howto/install.md",
    "docs/howto/run-in-containers.md",
    "docs/howto/run-in-containers.md",
];

/// Where the languages of blocks are looked after; a block of another one would be tested by nobody.
const LANGUAGES: [&str; 9] = ["sh", "toml", "sql", "rust", "text", "yaml", "python", "json", ""];

#[test]
fn the_commands_of_the_overview_work() {
    run_pages(|path| !path.contains('/') || path.starts_with("crates/"));
}

#[test]
fn the_commands_of_the_tutorials_work() {
    run_pages(|path| path.starts_with("docs/start/"));
}

#[test]
fn the_commands_of_the_guides_work() {
    run_pages(|path| path.starts_with("docs/howto/"));
}

#[test]
fn the_commands_of_the_reference_work() {
    run_pages(|path| path.starts_with("docs/reference/") || path.starts_with("docs/explanation/"));
}

#[test]
fn every_block_has_a_language_that_is_tested_and_few_are_skipped() {
    let mut skipped = Vec::new();
    for page in pages() {
        for block in &page.blocks {
            assert!(
                LANGUAGES.contains(&block.language.as_str()),
                "{}: a block of {}",
                page.path,
                block.language
            );
            if block.is_skipped {
                skipped.push(page.path.clone());
            }
        }
    }
    assert_eq!(skipped, SKIPPED);
}

#[test]
fn the_python_worker_works() {
    let semel = Semel::start(&["--store", "memory:"]);
    let page = Page::read("docs/reference/claims-api.md");
    let python: Vec<&str> = page
        .blocks
        .iter()
        .filter(|block| block.language == "python")
        .map(|block| block.text.as_str())
        .collect();
    let output = Command::new("python3")
        .arg("-c")
        .arg(python.join("\n"))
        .env("ADMIN", semel.admin_url())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        ["charging 1200", "{'receipt': 'r-1'}", "{'receipt': 'r-1'}"]
    );
}

fn run_pages(selected: impl Fn(&str) -> bool) {
    let pages: Vec<Page> = pages().into_iter().filter(|page| selected(&page.path)).collect();
    assert!(!pages.is_empty());
    let mut failed = Vec::new();
    // A few at a time: pages mostly wait for what they have started.
    for some in pages.chunks(3) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|page| scope.spawn(move || run_page(page))).collect();
            failed.extend(running.into_iter().filter_map(|page| page.join().unwrap().err()));
        });
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs the commands of a page.
fn run_page(page: &Page) -> Result<(), String> {
    let script: String =
        page.blocks.iter().enumerate().map(|(number, block)| shell(page, number, block)).collect();
    if script.is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir().unwrap();
    if page.needs("artifacts") {
        for file in std::fs::read_dir(artifacts()).unwrap() {
            let path = file.unwrap().path();
            symlink(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let redis = page.needs("redis").then(|| Redis::start().unwrap());
    let postgres = page.needs("postgres").then(|| Postgres::start().unwrap());
    // Bound all at once, so that no port is given twice.
    let listeners = PORTS.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports: Vec<(u16, u16)> = PORTS
        .iter()
        .zip(&listeners)
        .map(|(port, listener)| match (port, &redis, &postgres) {
            (6379, Some(redis), _) => (*port, redis.port()),
            (5432, _, Some(postgres)) => (*port, postgres.port()),
            _ => (*port, listener.local_addr().unwrap().port()),
        })
        .collect();
    drop(listeners);
    let free = |port: u16| ports.iter().find(|(named, _)| *named == port).unwrap().1.to_string();
    let mut script = [include_str!("guide/prelude.sh"), &script].concat();
    for spelling in ["127.0.0.1:", "localhost:", "\"127.0.0.1\", "] {
        let host = spelling.replace("localhost", "127.0.0.1");
        for port in PORTS {
            script = script.replace(&format!("{spelling}{port}"), &format!("{host}<{port}>"));
        }
    }
    // In a second step: a free port may begin with the digits of another one.
    for (named, port) in &ports {
        script = script.replace(&format!("<{named}>"), &port.to_string());
    }
    std::fs::write(folder.path().join("page.sh"), script).unwrap();
    let binary = semel();
    let binary = Path::new(binary.get_program());
    let script = Command::new("timeout")
        .args(["-k", "10", "300", "bash", "page.sh"])
        .current_dir(folder.path())
        .env("SEMEL", binary)
        .env("EXAMPLES", binary.with_file_name("examples"))
        .env("ROOT", root())
        .env("ADMIN_PORT", free(8081))
        .env("GATEWAY_PORT", free(8080))
        .env("REDIS_PORT", free(6379))
        .env("SEMEL_ADMIN", format!("http://127.0.0.1:{}", free(8081)))
        .env("SEMEL_SECRET", "a secret of the deployment")
        .env_remove("SEMEL_TOKEN")
        .env_remove("SEMEL_ADMIN_CA")
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", free(5432))
        .env("PGUSER", "postgres")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // `timeout` leads a process group of its own: whatever the page left running ends with it.
    let group = Pid::from_child(&script);
    let output = script.wait_with_output().unwrap();
    let _ = kill_process_group(group, Signal::KILL);
    let [printed, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}\n{printed}\n{said}", page.path, output.status))
}

/// What a block does in the script of its page.
fn shell(page: &Page, number: usize, block: &Block) -> String {
    let mut shell: String = block.before.iter().map(|line| format!("{line}\n")).collect();
    if block.is_skipped {
        return shell;
    }
    match block.language.as_str() {
        "sh" => {
            for line in block.text.lines() {
                shell += &expectation(line).map(|status| format!("expect {status} ")).unwrap_or_default();
                shell += line;
                shell.push('\n');
            }
        }
        "toml" if !block.text.contains("[dependencies]") => {
            let file = format!("block-{number}.toml");
            shell += &format!(
                "cat >{file} <<'END_OF_BLOCK'\n{}END_OF_BLOCK\nsemel config check {file}\n",
                block.text
            );
        }
        "sql" if page.needs("postgres") => {
            shell += &format!("psql -qv ON_ERROR_STOP=1 <<'END_OF_BLOCK'\n{}END_OF_BLOCK\n", block.text);
        }
        _ => {}
    }
    shell
}

/// The status behind a `curl -i`.
fn expectation(line: &str) -> Option<&str> {
    let (command, comment) = line.rsplit_once("# ")?;
    let status = comment.get(..3)?;
    (command.starts_with("curl -i ") && status.bytes().all(|byte| byte.is_ascii_digit())).then_some(status)
}
