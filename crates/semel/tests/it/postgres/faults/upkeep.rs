//! What years of use do to the tables: growth, and upgrades while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::record::{Begin, Command, NewClaim, Phase, Ruling, Terms};
use semel::store::{ErrorKind, PostgresStore, Scan, Store as _};

use super::{claim, complete, eventually, key, open, rounds, server, win};

// Short-lived keys, 500,000 in the full form: the sweep finds them by its index in bounded steps, and the table does not
// grow from round to round.
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
    let (turns, each) = (rounds(6, 50), rounds(500, 10_000));
    for _ in 0..turns {
        let keys: Vec<_> = (0..each)
            .map(|_| {
                let (store, terms) = (Arc::clone(&store), Arc::clone(&terms));
                tokio::spawn(async move {
                    let claim = NewClaim { terms, begin: Begin::Later, ..claim() };
                    assert!(matches!(store.apply(key(), Command::Claim(claim)).await, Ok(Ruling::Won(_))));
                })
            })
            .collect();
        for claimed in keys {
            claimed.await.expect("a healthy server");
        }
        let gone = AtomicUsize::new(0);
        eventually("all are swept", async || {
            let most = each / 5;
            let swept = store.sweep(most).await.expect("a healthy server");
            assert!(swept.removed <= most);
            gone.fetch_add(swept.removed, Ordering::SeqCst) + swept.removed == each
        })
        .await;
        server.sql("VACUUM semel.record").expect("a healthy server");
        let size = server.sql("SELECT pg_total_relation_size('semel.record')").expect("a healthy server");
        sizes.push(size.trim().parse::<u64>().expect("a healthy server"));
    }
    assert!(sizes[turns - 1] <= sizes[1] * 3 / 2, "the table grows from round to round: {sizes:?}");
    let scanned = server
        .sql("SELECT idx_scan > 0, seq_scan FROM pg_stat_user_tables WHERE relname = 'record'")
        .expect("a healthy server");
    println!("{} keys, sizes {sizes:?}, scans {scanned}", turns * each);
    let plan = server
        .sql("SET enable_seqscan = off; EXPLAIN SELECT * FROM semel.record WHERE sweep_at <= 1 ORDER BY sweep_at LIMIT 10")
        .expect("a healthy server");
    assert!(plan.contains("record_sweep_at"), "{plan}");
}

// The list of keys in doubt read the whole table, 200 rows a page: a page that ended before the last record showed only
// some of them, and each server counted them that way every 15 seconds. They have an index since format 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_doubt_are_found_among_many_records() {
    let server = server();
    let store = open(&server.url()).await;
    // A table of format 1 gets the index when it is opened.
    server
        .sql("DROP INDEX semel.record_in_progress; UPDATE semel.meta SET number = 1 WHERE name = 'format'")
        .expect("a healthy server");
    drop(store);
    let store = open(&server.url()).await;
    let short = Terms { lease: Duration::from_millis(1), ..Terms::default() };
    let short = Arc::new(Terms { in_flight_max: short.lease, ..short });
    for _ in 0..3 {
        let doubtful = NewClaim { terms: Arc::clone(&short), ..claim() };
        assert!(matches!(store.apply(key(), Command::Claim(doubtful)).await, Ok(Ruling::Won(_))));
    }
    let grant = win(&store, key()).await;
    server
        .sql(
            "CREATE TEMPORARY TABLE sample AS SELECT * FROM semel.record LIMIT 1; \
             UPDATE sample SET state = 4, lease_until = 0; \
             INSERT INTO semel.record SELECT (jsonb_populate_record(s, jsonb_build_object( \
             'id', '\\x' || md5(n::text)))).* FROM sample s, generate_series(1, 5000) n; ANALYZE semel.record",
        )
        .expect("a healthy server");
    let scan = Scan { phase: Some(Phase::InDoubt), after: None, limit: 100 };
    eventually("their leases expire", async || {
        store.scan(scan).await.expect("a healthy server").items.len() == 3
    })
    .await;
    assert_eq!(store.scan(scan).await.expect("a healthy server").next, None, "one page");
    let begun = store.scan(Scan { phase: Some(Phase::Begun), ..scan }).await.expect("a healthy server");
    assert_eq!(begun.items.len(), 1, "and the one in progress: {grant:?}");
    let plan = server
        .sql("EXPLAIN SELECT * FROM semel.record r WHERE r.id > '' AND r.state IN (2, 3) ORDER BY r.id LIMIT 200")
        .expect("a healthy server");
    assert!(plan.contains("record_in_progress") && !plan.contains("Seq Scan"), "{plan}");
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
    server.sql("ALTER TABLE semel.record ADD COLUMN later text; UPDATE semel.meta SET number = 3 WHERE name = 'format'").expect("a healthy server");
    let old = open(&server.url()).await;
    assert!(matches!(old.apply(id, Command::Renew(grant)).await, Ok(Ruling::Accepted { .. })));
    assert!(matches!(stores[1].apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
    assert!(matches!(old.apply(id, Command::Claim(claim())).await, Ok(Ruling::Replay { .. })));
    // And one day that it may not.
    server.sql("UPDATE semel.meta SET number = 3 WHERE name = 'serves'").expect("a healthy server");
    let refused = PostgresStore::open(server.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    assert!(refused.to_string().contains("upgrade Semel"), "{refused}");
}

// A floor far ahead of the server's clock: every fence is above it all the same, of a lone claim and of many at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_stay_above_the_floor() {
    const FLOOR: u64 = 9_000_000_000_000_000;
    let server = server();
    let store = Arc::new(open(&server.url()).await);
    server.sql(&format!("SELECT setval('semel.fence_floor', {FLOOR})")).expect("a healthy server");
    let id = key();
    let grant = win(&store, id).await;
    assert!(grant.fence().get() > FLOOR, "{grant:?}");
    assert!(matches!(store.apply(id, complete(grant, "done")).await, Ok(Ruling::Accepted { .. })));
    let many: Vec<_> = (0..40)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { win(&store, key()).await.fence().get() })
        })
        .collect();
    for fence in many {
        let fence = fence.await.expect("a healthy server");
        assert!(fence > FLOOR, "{fence}");
    }
}
