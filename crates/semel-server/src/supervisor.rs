//! Tells a supervisor when the server is ready and when it stops: the protocol of `Type=notify` in systemd.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Set by the supervisor: the path of its socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// A supervisor that does not read must not stop the server.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the supervisor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Requests are accepted.
    Ready,
    /// Requests in progress finish, then the process ends.
    Stopping,
}

/// Sends a notice. Does nothing without a supervisor.
pub(crate) fn notify(notice: Notice) {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    if let Err(error) = send(&socket, notice) {
        tracing::warn!(target: "semel", %error, "the supervisor in NOTIFY_SOCKET did not receive a notice");
    }
}

fn send(socket: &OsStr, notice: Notice) -> io::Result<()> {
    let text = match notice {
        Notice::Ready => "READY=1\n",
        Notice::Stopping => "STOPPING=1\n",
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_write_timeout(Some(PATIENCE))?;
    datagram.send_to(text.as_bytes(), socket).map(drop)
}
