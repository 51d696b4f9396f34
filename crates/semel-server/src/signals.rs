//! The signals a server listens to.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A request to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Reload the config: SIGHUP.
    Reload,
    /// Finish requests in progress and exit: SIGTERM, or Ctrl-C.
    Stop,
}

/// Receives signals from the moment it is created.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts receiving signals.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.hangup.recv() => Wish::Reload,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.terminate.recv() => Wish::Stop,
        }
    }

    /// The next signal to stop; others are ignored. Cancel-safe.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}
