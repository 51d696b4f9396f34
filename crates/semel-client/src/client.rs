//! A client for other people's services: keys, retries, and a straight word on what was sent.
//!
//! It sends nothing twice by itself and follows no redirect. Retries are [`crate::retry`]'s, visible and counted; every one
//! carries the same key. [`Client::send_once`] is one try, and says precisely what became of it ([`Sent`]).
//!
//! ```no_run
//! use semel_client::client::{Client, Request};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize)]
//! struct Charge { cents: u64 }
//! #[derive(Deserialize)]
//! struct Receipt { id: String }
//!
//! # async fn charge(derived_key: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("https://api.acquirer.example")?.bearer("token")?.build()?;
//! let request = Request::post("/v1/charges").json(&Charge { cents: 1200 })?.key(derived_key)?.operation("charge");
//! let receipt: Receipt = client.json(&request).await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod control;
mod error;
mod link_local;
mod look_up;
mod pool;
mod read;
mod request;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use self::builder::{ClientBuildError, ClientBuilder};
pub use self::control::SendControl;
pub use self::error::{AnswerDecodeError, Error, Lost, TryFailure};
pub use self::request::{Conflicts, Request, RequestError};

use self::pool::ServicePool;
pub use crate::connect::AddressError;
use crate::retry::{Call, Destination, Judged, Repeat, Retry, Signal, StoryIds, Try, TryResult, Verdict};
use semel::time::Clock;

/// What a target is told about itself being tried again, so that layers below do not multiply retries.
const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A client of one service. Cheap to clone; clones share connections, and the destination's budget and breaker.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    pool: ServicePool,
    retry: Retry,
    destination: Option<Destination>,
    clock: Arc<dyn Clock>,
    /// Sent with every request that does not have its own.
    headers: HeaderMap,
    user_header: HeaderName,
    timeout: Duration,
    refine: Option<Arc<Refine>>,
}

/// Changes what an answer was taken for.
type Refine = dyn Fn(&Response, Judged) -> Judged + Send + Sync;

/// What became of one try.
#[derive(Debug)]
#[must_use = "it says whether the request may have taken effect"]
pub enum Sent {
    /// No byte of it reached the other side.
    NotSent(Lost),
    /// It was sent, and there is no whole answer: nobody knows whether it took effect.
    Unknown(Lost),
    /// There is a whole answer, of any status.
    Answered(Response),
}

/// A whole answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Response {
    /// Its status.
    pub status: http::StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, cut at the client's limit.
    pub body: bytes::Bytes,
    /// Whether the body is longer than what is here: it was cut at the client's limit, or only the status was asked for and
    /// the rest did not come whole.
    pub truncated: bool,
    /// How long it took from the first step to the last byte.
    pub latency: Duration,
}

impl Client {
    /// Starts to build a client of the service at `url`: `http://HOST[:PORT][/PREFIX]` or `https://…`.
    ///
    /// # Errors
    /// A URL that cannot be one.
    pub fn builder(url: &str) -> Result<ClientBuilder, AddressError> {
        ClientBuilder::new(url)
    }

