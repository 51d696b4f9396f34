//! Bodies that come in pieces, are cut, or have no end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use semel_http::{Body, BoxError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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
    cut_after_each(&[text])
}

/// Pieces, and then a cut.
pub(super) fn cut_after_each(pieces: &[&'static str]) -> Body {
    let left = pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
    Body::stream(Pieces { left, then: Then::Cut })
}

/// What a test says, when it says it.
pub(super) fn told() -> (UnboundedSender<String>, Body) {
    struct Told(UnboundedReceiver<String>);
    impl http_body::Body for Told {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece.into()))))
        }
    }
    let (tell, told) = unbounded_channel();
    (tell, Body::stream(Told(told)))
}

/// Says this and then nothing, for ever.
pub(super) fn endless(text: &'static str) -> Body {
    Body::stream(Pieces { left: [Bytes::from_static(text.as_bytes())].into(), then: Then::Nothing })
}
