//! Many at once: for one key, for one connection, for one row.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::key::KeyId;
use semel::record::{Command, Ruling};
use semel::store::{ErrorKind, PostgresStore, Store as _};
use semel::{Engine, FailureExt as _, Key};
use semel_testbed::Postgres;
use tokio::sync::{Barrier, Notify};

use super::{claim, complete, eventually, key, open, server, win};

// Finding 9: insert-or-select in one statement returned no row in more than half of contended calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cte_no_row() {
    let server = server();
    let stores = [open(&server.url()).await, open(&server.url()).await, open(&server.url()).await];
    let stores: Vec<Arc<PostgresStore>> = stores.into_iter().map(Arc::new).collect();
    let barrier = Arc::new(Barrier::new(8));
    let keys: Arc<Vec<KeyId>> = Arc::new((0..300).map(|_| key()).collect());
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (store, barrier, keys) =
                (Arc::clone(&stores[number % 3]), Arc::clone(&barrier), Arc::clone(&keys));
            tokio::spawn(async move {
                let mut won = 0;
                for id in keys.iter() {
                    barrier.wait().await;
                    match store.apply(*id, Command::Claim(claim())).await {
                        Ok(Ruling::Won(_)) => won += 1,
                        Ok(Ruling::Busy { .. }) => {}
                        other => panic!("a contended claim is won or busy, got {other:?}"),
                    }
                }
                won
            })
        })
        .collect();
    let mut won = 0;
    for caller in callers {
        won += caller.await.expect("every caller is answered");
    }
    assert_eq!(won, 300, "one winner for each key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_blocks_in_db() {
    let server = server();
    let (gate, effects) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let mut engines = Vec::new();
    for _ in 0..2 {
        let store =
            PostgresStore::builder(server.url()).connections(4).open().await.expect("a healthy server");
        engines.push(Engine::builder(store).wait(Duration::from_secs(60)).build().expect("a healthy server"));
    }
    let run = |number: usize| {
        let (engine, gate, effects) = (engines[number % 2].clone(), Arc::clone(&gate), Arc::clone(&effects));
        tokio::spawn(async move {
            let key = Key::new("charge").scope("acct").value("one");
            let once = engine.once(key).fingerprint(&1);
            let answer = once.run(async move || {
                effects.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok::<_, std::io::Error>("receipt".to_owned()).failed()
            });
            answer.await.map(|answer| answer.value)
        })
    };
    let callers: Vec<_> = (0..200).map(run).collect();
    eventually("the effect runs", async || effects.load(Ordering::SeqCst) == 1).await;
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'semel'";
    for _ in 0..20 {
        assert_eq!(
            server.sql(blocked).expect("a healthy server").trim(),
            "0",
            "a waiter waits in the server"
        );
        let connected: usize =
            server.sql(connected).expect("a healthy server").trim().parse().expect("a healthy server");
        assert!(connected <= 2 * (4 + 3), "{connected} connections for 200 waiters");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.notify_one();
    for caller in callers {
        assert_eq!(caller.await.expect("a healthy server").expect("a healthy server"), "receipt");
    }
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

// publish has its own connection; everybody else waits for a bounded time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_exhausted() {
    let server = Postgres::options().config("max_connections", "12").start().expect("a healthy server");
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app").expect("a healthy server");
    let url = server.url().replace("postgres://postgres", "postgres://app");
    let builder = || PostgresStore::builder(&url).connections(1).timeout(Duration::from_secs(2));
    let store = builder().open().await.expect("a healthy server");
    let id = key();
    let grant = win(&store, id).await;
    assert!(matches!(store.apply(id, Command::Renew(grant)).await, Ok(Ruling::Accepted { .. })));
    assert!(store.get(id).await.expect("a healthy server").is_some());
    // Others take every connection that is left.
    let mut others = Vec::new();
    while let Ok(other) =
        PostgresStore::builder(&url).connections(1).timeout(Duration::from_secs(1)).open().await
    {
        let _ = other.apply(key(), Command::Renew(grant)).await;
        others.push(other);
        assert!(others.len() < 12, "the server takes any number of connections");
    }
    let began = tokio::time::Instant::now();
    let refused = builder().open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10), "a bounded wait");
    assert!(matches!(store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
    drop(others);
    eventually("there is room again", async || builder().open().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialization_deadlock() {
    let server = server();
    let store = PostgresStore::builder(server.url())
        .timeout(Duration::from_secs(3))
        .open()
        .await
        .expect("a healthy server");
    let raise = |code: &str, times: i64| {
        server
            .sql(&format!(
                "DROP SEQUENCE IF EXISTS tries; CREATE SEQUENCE tries; \
                 CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
                 $$BEGIN IF nextval('tries') <= {times} THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF; \
                 RETURN NEW; END$$; \
                 CREATE OR REPLACE TRIGGER refuse BEFORE INSERT OR UPDATE ON semel.record FOR EACH ROW \
                 EXECUTE FUNCTION refuse()"
            ))
            .expect("a healthy server");
    };
    for code in ["40001", "40P01"] {
        raise(code, 3);
        let id = key();
        let grant = win(&store, id).await;
        raise(code, 3);
        assert!(matches!(store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
    }
    raise("40001", i64::from(i32::MAX));
    let began = tokio::time::Instant::now();
    let capped = store.apply(key(), Command::Claim(claim())).await.unwrap_err();
    assert_eq!(capped.kind(), ErrorKind::Unavailable, "certainly nothing was changed: {capped}");
    assert!(began.elapsed() < Duration::from_secs(20), "retried, but not for ever");
}

// The issue: 200 callers, one key, several processes (here: stores with connections of their own).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_callers_have_one_effect() {
    let server = server();
    let effects = Arc::new(AtomicUsize::new(0));
    let mut engines = Vec::new();
    for _ in 0..4 {
        let store = open(&server.url()).await;
        // A backstop that would come too late: only a push wakes in time.
        let engine = Engine::builder(store).wait(Duration::from_secs(30)).backstop(Duration::from_secs(20));
        engines.push(engine.build().expect("a healthy server"));
    }
    let callers: Vec<_> = (0..200)
        .map(|number| {
            let (engine, effects) = (engines[number % 4].clone(), Arc::clone(&effects));
            tokio::spawn(async move {
                let once = engine.once(Key::new("charge").scope("acct").value("one")).fingerprint(&1);
                let ran = once.run(async move || {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    let number = effects.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, std::io::Error>(format!("receipt {number}")).failed()
                });
                ran.await.expect("a healthy server").value
            })
        })
        .collect();
    let began = tokio::time::Instant::now();
    let mut answers = HashSet::new();
    for caller in callers {
        answers.insert(caller.await.expect("a healthy server"));
    }
    assert_eq!((effects.load(Ordering::SeqCst), answers.len()), (1, 1));
    assert!(began.elapsed() < Duration::from_secs(15), "waiters were not woken by push");
}
