//! Reads bodies up to a limit: of requests before their key is claimed, of answers before they are kept.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::body::{Body, BoxError};

/// What came of reading a body.
pub(super) enum Read<B> {
    Whole(Whole),
    /// It is more than the limit, or does not end: the part that was read, and the rest.
    Partly(Resumed<B>, &'static str),
    /// It was cut off.
    Cut(BoxError),
}

/// A body that was read to its end.
#[derive(Default)]
pub(super) struct Whole {
    pub(super) pieces: Vec<Bytes>,
    pub(super) trailers: Option<HeaderMap>,
}

impl Whole {
    /// As one piece; copied only where it came in several.
    pub(super) fn join(mut self) -> (Bytes, Option<HeaderMap>) {
        if self.pieces.len() < 2 {
            return (self.pieces.pop().unwrap_or_default(), self.trailers);
        }
        let mut joined = BytesMut::with_capacity(self.pieces.iter().map(Bytes::len).sum());
        for piece in &self.pieces {
            joined.extend_from_slice(piece);
        }
        (joined.freeze(), self.trailers)
    }
}

/// Whether an answer is a stream of events, which may have no end and is to reach the client as it comes.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        let start = b"text/event-stream";
        value.len() >= start.len() && value[..start.len()].eq_ignore_ascii_case(start)
    })
}

pub(super) const TOO_LARGE: &str = "it was larger than the limit";
pub(super) const STREAMED: &str = "it was streamed";

/// Reads a body of at most `limit` bytes, until `deadline`.
pub(super) async fn read<B>(body: B, limit: usize, deadline: Instant) -> Read<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut whole = Whole::default();
    if body.is_end_stream() {
        return Read::Whole(whole);
    }
    let (mut length, large) = (0, body.size_hint().lower() > limit as u64);
    let mut body = Box::pin(body);
    if large {
        return Read::Partly(Resumed::new(whole, body), TOO_LARGE);
    }
    loop {
        let next = poll_fn(|context| body.as_mut().poll_frame(context));
        let frame = match timeout_at(deadline, next).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Read::Cut(error.into()),
            Ok(None) => return Read::Whole(whole),
            Err(_) => return Read::Partly(Resumed::new(whole, body), STREAMED),
        };
        match frame.into_data() {
            Ok(data) => {
                length += data.len();
                if !data.is_empty() {
                    whole.pieces.push(data);
                }
                if length > limit {
                    return Read::Partly(Resumed::new(whole, body), TOO_LARGE);
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    whole.trailers = Some(trailers);
                }
            }
        }
    }
}

/// A body that goes on where reading it stopped.
pub(super) struct Resumed<B> {
    read: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Pin<Box<B>>,
}

impl<B> Resumed<B> {
    fn new(read: Whole, rest: Pin<Box<B>>) -> Self {
        Self { read: read.pieces.into(), trailers: read.trailers, rest }
    }

    /// Nothing of it was read.
    pub(super) fn unread(body: B) -> Self {
        Self::new(Whole::default(), Box::pin(body))
    }
}

impl<B> Resumed<B>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn into_body(self) -> Body {
        Body::stream(self)
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Resumed<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(piece) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        self.rest.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.read.iter().map(|piece| piece.len() as u64).sum();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(read.saturating_add(upper));
        }
        hint.set_lower(read.saturating_add(rest.lower()));
        hint
    }
}
