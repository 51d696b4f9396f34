//! A primary that is lost, and what its replica knows.

use std::sync::atomic::{AtomicUsize, Ordering};

use semel::record::{Mode, Ruling};
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

/// Waits until a server has a record.
async fn has(server: &Redis, id: KeyId) {
    let name = format!("semel:{{{id}}}");
    eventually("the replica has the claim", async || {
        (server.tell(&["EXISTS", &name]).ok()?.text() == "1").then_some(())
    })
    .await;
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
    let grant = won(ask(&store, id, &NewClaim { terms: Arc::new(terms), ..claim() }).await);
    has(&replica, id).await;
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

// failover_loses_result, keyed: the next caller runs the effect again under the same downstream key, which gives
// the same outcome.
#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_result_of_a_keyed_effect() {
    let Pair { primary, replica, replication } = pair();
    let store = connect(&primary.url()).await;
    let id = key();
    let second = Duration::from_secs(1);
    let terms = Terms { mode: Mode::Keyed, lease: second, in_flight_max: second * 2, ..Terms::default() };
    let keyed = || NewClaim { terms: Arc::new(terms), ..claim() };
    let grant = won(ask(&store, id, &keyed()).await);
    has(&replica, id).await;
    replication.hold(Direction::ToClient);
    accepted(store.apply(id, complete(grant, "lost")).await);
    primary.kill();
    replica.promote().expect("a replica");
    let after = connect(&replica.url()).await;
    let again = eventually("the next one takes over", async || match ask(&after, id, &keyed()).await {
        Ok(Ruling::Busy { .. }) => None,
        other => Some(won(other)),
    })
    .await;
    assert!(again.fence() > grant.fence());
    accepted(after.apply(id, complete(again, "rebuilt")).await);
}

// failover_loses_result, with require_replicas: an outcome that the replica lacks is not reported as kept.
#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_result_never_unsaid() {
    let Pair { primary, replica, replication } = pair();
    let builder = RedisStore::builder(&primary.url()).require_replicas(1);
    let store = builder.response_timeout(Duration::from_millis(600)).connect().await.expect("a healthy pair");
    let id = key();
    let grant = win(&store, id).await;
    replication.hold(Direction::ToClient);
    for _ in 0..2 {
        let fate = store.apply(id, complete(grant, "once")).await.expect_err("the replica does not have it");
        assert_eq!(fate.kind(), ErrorKind::Ambiguous, "{fate}");
    }
    primary.kill();
    replica.promote().expect("a replica");
    // The owner goes on asking, as the engine does, and the new primary still knows the claim.
    accepted(connect(&replica.url()).await.apply(id, complete(grant, "once")).await);
}

// split_brain_old_primary: a primary that is cut off from its replica, while that was promoted, and clients on both
// sides. No key is won on both, from before the cut to long after; the old one soon refuses all writes; healed, it
// follows and the winners stand.
#[tokio::test(flavor = "multi_thread")]
async fn split_brain_old_primary() {
    for _ in 0..rounds(1, 10) {
        split_brain().await;
    }
}

