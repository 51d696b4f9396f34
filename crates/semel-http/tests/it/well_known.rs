//! The published policy.

use http::Request;
use semel_http::guard::WellKnownPolicy;
use semel_http::policy::{InFlight, KeyRequired, Pin};
use semel_http::{Body, KeySource, Profile, RoutePolicy};
use serde_json::json;

use crate::kit::{Kit, Upstream};

fn get() -> Request<Body> {
    Request::get("/.well-known/idempotency").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn what_is_published() {
    let profile = Profile::stripe_v2();
    let route = RoutePolicy::builder(&profile, "POST /v1/payments")
        .key(KeySource::json("/key").unwrap(), KeyRequired::Required)
        .in_flight(InFlight::Reject)
        .pin(Pin::All)
        .retention(std::time::Duration::from_secs(7200))
        .build()
        .unwrap();
    let open = RoutePolicy::builder(&profile, "* /open/**").pass_through().build().unwrap();
    let kit = Kit::with(Upstream::counting(), |guard| guard.profile(profile).route(route).route(open));
    let answer = kit.send(get()).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(kit.upstream.calls(), 0);
    assert_eq!(
        answer.json(),
        json!({
            "version": 1,
            "profile": "stripe-v2",
            "supported": true,
            "methods": ["POST", "PATCH", "DELETE"],
            "key": {"header": "idempotency-key", "format": "visible-ascii", "min_length": 1, "max_length": 255},
            "required": false,
            "replay_ttl_seconds": 2_592_000,
            "in_flight_max_seconds": 60,
            "in_flight": "wait",
            "pinned": "success",
            "conflict_status": 400,
            "expired": "runs_again",
            "routes": [
                {
                    "match": "POST /v1/payments",
                    "supported": true,
                    "methods": ["POST"],
                    "key": {"json": "/key", "format": "visible-ascii", "min_length": 1, "max_length": 255},
                    "required": true,
                    "replay_ttl_seconds": 7200,
                    "in_flight_max_seconds": 60,
                    "in_flight": "reject",
                    "pinned": "all",
                    "conflict_status": 400,
                    "expired": "runs_again",
                },
                // Where nothing is replayed, neither number is published.
                {"match": "* /open/**", "supported": false},
            ],
        })
    );
}

#[tokio::test]
async fn it_can_be_left_to_the_service() {
    let kit = Kit::with(Upstream::counting(), |guard| guard.publish(WellKnownPolicy::Nothing));
    assert_eq!(kit.send(get()).await.text(), "call 1");
}
