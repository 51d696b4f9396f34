//! The admin side: health, metrics, keys, the claims API for workers in other languages, events and their deliveries. The console
//! is beside it, at the same address.

mod access;
pub(crate) mod answer;
mod api;
pub(crate) mod audit;
mod claims;
pub(crate) mod dead_letters;
pub(crate) mod deliveries;
mod doubt;
pub(crate) mod events;
mod health;
pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod records;
pub(crate) mod replays;
pub(crate) mod runs;
mod schema;
mod status;
pub(crate) mod story;
pub(crate) mod targets;
mod throttle;

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use parking_lot::RwLock;
use semel::Engine;
use semel::secret::Secret;
use semel_http::edge::{DisconnectPolicy, EdgeLimits, EdgeOptions, Peer, Tls};
use serde_json::Value;
use tracing::Instrument as _;

use self::access::LoginError;
pub(crate) use self::access::{Access, Caller, Right};
use self::answer::Answer;
pub(crate) use self::answer::Refusal;
use self::api::{Api, Needs, Text};
use self::claims::Claims;
use self::health::Health;
pub(crate) use self::status::FULL_STORE;
use self::throttle::{Failed, LoginThrottle};
use crate::console::{self, Console};
use crate::gateway::{Gateway, Requests, is_request_id, new_request_id};
use crate::pipeline::Pipeline;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::millis;

/// The OpenAPI document.
static OPENAPI: LazyLock<Value> = LazyLock::new(|| api().finish().1);

/// How much of a refused request is read, so that its client can finish sending.
const UNREAD: usize = 64 << 10;

/// What the handlers share.
pub(crate) struct Admin {
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    claims: Claims,
    secret: Arc<Secret>,
    /// None where there is no ledger.
    pub(crate) pipeline: Option<Arc<Pipeline>>,
    pub(crate) requests: Arc<Requests>,
    /// None where this server has none.
    pub(crate) gateway: Option<Arc<Gateway>>,
    /// The pages for people.
    pub(crate) console: Console,
    /// Replaced when the configuration is reloaded.
    access: RwLock<Arc<Access>>,
    logins: LoginThrottle,
    doubt: doubt::DoubtCounter,
}

/// What the admin side is built from.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) secret: Arc<Secret>,
    pub(crate) pipeline: Option<Arc<Pipeline>>,
    /// What the gateway remembers of its last requests.
    pub(crate) requests: Arc<Requests>,
    pub(crate) gateway: Option<Arc<Gateway>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: Access,
    /// How many claims may wait at once.
    pub(crate) waiters: usize,
    /// The largest outcome that is kept.
    pub(crate) max_outcome: usize,
    /// A namespace that is not for claims: the gateway's.
    pub(crate) reserved: Option<String>,
    pub(crate) console: Console,
}

impl Admin {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            engine,
            secret,
            pipeline,
            requests,
            gateway,
            metrics,
            access,
            waiters,
            max_outcome,
            reserved,
            console,
        } = parts;
        Arc::new(Self {
            health: Health::new(engine.clone(), Arc::clone(&metrics)),
            claims: Claims::new(&engine, &secret, waiters, max_outcome, reserved),
            access: RwLock::new(Arc::new(access)),
            logins: LoginThrottle::default(),
            doubt: doubt::DoubtCounter::default(),
            engine,
            metrics,
            secret,
            pipeline,
            requests,
            gateway,
            console,
        })
    }

    /// The rules of access that are in force.
    pub(crate) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read())
    }

    /// The pipeline.
    ///
    /// # Errors
    /// 501 where there is no ledger, naming the setting.
    pub(crate) fn pipeline(&self) -> Result<&Arc<Pipeline>, Refusal> {
        self.pipeline.as_ref().ok_or_else(|| {
            let detail = "this server keeps no events: its store is in memory or on Redis; set `url` in [ledger] to \
                          embedded:PATH or postgres://…";
            Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_configured", detail)
        })
    }

    /// Who asks. An address that sent many wrong tokens is slowed down. A correct token is always answered: it is too long to be
    /// guessed, and others behind the same address must not lock its owner out.
    fn log_in(&self, access: &Access, request: &Request) -> Result<Caller, Refusal> {
        let address = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
        self.check_login(access.authenticate(request.headers()), address)
    }

    /// Logs in with a token that somebody typed. Answers its hash too, which names it in a session.
    pub(crate) fn log_in_with(
        &self,
        token: &str,
        address: Option<IpAddr>,
    ) -> Result<(Caller, blake3::Hash), Refusal> {
        let caller =
            self.check_login(self.access().find(Some(token).filter(|token| !token.is_empty())), address)?;
        Ok((caller, blake3::hash(token.as_bytes())))
    }

    fn check_login(
        &self,
        login: Result<Caller, LoginError>,
        address: Option<IpAddr>,
    ) -> Result<Caller, Refusal> {
        if matches!(login, Err(LoginError::Unknown(_)))
            && let Some(wait) = address.and_then(|address| self.logins.wait(address))
        {
            self.metrics.login_refused("throttled");
            return Err(Refusal::too_many_logins(wait));
        }
        match &login {
            Ok(_) => {}
            Err(LoginError::Missing) => self.metrics.login_refused("missing"),
            Err(LoginError::Unknown(token)) => {
                self.metrics.login_refused("unknown");
                let failed = address.map_or(Failed::Counted, |address| self.logins.fail(address, *token));
                let outcome = match failed {
                    // It is in the log already.
                    Failed::Repeated => return Ok(login?),
                    Failed::Counted => "failed",
                    Failed::Blocked => "blocked",
                };
                tracing::warn!(
                    target: "semel::audit", audit = true,
                    operation = "login",
                    address = address.map(tracing::field::display),
                    outcome,
                    "login failed: unknown token"
                );
            }
        }
        Ok(login?)
    }

    /// Waits until completions that were answered early are stored. Close the listener first.
    pub(crate) async fn drain(&self) {
        self.claims.drain().await;
    }

    /// Puts other tokens in force.
    pub(crate) fn replace_access(&self, access: Access) {
        *self.access.write() = Arc::new(access);
    }

    /// Counts the keys in doubt, for the metric.
    pub(crate) async fn count_in_doubt(&self) {
        self.doubt.refresh(&self.engine, &self.metrics).await;
    }

    /// Looks at the store and counts the keys in doubt now and then, for as long as the server runs.
    pub(crate) async fn watch_store(self: Arc<Self>, every: Duration) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Kept by itself, for the metric.
            let _ = self.health.probe().await;
            self.count_in_doubt().await;
            if let Some(pipeline) = &self.pipeline {
                match pipeline.totals().await {
                    Ok(totals) => self.metrics.deliveries().counted(totals),
                    Err(error) => tracing::debug!(target: "semel", %error, "cannot count deliveries"),
                }
                match pipeline.ledger.paused_targets().await {
                    Ok(pauses) => self.metrics.deliveries().set_pauses(pauses),
                    Err(error) => tracing::debug!(target: "semel", %error, "cannot list paused targets"),
                }
                pipeline.intake.count().await;
            }
        }
    }

    /// The routes.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        let body_limit = DefaultBodyLimit::max(self.claims.body_limit());
        let (router, _) = api().finish();
        router
            .fallback(async || {
                Refusal::not_found("there is nothing at this path; /openapi.json lists what there is")
            })
            .method_not_allowed_fallback(async || Refusal::method_not_allowed())
            .layer(body_limit)
            .layer(middleware::from_fn_with_state(Arc::clone(self), admit))
            .merge(console::router(self))
            .with_state(Arc::clone(self))
    }
}

