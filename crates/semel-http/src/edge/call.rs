//! One request, from hyper to the service and back.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tower_service::Service;

use super::answer::{Flight, OutgoingAnswer};
use super::body::{Flaw, RequestBody, let_finish};
use super::link::{ConnectionLink, Upgraded};
use super::options::ClientTimeouts;
use super::refusal::{REQUEST_ID, Refusal, problem, request_id_or_new};
use super::rules::{Keys, ListenerRules, host_is_sound};
use super::{ListenerEnd, Peer};
use crate::BoxError;
use crate::call::{CallError, CallFate};
use crate::problem::Situation;

/// The service as hyper calls it, for one connection.
pub(super) struct Calls<S> {
    pub(super) service: S,
    pub(super) link: Arc<ConnectionLink>,
    pub(super) rules: Arc<ListenerRules>,
    pub(super) timeouts: ClientTimeouts,
    pub(super) peer: Peer,
    pub(super) ending: ListenerEnd,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Calls<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<OutgoingAnswer<B>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let (flight, number) = Flight::enter(&self.link, self.rules.limits.abandoned_streams);
        let http1 = request.version() != Version::HTTP_2;
        let request_id = request.headers().get(REQUEST_ID).cloned();
        let verdict = if http1 { self.verdict_of(number) } else { check_http2(&request, &self.rules) };
        let verdict = verdict.and_then(|()| self.fits(&request));
        if let Err(refusal) = verdict {
            if !http1 {
                let_finish(request.into_body(), self.timeouts.linger);
            }
            return Box::pin(std::future::ready(Ok(refuse(refusal, request_id, flight, http1))));
        }
        let upgrade = http1 && self.link.asks_upgrade(number);
        if upgrade {
            request.extensions_mut().insert(self.ending.clone());
        } else {
            // Without the wire's consent the following bytes are read as HTTP, so the protocol must not be switched.
            request.extensions_mut().remove::<OnUpgrade>();
        }
        request.extensions_mut().insert(self.peer.clone());
        let (parts, incoming) = request.into_parts();
        let (body, flaw) = RequestBody::new(incoming, &self.rules, self.timeouts, !http1);
        let mut service = self.service.clone();
        let link = upgrade.then(|| Arc::clone(&self.link));
        let end = CallCompletion { flight, flaw, link, http1, request_id };
        let request = Request::from_parts(parts, body);
        // Most services are always ready. In that case the large request need not be moved into the future of its call.
        if let Poll::Ready(Ok(())) = service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            let called = service.call(request);
            return Box::pin(async move {
                // The service lives as long as its call.
                let _service = service;
                Ok(end.answer(called.await))
            });
        }
        Box::pin(async move {
            let called = match std::future::poll_fn(|context| service.poll_ready(context)).await {
                Ok(()) => service.call(request).await,
                Err(error) => Err(error),
            };
            Ok(end.answer(called))
        })
    }
}

/// State that is needed at the end of a call.
struct CallCompletion {
    flight: Flight,
    flaw: Option<Flaw>,
    /// Set if the request asks for another protocol.
    link: Option<Arc<ConnectionLink>>,
    http1: bool,
    /// As the client sent it.
    request_id: Option<HeaderValue>,
}

impl CallCompletion {
    /// The answer for the client.
    fn answer<B>(self, called: Result<Response<B>, impl Into<BoxError>>) -> Response<OutgoingAnswer<B>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let Self { flight, flaw, link, http1, request_id } = self;
        if let Some(refusal) = flaw.as_deref().and_then(std::sync::OnceLock::get) {
            // The service knows the request by the id in its own answer.
            let known = called.ok().and_then(|response| response.headers().get(REQUEST_ID).cloned());
            return refuse(*refusal, known.or(request_id), flight, http1);
        }
        let response = match called {
            Ok(response) => response,
            Err(error) => {
                if let Some(link) = link {
                    link.answer_upgrade(Upgraded::No);
                }
                return answer_for(error.into(), request_id).map(|body| OutgoingAnswer::own(body, flight));
            }
        };
        if let Some(link) = link {
            let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            link.answer_upgrade(if switched { Upgraded::Yes } else { Upgraded::No });
        }
        response.map(|body| OutgoingAnswer::service(body, flight))
    }
}

