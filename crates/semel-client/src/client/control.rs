//! Who sends a request may stop it, and hears its status before the rest of the answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Decides whether a request may be sent, and hears its status: see
/// [`Client::send_for_status`](super::Client::send_for_status).
pub trait SendControl: Send + Sync + 'static {
    /// Whether bytes of the request may go out now. Asked before a connection is used, and again before every write: a
    /// process can stand still between any two steps. Must not block.
    fn may_send(&self) -> bool;

    /// The status has arrived. The rest of the answer may never come.
    fn answered(&self, status: StatusCode);
}

/// Stands before the socket of a connection, and stops the writes of a request that may not be sent any more. It is here,
/// and not before the connection, because a request waits in two places on its way: for its connection's task to run, and
/// in the connection's buffer while the socket is full.
#[derive(Default)]
pub(super) struct SendGate {
    at_hand: Mutex<Option<AtHand>>,
}

/// The request that the connection carries.
struct AtHand {
    control: Arc<dyn SendControl>,
    written: bool,
    stopped: bool,
}

/// What became of a request that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoppedRequest {
    /// No byte of it went out.
    Unsent,
    /// Some did.
    Midway,
}

impl SendGate {
    /// From now on writes are those of a request under this control, or of one under none.
    pub(super) fn guard(&self, control: Option<&Arc<dyn SendControl>>) {
        *self.at_hand.lock() =
            control.map(|control| AtHand { control: Arc::clone(control), written: false, stopped: false });
    }

    /// Whether the request was stopped here.
    pub(super) fn stopped(&self) -> Option<StoppedRequest> {
        let at_hand = self.at_hand.lock();
        let stopped = at_hand.as_ref().filter(|request| request.stopped)?;
        Some(if stopped.written { StoppedRequest::Midway } else { StoppedRequest::Unsent })
    }

    fn pass(&self) -> io::Result<()> {
        match &mut *self.at_hand.lock() {
            Some(request) if request.stopped || !request.control.may_send() => {
                request.stopped = true;
                Err(io::Error::other("the request may not be sent any more"))
            }
            _ => Ok(()),
        }
    }

    fn wrote(&self) {
        if let Some(request) = &mut *self.at_hand.lock() {
            request.written = true;
        }
    }
}

/// A socket with a gate before its writes.
pub(super) struct Gated {
    socket: TcpStream,
    gate: Arc<SendGate>,
}

impl Gated {
    pub(super) fn new(socket: TcpStream, gate: &Arc<SendGate>) -> Self {
        Self { socket, gate: Arc::clone(gate) }
    }

    fn write(
        &mut self,
        write: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.gate.pass()?;
        let written = write(Pin::new(&mut self.socket));
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.gate.wrote();
        }
        written
    }
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
