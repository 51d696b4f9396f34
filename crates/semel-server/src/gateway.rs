//! The gateway: the listener, the guard and the proxy of `semel-http`, as configured.

mod log;
mod requests;
mod story;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use anyhow::Context as _;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use parking_lot::RwLock;
use semel::Engine;
use semel::time::{Clock as _, SystemClock};
use semel_http::call::{CallError, CallFate, ServiceCaller};
use semel_http::capacity::Capacity;
use semel_http::edge::{self, DisconnectPolicy, EdgeOptions, PlainRequest, Shortcut, Taken, Tls};
use semel_http::observe::{AnswerCounters, AnswerOutcome, CallFailure, KeyUsed};
use semel_http::problem::Problem;
use semel_http::proxy::Proxy;
use semel_http::{Body, Guard, Situation};
use tower_service::Service;
use tracing::Instrument as _;

use self::log::AccessLog;
pub(crate) use self::requests::{AnsweredRequest, EffectRun, KeyRequests, Requests};
use self::story::{REQUEST_ID, RequestIds};
pub(crate) use self::story::{is_request_id, new_request_id};
use crate::config;
use crate::telemetry::otlp::Exporter;

/// A gateway whose routes can be changed while it runs.
pub(crate) struct Gateway {
    engine: Engine,
    counters: Arc<AnswerCounters>,
    capacity: Capacity,
    live: Arc<RwLock<Arc<ReloadableParts>>>,
    tls: Option<Tls>,
    requests: Arc<Requests>,
}

/// The parts that a reload replaces.
struct ReloadableParts {
    guard: Guard,
    proxy: Proxy,
    /// Set after the warning that credentials are JWTs was logged.
    told_of_jwt: AtomicBool,
}

impl Gateway {
    /// Builds it without listening.
    ///
    /// # Errors
    /// An upstream or a certificate that cannot be used, or contradictory settings.
    pub(crate) fn new(
        engine: &Engine,
        config: &config::GatewayConfig,
        requests: Arc<Requests>,
    ) -> anyhow::Result<Self> {
        let counters = Arc::new(AnswerCounters::new());
        let capacity = Capacity::new();
        let live = ReloadableParts::new(engine, config, &counters, &capacity)?;
        let tls = match &config.tls {
            Some(files) => Some(files.open().context("the gateway's certificate")?),
            None => None,
        };
        let live = Arc::new(RwLock::new(Arc::new(live)));
        Ok(Self { engine: engine.clone(), counters, capacity, live, tls, requests })
    }

    /// Replaces routes and certificates. Requests in progress keep the old ones.
    ///
    /// # Errors
    /// As [`new`](Self::new); nothing has changed then.
    pub(crate) fn replace(&self, config: &config::GatewayConfig) -> anyhow::Result<()> {
        let live = ReloadableParts::new(&self.engine, config, &self.counters, &self.capacity)?;
        if let Some(tls) = &self.tls {
            tls.reload().context("the gateway's certificate")?;
        }
        *self.live.write() = Arc::new(live);
        Ok(())
    }

    /// Number of answers by outcome.
    pub(crate) fn counters(&self) -> &Arc<AnswerCounters> {
        &self.counters
    }

    /// Current use of its limits.
    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The service that answers requests and reports each to `exporter`.
    pub(crate) fn service(&self, exporter: Option<Arc<Exporter>>) -> Front {
        Front { live: Arc::clone(&self.live), exporter, requests: Arc::clone(&self.requests) }
    }

    /// The keys that a client with these headers may have used: see [`Guard::possible_keys`].
    ///
    /// # Errors
    /// The headers name no caller.
    pub(crate) fn possible_keys(&self, key: &str, headers: &HeaderMap) -> Result<Vec<semel::Key>, String> {
        self.live.read().guard.possible_keys(key, headers)
    }

    /// The settings of the listener.
    pub(crate) fn options(
        &self,
        config: &config::GatewayConfig,
        drain: std::time::Duration,
        exporter: Option<&Arc<Exporter>>,
        closed_at_limit: Arc<AtomicU64>,
    ) -> EdgeOptions {
        let key_headers = config.key_headers.clone();
        EdgeOptions {
            tls: self.tls.clone(),
            limits: config.limits,
            timeouts: config.timeouts,
            key_headers,
            trusted_headers: config.trusted_headers.clone(),
            hosts: config.hosts.clone(),
            upgrades: config.upgrades.clone(),
            drain,
            // A client that disconnects must not stop a payment half-way.
            on_disconnect: DisconnectPolicy::Finish,
            closed_at_limit,
            // With a collector every request needs a span, and the shortcut creates none.
            shortcut: exporter.is_none().then(|| Arc::new(self.service(None)) as Arc<dyn Shortcut>),
        }
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

impl ReloadableParts {
    fn new(
        engine: &Engine,
        config: &config::GatewayConfig,
        counters: &Arc<AnswerCounters>,
        capacity: &Capacity,
    ) -> anyhow::Result<Self> {
        let mut proxy =
            Proxy::new(config.upstream.clone(), config.proxy.clone()).context("the gateway's upstream")?;
        for (name, upstream) in &config.upstreams {
            proxy = proxy
                .with(name, upstream.clone(), config.proxy.clone())
                .with_context(|| format!("the upstream {name}"))?;
        }
        let patterns = config.routes.iter().map(|route| route.pattern().to_string()).collect();
        let mut guard = Guard::builder(engine.clone())
            .profile(config.profile.clone())
            .namespace(&config.namespace)
            .scope(config.scope.clone())
            .fallback(config.fallback.clone())
            .capacity(capacity.clone(), config.capacity)
            .unmatched(config.unmatched)
            .caller(Arc::new(ServiceCaller(proxy.clone())))
            .observe(Arc::clone(counters) as Arc<dyn semel_http::observe::AnswerObserver>)
            .observe(Arc::new(AccessLog::new(patterns)));
        for route in &config.routes {
            guard = guard.route(route.clone());
        }
        let by_credential = config.scope.headers().any(|name| *name == header::AUTHORIZATION);
        Ok(Self { guard: guard.build()?, proxy, told_of_jwt: AtomicBool::new(!by_credential) })
    }
}

impl ReloadableParts {
    async fn answer(&self, request: Request<edge::RequestBody>, ids: &RequestIds) -> Response<Body> {
        let answered = self.guard.handle(self.proxy.clone(), request).await;
        answered.unwrap_or_else(|error| failed(&self.guard, ids, &error))
    }

    /// A refreshed JWT is another principal, so a retry with it is another effect. Logs a warning once.
    fn look_at_credential(&self, headers: &HeaderMap) {
        if self.told_of_jwt.load(Ordering::Relaxed) {
            return;
        }
        let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_jwt = credential.get(7..10) == Some(b"eyJ")
            && credential.iter().filter(|byte| **byte == b'.').count() == 2;
        if is_jwt && !self.told_of_jwt.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "semel",
                "clients send JWTs, and with scope = \"authorization\" each token is another principal: a retry \
                 with a refreshed token runs again; use scope = \"jwt:sub\""
            );
        }
    }
}

