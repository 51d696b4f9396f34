//! The guard: makes a request with a key happen once.
//!
//! It stands before any service. A request is checked before the store is touched; its body is read before its key is
//! claimed; its effect runs in a task of its own, so that a client which hangs up changes nothing; and its answer is
//! kept under the fence before the client sees it.
//!
//! ```text
//!   find the route ─► not guarded, or no key ──────────────────────────────► pass on
//!        │
//!   admit: key, scope, body, fingerprint ─► not as it should be ───────────► problem, the store untouched
//!        │
//!   claim ─► replay, conflict, in flight, expired, in doubt ───────────────► answer
//!        │ won
//!   run: begin ─► call ─► read ─► keep, release or abandon ────────────────► answer
//! ```
//!
//! Where calls are messages, two steps are others: `messages` admits, and `tool_answer` (with `live`, for streams) reads
//! and keeps. Everything between them is the same.

mod admit;
mod ambiguous;
mod builder;
mod claim;
mod doubt;
mod forward;
mod hear;
mod live;
mod messages;
mod read;
mod run;
mod shortcut;
mod steering;
mod tool_answer;

use std::collections::HashSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{EXPECT, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use semel::key::{Hint, KeyId};
use semel::record::{Phase, Terms};
use semel::store::ErrorKind;
use semel::{Engine, store};
use tokio::time::Instant;
use tower_service::Service;

use self::admit::{Admission, Admitted};
pub use self::builder::{GuardBuilder, Publish, Unmatched};
use self::claim::Claimed;
use self::forward::{Call, Carries};
use self::messages::Watch;
use self::read::within;
use self::run::Ran;
use self::shortcut::{Plainly, Recent, Trace};
use self::steering::Steering;
use crate::body::{Body, BoxError};
use crate::call::{BoxFuture, Caller, Upstream};
use crate::capacity::{CallLimit, CallPlace, CallPlaces, Capacity, CapacityLimits};
use crate::codec::Asked;
use crate::limits::Limiter;
use crate::mcp::tools::Tools;
use crate::observe::{Exchange, KeyUsed, Observer, Outcome};
use crate::policy::{KeyRequired, RoutePolicy, StoreDown};
use crate::present::Present;
use crate::problem::{Problem, Retry, Situation};
use crate::profile::Profile;
use crate::scope::Scope;
use crate::stored::{REPLAYED, STORED};
use crate::well_known;

/// How often a request is claimed anew because its claim was lost before the call began, or its key was settled.
const STARTS: usize = 3;
/// A claim that takes longer than this waits for another request, or for a store that is slow.
const WAITS: Duration = Duration::from_millis(50);
/// When to come back to a store that is away.
const STORE_AWAY: Duration = Duration::from_secs(1);

/// Makes requests happen once. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Guard {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    engine: Engine,
    profile: Profile,
    /// Where calls are messages: which of them need a key.
    tools: Option<Tools>,
    namespace: String,
    scope: Scope,
    /// In order; the first that matches wins.
    routes: Vec<Route>,
    fallback: Route,
    caller: Option<Arc<dyn Caller>>,
    observers: Vec<Arc<dyn Observer>>,
    well_known: Option<Bytes>,
    /// What is in use of `limits`.
    capacity: Capacity,
    limits: CapacityLimits,
    unmatched: Unmatched,
    /// Keys whose upstream is being asked: one question at a time.
    probing: Mutex<HashSet<KeyId>>,
    /// What the shortcut may try.
    recent: Recent,
}

struct Route {
    policy: RoutePolicy,
    /// The policy's, shared with the records.
    terms: Arc<Terms>,
    limiter: Option<Limiter>,
    /// For its calls.
    places: CallPlaces,
    /// Where its replays may take the short way.
    plainly: Option<Plainly>,
    /// Its number among the routes; none for the fallback.
    number: Option<usize>,
}

/// What a guarded request is passed on to.
trait Callee<R>:
    Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Send + 'static
{
}

