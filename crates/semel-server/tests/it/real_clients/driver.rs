//! The process in which a real client lives.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::kit::PATIENCE;

/// Which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// This one of `driver.py`.
    Python(&'static str),
    /// Stripe's, in `driver.mjs`.
    Node,
}

/// A running driver.
pub(super) struct Driver {
    child: Child,
    url: String,
    results: mpsc::Receiver<Value>,
}

/// How a call ended, as the application sees it.
pub(super) type Ended = Result<String, String>;

impl Driver {
    /// Starts it, with its client pointed at `url`.
    pub(super) fn start(program: Program, url: &str) -> Self {
        let folder = installed();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        let mut command = match program {
            Program::Python(client) => {
                let mut python = Command::new(folder.join("venv/bin/python"));
                python.arg(scripts.join("driver.py")).arg(client);
                python
            }
            Program::Node => {
                let mut node = Command::new("node");
                node.arg(scripts.join("driver.mjs")).arg(folder);
                node
            }
        };
        // The clients would go through a proxy of the machine.
        command.env("NO_PROXY", "*").env("no_proxy", "*").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, results) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let result = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"));
                // Nobody listens where the test has failed.
                let _ = tell.send(result);
            }
        });
        Self { child, url: url.to_owned(), results }
    }

    /// Starts a call. `key`: the application's own, where the client is not to make one.
    pub(super) fn call(&mut self, order: &str, timeout: u64, key: Option<&str>) {
        let call = json!({ "order": order, "url": self.url, "timeout": timeout, "key": key });
        writeln!(self.child.stdin.as_mut().expect("it is piped"), "{call}").expect("the driver reads");
    }

    /// The next call that ends: its order, and how it ended.
    pub(super) fn ended(&mut self) -> (String, Ended) {
        let result = self.results.recv_timeout(PATIENCE).expect("the client ends within a minute");
        let text = |name: &str| result[name].as_str().map(str::to_owned);
        let order = text("order").expect("the driver names the order");
        (order, text("id").ok_or_else(|| text("error").expect("an id or an error")))
    }

    /// A call from its start to its end.
    pub(super) fn run(&mut self, order: &str, timeout: u64, key: Option<&str>) -> Ended {
        self.call(order, timeout, key);
        let (ended, how) = self.ended();
        assert_eq!(ended, order);
        how
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the clients are installed.
pub(crate) fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder");
    let folder = target.join("clients");
    let ready = folder.join("made-of").exists();
    assert!(ready, "the real clients are not installed in {}: run ./scripts/clients", folder.display());
    folder
}
