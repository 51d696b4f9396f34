//! The guard: makes a request with a key happen once.
//!
//! It can wrap any service. The guard checks a request before it uses the store. It reads the body before it claims the key. The effect
//! runs in a task of its own, so a client that disconnects changes nothing. The answer is stored under the fence before the client sees
//! it.
//!
//! ```text
//!   find the route ─► not guarded, or no key ────────────────────────────► pass on
//!        │
//!   admit: key, scope, body, fingerprint ─► invalid ─────────────────────► problem, no store access
//!        │
//!   claim ─► stored answer, conflict, in progress, expired, in doubt ────► answer
//!        │ won
//!   run: begin ─► call ─► read ─► store, release or abandon ─────────────► answer
//! ```
//!
//! Where calls are MCP messages (feature `mcp`), two steps differ: the module `mcp` admits a call, and reads and stores its answer.
//! Everything between them is the same.

mod admit;
mod ambiguous;
mod builder;
mod claim;
mod doubt;
mod find;
mod forward;
#[cfg(feature = "mcp")]
mod mcp;
mod read;
mod rotation;
mod run;
mod shortcut;
mod steering;

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
use semel::key::{Hint, KeyId, Origin};
use semel::record::{Phase, Terms};
use semel::store::ErrorKind;
use semel::{Engine, store};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument as _;

use self::admit::{Admission, Admitted};
pub use self::builder::{GuardBuilder, Unmatched, WellKnownPolicy};
use self::claim::Claimed;
use self::forward::{Carries, ForwardedCall};
#[cfg(feature = "mcp")]
use self::mcp::WatchedReply;
use self::read::within;
use self::rotation::RotationWatch;
use self::run::RunResult;
use self::shortcut::{RecallKey, Recent, ShortcutRule};
use self::steering::Steering;
use crate::body::{Body, BoxError};
use crate::call::{BoxFuture, ProbeCaller, UpstreamName};
use crate::capacity::{CallLimit, CallPlace, CallPlaces, Capacity, CapacityLimits};
use crate::codec::CallForm;
use crate::limits::Limiter;
#[cfg(feature = "mcp")]
use crate::mcp::tools::Tools;
use crate::observe::{AnswerObserver, AnswerOutcome, Exchange, KeyUsed};
use crate::policy::{KeyRequired, RoutePolicy, StoreDown};
use crate::present::Present;
use crate::problem::{Problem, RetryAdvice, Situation};
use crate::profile::Profile;
use crate::scope::Scope;
use crate::stored::{REPLAYED, STORED};
use crate::well_known;

/// How often the guard claims again, because the claim was lost before the call began or the key was settled meanwhile.
const STARTS: usize = 3;
/// A claim that takes longer than this is waiting for another request or for a slow store.
const WAITS: Duration = Duration::from_millis(50);
/// `RetryAdvice-After` while the store is unavailable.
const STORE_AWAY: Duration = Duration::from_secs(1);
/// The answer while servers of the old store are replaced. The log has the address of the new one.
const STORE_MOVED: &str = "the records of this server were moved to another store: nothing happened; send the same request with the \
                           same key again, to a server on that store";

/// Makes requests happen once. Clones are cheap and share all state.
#[derive(Clone, Debug)]
pub struct Guard {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    engine: Engine,
    profile: Profile,
    /// For MCP routes: which tools need a key.
    #[cfg(feature = "mcp")]
    tools: Option<Tools>,
    namespace: String,
    scope: Scope,
    /// Checked in order; the first match wins.
    routes: Vec<GuardedRoute>,
    fallback: GuardedRoute,
    caller: Option<Arc<dyn ProbeCaller>>,
    observers: Vec<Arc<dyn AnswerObserver>>,
    well_known: Option<Bytes>,
    /// Current use of `limits`.
    capacity: Capacity,
    limits: CapacityLimits,
    unmatched: Unmatched,
    /// Keys with a probe in progress: at most one probe per key.
    probing: Mutex<HashSet<KeyId>>,
    /// Hints for the shortcut: keys that were answered recently.
    recent: Recent,
    rotation: RotationWatch,
}

