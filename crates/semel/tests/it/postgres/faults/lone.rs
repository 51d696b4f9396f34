//! Claims that are alone, which their callers send themselves.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use semel::record::{Command, Force, Ruling};
use semel::store::{PostgresStore, Store as _};
use semel_testbed::Postgres;

use super::{claim, eventually, key, open, rounds, server, win};

/// Who has sent the insert of a lone claim: the lane's connection, and the spare one.
const SENT_ALONE: &str = "query LIKE 'INSERT INTO %record AS r %'";

/// A store whose last claims were alone, so that the next one is sent by its caller.
async fn at_rest(server: &Postgres) -> PostgresStore {
    let store = open(&server.url()).await;
    eventually("a claim by the short way", async || {
        win(&store, key()).await;
        let sent = server.sql(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {SENT_ALONE}"
        ));
        sent.expect("a running server").trim() == "2"
    })
    .await;
    store
}

/// Begins a call. On a busy machine it can be answered already.
fn is_halfway<T>(call: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> bool {
    call.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// A spare connection that breaks is nothing to its callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spare_connection_killed() {
    let server = server();
    let store = at_rest(&server).await;
    for _ in 0..rounds(3, 50) {
        server.terminate_backends(SENT_ALONE).expect("a running server");
        for _ in 0..5 {
            win(&store, key()).await;
        }
    }
}

/// A key that is known is answered like any other: the insert finds it, and the lane goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_claim_of_a_known_key() {
    let server = server();
    let store = at_rest(&server).await;
    let known = key();
    win(&store, known).await;
    for _ in 0..5 {
        // The first one after a fresh key takes the short way in vain.
        win(&store, key()).await;
        let busy = store.apply(known, Command::Claim(claim())).await;
        assert!(matches!(busy, Ok(Ruling::Busy { .. })), "{busy:?}");
    }
}

/// An owner that asks again is told the same fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_claim_dropped_halfway() {
    let server = server();
    let store = at_rest(&server).await;
    let mut halfway = 0;
    for _ in 0..rounds(50, 1000) {
        let (id, claim) = (key(), claim());
        {
            let mut asked = store.apply(id, Command::Claim(claim.clone()));
            halfway += usize::from(is_halfway(asked.as_mut()));
        }
        let won = store.apply(id, Command::Claim(claim)).await;
        assert!(matches!(won, Ok(Ruling::Won(_))), "{won:?}");
        let busy = store.apply(id, Command::Claim(self::claim())).await;
        assert!(matches!(busy, Ok(Ruling::Busy { .. })), "{busy:?}");
        win(&store, key()).await;
        win(&store, key()).await;
    }
    assert!(halfway > 0, "every claim was answered at once");
}

/// A forget takes every earlier claim along, also one whose caller is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forget_after_a_dropped_lone_claim() {
    let server = server();
    let store = at_rest(&server).await;
    let mut halfway = 0;
    for _ in 0..rounds(50, 1000) {
        let id = key();
        {
            let mut asked = store.apply(id, Command::Claim(claim()));
            halfway += usize::from(is_halfway(asked.as_mut()));
        }
        let forgotten = store.apply(id, Command::Forget(Force::Yes)).await;
        assert!(matches!(forgotten, Ok(Ruling::Accepted { .. })), "{forgotten:?}");
        win(&store, id).await;
        win(&store, key()).await;
        win(&store, key()).await;
    }
    assert!(halfway > 0, "every claim was answered at once");
}

/// A caller that does not go on holds up nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_claim_left_alone() {
    let server = server();
    let store = at_rest(&server).await;
    let asked = loop {
        let mut asked = store.apply(key(), Command::Claim(claim()));
        if is_halfway(asked.as_mut()) {
            break asked;
        }
    };
    let others = async {
        let grant = win(&store, key()).await;
        let (one, two) = tokio::join!(win(&store, key()), win(&store, key()));
        (grant, one, two)
    };
    tokio::time::timeout(Duration::from_secs(3), others).await.expect("nobody waits for that caller");
    let won = asked.await;
    assert!(matches!(won, Ok(Ruling::Won(_))), "{won:?}");
}
