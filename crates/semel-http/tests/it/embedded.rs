//! The same over the embedded store: what was answered survives the process.

use std::time::Duration;

use semel::Engine;
use semel::store::EmbeddedStore;
use semel_http::policy::InFlight;
use semel_http::{Guard, Profile, RoutePolicy};
use tokio::task::JoinSet;

use crate::kit::{Answered, Upstream, post, post_body};

fn guard(folder: &std::path::Path) -> Guard {
    let store = EmbeddedStore::open(folder).unwrap();
    let engine = Engine::builder(store).build().unwrap();
    let route = RoutePolicy::builder(&Profile::ietf(), "* /**")
        .in_flight(InFlight::Wait)
        .wait(Duration::from_secs(20))
        .build()
        .unwrap();
    Guard::builder(engine).route(route).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::counting();
    {
        let guard = guard(folder.path());
        for key in ["a", "b"] {
            guard.handle(upstream.clone(), post(key)).await.unwrap();
        }
        guard.engine().drain().await;
    }
    let guard = guard(folder.path());
    for (key, text) in [("a", "call 1"), ("b", "call 2")] {
        let answer = Answered::read(guard.handle(upstream.clone(), post(key)).await.unwrap()).await;
        assert_eq!((answer.text(), answer.is_replay()), (text, true));
        let other = guard.handle(upstream.clone(), post_body(key, "other")).await.unwrap();
        assert_eq!(other.status(), 422);
    }
    assert_eq!(upstream.calls(), 2);
}

// 200 at once, one call, the same bytes for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (guard, upstream) = (guard(folder.path()), Upstream::counting());
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let (guard, upstream) = (guard.clone(), upstream.clone());
        callers.spawn(async move { Answered::read(guard.handle(upstream, post("k")).await.unwrap()).await });
    }
    let mut replays = 0;
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(answer.text(), "call 1");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((upstream.calls(), replays), (1, 199));
}

// pii_at_rest: neither key nor credential nor body of a request stands in the store's files.
#[tokio::test]
async fn nothing_of_a_request_is_at_rest() {
    let folder = tempfile::tempdir().unwrap();
    {
        let guard = guard(folder.path());
        let canary = post_body("12345678canary-key", "{\"card\":\"canary-body\"}");
        let request = crate::kit::with(canary, "x-canary", "canary-header");
        guard.handle(Upstream::counting(), request).await.unwrap();
        guard.engine().drain().await;
    }
    let mut looked = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        looked += bytes.len();
        for canary in ["canary-key", "canary-body", "canary-header", "Bearer alice"] {
            assert!(!bytes.windows(canary.len()).any(|window| window == canary.as_bytes()), "{canary}");
        }
    }
    assert!(looked > 1000, "the store has files");
}