/// Answers the requests of a listener with the current routes.
#[derive(Clone)]
pub(crate) struct Front {
    live: Arc<RwLock<Arc<ReloadableParts>>>,
    exporter: Option<Arc<Exporter>>,
    requests: Arc<Requests>,
}

impl Service<Request<edge::RequestBody>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<edge::RequestBody>) -> Self::Future {
        let live = Arc::clone(&self.live.read());
        live.look_at_credential(request.headers());
        let exporter = self.exporter.as_ref();
        let ids = RequestIds::begin(request.headers_mut(), exporter);
        // A read makes no claim: without a collector its id is for the logs of others only.
        if request.method().is_safe() && exporter.is_none() {
            return Box::pin(async move {
                let mut answer = live.answer(request, &ids).await;
                ids.name(answer.headers_mut());
                Ok(answer)
            });
        }
        let span = ids.span();
        let requests = Arc::clone(&self.requests);
        let arrived = SystemClock.now();
        let answer = async move {
            let name = ids.is_traced().then(|| {
                let pattern = live.guard.policy(request.method(), request.uri().path()).pattern().to_string();
                format!("{} {}", request.method(), pattern.rsplit(' ').next().unwrap_or_default())
            });
            let mut answer = live.answer(request, &ids).await;
            let own = ids.name(answer.headers_mut());
            if let Some(KeyUsed(key)) = answer.extensions().get() {
                let outcome = answer.extensions().get().copied().unwrap_or(AnswerOutcome::PassedOn);
                let ended = (outcome, answer.status().as_u16());
                let run = effect_run(&answer);
                requests.note(ids.request_id().as_bytes(), *key, ended, Some(arrived), run);
                // The client reads this one.
                own.iter().for_each(|own| requests.note_alias(own.as_bytes(), *key));
            }
            ids.end(name.unwrap_or_default(), &answer);
            Ok(answer)
        };
        Box::pin(answer.instrument(span))
    }
}

impl Shortcut for Front {
    fn answer(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Taken {
        // At level debug, log lines carry the ids of the request.
        if tracing::enabled!(target: "semel::gateway", tracing::Level::DEBUG) {
            return Taken::No;
        }
        let live = Arc::clone(&self.live.read());
        let start = answer.len();
        let Some(key) = live.guard.replay_at_hand(request, answer) else { return Taken::No };
        let given = request.value(REQUEST_ID.as_str()).filter(|id| story::is_request_id(id));
        let made = if given.is_none() { story::new_request_id() } else { String::new() };
        let id = given.unwrap_or(made.as_bytes());
        let status = story::status_of(&answer[start..]);
        self.requests.note(id, key, (AnswerOutcome::Replayed, status), None, None);
        match story::request_id_of(&answer[start..]) {
            // The upstream's own, stored with its answer: the client reads this one.
            Some(own) => self.requests.note_alias(own, key),
            None => story::put_request_id(answer, start, id),
        }
        Taken::Yes
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Front").field(&self.live.read().guard).finish()
    }
}

/// The run of the effect that was answered with this, if there was one.
fn effect_run(answer: &Response<Body>) -> Option<EffectRun> {
    let doubt = match answer.extensions().get()? {
        AnswerOutcome::Doubtful => Some(match answer.extensions().get() {
            Some(CallFailure(what)) => what.as_ref().into(),
            None => format!("the upstream answered {}", answer.status().as_u16()).into(),
        }),
        AnswerOutcome::Ran
        | AnswerOutcome::Released
        | AnswerOutcome::Tombstone
        | AnswerOutcome::NotStored => None,
        _ => return None,
    };
    Some(EffectRun { doubt })
}

/// The answer for an unguarded request that failed.
fn failed(guard: &Guard, ids: &RequestIds, error: &CallError) -> Response<Body> {
    let (situation, detail) = match error.fate() {
        CallFate::Undelivered => {
            (Situation::UpstreamUnreachable, "the request was not delivered and had no effect")
        }
        CallFate::Unknown => {
            (Situation::UpstreamUnknown, "the request was sent, and may or may not have taken effect")
        }
    };
    let (outcome, request_id) = (situation.code(), ids.request_id());
    tracing::warn!(target: "semel", %error, outcome, request_id, "upstream did not answer");
    let mut answer = guard.profile().answer(&Problem::new(situation, detail));
    *answer.status_mut() = error.status();
    answer
}
