//! Bodies that come in pieces, are cut, or have no end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use semel_http::{Body, BoxError};

/// Pieces, and what comes behind them.
struct Pieces {
    left: VecDeque<Bytes>,
    then: Then,
}

enum Then {
    End,
    Cut,
    Nothing,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match (self.left.pop_front(), &self.then) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, Then::End) => Poll::Ready(None),
            (None, Then::Cut) => Poll::Ready(Some(Err("cut".into()))),
            (None, Then::Nothing) => Poll::Pending,
        }
    }
}

pub(super) fn pieces(pieces: Vec<Vec<u8>>) -> Body {
    Body::stream(Pieces { left: pieces.into_iter().map(Bytes::from).collect(), then: Then::End })
}

pub(super) fn cut_after(text: &'static str) -> Body {
    Body::stream(Pieces { left: [Bytes::from_static(text.as_bytes())].into(), then: Then::Cut })
}

/// Says this and then nothing, for ever.
pub(super) fn endless(text: &'static str) -> Body {
    Body::stream(Pieces { left: [Bytes::from_static(text.as_bytes())].into(), then: Then::Nothing })
}
