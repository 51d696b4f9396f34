//! Live updates: server-sent events with fragments of pages. One task renders them once for all consoles.
//!
//! A console that does not read its stream is dropped from it and blocks nobody; its browser connects again. A stream ends with
//! the session that opened it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use askama::Template as _;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::actions;
use super::overview::LiveOverview;
use super::sample::EVERY;
use super::session::{RequestedBy, SessionHash};
use super::strip::Strip;
use super::visitor::Visitor;
use crate::admin::{Admin, Caller, Right};

/// The path of the stream.
pub(super) const PATH: &str = "/console/live";
/// Answers whether the session is still open: a script cannot see why the stream was refused.
pub(super) const SESSION: &str = "/console/session";
/// Messages that wait for a slow console before it is dropped.
const WAITING: usize = 2;
/// Maximum number of streams. The oldest one ends when another is opened.
const MOST: usize = 200;
/// How long a browser waits before it connects again, in milliseconds.
const RETRY: u32 = 2_000;

/// What a console shows: buttons follow the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Sees no buttons.
    Viewers,
    /// Sees the buttons of targets.
    Operators,
}

/// The open streams.
#[derive(Default)]
pub(crate) struct Streams {
    open: Mutex<OpenStreams>,
}

#[derive(Default)]
struct OpenStreams {
    streams: Vec<OpenStream>,
    /// True when the server stops: it waits for open connections, and a stream would never end by itself.
    is_closed: bool,
}

struct OpenStream {
    audience: Audience,
    /// `None` where nobody logs in.
    session: Option<SessionHash>,
    sender: mpsc::Sender<Bytes>,
}

impl Audience {
    pub(super) fn of(caller: &Caller) -> Self {
        if actions::PAUSE_TARGET.is_allowed(caller) { Self::Operators } else { Self::Viewers }
    }
}

impl OpenStream {
    /// True if the session that opened it is still open, and its token has the same rights.
    fn is_allowed(&self, admin: &Admin) -> bool {
        let access = admin.access();
        let caller = match self.session {
            None => access.local_caller(),
            Some(session) => {
                let found = admin.console.sessions.find(session, RequestedBy::Script);
                found.and_then(|(token, _)| access.caller_of(&token))
            }
        };
        caller.is_some_and(|caller| caller.may(Right::Look).is_ok() && Audience::of(&caller) == self.audience)
    }
}

impl Streams {
    fn has(&self, audience: Audience) -> bool {
        self.open.lock().streams.iter().any(|stream| stream.audience == audience)
    }

    fn open(&self, audience: Audience, session: Option<SessionHash>) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut open = self.open.lock();
        if !open.is_closed {
            if open.streams.len() >= MOST {
                open.streams.remove(0);
            }
            open.streams.push(OpenStream { audience, session, sender });
        }
        receiver
    }

    /// Ends all streams. Those that are opened later end at once.
    pub(crate) fn close(&self) {
        let mut open = self.open.lock();
        open.is_closed = true;
        open.streams.clear();
    }

    /// Sends a message to everybody who listens. Who does not keep up is dropped.
    fn send(&self, audience: Audience, message: &Bytes) {
        self.open
            .lock()
            .streams
            .retain(|stream| stream.audience != audience || stream.sender.try_send(message.clone()).is_ok());
    }

    /// Number of open streams.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().streams.iter().filter(|stream| !stream.sender.is_closed()).count()
    }

    /// Removes streams that ended.
    fn tidy(&self) {
        self.open.lock().streams.retain(|stream| !stream.sender.is_closed());
    }

    /// Ends streams whose session has ended.
    pub(super) fn end_closed(&self, admin: &Admin) {
        self.open.lock().streams.retain(|stream| stream.is_allowed(admin));
    }

    fn is_empty(&self) -> bool {
        self.open.lock().streams.is_empty()
    }
}

/// Takes samples and sends fragments, for as long as the server runs.
pub(crate) async fn run(admin: Arc<Admin>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        admin.console.samples.take(&admin);
        let streams = &admin.console.streams;
        streams.tidy();
        streams.end_closed(&admin);
        if streams.is_empty() {
            continue;
        }
        Strip::refresh(&admin, EVERY / 2).await;
        let strip = Strip::last(&admin);
        let strip = format!("{}{}", strip.render().unwrap_or_default(), strip.counts());
        for audience in [Audience::Viewers, Audience::Operators] {
            if streams.has(audience) {
                let live = LiveOverview::read(&admin, audience).render().unwrap_or_default();
                streams.send(audience, &message("tick", &[&strip, &live]));
            }
        }
    }
}

/// A message of the stream. Every line of its data needs the prefix.
fn message(event: &str, parts: &[&str]) -> Bytes {
    let mut text = format!("event: {event}\n");
    for line in parts.iter().flat_map(|part| part.lines()).filter(|line| !line.trim().is_empty()) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text.into()
}

/// Opens a stream.
pub(super) async fn open(State(admin): State<Arc<Admin>>, visitor: Visitor) -> Response {
    let first = Bytes::from(format!("retry: {RETRY}\n\n"));
    let rest = admin.console.streams.open(Audience::of(&visitor.caller), visitor.session);
    let body = Stream { first: Some(first), rest };
    let mut response = Body::new(body).into_response();
    let media = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// Answers a script whose session is open; others do not get here.
pub(super) async fn session(_: Visitor) -> StatusCode {
    StatusCode::NO_CONTENT
}

/// The body of a stream.
struct Stream {
    first: Option<Bytes>,
    rest: mpsc::Receiver<Bytes>,
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.rest.poll_recv(context).map(|message| message.map(|message| Ok(Frame::data(message))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_no_line_of_its_own_making() {
        let sent = message("tick", &["<p>\n\n</p>", "retry: 1"]);
        assert_eq!(&sent[..], b"event: tick\ndata: <p>\ndata: </p>\ndata: retry: 1\n\n");
    }

    #[tokio::test]
    async fn a_console_that_does_not_read_is_dropped() {
        let streams = Streams::default();
        let (mut quick, slow) =
            (streams.open(Audience::Viewers, None), streams.open(Audience::Viewers, None));
        for number in 0..=WAITING {
            streams.send(Audience::Viewers, &Bytes::from(number.to_string()));
            assert!(quick.recv().await.is_some());
        }
        assert_eq!(streams.open.lock().streams.len(), 1, "the slow one is gone");
        drop((quick, slow));
        streams.tidy();
        assert!(streams.is_empty());
    }

    // A stopping server waits for open connections: a stream that stays open would delay it for the whole drain.
    #[tokio::test]
    async fn streams_end_when_the_server_stops() {
        let streams = Streams::default();
        let mut early = streams.open(Audience::Viewers, None);
        streams.close();
        let mut late = streams.open(Audience::Viewers, None);
        assert_eq!((early.recv().await, late.recv().await), (None, None));
    }
}
