//! Commands that work on this machine alone.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;

use semel::store::EmbeddedStore;

use self::LocalCase::{Hang, HangAt, Interrupt, NotApplicable, Run};
use super::Situation::{
    self, EmptyResult, Interrupted, Json, MissingRights, NarrowTerminal, Unreachable, WrongArguments,
};
use super::{NARROW, Snapshots, interrupted, output, words};

/// What is done in a situation.
#[derive(Clone, Copy)]
enum LocalCase {
    /// Runs these arguments in a folder.
    Run(&'static str),
    /// Runs them, and presses Ctrl-C as soon as this was printed.
    Interrupt(&'static str, &'static str),
    /// Runs them with `--target` of a server that does not answer, and presses Ctrl-C.
    Hang(&'static str),
    /// Runs them with the address of a server that does not answer for `ADDRESS`, and presses Ctrl-C.
    HangAt(&'static str),
    /// Why the situation cannot occur.
    NotApplicable(&'static str),
}

const NO_SERVER: LocalCase = NotApplicable("it talks to no server");
const NO_RIGHTS: LocalCase = NotApplicable("it needs no rights");
const NO_LIST: LocalCase = NotApplicable("it lists nothing that could be missing");
const NO_TABLE: LocalCase = NotApplicable("it prints no table");
const NO_JSON: LocalCase = NotApplicable("its output is for another program, in that program's format");
const AT_ONCE: LocalCase = NotApplicable("it ends at once");

type LocalCommand = (&'static str, [(Situation, LocalCase); 7]);

const COMMANDS: [LocalCommand; 19] = [
    (
        "serve",
        [
            (WrongArguments, Run("--upstream http://127.0.0.1:9 --profile stripes --store mysql://h")),
            (Unreachable, Run("--admin 127.0.0.1:0 --store redis://127.0.0.1:1")),
            (MissingRights, Run("--admin 0.0.0.0:0 --store memory:")),
            (EmptyResult, Run("--config no-such-file.toml")),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("its log has a format of its own")),
            (Interrupted, Interrupt("--admin 127.0.0.1:0 --store memory:", "semel ready")),
        ],
    ),
    (
        "init",
        [
            (WrongArguments, Run("--upstream api")),
            (Unreachable, NO_SERVER),
            (MissingRights, Run("--yes --output no-such-folder/semel.toml")),
            (EmptyResult, Run("")),
            (NarrowTerminal, NO_TABLE),
            (Json, Run("--yes --store postgres://semel:hidden@db/semel --json")),
            (Interrupted, NotApplicable("it writes the file after the last answer")),
        ],
    ),
    (
        "demo",
        [
            (WrongArguments, Run("--for ever")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it counts what happened; the tests of the demo read it")),
            (Interrupted, NotApplicable("it counts what happened; the tests of the demo end it")),
        ],
    ),
    (
        "check",
        [
            (WrongArguments, Run("--suite iettf --target http://127.0.0.1:1")),
            (Unreachable, Run("--suite runs --target http://127.0.0.1:1")),
            (MissingRights, NotApplicable("the API decides, and the report shows it")),
            (EmptyResult, Run("")),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("reports have measured times; the tests of the tester read them")),
            (Interrupted, Hang("--suite runs")),
        ],
    ),
    (
        "runbook",
        [
            (WrongArguments, Run("--config wrong.toml")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, Run("")),
            (NarrowTerminal, NO_TABLE),
            (Json, Run("--json")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "drill",
        [
            (WrongArguments, Run("target-dwn")),
            (Unreachable, Run("reset-while-buffered --redis redis://127.0.0.1:1")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it has measured numbers; the tests of the drills read it")),
            (Interrupted, Interrupt("target-down", "target-down: ")),
        ],
    ),
    (
        "bench",
        [
            (WrongArguments, Run("postgress")),
            (Unreachable, Run("redis --redis redis://127.0.0.1:1")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, Run("memory --keys 0")),
            (
                NarrowTerminal,
                NotApplicable("it has measured numbers; its table is as narrow as this terminal"),
            ),
            (Json, NotApplicable("it has measured numbers")),
            (Interrupted, NotApplicable("it prints nothing before its end; the tests of the bench end it")),
        ],
    ),
    (
        "store copy",
        [
            (WrongArguments, Run("mysql://h memory:")),
            (Unreachable, Run("redis://127.0.0.1:1 embedded:new")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it has measured numbers; the tests of copies read it")),
            (Interrupted, HangAt("redis://:hidden@ADDRESS embedded:new")),
        ],
    ),
    (
        "store export",
        [
            (WrongArguments, Run("mysql://h records")),
            (Unreachable, Run("redis://127.0.0.1:1 records")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it has measured numbers; the tests of copies read it")),
            (Interrupted, HangAt("redis://ADDRESS?password=hidden records")),
        ],
    ),
    (
        "store import",
        [
            (WrongArguments, Run("wrong.toml embedded:new")),
            (Unreachable, Run("exported redis://127.0.0.1:1")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, Run("no-such-file embedded:new")),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it has measured numbers; the tests of copies read it")),
            (Interrupted, NotApplicable("what it says depends on its progress")),
        ],
    ),
    (
        "store reopen",
        [
            (WrongArguments, Run("mysql://h")),
            (Unreachable, Run("redis://127.0.0.1:1 --yes")),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, Run("embedded:stored --json")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "config check",
        [
            (WrongArguments, Run("wrong.toml")),
            (Unreachable, NO_SERVER),
            (MissingRights, Run("right.toml --production")),
            (EmptyResult, Run("no-such-file.toml")),
            (NarrowTerminal, NO_TABLE),
            (Json, Run("wrong.toml --json")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "config example",
        [
            (WrongArguments, Run("--json")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NO_JSON),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "config schema",
        [
            (WrongArguments, Run("semel.toml")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it is JSON")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "metrics list",
        [
            (WrongArguments, Run("--kind gauge")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, Run("")),
            (Json, Run("--json")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "metrics alerts",
        [
            (WrongArguments, Run("--runbook")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, Run("--json")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "metrics dashboard",
        [
            (WrongArguments, Run("grafana")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NotApplicable("it is JSON")),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "completions",
        [
            (WrongArguments, Run("tcsh")),
            (Unreachable, NO_SERVER),
            (MissingRights, NO_RIGHTS),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NO_JSON),
            (Interrupted, AT_ONCE),
        ],
    ),
    (
        "man",
        [
            (WrongArguments, Run("keys lst")),
            (Unreachable, NO_SERVER),
            (MissingRights, Run("--out wrong.toml")),
            (EmptyResult, NO_LIST),
            (NarrowTerminal, NO_TABLE),
            (Json, NO_JSON),
            (Interrupted, AT_ONCE),
        ],
    ),
];

/// The names of these commands.
pub(super) const NAMES: [&str; COMMANDS.len()] = {
    let mut names = [""; COMMANDS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = COMMANDS[at].0;
        at += 1;
    }
    names
};

fn take((name, cases): &LocalCommand, folder: &Path) {
    let mut snapshots = Snapshots::in_folder(folder);
    for (situation, case) in cases {
        let args = |more: &str| [words(name), words(more)].concat();
        let width = (*situation == NarrowTerminal).then_some(NARROW);
        let (shown, result) = match case {
            NotApplicable(why) => {
                snapshots.leave_out(*situation, why);
                continue;
            }
            Run(more) => (args(more), output(&args(more), width, folder)),
            Interrupt(more, printed) => (args(more), interrupted(&args(more), |out| out.contains(printed))),
            Hang(more) | HangAt(more) => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap().to_string();
                let hanging = match case {
                    Hang(_) => {
                        [args(more), vec!["--target".to_owned(), format!("http://{address}")]].concat()
                    }
                    _ => args(&more.replace("ADDRESS", &address)),
                };
                listener.set_nonblocking(true).unwrap();
                let asked = std::cell::RefCell::new(None);
                let is_asked = |_: &str| {
                    let mut asked = asked.borrow_mut();
                    if asked.is_none() {
                        *asked = listener.accept().ok().map(|(stream, _)| stream);
                    }
                    asked.as_ref().is_some_and(|mut stream| stream.read(&mut [0; 1]).is_ok())
                };
                (hanging.clone(), interrupted(&hanging, is_asked))
            }
        };
        snapshots.add(*situation, &shown.join(" "), &result);
    }
    snapshots.compare(name);
}

#[test]
fn snapshots_of_commands_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("wrong.toml"),
        "[gatway]\nlisten = \"x\"\n[store]\nurl = \"mysql://h\"\nurll = 1\n",
    )
    .unwrap();
    std::fs::write(folder.path().join("right.toml"), "[gateway]\nupstream = \"http://127.0.0.1:3000\"\n")
        .unwrap();
    drop(EmbeddedStore::open(folder.path().join("stored")).unwrap());
    let exported = output(&words("store export embedded:stored exported"), None, folder.path());
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    for command in &COMMANDS {
        take(command, folder.path());
    }
}
