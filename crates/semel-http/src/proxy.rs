//! The forwarding side of the gateway: a `tower` service that sends requests to upstreams.
//!
//! It sends every request at most once, follows no redirects, and drops hop-by-hop headers. Every failure says whether the upstream may
//! have acted ([`Error::fate`]). Bodies stream in both directions with backpressure. Switched protocols (WebSocket) are tunnelled.

mod body;
mod error;
mod headers;
mod options;
mod pool;
mod stream;
mod tunnel;
mod upstream;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Extensions, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;
use tower_service::Service;

pub use self::body::UpstreamBody;
pub use self::error::Error;
pub use self::options::{ConnectionLimit, Forwarded, Host, Protocol, ProxyOptions};
pub use self::upstream::{Upstream, UpstreamError};

use self::headers::{append, drop_hop_by_hop, forward, takes_trailers};
use self::pool::{Pool, Unsent, UpstreamConnection};
use self::tunnel::Entrance;
use crate::call::{self, BoxFuture, CallError};
use crate::edge::{Peer, TlsError};
use crate::{Body, BoxError};

/// Forwards requests. Clones share their connections. A request with a [`call::UpstreamName`] in its extensions goes to the upstream of
/// that name, every other request to the first one.
#[derive(Clone)]
pub struct Proxy {
    first: Arc<Pool>,
    named: Arc<HashMap<Arc<str>, Arc<Pool>>>,
}

impl Proxy {
    /// Forwards to one upstream.
    ///
    /// # Errors
    /// For TLS upstreams: a CA file that cannot be read, or a host that is not a valid certificate name.
    pub fn new(upstream: Upstream, options: ProxyOptions) -> Result<Self, TlsError> {
        let first = Arc::new(Pool::new(upstream, options)?);
        Ok(Self { first, named: Arc::default() })
    }

    /// Adds an upstream that routes refer to as `name`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with(mut self, name: &str, upstream: Upstream, options: ProxyOptions) -> Result<Self, TlsError> {
        let pool = Arc::new(Pool::new(upstream, options)?);
        Arc::make_mut(&mut self.named).insert(name.into(), pool);
        Ok(self)
    }

    /// Number of idle connections to all upstreams.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.named.values().chain([&self.first]).map(|pool| pool.unused_now()).sum()
    }

    /// Sends a request to its upstream, once.
    ///
    /// Dropping the future closes the upstream connection. A request that was already sent may still take effect.
    ///
    /// # Errors
    /// The upstream gave no answer; [`Error::fate`] says whether it may have acted.
    pub fn forward<B>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Error>> + Send + 'static
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // Before the future is created: futures are moved often, and a request is large.
        let prepared = self.prepare(request);
        async move { prepared?.run().await }
    }

    /// Builds the upstream's request from the client's.
    fn prepare<B>(&self, mut request: Request<B>) -> Result<Box<PreparedRequest>, Error>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let pool = match request.extensions_mut().remove::<call::UpstreamName>() {
            None => &self.first,
            Some(call::UpstreamName(name)) => self.named.get(&name).ok_or(Error::NoUpstream)?,
        };
        let entrance = Entrance::take(&mut request);
        let is_head = request.method() == Method::HEAD;
        let (mut parts, body) = request.into_parts();
        let uri = std::mem::take(&mut parts.uri);
        let client_host = client_host(&parts.headers, &uri);
        let target = pool.upstream.target(uri).ok_or(Error::Target)?;
        let trailers = takes_trailers(&parts.headers);
        drop_hop_by_hop(&mut parts.headers);
        // The listener has sent the 100 itself when the body was requested.
        parts.headers.remove(header::EXPECT);
        if trailers {
            parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        let peer = parts.extensions.get::<Peer>();
        forward(&mut parts.headers, pool.options.forwarded, peer, client_host.as_ref());
        let host = match (pool.options.host, client_host) {
            (Host::Client, Some(host)) => host,
            _ => pool.upstream.url.host_value.clone(),
        };
        parts.headers.insert(header::HOST, host);
        if let Some(via) = &pool.options.via {
            append(&mut parts.headers, header::VIA, &format!("{} {via}", version_of(parts.version)));
        }
        parts.extensions = Extensions::new();
        let mut request = Request::from_parts(parts, Body::stream(body));
        if let Some(entrance) = &entrance {
            entrance.ask(&mut request);
        }
        let deadline = pool.options.total.map(|total| Instant::now() + total);
        let request = Some(Box::new(request));
        Ok(Box::new(PreparedRequest { pool: Arc::clone(pool), request, target, entrance, is_head, deadline }))
    }
}

