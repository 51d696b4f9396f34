//! Bodies on their way to the upstream and back.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::error::Error;
use super::pool::Loan;
use crate::edge::timer::Timer;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What goes to the upstream. One type for all, because a connection is bound to one.
pub(super) enum Outgoing {
    Empty,
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Outgoing {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() { Self::Empty } else { Self::Stream(body.map_err(Into::into).boxed_unsync()) }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Stream(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

/// The body of an upstream's answer. Gives its connection back to the pool when it was read to the end; dropped
/// before, the connection is closed.
#[derive(Debug)]
pub struct Reply {
    incoming: Incoming,
    loan: Option<Loan>,
    silence: Timer,
    read: Duration,
    deadline: Option<Instant>,
}

impl Reply {
    pub(super) fn new(
        incoming: Incoming,
        loan: Option<Loan>,
        read: Duration,
        deadline: Option<Instant>,
    ) -> Self {
        let mut reply = Self { incoming, loan, silence: Timer::default(), read, deadline };
        reply.settle();
        reply
    }

    fn settle(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(loan) = self.loan.take()
        {
            loan.give_back();
        }
    }

    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        self.silence.overdue_or_past(context, self.read, self.deadline)
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silence.clear();
                this.settle();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.loan = None;
                Poll::Ready(Some(Err(Error::Cut(error))))
            }
            Poll::Ready(None) => {
                if let Some(loan) = this.loan.take() {
                    loan.give_back();
                }
                Poll::Ready(None)
            }
            Poll::Pending if this.is_late(context) => {
                this.loan = None;
                Poll::Ready(Some(Err(Error::Timeout)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
