//! Bounds per principal: key_flood.

use semel_http::policy::{InsertLimits, Rate};

use crate::kit::{Kit, Upstream, post, post_body, with};

fn kit(writes: u32, reads: u32) -> Kit {
    let rate = |burst| Rate { per_second: 1, burst };
    let limits = InsertLimits { writes: rate(writes), reads: rate(reads) };
    Kit::route(Upstream::counting(), |route| route.limits(limits))
}

// Writes and reads apart: who may not make new keys still gets its answers.
#[tokio::test]
async fn a_known_key_is_no_insert() {
    let kit = kit(2, 50);
    kit.send(post("k1")).await;
    kit.send(post("k2")).await;
    kit.send(post("k3")).await.assert_problem(429, "rate_limited");
    for _ in 0..5 {
        assert!(kit.send(post("k1")).await.is_replay());
    }
    kit.send(post_body("k2", "other")).await.assert_problem(422, "conflict");
    assert_eq!(kit.upstream.calls(), 2);
}

// A refusal leaves no record and is never pinned.
#[tokio::test]
async fn a_refused_key_is_still_new() {
    let kit = kit(1, 50);
    kit.send(post("k1")).await;
    kit.send(post("k2")).await.assert_problem(429, "rate_limited");
    let of_bob = || {
        let mut request = post("k2");
        request.headers_mut().remove("authorization");
        with(request, "authorization", "Bearer bob")
    };
    assert_eq!(kit.send(of_bob()).await.text(), "call 2", "each principal for itself");
}

#[tokio::test]
async fn reads_have_a_budget_too() {
    let kit = kit(10, 2);
    kit.send(post("k1")).await;
    for _ in 0..2 {
        assert!(kit.send(post("k1")).await.is_replay());
    }
    kit.send(post("k1")).await.assert_problem(429, "rate_limited");
    assert_eq!(kit.send(post("k2")).await.text(), "call 2", "which takes nothing from the writes");
}

// A replay gives its write back: retries alone never use up the right to new keys.
#[tokio::test]
async fn replays_cost_no_writes() {
    let kit = kit(2, 100);
    kit.send(post("k1")).await;
    for _ in 0..50 {
        assert!(kit.send(post("k1")).await.is_replay());
    }
    assert_eq!(kit.send(post("k2")).await.text(), "call 2");
}
