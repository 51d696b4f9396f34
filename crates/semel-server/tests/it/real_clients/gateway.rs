//! The gateway in the middle, which can be killed and comes back with its store.

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::kit::{Http, Semel};

/// A gateway with an embedded store.
pub(super) struct Gateway {
    folder: TempDir,
    running: Mutex<Option<Semel>>,
}

impl Gateway {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), running: Mutex::new(None) }
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
        *self.running.lock() = Some(self.run());
    }

    fn run(&self) -> Semel {
        Semel::with_config(&self.folder.path().join("semel.toml"), &[])
    }

    /// Kills it with SIGKILL and starts it again. Whoever asks for it meanwhile waits.
    pub(super) fn restart(&self) {
        let mut running = self.running.lock();
        running.take().expect("it was started").kill();
        *running = Some(self.run());
    }

    /// Where it listens, as `host:port`.
    pub(super) fn address(&self) -> String {
        self.with(|semel| semel.gateway_url().trim_start_matches("http://").to_owned())
    }

    pub(super) fn admin(&self) -> Http {
        self.with(Semel::admin)
    }

    pub(super) fn log(&self) -> String {
        self.with(Semel::log)
    }

    fn with<T>(&self, look: impl FnOnce(&Semel) -> T) -> T {
        look(self.running.lock().as_ref().expect("it was started"))
    }
}