impl<R, S> Callee<R> for S where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Send + 'static
{
}

/// The body that it answers with.
trait AnswerBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> AnswerBody for R {}

/// An answer, and the word for it.
type Answered = (Response<Body>, Outcome);

impl Guard {
    /// Starts to build a guard over an engine.
    pub fn builder(engine: Engine) -> GuardBuilder {
        GuardBuilder::new(engine)
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The dialect it speaks.
    pub fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    /// The policy of a request.
    pub fn policy(&self, method: &Method, path: &str) -> &RoutePolicy {
        &self.inner.find(method, path).policy
    }

    /// Answers a request: by `service`, or by what an earlier call left behind.
    ///
    /// `service` must have been polled ready. Where the request is not guarded its error is passed on; where it is,
    /// every failure is told as a problem, and the error is never returned.
    ///
    /// Needs a tokio runtime with its timer, to run the call detached and to stop it at `in_flight_max`.
    ///
    /// Cancel-safe: before the service is called, nothing has happened; after, its call and its record finish in a
    /// task of their own. A request that is not guarded is given to the service here and now, every other when the
    /// future is polled.
    ///
    /// # Errors
    /// What the service failed with, for a request that was passed on unguarded.
    pub fn handle<S, B, R>(
        &self,
        mut service: S,
        request: Request<B>,
    ) -> BoxFuture<'static, Result<Response<Body>, S::Error>>
    where
        S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let arrived = Instant::now();
        let inner = &self.inner;
        let (method, path) = (request.method(), request.uri().path());
        if let Some(document) = &inner.well_known
            && path == well_known::PATH
            && matches!(*method, Method::GET | Method::HEAD)
        {
            let answer = (well_known::answer(document), Outcome::WellKnown);
            let answer = inner.say(None, None, arrived, answer);
            return Box::pin(async { Ok(answer) });
        }
        let route = inner.find(method, path);
        let (policy, number) = (&route.policy, route.number);
        let problem = match (number, inner.unmatched) {
            (None, Unmatched::Deny) => Some(Situation::NoRoute.into()),
            _ => inner.ambiguity(route, method, request.uri(), request.headers()),
        };
        if let Some(problem) = problem {
            let answer = inner.refuse(policy, &Asked::Request, &problem);
            let answer = inner.say(number, None, arrived, answer);
            return Box::pin(async { Ok(answer) });
        }
        let passed = if !policy.guards(method) {
            Some(Outcome::PassedOn)
        } else if policy.key.is_plainly_absent(request.headers()) && policy.required == KeyRequired::Optional
        {
            Some(Outcome::Unkeyed)
        } else {
            None
        };
        let request = request.map(Body::stream);
        let inner = Arc::clone(inner);
        // Two futures: one that is only passed on need not carry the room for all the rest. Nor the request, which is
        // large, and futures are moved about.
        match passed {
            Some(outcome) => {
                let called = pass_on(&mut service, request, policy);
                Box::pin(async move {
                    let _service = service;
                    let mut answer = called.await?.map(Body::stream);
                    if outcome == Outcome::Unkeyed {
                        answer = unprotected(answer);
                    }
                    Ok(inner.say(number, None, arrived, (answer, outcome)))
                })
            }
            None => Box::pin(async move {
                let route = inner.route(number);
                inner.guarded(route, service, request, arrived).await
            }),
        }
    }
}

impl Inner {
    /// The route of a request. The first match wins.
    fn find(&self, method: &Method, path: &str) -> &Route {
        self.routes.iter().find(|route| route.policy.pattern.matches(method, path)).unwrap_or(&self.fallback)
    }

    fn route(&self, number: Option<usize>) -> &Route {
        number.and_then(|number| self.routes.get(number)).unwrap_or(&self.fallback)
    }

