//! A stream with other events before the answer. They are passed on immediately, the answer after it was stored.
//!
//! A tool may report progress, or ask its client something and wait for the reply. So the guard passes events on as they arrive; only
//! the answer to the call waits until its record is written. A task of its own does this and continues after the client has
//! disconnected. Metrics count such a call as executed when its stream begins.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderValue, Response};
use http_body::{Body as _, Frame};
use semel::engine::Running;
use serde_json::value::RawValue;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::super::read::{ReadStop, Resumed, Whole, within};
use super::super::{Answered, Inner, Steering};
use super::tool_answer::of_message;
use crate::body::{Body, BoxError};
use crate::call::CallError;
use crate::codec::CallForm;
use crate::mcp::McpCall;
use crate::mcp::call::{JudgedAnswer, is_events, judge};
use crate::mcp::sse::{self, SseEvent, SseReader};
use crate::observe::AnswerOutcome;
use crate::policy::RoutePolicy;
use crate::stored;

/// A stream that has begun, and the call that it belongs to.
pub(in crate::guard) struct LiveStream {
    pub(in crate::guard) running: Running,
    pub(in crate::guard) head: Parts,
    pub(in crate::guard) body: Body,
    pub(in crate::guard) steering: Steering,
    pub(in crate::guard) limit: Instant,
}

/// A part of the stream for the client. Sending never waits for a slow client; the response limit bounds the queue.
enum StreamPiece {
    Bytes(Bytes),
    /// The rest of the body, which needs no inspection.
    Rest(Body),
}

/// How the inspection ended.
enum LookEnd {
    Answer(SseEvent),
    TooLarge,
    Failed(CallError),
}

impl Inner {
    /// Passes the stream to the client now, and its answer after it was stored.
    pub(in crate::guard) fn go_live(
        self: &Arc<Self>,
        route: Option<usize>,
        call: &Arc<McpCall>,
        stream: LiveStream,
    ) -> Answered {
        let (tell, told) = unbounded_channel();
        let mut head = stream.head.clone();
        head.headers.remove(CONTENT_LENGTH);
        let answer = Response::from_parts(head, Body::stream(Live { told, rest: None }));
        let pump = Arc::clone(self).pump(route, Arc::clone(call), stream, tell);
        drop(tokio::spawn(pump.in_current_span()));
        (answer, AnswerOutcome::Ran)
    }

    async fn pump(
        self: Arc<Self>,
        route: Option<usize>,
        call: Arc<McpCall>,
        stream: LiveStream,
        tell: UnboundedSender<StreamPiece>,
    ) {
        let policy = &self.route(route).policy;
        let LiveStream { running, head, body, steering, limit } = stream;
        let id = call.id.as_deref().expect("a call without an id is not admitted");
        let asked = CallForm::Message(Arc::clone(&call));
        let mut flow = Flow { body, events: SseReader::default(), held: BytesMut::new(), passed: 0, tell };
        match flow.until_answer(id, policy, limit).await {
            LookEnd::Answer(SseEvent { data, place }) => {
                let event = as_stream(flow.take(place.end));
                let answer = if judge(&data, id) == Some(JudgedAnswer::Success) {
                    let kept = of_message(policy, head.status, &head.headers, data.into());
                    let steering = self.bounded(policy, steering);
                    let answer = (event, AnswerOutcome::Ran);
                    self.conclude(policy, &asked, running, kept, steering, answer).await.0
                } else {
                    let own = (event, AnswerOutcome::Released);
                    self.release_claim(policy, &asked, running, own).await.0
                };
                flow.send(StreamPiece::Bytes(as_events(answer)));
                flow.let_go();
            }
            LookEnd::TooLarge => {
                let kept = stored::tombstone(ReadStop::TooLarge.reason());
                let nothing = (as_stream(Bytes::new()), AnswerOutcome::Tombstone);
                let answer =
                    as_events(self.conclude(policy, &asked, running, kept, steering, nothing).await.0);
                if answer.is_empty() {
                    flow.let_go();
                } else {
                    // Another outcome is already stored, so the client must not see this one.
                    flow.send(StreamPiece::Bytes(answer));
                }
            }
            LookEnd::Failed(error) => {
                let answer = self.failed(policy, &asked, running, &error).await.0;
                flow.send(StreamPiece::Bytes(as_events(answer)));
            }
        }
    }
}

/// The stream from the upstream to the client.
struct Flow {
    body: Body,
    events: SseReader,
    /// Bytes that were read and not yet passed on.
    held: BytesMut,
    /// Number of bytes that were passed on.
    passed: usize,
    tell: UnboundedSender<StreamPiece>,
}

impl Flow {
    /// Passes on all events before the answer.
    async fn until_answer(&mut self, id: &RawValue, policy: &RoutePolicy, limit: Instant) -> LookEnd {
        loop {
            let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            let frame = match within(limit, next).await {
                Some(Some(Ok(frame))) => frame,
                Some(Some(Err(error))) => return LookEnd::Failed(CallError::unknown(error)),
                Some(None) => {
                    return LookEnd::Failed(CallError::unknown(
                        "the stream ended without an answer to the call",
                    ));
                }
                None => return LookEnd::Failed(CallError::timed_out("no answer within in_flight_max")),
            };
            let Ok(data) = frame.into_data() else { continue };
            self.held.extend_from_slice(&data);
            let mut found = None;
            self.events.feed(&data, |event| {
                if found.is_none() && judge(&event.data, id).is_some() {
                    found = Some(event);
                }
            });
            let ended = found.as_ref().map_or(self.events.ended(), |event: &SseEvent| event.place.start);
            let others = self.take(ended);
            self.send(StreamPiece::Bytes(others));
            if let Some(event) = found {
                return LookEnd::Answer(event);
            }
            if self.passed + self.held.len() > policy.response_limit {
                return LookEnd::TooLarge;
            }
        }
    }

    /// The bytes that were read up to a position in the stream.
    fn take(&mut self, to: usize) -> Bytes {
        let piece = self.held.split_to(to.saturating_sub(self.passed).min(self.held.len())).freeze();
        self.passed += piece.len();
        piece
    }

    /// The call continues after the client has disconnected.
    fn send(&self, piece: StreamPiece) {
        let _ = self.tell.send(piece);
    }

    /// Passes on the rest without inspection.
    fn let_go(self) {
        let held = Some(self.held.freeze()).filter(|held| !held.is_empty());
        let whole = Whole { pieces: held.into_iter().collect(), trailers: None };
        let _ = self.tell.send(StreamPiece::Rest(Resumed::new(whole, self.body).into_body()));
    }
}

fn as_stream(event: Bytes) -> Response<Body> {
    let mut answer = Response::new(Body::from(event));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}

/// An answer, written as an event of the open stream.
fn as_events(answer: Response<Body>) -> Bytes {
    let is_stream = is_events(answer.headers());
    let bytes = answer.into_body().into_bytes().unwrap_or_default();
    if is_stream { bytes } else { sse::event(&bytes).into() }
}

/// The client's end of the stream.
struct Live {
    told: UnboundedReceiver<StreamPiece>,
    rest: Option<Body>,
}

impl http_body::Body for Live {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(rest) = &mut self.rest {
                return Pin::new(rest).poll_frame(context);
            }
            match ready!(self.told.poll_recv(context)) {
                Some(StreamPiece::Bytes(bytes)) if bytes.is_empty() => {}
                Some(StreamPiece::Bytes(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(StreamPiece::Rest(rest)) => self.rest = Some(rest),
                None => return Poll::Ready(None),
            }
        }
    }
}