impl<S> Calls<S> {
    /// The result of the wire's checks.
    fn verdict_of(&self, number: u64) -> Result<(), Refusal> {
        self.link.refusal_of(number).map_or(Ok(()), Err)
    }

    /// Checks the announced size of the body.
    fn fits(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let announced = http_body::Body::size_hint(request.body()).exact();
        if announced.is_some_and(|length| length > self.rules.limits.body_bytes) {
            return Err(Refusal::BodyTooLarge);
        }
        Ok(())
    }
}

fn refuse<B: http_body::Body<Data = Bytes> + Unpin>(
    refusal: Refusal,
    request_id: Option<HeaderValue>,
    flight: Flight,
    http1: bool,
) -> Response<OutgoingAnswer<B>> {
    let id = request_id_or_new(request_id);
    let request_id = id.to_str().unwrap_or_default();
    tracing::debug!(status = refusal.status().as_u16(), code = refusal.code(), request_id, "request refused");
    let mut response = refusal.response_to(id);
    if http1 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| OutgoingAnswer::own(body, flight))
}

/// The answer for a client if the service failed.
fn answer_for(error: BoxError, request_id: Option<HeaderValue>) -> Response<Full<Bytes>> {
    let (error, id) = (CallError::from_any(error), request_id_or_new(request_id));
    let request_id = id.to_str().unwrap_or_default();
    tracing::warn!(%error, request_id, "request failed without an answer");
    match error.fate() {
        CallFate::Undelivered => problem(
            error.status(),
            Situation::UpstreamUnreachable.code(),
            "nothing happened: the request was not delivered",
            true,
            id,
        ),
        CallFate::Unknown => problem(
            error.status(),
            Situation::UpstreamUnknown.code(),
            "the request may or may not have taken effect",
            false,
            id,
        ),
    }
}

/// HTTP/2 framing cannot be used for request smuggling, but host and key must still be unambiguous.
fn check_http2(request: &Request<Incoming>, rules: &ListenerRules) -> Result<(), Refusal> {
    let (uri, headers) = (request.uri(), request.headers());
    if request.method() == http::Method::CONNECT {
        return Err(Refusal::Method);
    }
    if request.method().as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(Refusal::Malformed("the method is not written in capital letters"));
    }
    if uri.path_and_query().map_or(0, |target| target.as_str().len()) > rules.limits.target_bytes {
        return Err(Refusal::TargetTooLong);
    }
    if headers.len() > rules.limits.headers {
        return Err(Refusal::HeadTooLarge);
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    match (authority, hosts.next().map(HeaderValue::as_bytes)) {
        (None, None) => return Err(Refusal::Malformed("there is no Host")),
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            return Err(Refusal::Malformed("Host names another host than the authority"));
        }
        (Some(host), _) | (None, Some(host)) if !host_is_sound(host) => {
            return Err(Refusal::Malformed("the Host is not a host"));
        }
        _ if hosts.next().is_some() => return Err(Refusal::Malformed("there is more than one Host")),
        (host, named) => rules.host(host.or(named))?,
    }
    if headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Refusal::Malformed("there is more than one Content-Length"));
    }
    if headers
        .get(header::EXPECT)
        .is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    {
        return Err(Refusal::Expectation);
    }
    let mut keys = Keys::of(request.method().as_str().as_bytes());
    for (name, value) in headers {
        let name = name.as_str().as_bytes();
        rules.name(name)?;
        if let Some(index) = rules.key_header(name) {
            keys.take(index, value.as_bytes())?;
        }
    }
    Ok(())
}
