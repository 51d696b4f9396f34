//! The body of an answer, which reports when it was sent completely.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::link::{CallEnd, ConnectionLink};

/// One call in progress. If it is dropped early, it counts as abandoned by the client.
#[derive(Debug)]
pub(super) struct Flight {
    link: Arc<ConnectionLink>,
    most_abandoned: u32,
    end: CallEnd,
}

impl Flight {
    /// Counts the call and returns its number on this connection.
    pub(super) fn enter(link: &Arc<ConnectionLink>, most_abandoned: u32) -> (Self, u64) {
        let number = link.enter();
        (Self { link: Arc::clone(link), most_abandoned, end: CallEnd::Abandoned }, number)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.link.leave(self.end, self.most_abandoned);
    }
}

/// An answer to the client: the service's, or the listener's own.
#[derive(Debug)]
pub(super) struct OutgoingAnswer<B> {
    body: AnswerKind<B>,
    flight: Flight,
}

#[derive(Debug)]
enum AnswerKind<B> {
    Service(B),
    Own(Full<Bytes>),
}

impl<B: Body<Data = Bytes> + Unpin> OutgoingAnswer<B> {
    pub(super) fn service(body: B, mut flight: Flight) -> Self {
        if body.is_end_stream() {
            flight.end = CallEnd::Finished;
        }
        Self { body: AnswerKind::Service(body), flight }
    }

    pub(super) fn own(body: Full<Bytes>, mut flight: Flight) -> Self {
        flight.end = CallEnd::Finished;
        Self { body: AnswerKind::Own(body), flight }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for OutgoingAnswer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        match &mut this.body {
            AnswerKind::Service(body) => {
                let polled = Pin::new(&mut *body).poll_frame(context);
                // An error comes from the service, not from the client.
                if matches!(polled, Poll::Ready(None | Some(Err(_)))) || body.is_end_stream() {
                    this.flight.end = CallEnd::Finished;
                }
                polled
            }
            AnswerKind::Own(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            AnswerKind::Service(body) => body.is_end_stream(),
            AnswerKind::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            AnswerKind::Service(body) => body.size_hint(),
            AnswerKind::Own(body) => body.size_hint(),
        }
    }
}
