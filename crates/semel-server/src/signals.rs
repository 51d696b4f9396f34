//! The signals a server listens to.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What somebody wants of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Read the config again: SIGHUP.
    Reload,
    /// Finish what is under way and end: SIGTERM, or Ctrl-C.
    Stop,
}

/// Listens from the moment it is made.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Listens.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next wish. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.hangup.recv() => Wish::Reload,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.terminate.recv() => Wish::Stop,
        }
    }

    /// The next wish to stop; others are overheard. Cancel-safe.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}
