//! A take touches a bounded number of rows, however many wait.

use std::time::Duration;

use semel_pipeline::ledger::{Intake as _, Working as _};
use semel_testbed::Postgres;

use super::{ask, event, open};

/// How often rows of the table were touched so far: by scans of the table, and by way of an index.
fn touched(server: &Postgres) -> (u64, u64, u64) {
    let row = server
        .sql("SELECT coalesce(seq_tup_read, 0), coalesce(idx_tup_fetch, 0), n_tup_upd FROM pg_stat_user_tables WHERE relid = 'semel.ledger_delivery'::regclass")
        .expect("numbers");
    let numbers: Vec<u64> = row.split('|').map(|number| number.parse().expect("a number")).collect();
    (numbers[0], numbers[1], numbers[2])
}

// W: no full scans
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_is_bounded() {
    const ROWS: u64 = 300_000;
    let server = Postgres::start().expect("a server");
    let ledger = open(&server.url()).await;
    let model = event("model", "");
    ledger.accept(vec![model]).await.expect("it is accepted");
    // One event stands behind all of them: only deliveries are looked for.
    let fill = |target: &str, tenant: &str, lane: &str, state: &str, waits: &str, due: &str, rows: u64| {
        server
            .sql(&format!(
                "INSERT INTO semel.ledger_delivery (id, event, target, tenant, lane, state, waits, due_at, created_at) \
                 SELECT decode(lpad(to_hex(nextval('fill')), 32, '0'), 'hex'), (SELECT id FROM semel.ledger_event LIMIT 1), \
                 '{target}', {tenant}, {lane}, '{state}', {waits}, now() + {due}, now() FROM generate_series(1, {rows}) AS n"
            ))
            .expect("rows");
    };
    server.sql("CREATE SEQUENCE fill").expect("a sequence");
    fill("backlog", "'big'", "NULL", "queued", "true", "interval '-1 hour'", ROWS / 3);
    fill("tenants", "'t' || n % 5000", "NULL", "queued", "true", "interval '-1 hour'", ROWS / 6);
    fill("later", "'t' || n % 5000", "NULL", "retry_wait", "true", "interval '1 hour'", ROWS / 6);
    fill("later", "'big'", "NULL", "queued", "true", "interval '-1 hour'", 50);
    fill("lane", "'big'", "17", "queued", "n = 1", "interval '-1 hour'", ROWS / 6);
    fill("done", "'big'", "NULL", "done", "false", "interval '-1 hour'", ROWS / 6);
    for (target, expected) in [("backlog", 20), ("tenants", 20), ("later", 20), ("lane", 1), ("done", 0)] {
        // Once to plan and to warm up, so that only the take itself is counted.
        let before = touched(&server);
        let works = ledger.take(ask("w", target, 20, Duration::from_secs(600))).await.expect("work");
        assert_eq!(works.len(), expected, "{target}");
        // The numbers come when the session is idle; a take that changed nothing is seen by the one after it.
        if expected == 0 {
            continue;
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        let after = loop {
            let after = touched(&server);
            if after.2 >= before.2 + expected as u64 {
                break after;
            }
            assert!(tokio::time::Instant::now() < deadline, "the statistics come");
            tokio::time::sleep(Duration::from_millis(50)).await;
            // A session says what it did when it does something else.
            ledger.next_due(vec![target.to_owned()]).await.expect("an answer");
        };
        assert_eq!(after.0, before.0, "{target}: no row is read by a scan of the whole table");
        let rows = after.1 - before.1;
        assert!(rows < 2_000, "{target}: {rows} rows were touched for {expected} that were taken");
    }
}
