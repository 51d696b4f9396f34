//! Settings that cannot work are refused when they are built, each with a sentence that says what to do.

use std::time::Duration;

use http::{HeaderName, Method, Request, StatusCode};
use semel::store::MemoryStore;
use semel::{Engine, Mode};
use semel_http::call::UpstreamName as Named;
use semel_http::policy::{
    Absent, CallTemplate, InsertLimits, KeyRequired, OnDoubt, PolicyBuilder, Probe, Rate,
};
use semel_http::scope::VerifierBuilder;
use semel_http::{Body, Guard, KeySource, PolicyError, Profile, RoutePolicy, Scope};

use crate::kit::{Kit, Upstream, post};

fn refused(pattern: &str, settings: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> String {
    let built = settings(RoutePolicy::builder(&Profile::ietf(), pattern)).build();
    built.expect_err("it cannot work").to_string()
}

fn call(text: &str) -> CallTemplate {
    CallTemplate::parse(text).unwrap()
}

#[test]
fn sentences() {
    let day = Duration::from_secs(24 * 60 * 60);
    let zero = Rate { per_second: 0, burst: 1 };
    let table = [
        (refused("GET /a", |route| route), "GET is a safe method and needs no key"),
        (refused("post /a", |route| route), "is not a method and a path"),
        (refused("POST /a", |route| route.mode(Mode::Atomic)), "choose marked, keyed or rerun"),
        (refused("POST /a", |route| route.lease(day)), "in_flight_max (60s) is shorter than lease"),
        (refused("POST /a", |route| route.wait(day)), "wait (86400s) is longer than in_flight_max"),
        (refused("POST /a", |route| route.on_doubt(OnDoubt::Probe)), "on_doubt = probe needs a probe"),
        (
            refused("POST /a", |route| route.probe(Probe { call: call("GET /x"), absent: Absent::Unknown })),
            "put {key} into its path",
        ),
        (refused("POST /a", |route| route.expired(StatusCode::NOT_FOUND)), "410 or 412, not 404"),
        (refused("POST /a", |route| route.key_length(0, 5)), "at least 1 and at most 1024"),
        (refused("POST /a", |route| route.key_length(1, 2000)), "at least 1 and at most 1024"),
        (refused("POST /a", |route| route.body_timeout(Duration::ZERO)), "body_timeout is zero"),
        (refused("POST /a", |route| route.response_limit(2 << 30)), "above 1 GiB"),
        (
            refused("POST /a", |route| route.limits(InsertLimits { writes: zero, reads: zero })),
            "is zero, which would refuse every request",
        ),
        (
            refused("POST /a/{id}", |route| route.key(KeySource::route("x-{name}"), KeyRequired::Required)),
            "names {name}, which the route \"POST /a/{id}\" does not have",
        ),
        (
            refused("POST /a", |route| route.key(KeySource::route("x"), KeyRequired::Required)),
            "every request would have one key",
        ),
        (KeySource::header("a b").unwrap_err().to_string(), "is not a header name"),
        (KeySource::json("no-slash").unwrap_err().to_string(), "is not a JSON pointer"),
        (Scope::parse("cookie", None).unwrap_err().to_string(), "\"single-tenant\""),
        (Scope::parse("jwt:sub", None).unwrap_err().to_string(), "needs a secret or a key set"),
        (
            Scope::parse("jwt:sub", Some(VerifierBuilder::new())).unwrap_err().to_string(),
            "needs a secret or a key set",
        ),
        (VerifierBuilder::new().secret(b"short").build().unwrap_err().to_string(), "at least 32 bytes"),
        (VerifierBuilder::new().jwks(b"{}").build().unwrap_err().to_string(), "array \"keys\""),
    ];
    for (sentence, expected) in table {
        assert!(sentence.contains(expected), "{sentence:?} should say {expected:?}");
    }
}

// A profile that promises bounds binds its routes.
#[test]
fn retention_within_the_profile() {
    let mut profile = Profile::ietf();
    profile.retention_bounds = Some((Duration::from_secs(3600), Duration::from_secs(604_800)));
    let built = |seconds| {
        RoutePolicy::builder(&profile, "POST /a").retention(Duration::from_secs(seconds)).build().is_ok()
    };
    assert_eq!([3599, 3600, 604_800, 604_801].map(built), [false, true, true, false]);
    let long = RoutePolicy::builder(&profile, "POST /a").in_flight_max(Duration::from_secs(100_000)).build();
    assert!(matches!(long, Err(PolicyError::InFlightAboveRetention { .. })));
}

#[test]
fn a_namespace_that_no_key_can_have() {
    for namespace in [String::new(), "x".repeat(256)] {
        let engine = Engine::builder(MemoryStore::new()).build().unwrap();
        let error = Guard::builder(engine).namespace(namespace).build().unwrap_err();
        assert!(matches!(error, PolicyError::Namespace { .. }), "{error}");
    }
}

#[test]
fn a_probe_needs_a_caller() {
    let route = RoutePolicy::builder(&Profile::ietf(), "POST /a").verify(call("GET /me")).build().unwrap();
    let engine = Engine::builder(MemoryStore::new()).build().unwrap();
    let error = Guard::builder(engine).route(route).build().unwrap_err();
    assert!(matches!(error, PolicyError::NoCaller { .. }), "{error}");
}

fn to(method: Method, path: &str) -> Request<Body> {
    let mut request = post("k");
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap();
    request
}

// First match wins; what no route matches has the profile's defaults; a spelling does not pass a route by.
#[tokio::test]
async fn the_first_route_that_matches_wins() {
    let profile = Profile::ietf();
    let required = |route: PolicyBuilder| {
        let header = KeySource::Header(HeaderName::from_static("x-key"));
        route.key(header, KeyRequired::Required).build().unwrap()
    };
    let kit = Kit::with(Upstream::counting(), |guard| {
        guard
            .route(RoutePolicy::builder(&profile, "POST /v1/free/{x}").pass_through().build().unwrap())
            .route(required(RoutePolicy::builder(&profile, "POST /v1/*/pay")))
            .route(required(RoutePolicy::builder(&profile, "PUT /v1/**")))
    });
    assert!(kit.send(to(Method::POST, "/v1/free/pay")).await.is_stored(), "not guarded at all");
    for path in ["/v1/card/pay", "/v1/card/%70ay", "/v1/card//pay/"] {
        kit.send(to(Method::POST, path)).await.assert_problem(400, "key_missing");
    }
    for path in ["/v1/x/../card/pay", "/v1/card%2Fpay", "/v1/card/pay;x", "/v1/card/pay%2F"] {
        kit.send(to(Method::POST, path)).await.assert_problem(400, "ambiguous_request");
    }
    kit.send(to(Method::PUT, "/v1/a/b/c")).await.assert_problem(400, "key_missing");
    assert_eq!(kit.send(to(Method::POST, "/v2/card/pay")).await.text(), "call 2");
    assert_eq!(kit.send(to(Method::PUT, "/v2/a")).await.text(), "call 3", "PUT is not guarded by default");
}

// The service that answers learns the upstream of the route.
#[tokio::test]
async fn a_route_names_its_upstream() {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use http::Response;
    use tower_service::Service;

    #[derive(Clone)]
    struct Namer;

    impl Service<Request<Body>> for Namer {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let named =
                request.extensions().get::<Named>().map_or("none".into(), |named| named.0.to_string());
            std::future::ready(Ok(Response::new(Body::from(named))))
        }
    }

    let profile = Profile::ietf();
    let kit = Kit::with(Upstream::counting(), |guard| {
        guard.route(RoutePolicy::builder(&profile, "* /ledger/**").upstream("ledger").build().unwrap())
    });
    for (method, path, expected) in [
        (Method::POST, "/ledger/a", "ledger"),
        (Method::GET, "/ledger/b", "ledger"),
        (Method::POST, "/other", "none"),
    ] {
        let mut request = to(method, path);
        let key = http::HeaderValue::from_str(path).unwrap();
        request.headers_mut().insert("idempotency-key", key);
        let answer = kit.guard.handle(Namer, request).await.unwrap();
        assert_eq!(crate::kit::Answered::read(answer).await.text(), expected);
    }
}
