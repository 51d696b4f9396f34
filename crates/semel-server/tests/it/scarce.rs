//! Too few file descriptors: nothing new is taken, what is in flight is finished and kept, and the admin API works.

use std::net::TcpStream;

use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel, Upstream};

/// What the server may open.
const DESCRIPTORS: usize = 100;
/// Calls in progress when nothing is left.
const CALLS: usize = 10;

// fd_exhaustion
#[test]
fn fd_exhaustion() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let args = ["--store", &store, "--upstream", &upstream.url(), "--scope", "single-tenant"];
    let semel = Semel::with_descriptors(DESCRIPTORS, &args);
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let gateway = semel.gateway().with("idempotency-key", &format!("k{number}"));
            std::thread::spawn(move || gateway.post("/slow", "{}"))
        })
        .collect();
    wait::until("all are in progress", PATIENCE, || upstream.total() == CALLS).unwrap();
    // The kernel queues those that the server does not accept because they are beyond its share.
    let at = semel.gateway_url().strip_prefix("http://").unwrap();
    let idle: Vec<_> = (0..DESCRIPTORS).map(|_| TcpStream::connect(at).unwrap()).collect();
    let admin = semel.admin();
    for path in ["/healthz", "/readyz", "/v1/keys"] {
        assert_eq!(admin.get(path).status, 200, "{path}");
    }
    assert!(!semel.log().contains("cannot accept connections"), "{}", semel.log());
    upstream.open();
    for call in calls {
        assert_eq!(call.join().unwrap().status, 201, "calls in progress are answered");
    }
    drop(idle);
    for number in 0..CALLS {
        let key = format!("k{number}");
        let again = semel.gateway().with("idempotency-key", &key).post("/slow", "{}");
        assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")), "and kept");
        assert_eq!(upstream.calls(&key), 1);
    }
}