    /// Sends a request and reads its answer as JSON, once, with retries.
    ///
    /// # Errors
    /// As [`send`](Self::send), and an answer that is not what was asked for.
    pub async fn json<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        let response = self.send(request).await?;
        response.json().map_err(Error::Decode)
    }

    /// Sends a request, with retries, all under the same key.
    ///
    /// Dropping the future closes the connection of the current try. A request that was sent may still take effect.
    ///
    /// # Errors
    /// The answer that is not a success, or why there is none; and whether anything may have happened.
    pub async fn send(&self, request: &Request) -> Result<Response, Error> {
        let ClientInner { retry, destination, .. } = &*self.inner;
        let repeat = request.repeat();
        let mut call = Call::new(request.operation_name()).repeat(repeat).story(story(request));
        if let Some(key) = request.key_text() {
            call = call.key(key);
        }
        if let Some(destination) = destination {
            call = call.to(destination);
        }
        let judge = |fault: &TryFailure| fault.judged(repeat);
        let answer = retry.drive(&call, judge, async |attempt: Try| {
            match self.attempt(request, attempt.timeout, Some(attempt.number), None).await {
                Sent::NotSent(lost) => TryResult::Failed(TryFailure::NotSent(lost)),
                Sent::Unknown(lost) => TryResult::Failed(TryFailure::Unknown(lost)),
                Sent::Answered(response) => {
                    let judged = self.judge(request, &response);
                    match judged.verdict {
                        Verdict::Success => TryResult::Done(response, judged),
                        _ => TryResult::Failed(TryFailure::Refused { response, judged }),
                    }
                }
            }
        });
        Ok(answer.await?)
    }

    /// Sends a request once, whatever comes of it. It asks neither budget nor breaker and logs nothing: that is for
    /// callers that count their own attempts, with [`judge_sent`](Self::judge_sent) for the verdict.
    ///
    /// Dropping the future closes the connection; what was sent may still take effect.
    pub async fn send_once(&self, request: &Request) -> Sent {
        self.attempt(request, self.inner.timeout, None, None).await
    }

    /// As [`send_once`](Self::send_once), for a request whose success is told by its status alone, and that may be sent for a
    /// limited time only: under a lease, for instance.
    ///
    /// A success is [`Sent::Answered`] as soon as its status is there, whatever becomes of the body: slow, cut off,
    /// too long or wrongly encoded. [`Response::truncated`] says that it is not whole. It is read as long as the timeout
    /// allows, so that the receiver is not cut off. An answer that is no success has to be whole, because its
    /// body can say what to do.
    ///
    /// `control` is asked before every write. Where it refuses before the first byte, that is [`Sent::NotSent`] with
    /// [`Lost::Stopped`]; where some bytes are out, [`Sent::Unknown`], and the connection is closed in the middle of
    /// the request.
    pub async fn send_for_status(&self, request: &Request, control: Arc<dyn SendControl>) -> Sent {
        self.attempt(request, self.inner.timeout, None, Some(control)).await
    }

    /// What a try's end means: the table of [`crate::retry`], with what the answer itself says.
    #[must_use]
    pub fn judge_sent(&self, request: &Request, sent: &Sent) -> Judged {
        match sent {
            Sent::NotSent(lost) | Sent::Unknown(lost) => lost.signal(sent).judge(request.repeat()),
            Sent::Answered(response) => self.judge(request, response),
        }
    }

    fn judge(&self, request: &Request, response: &Response) -> Judged {
        let signal = read::signal(request, response, self.inner.clock.now());
        let judged = signal.judge(request.repeat());
        match &self.inner.refine {
            Some(refine) => refine(response, judged),
            None => judged,
        }
    }

    async fn attempt(
        &self,
        request: &Request,
        timeout: Duration,
        number: Option<u32>,
        control: Option<Arc<dyn SendControl>>,
    ) -> Sent {
        let begun = Instant::now();
        let message = match self.message(request, number) {
            Ok(message) => message,
            Err(lost) => return Sent::NotSent(lost),
        };
        // On a connection that was used before, a server that closes it just now leaves the outcome unknown. A call that may
        // not repeat a call cannot bear that.
        let choice = match request.repeat() {
            Repeat::Safe => pool::ConnectionChoice::Any,
            Repeat::Unsafe => pool::ConnectionChoice::Fresh,
        };
        self.inner.pool.exchange(message, begun, begun + timeout, choice, control).await
    }

    /// The request as it goes over the wire.
    fn message(&self, request: &Request, number: Option<u32>) -> Result<pool::ClientMessage, Lost> {
        let ClientInner { pool, headers, user_header, .. } = &*self.inner;
        let target = pool.address.target(&request.path).ok_or(Lost::Target)?;
        let mut message = http::Request::new(http_body_util::Full::new(request.body.clone()));
        *message.method_mut() = request.method.clone();
        *message.uri_mut() = target;
        let all = message.headers_mut();
        all.clone_from(&request.headers);
        for (name, value) in headers {
            if !all.contains_key(name) {
                all.append(name, value.clone());
            }
        }
        all.insert(header::HOST, pool.address.host_value.clone());
        if let Some(key) = request.key_value() {
            all.insert(IDEMPOTENCY_KEY, key.clone());
        }
        if let Some(user) = &request.user
            && let Ok(user) = HeaderValue::from_str(user)
        {
            all.insert(user_header.clone(), user);
        }
        if let Ok(id) = HeaderValue::from_str(&request.request_id) {
            all.insert(REQUEST_ID, id);
        }
        if let Some(number) = number
            && !all.contains_key(ATTEMPT)
        {
            all.insert(ATTEMPT, HeaderValue::from(number));
        }
        Ok(message)
    }
}

/// The ids of the action that a request belongs to, with those it carries itself.
fn story(request: &Request) -> StoryIds {
    let mut story = request.story.clone();
    story.request_id.get_or_insert_with(|| request.request_id.clone());
    if let Some(user) = &request.user {
        story.user.get_or_insert_with(|| user.clone());
    }
    if let Some(trace) = request.trace_id() {
        story.trace_id.get_or_insert_with(|| trace.to_owned());
    }
    story
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.inner.pool.address)
            .field("retry", &self.inner.retry)
            .finish_non_exhaustive()
    }
}

impl Response {
    /// Reads the body as JSON.
    ///
    /// # Errors
    /// A body that is not what was asked for, or longer than the limit.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, AnswerDecodeError> {
        if self.truncated {
            return Err(AnswerDecodeError::TooLong { status: self.status, limit: self.body.len() });
        }
        serde_json::from_slice(&self.body).map_err(|error| AnswerDecodeError::NotJson {
            status: self.status,
            line: error.line(),
            column: error.column(),
        })
    }
}

impl Lost {
    fn signal(&self, sent: &Sent) -> Signal {
        match (sent, self) {
            (Sent::NotSent(_), _) => Signal::not_sent(),
            (_, Self::Timeout) => Signal::timed_out(),
            _ => Signal::cut(),
        }
    }
}