struct GuardedRoute {
    policy: RoutePolicy,
    /// The terms of the policy, shared with the records.
    terms: Arc<Terms>,
    limiter: Option<Limiter>,
    /// Slots for the calls of this route.
    places: CallPlaces,
    /// Set where the shortcut may answer requests of this route.
    shortcut_rule: Option<ShortcutRule>,
    /// Index of the route; `None` for the fallback.
    number: Option<usize>,
}

/// The service that receives guarded requests.
trait Callee<R>:
    Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Send + 'static
{
}

impl<R, S> Callee<R> for S where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Send + 'static
{
}

/// The body type of its answers.
trait AnswerBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> AnswerBody for R {}

/// An answer and its outcome for metrics and logs.
type Answered = (Response<Body>, AnswerOutcome);

impl Guard {
    /// Starts to build a guard over an engine.
    pub fn builder(engine: Engine) -> GuardBuilder {
        GuardBuilder::new(engine)
    }

    /// The engine of this guard.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The dialect of this guard.
    pub fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    /// The policy of a request.
    pub fn policy(&self, method: &Method, path: &str) -> &RoutePolicy {
        &self.inner.find(method, path).policy
    }

    /// Answers a request: from `service`, or from the record of an earlier call.
    ///
    /// `service` must have been polled ready. For an unguarded request the guard returns the service's error. For a guarded request it
    /// answers every failure with a problem document and never returns the error.
    ///
    /// Needs a tokio runtime with its timer: the call runs in a task of its own and is stopped at `in_flight_max`.
    ///
    /// Cancel-safe: before the service is called, nothing has happened. Afterwards the call and its record finish in a task of their
    /// own. An unguarded request goes to the service immediately, a guarded one when the future is polled.
    ///
    /// # Errors
    /// The error of the service, for a request that was passed on unguarded.
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
            let answer = (well_known::answer(document), AnswerOutcome::WellKnown);
            let answer = inner.report_answer(None, None, arrived, answer);
            return Box::pin(async { Ok(answer) });
        }
        let route = inner.find(method, path);
        let (policy, number) = (&route.policy, route.number);
        let problem = match (number, inner.unmatched) {
            (None, Unmatched::Deny) => Some(Situation::NoRoute.into()),
            _ => inner.ambiguity(route, method, request.uri(), request.headers()),
        };
        if let Some(problem) = problem {
            let answer = inner.refuse(policy, &CallForm::Request, &problem);
            let answer = inner.report_answer(number, None, arrived, answer);
            return Box::pin(async { Ok(answer) });
        }
        let passed = if !policy.guards(method) {
            Some(AnswerOutcome::PassedOn)
        } else if policy.key.is_plainly_absent(request.headers()) && policy.required == KeyRequired::Optional
        {
            Some(AnswerOutcome::Unkeyed)
        } else {
            None
        };
        let request = request.map(Body::stream);
        let inner = Arc::clone(inner);
        // Two futures: a request that is only passed on needs none of the state of a guarded one. The large request is moved in only
        // where it is needed, because futures are moved often.
        match passed {
            Some(outcome) => {
                let called = pass_on(&mut service, request, policy);
                Box::pin(async move {
                    let _service = service;
                    let mut answer = called.await?.map(Body::stream);
                    if outcome == AnswerOutcome::Unkeyed {
                        answer = unprotected(answer);
                    }
                    Ok(inner.report_answer(number, None, arrived, (answer, outcome)))
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
    fn find(&self, method: &Method, path: &str) -> &GuardedRoute {
        self.routes.iter().find(|route| route.policy.pattern.matches(method, path)).unwrap_or(&self.fallback)
    }

    fn route(&self, number: Option<usize>) -> &GuardedRoute {
        number.and_then(|number| self.routes.get(number)).unwrap_or(&self.fallback)
    }

    /// Answers a request with a guarded method.
    async fn guarded<S, R>(
        self: &Arc<Self>,
        route: &GuardedRoute,
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
        #[cfg(feature = "mcp")]
        let admission = match &self.tools {
            None => self.admit(policy, &parts, body).await,
            Some(tools) => Box::pin(self.admit_message(tools, policy, &parts, body)).await,
        };
        #[cfg(not(feature = "mcp"))]
        let admission = self.admit(policy, &parts, body).await;
        let (admitted, body) = match admission {
            Admission::Keyed(admitted, body) => (admitted, body),
            Admission::Refused(asked, problem) => {
                let answer = self.refuse(policy, &asked, &problem);
                return Ok(self.report_answer(route.number, None, arrived, answer));
            }
            Admission::Unkeyed(body) => {
                let answer = pass_on(&mut service, Request::from_parts(parts, body), policy).await?;
                let answer = (unprotected(answer.map(Body::stream)), AnswerOutcome::Unkeyed);
                return Ok(self.report_answer(route.number, None, arrived, answer));
            }
            #[cfg(feature = "mcp")]
            Admission::Watched(body, watch) => {
                let mut request = Request::from_parts(parts, body);
                watch.prepare(&mut request);
                let answer = Box::pin(pass_on(&mut service, request, policy)).await?.map(Body::stream);
                let answer = Box::pin(self.watch(policy, watch, answer)).await;
                return Ok(self.report_answer(
                    route.number,
                    None,
                    arrived,
                    (answer, AnswerOutcome::PassedOn),
                ));
            }
        };
        let trace: Option<RecallKey> = route
            .shortcut_rule
            .as_ref()
            .and_then(|shortcut_rule| shortcut_rule.trace(&parts.headers, &self.recent));
        let is_named = claim::request_id(&parts.headers).is_some();
        let origin = self.origin(policy, &admitted, &parts);
        let mut request = Request::from_parts(parts, body);
        prepare(&mut request, policy);
        let mut answer = self.once(route, service, request, &admitted, origin).await?;
        let used = if is_named { self.engine.id_at_hand(&self.key(&admitted)) } else { None };
        #[cfg(feature = "mcp")]
        if let WatchedReply::Capabilities { .. } = admitted.watch {
            answer.0 = Box::pin(self.watch(policy, admitted.watch, answer.0)).await;
        }
        if let Some(id) = used {
            answer.0.extensions_mut().insert(KeyUsed(id));
            answer.0.extensions_mut().insert(answer.1);
        }
        if let (Some(trace), AnswerOutcome::Ran | AnswerOutcome::Replayed) = (trace, answer.1) {
            self.recent.note(trace);
        }
        Ok(self.report_answer(route.number, Some(&admitted.key), arrived, answer))
    }

    /// Claims and runs the call, or answers without one.
    async fn once<S, R>(
        self: &Arc<Self>,
        route: &GuardedRoute,
        service: S,
        request: Request<Body>,
        admitted: &Admitted,
        origin: Origin,
    ) -> Result<Answered, S::Error>
    where
        S: Callee<R>,
        R: AnswerBody,
    {
        let policy = &route.policy;
        let mut call = Box::new(ForwardedCall::new(service, request, admitted.key_at.clone()));
        let mut unavailable = None;
        let mut place = match route.places.take() {
            Ok(place) => Some(place),
            // A key with a stored answer needs no call.
            Err(_) if Box::pin(self.is_known(admitted)).await => None,
            Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
        };
        for _ in 0..STARTS {
            let headers = call.request.headers();
            let claimed = self.claim_with(&mut place, route, admitted, &origin, headers).await;
            let claim = match claimed {
                Claimed::Won(claim) => claim,
                Claimed::Again => continue,
                Claimed::Answer(answer) => return Ok(answer),
                Claimed::StoreAway(error) => {
                    unavailable = Some(error);
                    break;
                }
            };
            let held = match place.take().map_or_else(|| route.places.take(), Ok) {
                Ok(held) => held,
                // Dropping the claim releases it: the call has not begun.
                Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
            };
            place = Some(held.clone());
            let run = Arc::clone(self).run(route.number, admitted.asked.clone(), claim, call, held);
            // Polling the call here, and moving it to a task only when the client disconnects, saves a task but is slower
            // (benches/proxy.rs): answers are then no longer written one after the other.
            // Its log lines carry the request's id.
            match tokio::spawn(run.in_current_span()).await {
                Ok(RunResult::Answered(answer)) => return Ok(answer),
                Ok(RunResult::NotStarted(back, error)) => {
                    call = back;
                    if error.is_some() {
                        unavailable = error;
                        break;
                    }
                }
                // The panic dropped the claim, which abandons it.
                Err(error) => {
                    tracing::error!(target: "semel", panicked = error.is_panic(), "guarded call panicked or was cancelled");
                    let status = StatusCode::INTERNAL_SERVER_ERROR;
                    return Ok(self.unknown(policy, &admitted.asked, status));
                }
            }
        }
        // A store that was moved or has another secret is reachable: other processes still protect the key, and this call would run
        // in addition to theirs.
        let open = policy.store_down == StoreDown::Open
            && unavailable.as_ref().is_some_and(|error| !error.is_protected_elsewhere());
        match unavailable {
            Some(error) if open && self.keep_client_key_back(policy, admitted, &mut call) => {
                // The observer of answers logs every unprotected request.
                tracing::debug!(target: "semel", %error, "store unavailable: request passed on unprotected");
                let ForwardedCall { mut service, request, .. } = *call;
                let place = match place.map_or_else(|| route.places.take(), Ok) {
                    Ok(place) => place,
                    Err(limit) => return Ok(self.refuse_call(policy, admitted, limit)),
                };
                let answer = Box::pin(pass_on(&mut service, request, policy)).await?;
                let answer = answer.map(|body| Body::stream(body).holding(place));
                Ok((unprotected(answer), AnswerOutcome::Unprotected))
            }
            error => {
                let is_moved = error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Moved);
                match error {
                    // The store logs its outage once.
                    Some(error) if error.is_logged() => {
                        tracing::debug!(target: "semel", %error, "store call failed: request refused");
                    }
                    Some(error) => {
                        tracing::warn!(target: "semel", %error, "store call failed: request refused");
                    }
                    None => {}
                }
                let detail = is_moved.then(|| STORE_MOVED.to_owned());
                let problem =
                    Problem { detail, ..Situation::StoreUnavailable.into() }.retry_after(STORE_AWAY);
                Ok(self.refuse(policy, &admitted.asked, &problem))
            }
        }
    }

    /// Claims while holding a call slot. A duplicate that has to wait returns the slot, because it makes no call.
    async fn claim_with(
        self: &Arc<Self>,
        place: &mut Option<CallPlace>,
        route: &GuardedRoute,
        admitted: &Admitted,
        origin: &Origin,
        headers: &HeaderMap,
    ) -> Claimed {
        let mut claim = pin!(self.claim(route, admitted, origin, headers));
        if place.is_some() {
            if let Some(claimed) = within(Instant::now() + WAITS, claim.as_mut()).await {
                return claimed;
            }
            *place = None;
        }
        claim.await
    }

    /// True if the key was used before and may be answered without a call.
    async fn is_known(&self, admitted: &Admitted) -> bool {
        let found = self.engine.get(&self.key(admitted)).await;
        matches!(found, Ok(Some(snapshot)) if snapshot.phase() != Phase::Vacant)
    }

    /// Refuses a request whose call would exceed a limit.
    fn refuse_call(&self, policy: &RoutePolicy, admitted: &Admitted, limit: CallLimit) -> Answered {
        self.capacity.refuse_call(limit);
        let reason = match limit {
            CallLimit::InAll => "the gateway has reached its limit of concurrent calls",
            CallLimit::Upstream => "the gateway has reached its limit of concurrent calls to this upstream",
        };
        self.refuse(policy, &admitted.asked, &admit::overloaded(reason))
    }

    /// On a route that sends derived keys, removes the client's own key from a call without a claim. Returns false if there is no
    /// derived key to send instead.
    fn keep_client_key_back<S>(
        &self,
        policy: &RoutePolicy,
        admitted: &Admitted,
        call: &mut ForwardedCall<S>,
    ) -> bool {
        if !policy.sends_derived_key() || call.carries() == Carries::DerivedKey {
            return true;
        }
        let derived = self.engine.derived_key(&self.key(admitted), &policy.derived.provider);
        derived.is_some_and(|key| {
            call.put_derived_key(policy, &self.profile.key_header, &key);
            true
        })
    }

    /// Answers with a problem document.
    fn refuse(&self, policy: &RoutePolicy, asked: &CallForm, problem: &Problem) -> Answered {
        let mut answer = asked.tell(&self.profile, problem);
        if problem.situation == Situation::Expired
            && let Some(status) = policy.expired
        {
            let told = Problem { status: Some(status), ..problem.clone() };
            answer = asked.tell(&self.profile, &told);
        }
        (unprotected(answer), AnswerOutcome::Refused(problem.situation))
    }

    /// Answers a caller whose call has an unknown result.
    fn unknown(&self, policy: &RoutePolicy, asked: &CallForm, status: StatusCode) -> Answered {
        use crate::policy::OnDoubt;
        use semel::Mode;
        let settled = policy.terms.mode != Mode::Marked || policy.on_doubt != OnDoubt::Hold;
        let retry = if settled { RetryAdvice::Useful } else { RetryAdvice::Useless };
        // A key that is executed again at in_flight_max cannot be answered earlier.
        let is_run_late = policy.terms.mode == Mode::Marked && policy.on_doubt == OnDoubt::Release;
        let terms = asked.terms().map_or(&policy.terms, AsRef::as_ref);
        let retry_after = is_run_late.then_some(terms.in_flight_max);
        let problem = Problem {
            status: Some(status),
            retry: Some(retry),
            retry_after,
            ..Problem::from(Situation::UpstreamUnknown)
        };
        let (answer, _) = self.refuse(policy, asked, &problem);
        (answer, AnswerOutcome::Doubtful)
    }

    /// Notifies the observers.
    fn report_answer(
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
        outcome: AnswerOutcome,
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
                // A panic in an observer must not cost the client its answer.
                let told = std::panic::catch_unwind(AssertUnwindSafe(|| observer.answered(&exchange)));
                if told.is_err() {
                    tracing::error!(target: "semel", "observer panicked");
                }
            }
        }
    }
}

