//! A store that fails or answers late: store down, publish_reply_lost, zombie_publish.

use std::time::Duration;

use http::{HeaderValue, Response};
use semel::Mode;
use semel::record::Phase;
use semel::store::{ErrorKind, Scan, Store};
use semel::testkit::fault::{FaultGate, InjectedFault, StoreCall, WakeUpDelivery, When};
use semel_http::Body;
use semel_http::call::CallError;
use semel_http::observe::{AnswerOutcome, KeyUsed};
use semel_http::policy::StoreDown;

use crate::kit::{Kit, Upstream, eventually, post};

const KINDS: [ErrorKind; 7] = [
    ErrorKind::Unavailable,
    ErrorKind::Full,
    ErrorKind::Poisoned,
    ErrorKind::Corrupt,
    ErrorKind::SecretDiffers,
    ErrorKind::Moved,
    ErrorKind::Closed,
];

// closed: refused before any effect, whatever the reason.
#[tokio::test]
async fn closed() {
    for kind in KINDS {
        let kit = Kit::new(Upstream::counting());
        kit.store.script(StoreCall::Claim, When::First(1), InjectedFault::Refuse(kind));
        kit.send(post("k")).await.assert_problem(503, "store_unavailable");
        assert_eq!(kit.upstream.calls(), 0);
        assert_eq!(kit.send(post("k")).await.text(), "call 1", "and back when it is back");
    }
}

