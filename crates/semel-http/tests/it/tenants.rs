//! Keys and headers of 100 tenants that all collide, and no byte of one reaches another. In full form: 1,000,000 requests.

use http::Response;
use semel_http::Body;
use semel_testbed::timing::{self, Class};

use crate::kit::{Answered, Kit, Upstream, is_proof, post, post_body};

fn of(tenant: usize, key: usize, body: &'static str) -> http::Request<Body> {
    let mut request = post_body(&format!("key-{key}"), body);
    let credential = format!("Bearer tenant-{tenant}").parse().unwrap();
    request.headers_mut().insert("authorization", credential);
    // What a careless cache would use to tell callers apart is the same for all.
    for (name, value) in SHARED {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

const SHARED: [(&str, &str); 6] = [
    ("cookie", "session=1"),
    ("x-api-key", "shared"),
    ("x-tenant-id", "1"),
    ("x-request-id", "request-1"),
    ("x-forwarded-for", "203.0.113.7"),
    ("user-agent", "client/1"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_collision() {
    let (tenants, keys) = if is_proof() { (100, 5_000) } else { (100, 20) };
    let kit = Kit::new(Upstream::new(|_, seen| async move {
        let who = seen.headers["authorization"].to_str().unwrap().to_owned();
        let key = seen.headers["idempotency-key"].to_str().unwrap().to_owned();
        Ok(Response::builder().header("x-who", &who).body(Body::from(format!("{who} {key}"))).unwrap())
    }));
    let check = |answer: &Answered, tenant: usize, key: usize| {
        assert_eq!(answer.text(), format!("Bearer tenant-{tenant} key-{key}"));
        assert_eq!(answer.header("x-who"), Some(format!("Bearer tenant-{tenant}").as_str()));
    };
    for replayed in [false, true] {
        let mut at_once = tokio::task::JoinSet::new();
        for tenant in 0..tenants {
            let kit = kit.clone();
            at_once.spawn(async move {
                for key in 0..keys {
                    let answer = kit.send(of(tenant, key, "{}")).await;
                    assert_eq!(answer.is_replay(), replayed);
                    check(&answer, tenant, key);
                }
            });
        }
        while let Some(done) = at_once.join_next().await {
            done.unwrap();
        }
    }
    assert_eq!(kit.upstream.calls(), tenants * keys, "one effect for each tenant and key");
    // A conflict of one tenant's own key says nothing of anybody, and is the same for all.
    let conflict = kit.send(of(0, 0, "other")).await;
    conflict.assert_problem(422, "conflict");
    for tenant in 1..tenants {
        assert_eq!(kit.send(of(tenant, 0, "other")).await, conflict);
    }
    assert!(!conflict.text().contains("tenant-") && !conflict.text().contains("key-0"));
}

// enumeration: a key that exists for somebody else looks like one that does not exist.
#[tokio::test]
async fn a_foreign_key_cannot_be_seen() {
    let kit = Kit::new(Upstream::counting());
    kit.send(post("k")).await;
    let foreign = kit.send(of(1, 7, "{}")).await;
    let mut request = post("k");
    request.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    let taken = kit.send(request).await;
    assert_eq!((foreign.status, &foreign.headers), (taken.status, &taken.headers));
    assert_eq!((foreign.body.len(), taken.text()), (taken.body.len(), "call 3"));
}

// timing: how long a request takes does not say whether another caller has used its key.
#[test]
fn timing_of_a_miss_does_not_reveal_a_foreign_key() {
    let samples = if is_proof() { 100_000 } else { 1_500 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let kit = Kit::new(Upstream::new(|_, _| async { Ok(Response::new(Body::from("{}"))) }));
    let request = |who: &str, key: &str| {
        let mut request = post(key);
        request.headers_mut().insert("authorization", format!("Bearer {who}").parse().unwrap());
        request
    };
    let prepare = |class: Class, number: usize| {
        let key = format!("key-{number:08}");
        // The same preparation for both: only whose key it is differs.
        let other = if class == Class::A { key.clone() } else { format!("yek-{number:08}") };
        runtime.block_on(kit.send(request("alice", &other)));
        request("mallory", &key)
    };
    let miss = |request| {
        assert!(!runtime.block_on(kit.send(request)).is_replay(), "it is a miss for this caller");
    };
    assert!(!timing::differ(samples, prepare, miss), "a foreign key can be seen by its time");

    // The measurement can see what it looks for: a key of the caller's own that exists.
    let prepare = |class: Class, number: usize| {
        let key = format!("own-{number:08}");
        let mine = if class == Class::A { key.clone() } else { format!("nwo-{number:08}") };
        runtime.block_on(kit.send(request("mallory", &mine)));
        request("mallory", &key)
    };
    let lookup = |request| {
        runtime.block_on(kit.send(request));
    };
    assert!(timing::differ(samples.min(1_500), prepare, lookup));
}