/// Passes a request on. The service lives as long as its call.
fn pass_on<S>(service: &mut S, mut request: Request<Body>, policy: &RoutePolicy) -> S::Future
where
    S: Service<Request<Body>>,
{
    name_upstream(&mut request, policy);
    service.call(request)
}

fn name_upstream(request: &mut Request<Body>, policy: &RoutePolicy) {
    if let Some(upstream) = &policy.upstream {
        request.extensions_mut().insert(UpstreamName(Arc::clone(upstream)));
    }
}

/// Prepares a guarded request for the upstream: the body is in memory, and headers that differ between retries are removed.
fn prepare(request: &mut Request<Body>, policy: &RoutePolicy) {
    let headers = request.headers_mut();
    let present = Present::of(headers);
    // The body was read in full, so `Expect` no longer applies, and a guarded call never switches protocols.
    for name in policy.headers.strip.iter().chain(&[EXPECT, TRANSFER_ENCODING, UPGRADE]) {
        if present.may_hold(name) {
            headers.remove(name);
        }
    }
    name_upstream(request, policy);
}

/// Marks an answer that no later call with the same key will get. Removes the headers that the upstream addresses to the guard.
fn unprotected(mut answer: Response<Body>) -> Response<Body> {
    let headers = answer.headers_mut();
    let _ = Steering::take(headers);
    headers.insert(STORED, HeaderValue::from_static("false"));
    answer
}

/// Marks an answer from the record.
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

/// A store error.
type StoreError = store::Error;