// open: passed on unprotected, and said.
#[tokio::test]
async fn open() {
    let short = Duration::from_millis(100);
    let kit =
        Kit::route(Upstream::counting(), |route| route.store_down(StoreDown::Open).lease(short).wait(short));
    kit.store.script(StoreCall::Claim, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    for number in 1..=2 {
        let answer = kit.send(post(&format!("k{number}"))).await;
        assert_eq!((answer.text(), answer.is_stored()), (format!("call {number}").as_str(), false));
    }
    assert_eq!(kit.count(AnswerOutcome::Unprotected), 2);
}

// A process with another secret than the store, or on a store that was moved, is refused there too: other processes protect the same
// key meanwhile.
#[tokio::test]
async fn open_is_closed_to_a_process_with_another_secret_or_a_moved_store() {
    for (kind, detail) in
        [(ErrorKind::SecretDiffers, "nothing happened"), (ErrorKind::Moved, "were moved to another store")]
    {
        let kit = Kit::route(Upstream::counting(), |route| route.store_down(StoreDown::Open));
        kit.store.script(StoreCall::Claim, When::First(1), InjectedFault::Refuse(kind));
        let answer = kit.send(post("k")).await;
        answer.assert_problem(503, "store_unavailable");
        assert!(answer.text().contains(detail), "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
        assert_eq!(kit.upstream.calls(), 0);
    }
}

// The claim carries the begin mark: a first run costs two store calls.
#[tokio::test]
async fn the_begin_mark_comes_with_the_claim_and_before_the_call() {
    let kit = Kit::new(Upstream::counting());
    let upstream = kit.upstream.clone();
    kit.store.script(
        StoreCall::Claim,
        When::First(1),
        InjectedFault::after(move || assert_eq!(upstream.calls(), 0)),
    );
    kit.send(post("k")).await;
    let calls = [StoreCall::Claim, StoreCall::Begin, StoreCall::Complete].map(|call| kit.store.calls(call));
    assert_eq!(calls, [1, 0, 1]);
    kit.send(post("k")).await;
    let calls = [StoreCall::Claim, StoreCall::Begin, StoreCall::Complete].map(|call| kit.store.calls(call));
    assert_eq!(calls, [2, 0, 1], "a replay asks once");
}

// Claim_reply_lost, publish_reply_lost: a lost reply is asked for again, by the same owner.
#[tokio::test]
async fn lost_replies_change_nothing() {
    for call in [StoreCall::Claim, StoreCall::Complete] {
        let kit = Kit::new(Upstream::counting());
        kit.store.script(call, When::First(1), InjectedFault::LoseReply);
        let first = kit.send(post("k")).await;
        assert_eq!((first.text(), first.is_stored()), ("call 1", true), "{call:?}");
        assert!(kit.send(post("k")).await.is_replay(), "{call:?}");
        assert_eq!(kit.upstream.calls(), 1, "{call:?}");
    }
}

// Complete never lands: the upstream's answer with Idempotency-Stored: false, and the key ends in doubt.
#[tokio::test]
async fn complete_never_lands() {
    let short = Duration::from_millis(200);
    let kit = Kit::route(Upstream::counting(), |route| route.lease(short).wait(Duration::ZERO));
    kit.store.script(StoreCall::Complete, When::Always, InjectedFault::Refuse(ErrorKind::Poisoned));
    let answer = kit.send(post("k")).await;
    assert_eq!((answer.text(), answer.is_stored()), ("call 1", false));
    assert_eq!(kit.count(AnswerOutcome::NotStored), 1);
    kit.guard.engine().drain().await;
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
    assert_eq!(kit.upstream.calls(), 1);
}

// zombie_publish: a late owner answers with the winner's outcome, never its own.
#[tokio::test]
async fn a_late_owner_answers_with_the_winner() {
    for (mode, status) in [(Mode::Rerun, 200), (Mode::Keyed, 200), (Mode::Rerun, 404)] {
        let (sender, receiver) = tokio::sync::watch::channel(false);
        let upstream = Upstream::new(move |number, _| {
            let mut may = receiver.clone();
            async move {
                if number == 1 {
                    may.wait_for(|may| *may).await.unwrap();
                }
                Ok(Response::builder().status(status).body(Body::from(format!("call {number}"))).unwrap())
            }
        });
        let kit = Kit::route(upstream, |route| route.mode(mode));
        let late = tokio::spawn({
            let kit = kit.clone();
            async move { kit.send(post("k")).await }
        });
        eventually("the first runs", || kit.upstream.calls() == 1).await;
        kit.clock.advance(Duration::from_secs(30));
        let winner = kit.send(post("k")).await;
        assert_eq!(winner.text(), "call 2");
        sender.send_replace(true);
        let late = late.await.unwrap();
        assert_eq!((late.text(), late.is_replay()), ("call 2", true));
        assert_eq!(kit.send(post("k")).await.text(), "call 2");
    }
}

// The same while the winner is still at work: the late owner waits for it.
#[tokio::test]
async fn a_late_owner_waits_for_the_winner() {
    let (sender, receiver) = tokio::sync::watch::channel(0);
    let upstream = Upstream::new(move |number, _| {
        let mut may = receiver.clone();
        async move {
            may.wait_for(|may| *may >= number).await.unwrap();
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    let kit = Kit::route(upstream, |route| route.mode(Mode::Rerun));
    let spawn = || {
        let kit = kit.clone();
        tokio::spawn(async move { kit.send(post("k")).await })
    };
    let late = spawn();
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    kit.clock.advance(Duration::from_secs(30));
    let winner = spawn();
    eventually("the second runs", || kit.upstream.calls() == 2).await;
    sender.send_replace(1);
    eventually("the first was refused", || kit.store.calls(StoreCall::Complete) == 1).await;
    assert!(!late.is_finished());
    sender.send_replace(2);
    assert_eq!(winner.await.unwrap().text(), "call 2");
    assert_eq!(late.await.unwrap().text(), "call 2");
}

// A late owner that would release takes nobody's claim away, and gives the answer that is stored.
#[tokio::test]
async fn a_late_release_frees_nothing() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let upstream = Upstream::new(move |number, _| {
        let mut may = receiver.clone();
        async move {
            if number == 1 {
                may.wait_for(|may| *may).await.unwrap();
                return Ok(Response::builder().status(503).body(Body::empty()).unwrap());
            }
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    let kit = Kit::route(upstream, |route| route.mode(Mode::Rerun));
    let late = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    kit.clock.advance(Duration::from_secs(30));
    assert_eq!(kit.send(post("k")).await.text(), "call 2");
    sender.send_replace(true);
    let late = late.await.unwrap();
    assert_eq!((late.text(), late.is_replay()), ("call 2", true));
    let again = kit.send(post("k")).await;
    assert_eq!((again.text(), again.is_replay()), ("call 2", true));
}

// A heartbeat keeps a claim whose call is longer than its lease. On the machine's clock, like the heartbeat.
#[tokio::test]
async fn a_call_longer_than_its_lease_keeps_its_claim() {
    let engine = semel::Engine::builder(semel::store::MemoryStore::new()).build().unwrap();
    let route = semel_http::RoutePolicy::builder(&semel_http::Profile::ietf(), "* /**")
        .lease(Duration::from_millis(150))
        .mode(Mode::Rerun)
        .build()
        .unwrap();
    let guard = semel_http::Guard::builder(engine).route(route).build().unwrap();
    let upstream = Upstream::new(|number, _| async move {
        tokio::time::sleep(Duration::from_millis(600)).await;
        Ok(Response::new(Body::from(format!("call {number}"))))
    });
    let (one, other) =
        tokio::join!(guard.handle(upstream.clone(), post("k")), guard.handle(upstream.clone(), post("k")));
    one.unwrap();
    other.unwrap();
    assert_eq!(upstream.calls(), 1);
}

// Zombie_effect: an owner that is stopped between claim and call, for longer than its lease. Nobody knows whether it called, so
// the key is in doubt. When it continues it does not call: it releases the key, and claims again like every other caller.
#[tokio::test]
async fn stopped_between_claim_and_call() {
    let kit = Kit::new(Upstream::counting());
    let gate = FaultGate::closed();
    kit.store.script(StoreCall::Claim, When::First(1), InjectedFault::HoldReply(gate.clone()));
    let stopped = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    gate.reached_by(1).await;
    kit.clock.advance(Duration::from_secs(30));
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
    assert_eq!(kit.upstream.calls(), 0);
    gate.open();
    let late = stopped.await.unwrap();
    assert_eq!((late.text(), late.is_replay()), ("call 1", false));
    let next = kit.send(post("k")).await;
    assert_eq!((next.text(), next.is_replay()), ("call 1", true));
    assert_eq!(kit.upstream.calls(), 1);
}

// In `keyed` a caller takes over after the lease: the upstream sees one derived key.
#[tokio::test]
async fn stopped_between_claim_and_call_in_keyed() {
    let kit = Kit::route(Upstream::counting(), |route| route.mode(Mode::Keyed));
    let gate = FaultGate::closed();
    kit.store.script(StoreCall::Claim, When::First(1), InjectedFault::HoldReply(gate.clone()));
    let stopped = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    gate.reached_by(1).await;
    kit.clock.advance(Duration::from_secs(30));
    let taken_over = kit.send(post("k")).await;
    assert_eq!((taken_over.text(), taken_over.is_replay()), ("call 1", false));
    gate.open();
    let late = stopped.await.unwrap();
    assert_eq!(late.text(), "call 1");
    assert!(kit.send(post("k")).await.is_replay());
}

// notify_lost: without a push a duplicate is answered all the same, by the backstop.
#[tokio::test]
async fn a_lost_wake_up_only_delays() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let upstream = Upstream::new(move |number, _| {
        let mut may = receiver.clone();
        async move {
            may.wait_for(|may| *may).await.unwrap();
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    let kit = Kit::new(upstream);
    kit.store.deliver(WakeUpDelivery::Lost);
    let spawn = || {
        let kit = kit.clone();
        tokio::spawn(async move { kit.send(post("k")).await })
    };
    let first = spawn();
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    let second = spawn();
    eventually("the second waits", || kit.guard.engine().waiters() == 1).await;
    sender.send_replace(true);
    assert_eq!((first.await.unwrap().text(), second.await.unwrap().text()), ("call 1", "call 1"));
}

// Whatever a handler does, no claim is left behind.
#[tokio::test]
async fn every_way_out_ends_the_claim() {
    type Way = (&'static str, fn() -> crate::kit::Reply, Phase);
    let ways: [Way; 8] = [
        ("200", || Ok(Response::new(Body::empty())), Phase::Done),
        ("404", || Ok(status(404)), Phase::Done),
        ("401", || Ok(status(401)), Phase::Vacant),
        ("500", || Ok(status(500)), Phase::Vacant),
        ("504", || Ok(status(504)), Phase::InDoubt),
        ("undelivered", || Err(CallError::undelivered("refused").into()), Phase::Vacant),
        ("an error", || Err("something".into()), Phase::InDoubt),
        ("a panic", || panic!("the handler panicked, as this test wants"), Phase::InDoubt),
    ];
    for (what, way, expected) in ways {
        let kit = Kit::new(Upstream::new(move |_, _| async move { way() }));
        kit.send(post("k")).await;
        kit.guard.engine().drain().await;
        let query = Scan { phase: None, after: None, limit: 10 };
        let page = kit.store.scan(query).await.unwrap();
        let phases: Vec<Phase> = page.items.iter().map(|item| item.phase()).collect();
        assert_eq!(phases, [expected], "{what}");
        assert_eq!(kit.guard.engine().in_flight(), 0, "{what}");
    }
}

fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

// Two services on one store do not share keys.
#[tokio::test]
async fn namespaces_are_apart() {
    let kit = Kit::new(Upstream::counting());
    kit.send(post("k")).await;
    let engine = kit.guard.engine().clone();
    let other = semel_http::Guard::builder(engine).namespace("other").build().unwrap();
    let answer = other.handle(kit.upstream.clone(), post("k")).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    assert_eq!(kit.upstream.calls(), 2);
}

// A request that has an id is found by it later: its answer tells under which key it came, and the record who claimed it.
#[tokio::test]
async fn a_request_is_found_by_its_id() {
    let kit = Kit::new(Upstream::counting());
    let ask = async |request_id: Option<&str>| {
        let mut request = post("k");
        if let Some(id) = request_id {
            request.headers_mut().insert("x-request-id", HeaderValue::from_str(id).unwrap());
        }
        let answer = kit.guard.handle(kit.upstream.clone(), request).await.unwrap();
        answer.extensions().get::<KeyUsed>().map(|KeyUsed(id)| *id)
    };
    let first = ask(Some("req-1")).await.unwrap();
    let record = kit.guard.engine().store().get(first).await.unwrap().unwrap().record;
    assert!(record.owner.is_of_request("req-1"));
    assert_eq!(ask(Some("req-2")).await, Some(first), "a replay came under the same key");
    assert_eq!(ask(None).await, None);
    assert_eq!(ask(Some(&"x".repeat(129))).await, None, "too long to be kept");
    let record = kit.guard.engine().store().get(first).await.unwrap().unwrap().record;
    assert!(record.owner.is_of_request("req-1"), "replays change nothing");
    assert_eq!(kit.upstream.calls(), 1);
}
