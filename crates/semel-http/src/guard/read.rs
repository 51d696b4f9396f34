//! Reads bodies up to a limit: of requests before their key is claimed, of answers before they are stored.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::body::{Body, BoxError};
use crate::capacity::BodyRoom;

/// The result of reading a body.
pub(super) enum Read {
    Whole(Whole),
    /// The part that was read, the rest, and why reading stopped.
    Partly(Resumed, ReadStop),
    /// The body ended before its announced length.
    Cut(BoxError),
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStop {
    /// It is larger than the limit.
    TooLarge,
    /// It did not end in time, or has no end.
    Streaming,
    /// `look` found what it looks for.
    Found,
    /// The memory limit is reached.
    NoRoom,
}

impl ReadStop {
    /// The reason, for callers that ask for this body later.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "it was larger than the limit",
            Self::Streaming | Self::Found | Self::NoRoom => "it was streamed",
        }
    }
}

/// A body that was read to its end.
#[derive(Default)]
pub(super) struct Whole {
    pub(super) pieces: Vec<Bytes>,
    pub(super) trailers: Option<HeaderMap>,
}

impl Whole {
    /// The body as one piece; copies only if it arrived in several.
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

/// True if an answer is a stream of events, which may have no end and must reach the client as it arrives.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        let start = b"text/event-stream";
        value.len() >= start.len() && value[..start.len()].eq_ignore_ascii_case(start)
    })
}

/// Reads a body of at most `limit` bytes, until `deadline`.
pub(super) fn read(body: Body, limit: usize, deadline: Instant) -> impl Future<Output = Read> + Send {
    read_until(body, limit, deadline, None, |_| ReadDecision::On)
}

/// Whether to continue reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadDecision {
    On,
    Found,
}

/// Reads until `look` finds what it looks for in a piece. Counts the bytes against `room`, if given.
pub(super) async fn read_until(
    mut body: Body,
    limit: usize,
    deadline: Instant,
    mut room: Option<&mut BodyRoom>,
    mut look: impl FnMut(&[u8]) -> ReadDecision,
) -> Read {
    let mut gathered = Gathered::default();
    if body.is_end_stream() {
        return Read::Whole(gathered.into_whole());
    }
    if body.size_hint().lower() > limit as u64 {
        return Read::Partly(Resumed::unread(body), ReadStop::TooLarge);
    }
    // A request whose body has not begun already holds memory for its head.
    if let Some(room) = &mut room
        && room.take(0).is_err()
    {
        return Read::Partly(gathered.resume(body), ReadStop::NoRoom);
    }
    let mut length = 0;
    loop {
        let next = poll_fn(|context| {
            if let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
                return Poll::Ready(Some(frame));
            }
            match &room {
                Some(room) => room.poll_evicted(context).map(|()| None),
                None => Poll::Pending,
            }
        });
        let frame = match within(deadline, next).await {
            Some(Some(Some(Ok(frame)))) => frame,
            Some(Some(Some(Err(error)))) => return Read::Cut(error),
            Some(Some(None)) => return Read::Whole(gathered.into_whole()),
            Some(None) => return Read::Partly(gathered.resume(body), ReadStop::NoRoom),
            None => return Read::Partly(gathered.resume(body), ReadStop::Streaming),
        };
        match frame.into_data() {
            Ok(data) => {
                if let Some(room) = &mut room
                    && room.take(data.len()).is_err()
                {
                    return Read::Partly(gathered.resume(body), ReadStop::NoRoom);
                }
                length += data.len();
                let looked = look(&data);
                gathered.add(data);
                if looked == ReadDecision::Found {
                    return Read::Partly(gathered.resume(body), ReadStop::Found);
                }
                if length > limit {
                    return Read::Partly(gathered.resume(body), ReadStop::TooLarge);
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    gathered.whole.trailers = Some(trailers);
                }
            }
        }
    }
}

/// The pieces read so far. Small pieces are joined: a body of single bytes would take many times its size.
#[derive(Default)]
struct Gathered {
    whole: Whole,
    small: BytesMut,
}

impl Gathered {
    /// Pieces are joined until they have this size.
    const SMALL: usize = 1_024;
    const PIECE: usize = 64 << 10;

    fn add(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let is_first = self.whole.pieces.is_empty() && self.small.is_empty();
        if data.len() < Self::SMALL && !is_first {
            self.small.extend_from_slice(&data);
            if self.small.len() >= Self::PIECE {
                self.flush();
            }
        } else {
            self.flush();
            self.whole.pieces.push(data);
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.whole.pieces.push(self.small.split().freeze());
        }
    }

    fn into_whole(mut self) -> Whole {
        self.flush();
        self.whole
    }

    fn resume(self, rest: Body) -> Resumed {
        Resumed::new(self.into_whole(), rest)
    }
}

/// The result of `work`, or `None` at `deadline`. Work that is ready immediately needs no timer.
pub(super) async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return Some(answer);
    }
    Box::pin(timeout_at(deadline, work)).await.ok()
}

/// A body that continues where reading stopped.
pub(super) struct Resumed {
    read: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Body,
}

impl Resumed {
    pub(super) fn new(read: Whole, rest: Body) -> Self {
        Self { read: read.pieces.into(), trailers: read.trailers, rest }
    }

    /// A body of which nothing was read.
    pub(super) fn unread(body: Body) -> Self {
        Self::new(Whole::default(), body)
    }

    /// Returns the bytes that were read as one piece, and leaves the rest.
    #[cfg(feature = "mcp")]
    pub(super) fn take_read(&mut self) -> Bytes {
        let pieces = std::mem::take(&mut self.read).into();
        Whole { pieces, trailers: None }.join().0
    }

    /// Puts a piece in front of the rest.
    #[cfg(feature = "mcp")]
    pub(super) fn put_back(&mut self, piece: Bytes) {
        self.read.push_front(piece);
    }

    pub(super) fn into_body(self) -> Body {
        if self.read.is_empty() && self.trailers.is_none() { self.rest } else { Body::stream(self) }
    }
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(piece) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Pin::new(&mut self.rest).poll_frame(context)
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
