//! A stream whose answer is held until it is released, and a body that reports when it was taken completely.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// State shared by both halves.
#[derive(Debug)]
pub(crate) struct SharedHalves {
    released: AtomicBool,
    reader: Mutex<Option<Waker>>,
    /// The last byte of the body was passed to the connection.
    taken: AtomicBool,
    /// Bytes were written to the stream.
    wrote: AtomicBool,
    /// The whole request was written and flushed.
    written: AtomicBool,
    told: Notify,
}

impl SharedHalves {
    fn new(released: AtomicBool) -> Self {
        Self {
            released,
            reader: Mutex::new(None),
            taken: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            written: AtomicBool::new(false),
            told: Notify::new(),
        }
    }

    /// A hold that is already released.
    pub(crate) fn released() -> Self {
        Self::new(AtomicBool::new(true))
    }

    /// A hold that holds the answer.
    pub(crate) fn held() -> Self {
        Self::new(AtomicBool::new(false))
    }

    /// Releases the answer.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        if let Some(waker) = self.reader.lock().take() {
            waker.wake();
        }
    }

    /// Waits until the whole request is on the wire.
    pub(crate) async fn written(&self) {
        let told = self.told.notified();
        tokio::pin!(told);
        loop {
            told.as_mut().enable();
            if self.written.load(Ordering::SeqCst) {
                return;
            }
            told.as_mut().await;
            told.set(self.told.notified());
        }
    }

    /// Ends every wait for the request to be written.
    pub(crate) fn abandon(&self) {
        self.written.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    fn flushed(&self) {
        if self.taken.load(Ordering::SeqCst) && self.wrote.load(Ordering::SeqCst) {
            self.abandon();
        }
    }
}

/// The stream with a hold.
pub(super) struct HeldStream<S> {
    stream: S,
    hold: Arc<SharedHalves>,
}

impl<S> HeldStream<S> {
    pub(super) fn new(stream: S, hold: Arc<SharedHalves>) -> Self {
        Self { stream, hold }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeldStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.hold.released.load(Ordering::SeqCst) {
            *self.hold.reader.lock() = Some(context.waker().clone());
            // It may have been released meanwhile.
            if !self.hold.released.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeldStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(wrote, Poll::Ready(Ok(1..))) {
            self.hold.wrote.store(true, Ordering::SeqCst);
        }
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // The connection flushes only after it has written everything.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.hold.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request's body.
#[derive(Debug)]
pub(super) struct SentBody {
    rest: Option<Bytes>,
    hold: Arc<SharedHalves>,
}

impl SentBody {
    pub(super) fn new(body: Bytes, hold: Arc<SharedHalves>) -> Self {
        // Without a body, the head is the whole request.
        hold.taken.store(body.is_empty(), Ordering::SeqCst);
        Self { rest: Some(body).filter(|body| !body.is_empty()), hold }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let rest = self.rest.take();
        self.hold.taken.store(true, Ordering::SeqCst);
        Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(
            self.rest.as_ref().map_or(0, |rest| u64::try_from(rest.len()).unwrap_or(u64::MAX)),
        )
    }
}
