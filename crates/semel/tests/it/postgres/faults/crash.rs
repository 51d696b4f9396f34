//! A connection, a session or the whole server ends while commands are in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::outcome::Outcome;
use semel::record::{Command, NewClaim, Phase, Ruling};
use semel::store::{PostgresStore, Store as _};
use semel_testbed::FaultProxy;

use super::{claim, complete, eventually, key, open, rounds, server, win};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_unknown() {
    let server = server();
    let proxy = FaultProxy::before(server.addr()).expect("a healthy server");
    let store = open(&server.url_at(proxy.addr(), "postgres")).await;
    // Warm: statements are prepared, so that the next message is the command itself.
    let first = key();
    let grant = win(&store, first).await;
    assert!(matches!(store.apply(first, Command::Release(grant)).await, Ok(Ruling::Accepted { .. })));

    let (id, claim) = (key(), claim());
    proxy.drop_reply_to(claim.owner.as_bytes());
    let Ok(Ruling::Won(win)) = store.apply(id, Command::Claim(claim.clone())).await else {
        panic!("the claim knows itself")
    };
    assert_eq!(proxy.counts().dropped_replies, 1, "the reply to the claim was lost");
    let record = store.get(id).await.expect("a healthy server").expect("a healthy server").record;
    assert_eq!((record.fence, record.attempt), (win.grant.fence(), 1), "it was granted once");

    proxy.drop_reply_to(b"what came of it");
    let completed = store.apply(id, complete(win.grant, "what came of it")).await;
    assert!(matches!(completed, Ok(Ruling::Accepted { .. })), "{completed:?}");
    assert_eq!(proxy.counts().dropped_replies, 2, "the reply to the complete was lost");
    assert_eq!(
        store.get(id).await.expect("a healthy server").expect("a healthy server").phase(),
        Phase::Done
    );

    // A release said twice would be told that it lost: it is known by what it wrote.
    let id = key();
    let grant = match store
        .apply(id, Command::Claim(NewClaim { fingerprint: Fingerprint::from_bytes([9; 32]), ..claim }))
        .await
    {
        Ok(Ruling::Won(win)) => win.grant,
        other => panic!("expected a win, got {other:?}"),
    };
    proxy.drop_reply_to(&[9; 32]);
    let released = store.apply(id, Command::Release(grant)).await;
    assert!(matches!(released, Ok(Ruling::Accepted { .. })), "{released:?}");
    assert_eq!(proxy.counts().dropped_replies, 3, "the reply to the release was lost");
    assert_eq!(
        store.get(id).await.expect("a healthy server").expect("a healthy server").phase(),
        Phase::Vacant
    );
}

/// Claims and completes from several tasks until told to stop; gives what was acknowledged.
async fn load_while<F: Future<Output = ()>>(store: &Arc<PostgresStore>, trouble: F) -> Vec<(KeyId, String)> {
    let stop = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) > 0 {
                        break;
                    }
                    let (id, body) = (key(), format!("{number}-{turn}"));
                    let grant = match store.apply(id, Command::Claim(claim())).await {
                        Ok(Ruling::Won(win)) => win.grant,
                        Ok(other) => panic!("a fresh key is won, got {other:?}"),
                        Err(error) if error.is_retryable() => continue,
                        Err(error) => panic!("{error}"),
                    };
                    match store.apply(id, complete(grant, &body)).await {
                        Ok(Ruling::Accepted { .. }) => acknowledged.push((id, body)),
                        Ok(other) => panic!("the owner completes, got {other:?}"),
                        Err(error) if error.is_retryable() => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    trouble.await;
    stop.store(1, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for worker in workers {
        acknowledged.extend(worker.await.expect("a worker ends"));
    }
    acknowledged
}

async fn nothing_lost(store: &PostgresStore, acknowledged: &[(KeyId, String)]) {
    assert!(acknowledged.len() > 20, "only {} were acknowledged: the load is too weak", acknowledged.len());
    for (id, body) in acknowledged {
        match store.apply(*id, Command::Claim(claim())).await.expect("a healthy server") {
            Ruling::Replay { outcome, .. } => assert_eq!(*outcome, Outcome::new("text", body.as_str())),
            other => panic!("acknowledged, and now {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_killed() {
    let server = server();
    let store = Arc::new(open(&server.url()).await);
    let acknowledged = load_while(&store, async {
        for _ in 0..rounds(4, 60) {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.terminate_backends("application_name = 'semel'").expect("a healthy server");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    })
    .await;
    nothing_lost(&store, &acknowledged).await;
    assert!(win(&store, key()).await.fence().get() > 0, "healed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_recovery() {
    let server = server();
    let store = Arc::new(open(&server.url()).await);
    let acknowledged = load_while(&store, async {
        for _ in 0..rounds(2, 30) {
            tokio::time::sleep(Duration::from_millis(700)).await;
            server.kill();
            server.restart().expect("a healthy server");
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    })
    .await;
    println!("{} acknowledged, none lost", acknowledged.len());
    nothing_lost(&store, &acknowledged).await;
    // Wake-ups heal too, without anybody opening the store again.
    let id = key();
    let grant = win(&store, id).await;
    let peer = open(&server.url()).await;
    eventually("a wake-up comes through again", async || {
        let mut watch = peer.watch(id);
        let _ = store.apply(id, complete(grant, "done")).await;
        tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.is_ok()
    })
    .await;
}
