//! A program that answers one line for each that it reads.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use super::driver::installed;
use crate::kit::PATIENCE;

/// A running program.
pub(super) struct Lines {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    /// Starts a script for Node; gives what it says first.
    pub(super) fn node(script: &str) -> (Self, Value) {
        let mut node = Command::new("node");
        node.arg(path_of(script)).arg(installed());
        Self::start(node)
    }

    /// The same for Python.
    pub(super) fn python(script: &str) -> (Self, Value) {
        let mut python = Command::new(installed().join("venv/bin/python"));
        python.arg(path_of(script));
        Self::start(python)
    }

    fn start(mut command: Command) -> (Self, Value) {
        command.env("NO_PROXY", "*").env("no_proxy", "*");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, lines) = mpsc::channel();
        // Nobody listens where the test has failed.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let mut program = Self { child, lines };
        let ready = program.read();
        (program, ready)
    }

    fn read(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("it runs, and answers within a minute");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.child.stdin.as_mut().expect("it is piped"), "{question}").expect("it reads");
        self.read()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path_of(script: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script)
}
