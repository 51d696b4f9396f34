//! What every command prints where it goes wrong, finds nothing, meets a narrow terminal, prints JSON, or is interrupted.
//!
//! `tests/snapshots/COMMAND.txt` holds the expected text. Ids, times, addresses and measured numbers are replaced by their names.
//! `SEMEL_WRITE=1` writes the files instead of comparing them: look at the difference before you commit it. The list of commands comes
//! from the binary, so a command without snapshots fails.

mod answers;
mod local;
mod placeholders;
mod remote;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use semel_testbed::wait;

use self::placeholders::replaced;
use crate::kit::{PATIENCE, run, semel};

/// The situations of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Situation {
    WrongArguments,
    Unreachable,
    MissingRights,
    EmptyResult,
    NarrowTerminal,
    Json,
    Interrupted,
}

impl Situation {
    const ALL: [Self; 7] = [
        Self::WrongArguments,
        Self::Unreachable,
        Self::MissingRights,
        Self::EmptyResult,
        Self::NarrowTerminal,
        Self::Json,
        Self::Interrupted,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::WrongArguments => "wrong arguments",
            Self::Unreachable => "unreachable server",
            Self::MissingRights => "missing rights",
            Self::EmptyResult => "empty result",
            Self::NarrowTerminal => "narrow terminal",
            Self::Json => "JSON",
            Self::Interrupted => "Ctrl-C",
        }
    }
}

/// The width of a narrow terminal.
const NARROW: usize = 50;

/// The text of a command's snapshots.
struct Snapshots {
    text: String,
    folder: PathBuf,
}

impl Snapshots {
    /// Replaces this folder by `<folder>`.
    fn in_folder(folder: &Path) -> Self {
        Self { text: String::new(), folder: folder.to_owned() }
    }

    /// Adds what a command line did. `shown` is the command line without addresses and tokens.
    fn add(&mut self, situation: Situation, shown: &str, output: &Output) {
        let status = match output.status.code() {
            Some(code) => format!("exit code {code}"),
            None => output.status.to_string(),
        };
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| {
            String::from_utf8_lossy(bytes).replace(&self.folder.display().to_string(), "<folder>")
        });
        if situation == Situation::NarrowTerminal {
            check_width(shown, &out);
        }
        let (out, err) = if situation == Situation::NarrowTerminal {
            (replaced(&unwrapped(&out)), replaced(&unwrapped(&err)))
        } else {
            (replaced(&out), replaced(&err))
        };
        let _ =
            writeln!(self.text, "== {}\n$ semel {}\n{status}", situation.name(), replaced(shown).trim_end());
        for (mark, text) in [("|", out), ("!", err)] {
            for line in text.lines() {
                let _ = writeln!(self.text, "{}", format!("{mark} {line}").trim_end());
            }
        }
        self.text.push('\n');
    }

    /// Says why a situation cannot occur.
    fn leave_out(&mut self, situation: Situation, why: &str) {
        let _ = writeln!(self.text, "== {}\nnot applicable: {why}\n", situation.name());
    }

    /// Compares the text with the file of this command.
    fn compare(&self, command: &str) {
        let name = format!("{}.txt", command.replace(' ', "-"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(&name);
        for situation in Situation::ALL {
            assert!(
                self.text.contains(&format!("== {}\n", situation.name())),
                "{command} has no {situation:?}"
            );
        }
        if std::env::var_os("SEMEL_WRITE").is_some() {
            std::fs::write(&path, &self.text).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if expected != self.text {
            let (expected, got): (Vec<&str>, Vec<&str>) =
                (expected.lines().collect(), self.text.lines().collect());
            let same = expected.iter().zip(&got).take_while(|(one, other)| one == other).count();
            let around = |lines: &[&str]| {
                lines.iter().skip(same.saturating_sub(6)).take(12).copied().collect::<Vec<_>>().join("\n")
            };
            panic!(
                "`semel {command}` differs from tests/snapshots/{name} in line {}\n\n-- expected\n{}\n\n-- printed\n{}\n\n\
                 SEMEL_WRITE=1 writes the file",
                same + 1,
                around(&expected),
                around(&got)
            );
        }
    }
}

/// Every line fits, except a single word, which is never cut: it may be an id.
fn check_width(shown: &str, out: &str) {
    // Sentences and JSON are not aligned.
    for line in out.lines().filter(|line| line.chars().count() > NARROW && line.contains("  ")) {
        let words = line.split_whitespace().count();
        // An id, and what was done with it.
        if line.split(' ').next().is_some_and(|first| first.len() == 30) {
            continue;
        }
        assert!(words <= 3, "`semel {shown}` on {NARROW} columns: {line:?}");
    }
}

/// Lines that were continued on the next one. Where they break depends on numbers that differ from run to run.
fn unwrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if line.starts_with("  ") && !last.is_empty() => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Runs a command line to its end.
fn output(args: &[String], columns: Option<usize>, folder: &Path) -> Output {
    let mut command = command(args);
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    command.current_dir(folder).output().unwrap()
}

fn command(args: &[String]) -> Command {
    let mut command = semel();
    command.args(args).env_remove("COLUMNS").env_remove("NO_COLOR").env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    command
}

/// Starts a command line, and presses Ctrl-C as soon as it is busy, which may show in its output.
#[expect(clippy::verbose_file_reads, reason = "the file has no name")]
fn interrupted(args: &[String], is_busy: impl Fn(&str) -> bool) -> Output {
    let [out, err] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let read = |mut file: &File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    // Each with a position of its own: the command writes while the test reads.
    let own = |file: &File| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        File::options().append(true).open(path).unwrap()
    };
    let mut child = command(args).stdout(own(&out)).stderr(own(&err)).spawn().unwrap();
    let is_busy = || is_busy(&String::from_utf8_lossy(&read(&out)));
    wait::until("the command is busy", PATIENCE, is_busy).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    Output { status, stdout: read(&out), stderr: read(&err) }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Every command of the binary that does something, as the manual names them: `keys-list`.
fn commands() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--out", folder.path().to_str().unwrap()]).status.success());
    let pages: BTreeSet<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".1").to_owned())
        .collect();
    let is_group = |page: &str| {
        let help = run(&[&page.split('-').skip(1).collect::<Vec<_>>()[..], &["--help"]].concat());
        // A group that does nothing without a command of its own.
        String::from_utf8_lossy(&help.stdout)
            .lines()
            .any(|line| line.starts_with("Usage: ") && line.ends_with(" <COMMAND>"))
    };
    let commands = pages.iter().filter(|page| page.as_str() != "semel" && !is_group(page));
    commands.map(|page| page.trim_start_matches("semel-").to_owned()).collect()
}

#[test]
fn every_command_has_snapshots() {
    let known: BTreeSet<String> = remote::COMMANDS
        .iter()
        .map(|one| one.name)
        .chain(local::NAMES)
        .map(|name| name.replace(' ', "-"))
        .collect();
    assert_eq!(known, commands());
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")).unwrap();
    let files: BTreeSet<String> = files
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".txt").to_owned())
        .collect();
    assert_eq!(files, known, "one file for each command");
}
