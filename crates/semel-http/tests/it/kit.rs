//! A guard over a store that can fail, before an upstream that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use semel::Engine;
use semel::store::MemoryStore;
use semel::testkit::fault::FaultStore;
use semel::time::ManualClock;
use semel_http::call::{BoxFuture, ServiceCaller};
use semel_http::guard::GuardBuilder;
use semel_http::observe::{AnswerCounters, AnswerOutcome};
use semel_http::policy::PolicyBuilder;
use semel_http::{Body, BoxError, Guard, Profile, RoutePolicy};
use tokio::sync::Semaphore;
use tower_service::Service;

/// What the upstream saw of one call.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

pub(crate) type Reply = Result<Response<Body>, BoxError>;
type Answer = Box<dyn Fn(usize, Seen) -> BoxFuture<'static, Reply> + Send + Sync>;

/// An upstream that counts and remembers its calls. The first call has number 1.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Fake>);

struct Fake {
    calls: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
    answer: Answer,
}

impl Upstream {
    pub(crate) fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(usize, Seen) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let answer: Answer = Box::new(move |number, seen| Box::pin(answer(number, seen)));
        Self(Arc::new(Fake { calls: AtomicUsize::new(0), seen: Mutex::default(), answer }))
    }

    /// Answers each call with its number.
    pub(crate) fn counting() -> Self {
        Self::new(|number, _| async move { Ok(Response::new(Body::from(format!("call {number}")))) })
    }

    /// Answers each call with this status and its number.
    pub(crate) fn status(status: u16) -> Self {
        Self::new(move |number, _| async move {
            Ok(Response::builder().status(status).body(Body::from(format!("call {number}"))).unwrap())
        })
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.0.seen.lock().clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("the upstream was called")
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Reply>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?;
            let trailers = body.trailers().cloned();
            let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
            let seen = Seen { method, uri, headers, body: body.to_bytes(), trailers };
            let number = fake.calls.fetch_add(1, Ordering::SeqCst) + 1;
            fake.seen.lock().push(seen.clone());
            (fake.answer)(number, seen).await
        })
    }
}

/// A guard, its store, its clock and its upstream.
#[derive(Clone)]
pub(crate) struct Kit {
    pub(crate) guard: Guard,
    pub(crate) upstream: Upstream,
    pub(crate) store: Arc<FaultStore<MemoryStore>>,
    pub(crate) clock: ManualClock,
    pub(crate) counters: Arc<AnswerCounters>,
}

impl Kit {
    /// With the defaults of `ietf`.
    pub(crate) fn new(upstream: Upstream) -> Self {
        Self::with(upstream, |guard| guard)
    }

    /// With a profile of its own.
    pub(crate) fn profile(profile: &Profile, upstream: Upstream) -> Self {
        Self::with(upstream, |guard| guard.profile(profile.clone()))
    }

    /// With one route for everything.
    pub(crate) fn route(upstream: Upstream, settings: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Self {
        Self::route_of(&Profile::ietf(), upstream, settings)
    }

    /// The same, in a profile.
    pub(crate) fn route_of(
        profile: &Profile,
        upstream: Upstream,
        settings: impl FnOnce(PolicyBuilder) -> PolicyBuilder,
    ) -> Self {
        let route = settings(RoutePolicy::builder(profile, "* /**")).build().unwrap();
        Self::with(upstream, |guard| guard.profile(profile.clone()).route(route))
    }

    /// With settings of its own.
    pub(crate) fn with(upstream: Upstream, settings: impl FnOnce(GuardBuilder) -> GuardBuilder) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
        Self::over(engine(&store), store, clock, upstream, settings)
    }

    /// Another gateway over the same store, before the same upstream.
    pub(crate) fn beside(&self, settings: impl FnOnce(GuardBuilder) -> GuardBuilder) -> Self {
        let (store, clock, upstream) = (self.store.clone(), self.clock.clone(), self.upstream.clone());
        Self::over(engine(&store), store, clock, upstream, settings)
    }

    pub(crate) fn over(
        engine: Engine,
        store: Arc<FaultStore<MemoryStore>>,
        clock: ManualClock,
        upstream: Upstream,
        settings: impl FnOnce(GuardBuilder) -> GuardBuilder,
    ) -> Self {
        let counters = Arc::new(AnswerCounters::new());
        let guard = Guard::builder(engine)
            .caller(Arc::new(ServiceCaller(upstream.clone())))
            .observe(counters.clone());
        // What building an engine asked of the store is no request's doing.
        store.reset_calls();
        Self { guard: settings(guard).build().unwrap(), upstream, store, clock, counters }
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answered {
        Answered::read(self.begin(request).await.expect("guarded requests are answered")).await
    }

    /// Sends a request and leaves the body of its answer unread.
    pub(crate) async fn begin(&self, request: Request<Body>) -> Reply {
        self.guard.handle(self.upstream.clone(), request).await
    }

    pub(crate) fn count(&self, outcome: AnswerOutcome) -> u64 {
        self.counters.count(outcome)
    }
}

fn engine(store: &Arc<FaultStore<MemoryStore>>) -> Engine {
    // Kept answers come from the store's clock, so that a test can move past retention.
    let engine = Engine::builder(store.clone()).hot_cache(0, Duration::from_secs(1));
    engine.backstop(Duration::from_millis(20)).sweep_every(None).build().unwrap()
}

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answered {
    pub(crate) async fn read(answer: Response<Body>) -> Self {
        let (parts, body) = answer.into_parts();
        let collected = body.collect().await.expect("the body comes to its end");
        let trailers = collected.trailers().cloned();
        Self { status: parts.status, headers: parts.headers, body: collected.to_bytes(), trailers }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The problem's code, in whichever shape.
    pub(crate) fn code(&self) -> String {
        let json = self.json();
        let code = json.get("code").or_else(|| json.get("error")?.get("code")).expect("a problem has a code");
        code.as_str().unwrap().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.header("idempotency-stored") != Some("false")
    }

    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code().as_str()), (status, code), "{}", self.text());
        assert!(!self.is_replay() && !self.is_stored());
    }
}

/// A POST of alice's to `/v1/payments`.
pub(crate) fn post(key: &str) -> Request<Body> {
    post_body(key, "{\"amount\":1}")
}

pub(crate) fn post_body(key: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post("/v1/payments")
        .header("idempotency-key", key)
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap()
}

/// The same request with a header more.
pub(crate) fn with(mut request: Request<Body>, name: &str, value: &str) -> Request<Body> {
    let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
    request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    request
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = tokio::time::timeout(Duration::from_secs(10), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(patience.await.is_ok(), "not within 10 s: {what}");
}

/// The full form of a proof, asked for by `SEMEL_PROVE=1`.
pub(crate) fn is_proof() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// An upstream that waits for a permit before it answers.
pub(crate) fn gated() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let of_upstream = Arc::clone(&gate);
    let upstream = Upstream::new(move |number, _| {
        let gate = Arc::clone(&of_upstream);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    (upstream, gate)
}