async fn split_brain() {
    let Pair { primary, replica, replication } = pair();
    for server in [&primary, &replica] {
        server.config_set("min-replicas-max-lag", "3").expect("a healthy server");
    }
    primary.config_set("min-replicas-to-write", "1").expect("a healthy server");
    eventually("the primary counts its replica", async || {
        (primary.info("min_slaves_good_slaves").ok()? == "1").then_some(())
    })
    .await;
    let builder = RedisStore::builder(&primary.url()).require_replicas(1);
    let old = builder.response_timeout(Duration::from_millis(600)).connect().await.expect("a healthy pair");
    let old = Arc::new(old);
    assert!(old.warnings().iter().all(|warning| !warning.contains("min-replicas")), "{:?}", old.warnings());
    let ids: Vec<KeyId> = (0..rounds(200, 1_000)).map(|_| key()).collect();

    // On the old side callers claim all the while, and some after the cut for sure.
    let (claimed, (cut, is_cut)) = (Arc::new(AtomicUsize::new(0)), tokio::sync::oneshot::channel());
    let claiming = tokio::spawn({
        let (old, ids, claimed) = (Arc::clone(&old), ids.clone(), Arc::clone(&claimed));
        async move {
            let (early, late) = ids.split_at(ids.len() / 4 * 3);
            let mut told = claim_all(&old, early, &claimed).await;
            is_cut.await.expect("the cut comes");
            told.extend(claim_all(&old, late, &claimed).await);
            told
        }
    });
    eventually("claims are won before the cut", async || {
        (claimed.load(Ordering::SeqCst) > ids.len() / 4).then_some(())
    })
    .await;
    replication.hold(Direction::Both);
    cut.send(()).expect("it is waited for");
    replica.promote().expect("a replica");
    let new = connect(&replica.url()).await;
    let mut won_there = std::collections::HashSet::new();
    for id in ids.iter().rev() {
        if let Ok(Ruling::Won(_)) = ask(&new, *id, &long_claim()).await {
            won_there.insert(*id);
        }
    }
    let told = claiming.await.expect("no panic");
    let won_here = told.iter().filter(|(_, ruling)| matches!(ruling, Ok(Ruling::Won(_))));
    let twice = won_here.clone().filter(|(id, _)| won_there.contains(id)).count();
    assert_eq!(twice, 0, "a key was won on both sides");
    assert!(won_here.count() > 0 && !won_there.is_empty(), "both sides were at work");

    let refused = eventually("the old primary refuses", async || {
        let refused = ask(&old, key(), &claim()).await.expect_err("nobody has it but the old primary");
        refused.to_string().contains("NOREPLICAS").then_some(refused)
    })
    .await;
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "before anything was written: {refused}");

    primary.replica_of(&replica).expect("the old primary follows");
    let id = *won_there.iter().next().expect("not empty");
    let stands = eventually("an answer of the new side", async || {
        Some(ask(&new, id, &claim()).await).filter(Result::is_ok)
    })
    .await;
    assert!(matches!(stands, Ok(Ruling::Busy { .. })), "the new side's winner stands: {stands:?}");
    let misled =
        eventually("the old address is refused", async || ask(&old, key(), &claim()).await.err()).await;
    assert!(misled.is_retryable(), "{misled}");
}

/// A claim that outlasts the test, so that who won what does not change with the time it takes.
fn long_claim() -> NewClaim {
    let hour = Duration::from_secs(3600);
    let terms = Terms { lease: hour, in_flight_max: hour, ..Terms::default() };
    NewClaim { terms: Arc::new(terms), ..claim() }
}

/// Claims ten at a time, and says what each was told.
async fn claim_all(
    store: &Arc<RedisStore>,
    ids: &[KeyId],
    claimed: &AtomicUsize,
) -> Vec<(KeyId, Result<Ruling, Error>)> {
    let mut told = Vec::new();
    for group in ids.chunks(10) {
        let call = |id: &KeyId| {
            let (store, id) = (Arc::clone(store), *id);
            tokio::spawn(async move { (id, ask(&store, id, &long_claim()).await) })
        };
        let calls: Vec<_> = group.iter().map(call).collect();
        for call in calls {
            told.push(call.await.expect("no panic"));
            claimed.fetch_add(1, Ordering::SeqCst);
        }
    }
    told
}

// split_brain_old_primary, at the start: a pair whose primary would go on alone is warned of.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_writes_alone_is_warned_of() {
    let pair = pair();
    let warned = async || {
        let warnings = connect(&pair.primary.url()).await.warnings();
        warnings.iter().any(|warning| warning.contains("min-replicas-to-write"))
    };
    assert!(warned().await);
    pair.primary.config_set("min-replicas-to-write", "1").expect("a healthy server");
    assert!(!warned().await);
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
