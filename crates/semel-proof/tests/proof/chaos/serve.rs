//! The binary `semel` as a process to kill.

use std::io::{BufRead as _, BufReader};
#[cfg(feature = "mutants")]
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
#[cfg(feature = "mutants")]
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
#[cfg(feature = "mutants")]
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
#[cfg(feature = "mutants")]
use serde_json::Value;

/// A running `semel serve`. Dropped, it is killed.
pub(crate) struct Served {
    child: Child,
    ready: String,
}

impl Served {
    /// Starts it with a config, and waits until it is ready; `None` if it ended before, because its store was away.
    pub(crate) fn start(config: &Path, mutant: Option<&str>) -> Option<Self> {
        // Beside the victim: the same build made it.
        let program = Path::new(env!("CARGO_BIN_EXE_semel-victim")).with_file_name("semel");
        assert!(
            program.exists(),
            "{} is not built: cargo build -p semel-server --all-features",
            program.display()
        );
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::piped());
        let log = std::fs::OpenOptions::new().append(true).create(true).open(config.with_extension("log"));
        command.stderr(log.expect("a log can be written"));
        for name in ["SEMEL_TOKEN", "SEMEL_ADMIN", "SEMEL_SECRET"] {
            command.env_remove(name);
        }
        if let Some(mutant) = mutant {
            command.env("SEMEL_MUTANT", mutant);
        }
        let mut child = command.spawn().expect("the server can be started");
        let mut ready = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("its output is piped"));
        output.read_line(&mut ready).expect("its output is text");
        let served = Self { child, ready };
        // Whatever it still prints must not block it.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        served.ready.contains("ready").then_some(served)
    }

    fn addr(&self, name: &str) -> SocketAddr {
        let url =
            self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix("=http://"));
        url.and_then(|url| url.parse().ok()).unwrap_or_else(|| panic!("{name} in {:?}", self.ready))
    }

    pub(crate) fn gateway(&self) -> SocketAddr {
        self.addr("gateway")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours to kill");
        self.child.wait().expect("it is ours to wait for");
    }

    /// Asks the admin API; the status and the body, or nothing if there is no answer in time.
    #[cfg(feature = "mutants")]
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.addr("admin")).expect("it listens");
        stream.set_read_timeout(Some(limit)).expect("a timeout can be set");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json"
        );
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("it is HTTP");
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Either fails only where it was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