/// A request that is ready to be sent.
struct PreparedRequest {
    pool: Arc<Pool>,
    /// `None` while it is being sent.
    request: Option<Box<Request<Body>>>,
    target: PathAndQuery,
    entrance: Option<Entrance>,
    is_head: bool,
    deadline: Option<Instant>,
}

impl PreparedRequest {
    async fn run(mut self: Box<Self>) -> Result<Response<UpstreamBody>, Error> {
        let (response, mut loan) = loop {
            let connection = self.pool.acquire().await?;
            let may_retry = connection.was_used();
            let mut request = self.request.take().expect("it came back, or was never sent");
            address(&mut request, &connection, &self.pool, self.target.clone());
            match connection.send(request, &self.pool, self.deadline).await {
                Ok(answer) => break answer,
                Err(Unsent::Back(back)) if may_retry => self.request = Some(back),
                Err(Unsent::Back(_)) => return Err(Error::Closed),
                Err(Unsent::Failed(error)) => return Err(Error::of(error)),
                Err(Unsent::Late) => return Err(Error::Timeout),
            }
        };
        let entrance = self.entrance.take().filter(|entrance| entrance.agrees(response.headers()));
        let mut response = clean(response, &self.pool, self.is_head);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            match entrance {
                Some(entrance) => entrance.open(&mut response, self.pool.options.tunnel),
                // The client did not ask to switch protocols.
                None => return Err(Error::Switched),
            }
            if let Some(loan) = loan.take() {
                loan.let_go();
            }
        }
        let read = self.pool.options.read;
        Ok(response.map(|incoming| UpstreamBody::new(incoming, loan, read, self.deadline)))
    }
}

fn client_host(headers: &http::HeaderMap, uri: &Uri) -> Option<HeaderValue> {
    match headers.get(header::HOST) {
        Some(host) => Some(host.clone()),
        None => uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()),
    }
}

fn version_of(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}

/// Sets version and target as the connection requires.
fn address(request: &mut Request<Body>, connection: &UpstreamConnection, pool: &Pool, target: PathAndQuery) {
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target);
    if connection.is_http2() {
        *request.version_mut() = Version::HTTP_2;
        uri.scheme = Some(pool.upstream.url.scheme.clone());
        // In HTTP/2 the authority replaces `Host`.
        let host = request.headers_mut().remove(header::HOST);
        let asked = host.and_then(|host| http::uri::Authority::try_from(host.as_bytes()).ok());
        uri.authority = Some(asked.unwrap_or_else(|| pool.upstream.url.authority.clone()));
    } else {
        *request.version_mut() = Version::HTTP_11;
        if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
            // Set explicitly: hyper drops a body of unknown length for methods that rarely have one.
            request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    // All parts come from a parsed URI, so they form a valid one.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
}

/// Builds the client's answer from the upstream's.
fn clean(mut response: Response<Incoming>, pool: &Pool, is_head: bool) -> Response<Incoming> {
    let version = response.version();
    *response.version_mut() = Version::HTTP_11;
    drop_hop_by_hop(response.headers_mut());
    let bodiless = is_head || response.status() == StatusCode::NOT_MODIFIED;
    if !bodiless && response.body().size_hint().exact().is_none() {
        // The answer had another framing, so its length cannot be trusted.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if let Some(via) = &pool.options.via {
        append(response.headers_mut(), header::VIA, &format!("{} {via}", version_of(version)));
    }
    response
}

impl<B> Service<Request<B>> for Proxy
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UpstreamBody>;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Response<UpstreamBody>, CallError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.forward(request);
        Box::pin(async move { answer.await.map_err(CallError::from) })
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("first", &self.first.upstream)
            .field("named", &self.named.len())
            .finish()
    }
}