/// The header, with its value, by which commands recognise an admin address before they send it a token or a change.
pub(crate) const ADDRESS_KIND: (&str, &str) = ("semel-address", "admin");

/// How its listener behaves: as the gateway's, except that the router has its own limit for bodies and its own rules for
/// keys, and that nobody waits for a claim in the name of a client that is gone.
pub(crate) fn listener(tls: Option<Tls>, drain: Duration, connections: u32) -> EdgeOptions {
    let limits = EdgeLimits { body_bytes: u64::MAX, connections, ..EdgeLimits::default() };
    EdgeOptions {
        tls,
        limits,
        drain,
        key_headers: Vec::new(),
        on_disconnect: DisconnectPolicy::Drop,
        ..EdgeOptions::default()
    }
}

/// Every request passes here: is it meant for us, may it, and what came of it.
async fn admit(State(admin): State<Arc<Admin>>, mut request: Request, next: Next) -> Response {
    let since = tokio::time::Instant::now();
    let access = Arc::clone(&admin.access.read());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let given = request.headers().get("x-request-id").filter(|id| is_request_id(id.as_bytes()));
    let request_id = given.and_then(|id| id.to_str().ok()).map_or_else(new_request_id, str::to_owned);
    let span = tracing::info_span!(target: "semel", "request", request_id);
    let mut user = String::new();
    let admitted = span.in_scope(|| {
        access.admit(&request).and_then(|()| match Right::needed(&method, &path) {
            None => Ok(None),
            Some(right) => {
                let caller = admin.log_in(&access, &request)?;
                user.clone_from(&caller.name);
                caller.may(right).map(|()| Some(caller))
            }
        })
    });
    let mut response = match admitted {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).instrument(span.clone()).await
        }
        Err(refusal) => {
            if request.version() == Version::HTTP_2 {
                // A stream that is answered before its body has come is reset, and some clients lose the answer then.
                let _ = axum::body::to_bytes(request.into_body(), UNREAD).await;
            }
            refusal.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert(ADDRESS_KIND.0, HeaderValue::from_static(ADDRESS_KIND.1));
    let status = response.status().as_u16();
    admin.metrics.admin(status);
    let latency_ms = millis(since.elapsed());
    // Paths hold ids and claim ids only; those are no secrets, but a claim id lets its holder finish a claim.
    let operation = if path.starts_with("/v1/claims/") { "/v1/claims/{claim_id}" } else { path.as_str() };
    // Claims are as frequent as requests of a gateway. A store that is unavailable logs that itself, once.
    let is_claim = path.starts_with("/v1/claims");
    let is_quiet = method == Method::GET || is_claim || status == StatusCode::SERVICE_UNAVAILABLE.as_u16();
    span.in_scope(|| {
        if is_quiet {
            tracing::debug!(target: "semel::admin", %method, operation, user, http_status = status, latency_ms);
        } else {
            tracing::info!(target: "semel::admin", %method, operation, user, http_status = status, latency_ms);
        }
    });
    response
}

/// Every path of the admin API.
fn api() -> Api {
    let mut api = Api::new();
    health::routes(&mut api);
    api.group("health", "", Needs::Nothing).get("/metrics", metrics, "Metrics for Prometheus.");
    api.group("health", "", Needs::Token).get("/openapi.json", openapi, "This document.");
    keys::routes(&mut api);
    claims::routes(&mut api);
    events::routes(&mut api);
    deliveries::routes(&mut api);
    dead_letters::routes(&mut api);
    replays::routes(&mut api);
    runs::routes(&mut api);
    story::routes(&mut api);
    status::routes(&mut api);
    targets::routes(&mut api);
    api
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Text {
    let consoles = admin.console.streams.count();
    let text = admin.metrics.render(&admin.engine, admin.pipeline.as_deref(), consoles);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn openapi() -> Answer<&'static Value> {
    Answer::new(StatusCode::OK, &OPENAPI)
}
