//! A primary that is lost, and what its replica knows (failure-modes 5.3).

use semel::record::Ruling;
use semel::store::ErrorKind;
use semel_testbed::{Direction, FaultProxy, Sentinel};

use super::*;

/// A primary and a replica whose replication goes through a proxy.
struct Pair {
    primary: Arc<Redis>,
    replica: Arc<Redis>,
    replication: FaultProxy,
}

fn pair() -> Pair {
    let (primary, replica) = (server(), server());
    let replication = FaultProxy::before(primary.addr()).expect("a proxy");
    replica.replicate_from(replication.addr()).expect("a replica");
    Pair { primary, replica, replication }
}

// failover_loses_claim: with require_replicas a claim that the replica lacks is not reported as won, so no effect runs;
// after the failover another owner wins, and the two never both believed it.
#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_claim() {
    let Pair { primary, replica, replication } = pair();
    let builder = RedisStore::builder(&primary.url()).require_replicas(1);
    let store = builder.response_timeout(Duration::from_millis(600)).connect().await.expect("a healthy pair");
    let kept = key();
    let grant = win(&store, kept).await;
    accepted(store.apply(kept, complete(grant, "once")).await);

    replication.hold(Direction::ToClient);
    let (id, mine) = (key(), claim());
    let fate = ask(&store, id, &mine).await.expect_err("the replica does not have it");
    assert_eq!(fate.kind(), ErrorKind::Ambiguous, "{fate}");
    let again = ask(&store, id, &mine).await.expect_err("and repeating does not make it so");
    assert!(again.is_retryable(), "{again}");

    primary.kill();
    replica.promote().expect("a replica");
    let after = connect(&replica.url()).await;
    win(&after, id).await;
    replayed(ask(&after, kept, &claim()).await);
}

// The same without require_replicas: the claim is lost and won a second time. This is what the documentation warns of.
#[tokio::test(flavor = "multi_thread")]
async fn failover_without_require_replicas_can_lose_a_claim() {
    let Pair { primary, replica, replication } = pair();
    let store = connect(&primary.url()).await;
    assert!(
        store.warnings().iter().any(|warning| warning.contains("require_replicas")),
        "a pair without it is warned of: {:?}",
        store.warnings()
    );
    replication.hold(Direction::ToClient);
    let id = key();
    let first = win(&store, id).await;
    primary.kill();
    replica.promote().expect("a replica");
    let after = connect(&replica.url()).await;
    let second = win(&after, id).await;
    assert!(second.fence() > first.fence(), "the fence still grows, so the first owner is refused");
    assert!(matches!(after.apply(id, complete(first, "late")).await, Ok(Ruling::Lost { .. })));
}

// failover_loses_result: the outcome is lost and the begin-mark is not: in doubt, never silently run again.
#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_result() {
    let Pair { primary, replica, replication } = pair();
    let store = connect(&primary.url()).await;
    let id = key();
    let second = Duration::from_secs(1);
    let terms = Terms { lease: second, in_flight_max: second * 2, ..Terms::default() };
    let grant = won(ask(&store, id, &Claim { terms: Arc::new(terms), ..claim() }).await);
    let name = format!("semel:{{{id}}}");
    eventually("the replica has the claim", async || {
        (replica.tell(&["EXISTS", &name]).ok()?.text() == "1").then_some(())
    })
    .await;
    replication.hold(Direction::ToClient);
    accepted(store.apply(id, complete(grant, "lost")).await);
    primary.kill();
    replica.promote().expect("a replica");
    let after = connect(&replica.url()).await;
    eventually("in doubt once the lease is over", async || match ask(&after, id, &claim()).await {
        Ok(Ruling::Busy { .. }) => None,
        Ok(Ruling::InDoubt) => Some(()),
        other => panic!("begun and lost is in doubt, but the store ruled {other:?}"),
    })
    .await;
    // Its owner may still come back and say what became of it.
    accepted(after.apply(id, complete(grant, "lost")).await);
}

// Many writers share one WAIT, and every one of them is covered by it.
#[tokio::test(flavor = "multi_thread")]
async fn required_replicas_have_what_was_acknowledged() {
    let Pair { primary, replica, replication } = pair();
    let store =
        RedisStore::builder(&primary.url()).require_replicas(1).connect().await.expect("a healthy pair");
    let store = Arc::new(store);
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let id = key();
                let grant = win(&store, id).await;
                accepted(store.apply(id, complete(grant, "once")).await);
                id
            })
        })
        .collect();
    let mut ids = Vec::new();
    for call in calls {
        ids.push(call.await.expect("a win"));
    }
    replication.hold(Direction::ToClient);
    primary.kill();
    replica.promote().expect("a replica");
    let after = connect(&replica.url()).await;
    for id in ids {
        replayed(ask(&after, id, &claim()).await);
    }
}

// Sentinel: the store follows to the new primary by itself.
#[tokio::test(flavor = "multi_thread")]
async fn sentinel_failover() {
    let (primary, replica) = (server(), server());
    replica.replica_of(&primary).expect("a replica");
    let sentinel = Sentinel::watch(&primary).expect("a sentinel");
    let url = format!("redis-sentinel://{}/{}", sentinel.addr(), semel_testbed::sentinel::SERVICE);
    let store = RedisStore::builder(&url).require_replicas(1).connect().await.expect("a healthy group");
    let id = key();
    let grant = win(&store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    let old = primary.addr();
    primary.kill();
    sentinel.wait_for_other_than(old).expect("a new primary");
    let outcome =
        eventually("a replay from the new primary", async || ask(&store, id, &claim()).await.ok()).await;
    replayed(Ok(outcome));
    replica.promote().ok();
}
