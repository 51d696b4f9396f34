//! Copies bytes in both directions after `101 Switching Protocols`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::Body;
use crate::edge::ListenerEnd;

/// The client's half of a possible tunnel.
pub(super) struct Entrance {
    client: OnUpgrade,
    protocol: HeaderValue,
    /// Signals the end of the listener, if there is one.
    ending: Option<ListenerEnd>,
}

impl Entrance {
    /// Takes it from a request that asks to switch protocols and may do so.
    pub(super) fn take<B>(request: &mut Request<B>) -> Option<Self> {
        let client = request.extensions_mut().remove::<OnUpgrade>()?;
        let protocol = request.headers().get(header::UPGRADE)?.clone();
        let ending = request.extensions_mut().remove::<ListenerEnd>();
        Some(Self { client, protocol, ending })
    }

    /// Asks the upstream for the same protocol.
    pub(super) fn ask(&self, request: &mut Request<Body>) {
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// True if the head of an answer names only the requested protocol.
    pub(super) fn agrees(&self, headers: &HeaderMap) -> bool {
        let asked = self.protocol.as_bytes();
        headers.get_all(header::UPGRADE).iter().all(|named| named.as_bytes().eq_ignore_ascii_case(asked))
    }

    /// Connects both sides after the upstream has agreed. The tunnel runs in a task of its own until one side closes, no bytes have
    /// passed for `idle`, or the listener ends.
    pub(super) fn open<B>(self, response: &mut Response<B>, idle: Duration) {
        debug_assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS, "asked only then");
        let upstream = hyper::upgrade::on(&mut *response);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, self.protocol);
        let (client, mut ending) = (self.client, self.ending);
        let ended = async move {
            match &mut ending {
                Some(ending) => ending.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = (client.await, upstream.await) else {
                return;
            };
            let moved = Arc::new(Mutex::new(Instant::now()));
            let mut client = WatchedStream { io: TokioIo::new(client), moved: Arc::clone(&moved) };
            let mut upstream = WatchedStream { io: TokioIo::new(upstream), moved: Arc::clone(&moved) };
            // The two sides handle errors of the tunnel.
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                () = silence(&moved, idle) => tracing::debug!("tunnel closed: idle for {idle:?}"),
                () = ended => {}
            }
        });
    }
}

/// Returns when no bytes have passed for `idle`.
async fn silence(moved: &Mutex<Instant>, idle: Duration) {
    loop {
        let over = *moved.lock() + idle;
        if over <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(over).await;
    }
}

/// One side of a tunnel, which records when bytes pass.
struct WatchedStream<IO> {
    io: IO,
    moved: Arc<Mutex<Instant>>,
}

impl<IO> WatchedStream<IO> {
    fn note(&self) {
        *self.moved.lock() = Instant::now();
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for WatchedStream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.note();
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WatchedStream<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        if let Poll::Ready(Ok(1..)) = polled {
            self.note();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
