//! The gateway in the middle, which can be killed and comes back with its store.

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::kit::{Http, Semel};

/// A gateway with an embedded store.
pub(super) struct Gateway {
    folder: TempDir,
    running: Mutex<Running>,
}

enum Running {
    Not,
    Semel(Semel),
    /// No gateway: requests go to the upstream itself.
    Without(String),
}

impl Gateway {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), running: Mutex::new(Running::Not) }
    }

    /// Starts it with this upstream, and `settings`: the rest of `[gateway]` and what follows it.
    pub(super) fn start(&self, upstream: &str, settings: &str) {
        let data = self.folder.path().join("data");
        let config = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
             [gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n{settings}",
            data.display()
        );
        std::fs::write(self.folder.path().join("semel.toml"), config).expect("the folder takes files");
        *self.running.lock() = Running::Semel(self.run());
    }

    /// Leaves it out, to see what happens without it.
    pub(super) fn leave_out(&self, upstream: &str) {
        *self.running.lock() = Running::Without(upstream.to_owned());
    }

    /// Ends it and removes its folder. Threads that never end hold this value, so dropping it is not enough.
    pub(super) fn end(&self) {
        *self.running.lock() = Running::Not;
        // A failure shows at the end of all tests: no file may be left.
        let _ = std::fs::remove_dir_all(self.folder.path());
    }

    fn run(&self) -> Semel {
        Semel::with_config(&self.folder.path().join("semel.toml"), &[])
    }

    /// Kills it with SIGKILL and starts it again. Callers wait meanwhile.
    pub(super) fn restart(&self) {
        let mut running = self.running.lock();
        let Running::Semel(semel) = std::mem::replace(&mut *running, Running::Not) else {
            panic!("there is no gateway to kill")
        };
        semel.kill();
        *running = Running::Semel(self.run());
    }

    /// Where it listens, as `host:port`.
    pub(super) fn address(&self) -> String {
        let url = match &*self.running.lock() {
            Running::Semel(semel) => semel.gateway_url().to_owned(),
            Running::Without(upstream) => upstream.clone(),
            Running::Not => panic!("it was not started"),
        };
        url.trim_start_matches("http://").to_owned()
    }

    pub(super) fn admin(&self) -> Http {
        match &*self.running.lock() {
            Running::Semel(semel) => semel.admin(),
            _ => panic!("there is no gateway to ask"),
        }
    }

    pub(super) fn log(&self) -> String {
        match &*self.running.lock() {
            Running::Semel(semel) => semel.log(),
            _ => String::new(),
        }
    }
}
