//! The body of an upstream's answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::error::Error;
use super::pool::Loan;
use crate::edge::timer::Timer;

/// The body of an upstream's answer. Returns its connection to the pool after it was read completely; if it is dropped earlier, the
/// connection is closed.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    loan: Option<Loan>,
    silence: Timer,
    read: Duration,
    deadline: Option<Instant>,
}

impl UpstreamBody {
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

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        let polled = match &mut this.loan {
            Some(loan) => loan.poll_body(&mut this.incoming, context),
            None => Pin::new(&mut this.incoming).poll_frame(context),
        };
        match polled {
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
