//! Effects that pile up at the upstream.

use std::io::Write as _;

use semel_testbed::wait;

use super::{connect, gateway, status_of};
use crate::kit::{PATIENCE, Semel, Upstream, metric};

fn slow(key: &str) -> String {
    format!("POST /slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\n{{}}")
}

fn in_flight(semel: &Semel) -> f64 {
    metric(&semel.admin(), "semel_gateway_calls_in_flight")
}

/// Effects outlive their connections, so connections do not bound them.
#[test]
fn clients_that_leave_cannot_pile_up_calls_at_the_upstream() {
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let settings = "scope = \"single-tenant\"\n[gateway.limits]\ncalls = 6\ncalls_per_upstream = 4";
    let route = format!("[[route]]\nmatch = \"POST /other\"\nupstream = \"{}\"\n", other.url());
    let (_folder, semel) = gateway(&upstream.url(), settings, &route);
    let done = semel.gateway().with("idempotency-key", "done");
    assert_eq!(done.post("/pay", "{}").status, 201);
    for number in 0..4 {
        let mut stream = connect(&semel);
        stream.write_all(slow(&format!("k{number}")).as_bytes()).unwrap();
        wait::until("the call", PATIENCE, || upstream.calls(&format!("k{number}")) == 1).unwrap();
    }
    assert_eq!(in_flight(&semel), 4.0, "the clients left, the calls did not");
    for number in 4..30 {
        let client = semel.gateway().with("idempotency-key", &format!("k{number}"));
        let refused = client.post("/slow", "{}");
        assert_eq!(refused.expect(503)["code"], "overloaded");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    assert_eq!(upstream.keys(), 5, "nothing more reached the upstream");
    assert_eq!(metric(&semel.admin(), "semel_gateway_calls_refused_total{limit=\"upstream\"}"), 26.0);
    // What needs no call is still answered, and so is another upstream.
    assert_eq!(done.post("/pay", "{}").header("idempotent-replayed"), Some("true"));
    assert_eq!(done.post("/pay", "{\"x\": 1}").status, 422);
    assert_eq!(semel.gateway().with("idempotency-key", "o").post("/other", "{}").status, 201);
    assert_eq!(semel.gateway().get("/pay").status, 201);
    // A refused key was not claimed: it runs once there is room.
    upstream.open();
    wait::until("the end of the calls", PATIENCE, || in_flight(&semel) == 0.0).unwrap();
    assert_eq!(status_of(&semel, &slow("k7")), 201);
    assert_eq!(upstream.calls("k7"), 1);
    for number in 0..4 {
        let client = semel.gateway().with("idempotency-key", &format!("k{number}"));
        assert_eq!(client.post("/slow", "{}").header("idempotent-replayed"), Some("true"));
    }
}

/// A crowd of duplicates makes one call, so it takes one place and no more.
#[test]
fn duplicates_that_wait_take_no_place_from_others() {
    let upstream = Upstream::start();
    let settings = "scope = \"single-tenant\"\n[gateway.limits]\ncalls = 3\ncalls_per_upstream = 2";
    let route = "[[route]]\nmatch = \"POST /slow\"\nwait = \"30s\"\n";
    let (_folder, semel) = gateway(&upstream.url(), settings, route);
    let send = |_| {
        let client = semel.gateway().with("idempotency-key", "k");
        std::thread::spawn(move || client.post("/slow", "{}").status)
    };
    let mut crowd = vec![send(0)];
    wait::until("the first call", PATIENCE, || upstream.calls("k") == 1).unwrap();
    crowd.extend((1..20).map(send));
    wait::until("the waiters", PATIENCE, || metric(&semel.admin(), "semel_waiters") == 19.0).unwrap();
    wait::until("one place", PATIENCE, || in_flight(&semel) == 1.0).unwrap();
    assert_eq!(semel.gateway().with("idempotency-key", "other").post("/pay", "{}").status, 201);
    upstream.open();
    for client in crowd {
        assert_eq!(client.join().unwrap(), 201);
    }
    assert_eq!(upstream.calls("k"), 1);
}
