//! The body of a request: limited in size and time, on every version of HTTP.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::options::ClientTimeouts;
use super::refusal::Refusal;
use super::rules::ListenerRules;
use super::timer::Timer;

/// The reason why a body was refused, for the answer to its request.
pub(super) type Flaw = Arc<OnceLock<Refusal>>;

/// A request body from the listener. It fails with a [`Refusal`] if the client sends too much, too slowly, or invalid HTTP. The
/// listener then answers with that refusal, whatever the service returns.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` after it was dropped.
    incoming: Option<Incoming>,
    watch: Option<Box<BodyWatch>>,
}

/// Number of bytes that are still read from the body of a refused request.
const UNWANTED: usize = 1 << 20;

/// Lets the client of a refused HTTP/2 request finish sending. Closing immediately would reset the stream, and some clients then
/// discard the answer that they already received.
pub(super) fn let_finish(mut incoming: Incoming, linger: Duration) {
    let (false, Ok(runtime)) = (incoming.is_end_stream(), tokio::runtime::Handle::try_current()) else {
        return;
    };
    runtime.spawn(tokio::time::timeout(linger, async move {
        let mut read = 0;
        while let Some(Ok(frame)) = incoming.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > UNWANTED {
                return;
            }
        }
    }));
}

/// Limits of a body that is not empty.
#[derive(Debug)]
struct BodyWatch {
    rules: Arc<ListenerRules>,
    timeouts: ClientTimeouts,
    received: u64,
    /// How long the client has been waited for, before the current wait.
    waited: Duration,
    timer: Timer,
    flaw: Flaw,
    http2: bool,
}

impl RequestBody {
    /// Wraps `incoming`. The flaw is `Some` only if there is a body.
    pub(super) fn new(
        incoming: Incoming,
        rules: &Arc<ListenerRules>,
        timeouts: ClientTimeouts,
        http2: bool,
    ) -> (Self, Option<Flaw>) {
        if incoming.is_end_stream() {
            return (Self { incoming: Some(incoming), watch: None }, None);
        }
        let flaw = Flaw::default();
        let watch = BodyWatch {
            rules: Arc::clone(rules),
            timeouts,
            received: 0,
            waited: Duration::ZERO,
            timer: Timer::default(),
            flaw: Arc::clone(&flaw),
            http2,
        };
        (Self { incoming: Some(incoming), watch: Some(Box::new(watch)) }, Some(flaw))
    }
}

impl BodyWatch {
    fn refuse(&self, refusal: Refusal) -> Refusal {
        *self.flaw.get_or_init(|| refusal)
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Refusal> {
        let earned = self.received / u64::from(self.timeouts.body_rate.max(1));
        let allowed = self.timeouts.body + Duration::from_secs(earned);
        if self.timer.overdue(context, allowed.saturating_sub(self.waited)) {
            return Poll::Ready(self.refuse(Refusal::TooSlow));
        }
        Poll::Pending
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Refusal> {
        if let Some(since) = self.timer.clear() {
            self.waited += since.elapsed();
        }
        if let Some(data) = frame.data_ref() {
            self.received += data.len() as u64;
            if self.received > self.rules.limits.body_bytes {
                return Err(self.refuse(Refusal::BodyTooLarge));
            }
        }
        if let Some(Err(refusal)) = frame.trailers_ref().map(|trailers| self.check(trailers)) {
            return Err(self.refuse(refusal));
        }
        Ok(frame)
    }

    fn check(&self, trailers: &HeaderMap) -> Result<(), Refusal> {
        trailers.keys().try_for_each(|name| self.rules.trailer_name(name.as_str().as_bytes()))
    }

    /// The refusal of the wire, or one for a body that ended early.
    fn fail(&self, error: &hyper::Error) -> Refusal {
        let cause = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        let found = cause.and_then(|cause| cause.get_ref()).and_then(|cause| cause.downcast_ref::<Refusal>());
        self.refuse(found.copied().unwrap_or(Refusal::Malformed("the body ends early")))
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        let this = self.get_mut();
        let (Some(incoming), Some(watch)) = (&mut this.incoming, &mut this.watch) else {
            return Poll::Ready(None);
        };
        match Pin::new(incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(watch.take(frame))),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(watch.fail(&error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => watch.wait(context).map(|refusal| Some(Err(refusal))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(watch), Some(incoming)) = (&self.watch, self.incoming.take())
            && watch.http2
            && watch.flaw.get().is_none()
        {
            let_finish(incoming, watch.timeouts.linger);
        }
    }
}
