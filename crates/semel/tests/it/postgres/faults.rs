//! What breaks around a PostgreSQL store, and what is promised then. Named as in the table of failure modes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Claim, Command, Grant, Owner, Phase, Ruling, Terms};
use semel::store::{AsyncCommit, Durability, ErrorKind, PostgresStore, Store};
use semel::{Engine, FailureExt as _, Key};
use semel_testbed::{FaultProxy, Postgres};
use tokio::sync::{Barrier, Notify};

use super::open;

fn key() -> KeyId {
    KeyId::from_bytes(Owner::random().as_bytes().to_owned())
}

fn claim() -> Claim {
    Claim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([7; 32]),
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-1"),
    }
}

fn complete(grant: Grant, body: &str) -> Command {
    Command::Complete {
        grant,
        fingerprint: Fingerprint::from_bytes([7; 32]),
        outcome: Arc::new(Outcome::new("text", body)),
        retention: None,
    }
}

async fn win(store: &PostgresStore, id: KeyId) -> Grant {
    match store.apply(id, Command::Claim(claim())).await {
        Ok(Ruling::Won(win)) => win.grant,
        other => panic!("expected a win, got {other:?}"),
    }
}

/// Waits for a condition with a deadline.
async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !look().await {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn server() -> Postgres {
    Postgres::start().expect("a PostgreSQL server can be started")
}

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
            let answer = once.run(async move |_| {
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
    let builder = || PostgresStore::builder(&url).connections(1).patience(Duration::from_secs(2));
    let store = builder().open().await.expect("a healthy server");
    let id = key();
    let grant = win(&store, id).await;
    assert!(matches!(store.apply(id, Command::Renew(grant)).await, Ok(Ruling::Accepted { .. })));
    assert!(store.get(id).await.expect("a healthy server").is_some());
    // Others take every connection that is left.
    let mut others = Vec::new();
    while let Ok(other) =
        PostgresStore::builder(&url).connections(1).patience(Duration::from_secs(1)).open().await
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
        .patience(Duration::from_secs(3))
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
        .apply(id, Command::Claim(Claim { fingerprint: Fingerprint::from_bytes([9; 32]), ..claim }))
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
        for _ in 0..4 {
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
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.kill();
        server.restart().expect("a healthy server");
        tokio::time::sleep(Duration::from_millis(700)).await;
    })
    .await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_commit_off() {
    let server = Postgres::options().config("synchronous_commit", "off").start().expect("a healthy server");
    let refused = PostgresStore::open(server.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Setup);
    assert!(refused.to_string().contains("synchronous_commit = off"), "{refused}");
    let told = PostgresStore::builder(server.url())
        .async_commit(AsyncCommit::Accept)
        .open()
        .await
        .expect("a healthy server");
    assert_eq!(told.durability(), Durability::Server, "it says what survives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_lag() {
    let primary = server();
    let proxy = FaultProxy::before(primary.addr()).expect("a healthy server");
    let url = primary.url_at(proxy.addr(), "postgres");
    let store =
        PostgresStore::builder(&url).patience(Duration::from_secs(2)).open().await.expect("a healthy server");
    let standby = Postgres::standby_of(&primary).expect("a healthy server");
    let refused = PostgresStore::open(standby.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Setup);
    assert!(refused.to_string().contains("is a standby"), "{refused}");
    // Also a store that was opened on the primary never asks a standby.
    let id = key();
    let grant = win(&store, id).await;
    proxy.retarget(standby.addr());
    proxy.cut();
    let error = store.apply(id, Command::Claim(claim())).await.unwrap_err();
    assert!(error.to_string().contains("standby"), "{error}");
    assert!(store.get(id).await.is_err(), "a read from a standby shows the past");
    proxy.retarget(primary.addr());
    proxy.cut();
    eventually("back on the primary", async || {
        matches!(store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. }))
    })
    .await;
}

// 3,000 short-lived keys: the sweep finds them by its index, and the table does not grow with every round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bloat() {
    let server = server();
    let store = Arc::new(open(&server.url()).await);
    let terms = Arc::new(Terms {
        lease: Duration::from_millis(1),
        in_flight_max: Duration::from_millis(1),
        retention: Duration::from_millis(1),
        grace: Duration::ZERO,
        memory: Duration::ZERO,
        ..Terms::default()
    });
    let mut sizes = Vec::new();
    for _ in 0..6 {
        let keys: Vec<_> = (0..500)
            .map(|_| {
                let (store, terms) = (Arc::clone(&store), Arc::clone(&terms));
                tokio::spawn(async move {
                    let claim = Claim { terms, begin: Begin::Later, ..claim() };
                    assert!(matches!(store.apply(key(), Command::Claim(claim)).await, Ok(Ruling::Won(_))));
                })
            })
            .collect();
        for claimed in keys {
            claimed.await.expect("a healthy server");
        }
        let gone = AtomicUsize::new(0);
        eventually("all are swept", async || {
            let swept = store.sweep(100).await.expect("a healthy server");
            assert!(swept.removed <= 100);
            gone.fetch_add(swept.removed, Ordering::SeqCst) + swept.removed == 500
        })
        .await;
        server.sql("VACUUM semel.record").expect("a healthy server");
        let size = server.sql("SELECT pg_total_relation_size('semel.record')").expect("a healthy server");
        sizes.push(size.trim().parse::<u64>().expect("a healthy server"));
    }
    assert!(sizes[5] <= sizes[1] * 3 / 2, "the table grows from round to round: {sizes:?}");
    let plan = server
        .sql("SET enable_seqscan = off; EXPLAIN SELECT * FROM semel.record WHERE sweep_at <= 1 ORDER BY sweep_at LIMIT 10")
        .expect("a healthy server");
    assert!(plan.contains("record_sweep_at"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_live() {
    let server = server();
    // All at once on an empty database: one makes the schema, the others find it.
    let openers: Vec<_> = (0..4)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move { PostgresStore::builder(url).connections(1).open().await })
        })
        .collect();
    let mut stores = Vec::new();
    for opener in openers {
        stores.push(opener.await.expect("a healthy server").unwrap_or_else(|error| panic!("{error}")));
    }
    let id = key();
    let grant = win(&stores[0], id).await;
    // A newer binary has added what this one does not know, and says that this one may go on.
    server.sql("ALTER TABLE semel.record ADD COLUMN later text; UPDATE semel.meta SET number = 2 WHERE name = 'format'").expect("a healthy server");
    let old = open(&server.url()).await;
    assert!(matches!(old.apply(id, Command::Renew(grant)).await, Ok(Ruling::Accepted { .. })));
    assert!(matches!(stores[1].apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
    assert!(matches!(old.apply(id, Command::Claim(claim())).await, Ok(Ruling::Replay { .. })));
    // And one day that it may not.
    server.sql("UPDATE semel.meta SET number = 2 WHERE name = 'serves'").expect("a healthy server");
    let refused = PostgresStore::open(server.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    assert!(refused.to_string().contains("upgrade Semel"), "{refused}");
}

// Two schemas in one database are two stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_are_apart() {
    let server = server();
    let one = open(&server.url()).await;
    let other =
        PostgresStore::builder(server.url()).schema("semel_other").open().await.expect("a healthy server");
    let id = key();
    win(&one, id).await;
    win(&other, id).await;
    for name in ["", "1semel", "Semel", "se mel", "pg_semel", "a\"; DROP SCHEMA semel; --"] {
        let refused = PostgresStore::builder(server.url()).schema(name).open().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Setup, "{name}");
    }
}

// Wrong settings end in a sentence that says what to do, and that holds no password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_settings_are_named() {
    let server = Postgres::options().password("right").start().expect("a healthy server");
    let port = server.port();
    let quick = |url: String| PostgresStore::builder(url).patience(Duration::from_secs(3)).open();
    server.sql("CREATE ROLE poor LOGIN PASSWORD 'poor'").expect("a healthy server");
    let cases = [
        (
            format!("mysql://postgres@127.0.0.1:{port}/postgres"),
            ErrorKind::Setup,
            "must start with postgres://",
        ),
        (
            format!("postgres://postgres:hunter2@127.0.0.1:{port}/postgres"),
            ErrorKind::Setup,
            "check user and password",
        ),
        (
            format!("postgres://postgres:right@127.0.0.1:{port}/nowhere"),
            ErrorKind::Setup,
            "create the database",
        ),
        (
            "postgres://postgres:hunter2@127.0.0.1:1/postgres".to_owned(),
            ErrorKind::Unavailable,
            "check host and port",
        ),
        (format!("postgres://poor:poor@127.0.0.1:{port}/postgres"), ErrorKind::Setup, "GRANT"),
    ];
    for (url, kind, sentence) in cases {
        let refused = quick(url).await.unwrap_err();
        assert!(refused.to_string().contains(sentence), "{refused}");
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
    }
    // With the schema there and the rights given, no right to create anything is needed.
    drop(quick(server.url()).await.expect("a healthy server"));
    let refused = quick(format!("postgres://poor:poor@127.0.0.1:{port}/postgres")).await.unwrap_err();
    assert!(refused.to_string().contains("GRANT"), "{refused}");
    server
        .sql("GRANT USAGE ON SCHEMA semel TO poor; GRANT ALL ON ALL TABLES IN SCHEMA semel TO poor; GRANT ALL ON ALL SEQUENCES IN SCHEMA semel TO poor")
        .expect("a healthy server");
    let poor =
        quick(format!("postgres://poor:poor@127.0.0.1:{port}/postgres")).await.expect("a healthy server");
    let id = key();
    let grant = win(&poor, id).await;
    assert!(matches!(poor.apply(id, Command::Release(grant)).await, Ok(Ruling::Accepted { .. })));
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
                let ran = once.run(async move |_| {
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