    /// Answers a request of a guarded method.
    async fn guarded<S, R>(
        self: &Arc<Self>,
        route: &Route,
        mut service: S,
        request: Request<Body>,
        arrived: Instant,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Callee<R>,
        R: AnswerBody,
    {
        let policy = &route.policy;
        let (parts, body) = request.into_parts();
        let admission = match &self.tools {
            None => self.admit(policy, &parts, body).await,
            Some(tools) => Box::pin(self.admit_message(tools, policy, &parts, body)).await,
        };
        let (admitted, body) = match admission {
            Admission::Keyed(admitted, body) => (admitted, body),
            Admission::Refused(asked, problem) => {
                let answer = self.refuse(policy, &asked, &problem);
                return Ok(self.say(route.number, None, arrived, answer));
            }
            Admission::Unkeyed(body) => {
                let answer = pass_on(&mut service, Request::from_parts(parts, body), policy).await?;
                let answer = (unprotected(answer.map(Body::stream)), Outcome::Unkeyed);
                return Ok(self.say(route.number, None, arrived, answer));
            }
            Admission::Watched(body, watch) => {
                let mut request = Request::from_parts(parts, body);
                watch.prepare(&mut request);
                let answer = Box::pin(pass_on(&mut service, request, policy)).await?.map(Body::stream);
                let answer = Box::pin(self.watch(policy, watch, answer)).await;
                return Ok(self.say(route.number, None, arrived, (answer, Outcome::PassedOn)));
            }
        };
        let trace: Option<Trace> =
            route.plainly.as_ref().and_then(|plainly| plainly.trace(&parts.headers, &self.recent));
        let is_named = claim::request_id(&parts.headers).is_some();
        let mut request = Request::from_parts(parts, body);
        prepare(&mut request, policy);
        let mut answer = self.once(route, service, request, &admitted).await?;
        let used = if is_named { self.engine.id_at_hand(&self.key(&admitted)) } else { None };
        if let Watch::Capabilities { .. } = admitted.watch {
            answer.0 = Box::pin(self.watch(policy, admitted.watch, answer.0)).await;
        }
        if let Some(id) = used {
            answer.0.extensions_mut().insert(KeyUsed(id));
        }
        if let (Some(trace), Outcome::Ran | Outcome::Replayed) = (trace, answer.1) {
            self.recent.note(trace);
        }
        Ok(self.say(route.number, Some(&admitted.key), arrived, answer))
    }

    /// Claims and runs, or finds out why not.
    async fn once<S, R>(
        self: &Arc<Self>,
        route: &Route,
        service: S,
        request: Request<Body>,
        admitted: &Admitted,
    ) -> Result<Answered, S::Error>
    where
        S: Callee<R>,
        R: AnswerBody,
    {
        let policy = &route.policy;
        let mut call = Box::new(Call::new(service, request, admitted.key_at.clone()));
        let mut away = None;
        let mut place = match route.places.take() {
            Ok(place) => Some(place),
            // What was done already needs no call.
            Err(_) if Box::pin(self.is_known(admitted)).await => None,
            Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
        };
        for _ in 0..STARTS {
            let claimed = self.claim_with(&mut place, route, admitted, call.request.headers()).await;
            let claim = match claimed {
                Claimed::Won(claim) => claim,
                Claimed::Again => continue,
                Claimed::Answer(answer) => return Ok(answer),
                Claimed::StoreAway(error) => {
                    away = Some(error);
                    break;
                }
            };
            let held = match place.take().map_or_else(|| route.places.take(), Ok) {
                Ok(held) => held,
                // The claim is dropped, and so released: nothing has begun.
                Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
            };
            place = Some(held.clone());
            let run = Arc::clone(self).run(route.number, admitted.asked.clone(), claim, call, held);
            // Polled here, and moved to a task only where the client leaves, it saves a task and costs more all the same
            // (benches/proxy.rs): answers are then no longer written one after the other.
            match tokio::spawn(run).await {
                Ok(Ran::Answered(answer)) => return Ok(answer),
                Ok(Ran::NotStarted(back, error)) => {
                    call = back;
                    if error.is_some() {
                        away = error;
                        break;
                    }
                }
                // The claim was dropped with it, and so abandoned.
                Err(error) => {
                    tracing::error!(target: "semel", panicked = error.is_panic(), "a guarded call did not end");
                    let status = StatusCode::INTERNAL_SERVER_ERROR;
                    return Ok(self.unknown(policy, &admitted.asked, status));
                }
            }
        }
        // With another secret the store is not away: others still protect the key, and this call would run beside theirs.
        let open = policy.store_down == StoreDown::Open
            && away.as_ref().is_some_and(|error| error.kind() != ErrorKind::SecretDiffers);
        match away {
            Some(error) if open && self.keep_client_key_back(policy, admitted, &mut call) => {
                tracing::warn!(target: "semel", %error, "the store is away: a request is passed on unprotected");
                let Call { mut service, request, .. } = *call;
                let place = match place.map_or_else(|| route.places.take(), Ok) {
                    Ok(place) => place,
                    Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
                };
                let answer = Box::pin(pass_on(&mut service, request, policy)).await?;
                let answer = answer.map(|body| Body::stream(body).holding(place));
                Ok((unprotected(answer), Outcome::Unprotected))
            }
            error => {
                if let Some(error) = error {
                    tracing::warn!(target: "semel", %error, "the store is away: a request is refused");
                }
                let problem = Problem::from(Situation::StoreUnavailable).retry_after(STORE_AWAY);
                Ok(self.refuse(policy, &admitted.asked, &problem))
            }
        }
    }

    /// Claims with a place at hand. A duplicate that has to wait gives the place back: it makes no call.
    async fn claim_with(
        self: &Arc<Self>,
        place: &mut Option<CallPlace>,
        route: &Route,
        admitted: &Admitted,
        headers: &HeaderMap,
    ) -> Claimed {
        let mut claim = pin!(self.claim(route, admitted, headers));
        if place.is_some() {
            if let Some(claimed) = within(Instant::now() + WAITS, claim.as_mut()).await {
                return claimed;
            }
            *place = None;
        }
        claim.await
    }

    /// Whether a key was used before, so that it may be answered without a call.
    async fn is_known(&self, admitted: &Admitted) -> bool {
        let found = self.engine.get(&self.key(admitted)).await;
        matches!(found, Ok(Some(snapshot)) if snapshot.phase() != Phase::Vacant)
    }

    /// Refuses a request that would need a call more than there may be.
    fn refuse_call(&self, policy: &RoutePolicy, admitted: &Admitted, limit: CallLimit) -> Answered {
        self.capacity.refuse_call(limit);
        let reason = match limit {
            CallLimit::InAll => "as many calls are in flight as the gateway makes at once",
            CallLimit::Upstream => {
                "as many calls are in flight as the gateway makes at once to this upstream"
            }
        };
        self.refuse(policy, &admitted.asked, &admit::overloaded(reason))
    }

    /// Where a route sends derived keys, sees to it that a call without a claim does not carry the client's own. False
    /// where there is no derived key to send in its place.
    fn keep_client_key_back<S>(&self, policy: &RoutePolicy, admitted: &Admitted, call: &mut Call<S>) -> bool {
        if !policy.sends_derived_key() || call.carries() == Carries::DerivedKey {
            return true;
        }
        let derived = self.engine.derived_key(&self.key(admitted), &policy.derived.provider);
        derived.is_some_and(|key| {
            call.put_derived_key(policy, &self.profile.key_header, &key);
            true
        })
    }

    /// Tells a problem.
    fn refuse(&self, policy: &RoutePolicy, asked: &Asked, problem: &Problem) -> Answered {
        let mut answer = asked.tell(&self.profile, problem);
        if problem.situation == Situation::Expired
            && let Some(status) = policy.expired
        {
            let told = Problem { status: Some(status), ..problem.clone() };
            answer = asked.tell(&self.profile, &told);
        }
        (unprotected(answer), Outcome::Refused(problem.situation))
    }

    /// Tells the caller of a call that nobody knows the end of.
    fn unknown(&self, policy: &RoutePolicy, asked: &Asked, status: StatusCode) -> Answered {
        use crate::policy::OnDoubt;
        use semel::Mode;
        let settled = policy.terms.mode != Mode::Marked || policy.on_doubt != OnDoubt::Hold;
        let retry = if settled { Retry::Useful } else { Retry::Useless };
        // Where it is run again at in_flight_max, it is of no use to come back before.
        let is_run_late = policy.terms.mode == Mode::Marked && policy.on_doubt == OnDoubt::Release;
        let retry_after = is_run_late.then_some(policy.terms.in_flight_max);
        let problem = Problem {
            status: Some(status),
            retry: Some(retry),
            retry_after,
            ..Problem::from(Situation::UpstreamUnknown)
        };
        let (answer, _) = self.refuse(policy, asked, &problem);
        (answer, Outcome::Doubtful)
    }

    /// Tells the observers.
    fn say(
        &self,
        route: Option<usize>,
        key: Option<&str>,
        arrived: Instant,
        (answer, outcome): Answered,
    ) -> Response<Body> {
        self.note(route, key, arrived, answer.status(), outcome);
        answer
    }

    fn note(
        &self,
        route: Option<usize>,
        key: Option<&str>,
        arrived: Instant,
        status: StatusCode,
        outcome: Outcome,
    ) {
        tracing::debug!(
            target: "semel",
            outcome = outcome.name(),
            http_status = status.as_u16(),
            key = key.map(|key| tracing::field::display(Hint::new(key))),
        );
        if !self.observers.is_empty() {
            let took = arrived.elapsed();
            let hint = key.map(Hint::new);
            let exchange = Exchange { outcome, status, route, key: hint.as_ref(), took };
            for observer in &self.observers {
                // A client is answered whatever becomes of a counter.
                let told = std::panic::catch_unwind(AssertUnwindSafe(|| observer.answered(&exchange)));
                if told.is_err() {
                    tracing::error!(target: "semel", "an observer panicked and is told on all the same");
                }
            }
        }
    }
}

/// Passes a request on. The service is to live as long as its call.
fn pass_on<S>(service: &mut S, mut request: Request<Body>, policy: &RoutePolicy) -> S::Future
where
    S: Service<Request<Body>>,
{
    name_upstream(&mut request, policy);
    service.call(request)
}

fn name_upstream(request: &mut Request<Body>, policy: &RoutePolicy) {
    if let Some(upstream) = &policy.upstream {
        request.extensions_mut().insert(Upstream(Arc::clone(upstream)));
    }
}

/// Makes a guarded request ready to be passed on: its body is at hand, and what differs between retries is gone.
fn prepare(request: &mut Request<Body>, policy: &RoutePolicy) {
    let headers = request.headers_mut();
    let present = Present::of(headers);
    // The body was read, whatever the client expected; and a guarded call never becomes another protocol.
    for name in policy.headers.strip.iter().chain(&[EXPECT, TRANSFER_ENCODING, UPGRADE]) {
        if present.may_hold(name) {
            headers.remove(name);
        }
    }
    name_upstream(request, policy);
}

/// Marks an answer that no later call with the same key will get. What the upstream says to the guard goes no further.
fn unprotected(mut answer: Response<Body>) -> Response<Body> {
    let headers = answer.headers_mut();
    let _ = Steering::take(headers);
    headers.insert(STORED, HeaderValue::from_static("false"));
    answer
}

/// Marks a replay (R4).
fn replayed(mut answer: Response<Body>) -> Response<Body> {
    answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    answer
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("profile", &self.profile.name)
            .field("scope", &self.scope)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}

/// Why the store cannot be asked.
type StoreError = store::Error;
