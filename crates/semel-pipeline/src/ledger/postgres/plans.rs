//! The plans of every list, and how many rows they read in a full ledger.

use std::time::Duration;

use tokio::time::Instant;

use semel_testbed::Postgres;

use super::PostgresLedger;
use super::database::Db;
use super::fault::Fault;
use super::link::Shape;
use crate::ledger::sql::plans::{
    BOUND, COMMON, PlannedStatement, RARE, failed, groups, lists, others, sizes, totals,
};
use crate::ledger::sql::{Database as _, RowKey, Value};

/// Tables that grow.
const LARGE: [&str; 6] =
    ["ledger_event", "ledger_delivery", "ledger_dead_letter", "ledger_tag", "ledger_audit", "ledger_item"];

/// Rows with common values, after a few with rare ones.
fn fill(server: &Postgres, events: u64, letters: u64) {
    let value = format!("CASE WHEN n <= 5 THEN '{RARE}' ELSE '{COMMON}' END");
    let id = "decode(lpad(to_hex(n), 32, '0'), 'hex')";
    for sql in [
        // Tags are kept by a trigger, row by row.
        format!(
            "INSERT INTO semel.ledger_event (id, kind, tenant, event_type, payload, content_type, headers, origin, delay, targets,
               tags, request_id, accepted_at)
             SELECT {id}, CASE WHEN n <= 5 THEN 'run' ELSE 'event' END, {value}, {value}, '{{}}', 'application/json', '[]',
               'outbox', 0, '[]', ARRAY[{value}], '{COMMON}', now() FROM generate_series(1, {events}) AS n"
        ),
        format!(
            "INSERT INTO semel.ledger_delivery (id, event, target, tenant, state, waits, due_at, created_at)
             SELECT {id}, {id}, {value}, {value}, CASE WHEN n <= 5 THEN 'blocked' WHEN n % 7 = 0 THEN 'dlq'
               WHEN n % 11 = 0 THEN 'retry_wait' ELSE 'done' END, n % 11 = 0 AND n % 7 <> 0 AND n > 5, now(), now()
             FROM generate_series(1, {events}) AS n"
        ),
        format!(
            "INSERT INTO semel.ledger_dead_letter (id, tenant, event, delivery, target, event_type, content_type, headers, cause, error,
               signature, status, attempts, created_at, updated_at)
             SELECT {id}, {value}, {id}, {id}, {value}, 'a', 'application/json', '[]', 'exhausted', 'it is down', {value},
               CASE WHEN n <= 5 THEN 'pending' ELSE 'discarded' END, 3, now(), now() FROM generate_series(1, {letters}) AS n"
        ),
        format!(
            "INSERT INTO semel.ledger_audit (at, who, action, subject, reason)
             SELECT now(), 'ann', 'discard', '{COMMON}', 'because' FROM generate_series(1, {letters}) AS n"
        ),
        format!(
            "INSERT INTO semel.ledger_job (id, selection, mode, asked_by, rate, concurrency, canary, pause_above, state, created_at,
               updated_at)
             VALUES (decode(repeat('00', 16), 'hex'), '{{}}', 'resume', 'ann', 0, 1, 1, 0.5, 'running', now(), now());
             INSERT INTO semel.ledger_item (job, position, delivery, event, kind, target, state)
             SELECT decode(repeat('00', 16), 'hex'), n, {id}, {id}, 'event', '{COMMON}', 'pending'
             FROM generate_series(1, {letters}) AS n"
        ),
        "VACUUM ANALYZE".to_owned(),
    ] {
        server.sql(&sql).expect("the rows are written");
    }
}

/// Runs a statement. Answers the lines of its plan, with the rows that each part read.
async fn explain(db: &mut Db<'_>, statement: &PlannedStatement) -> Result<Vec<String>, Fault> {
    // Leaked: some hundred short texts of a test.
    let sql: &'static str =
        format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) {}", statement.sql)
            .leak();
    db.fetch(db.bind(sql, &statement.with).persistent(false)).await
}

async fn ask(ledger: &PostgresLedger, statement: &PlannedStatement) -> Vec<String> {
    let plan = ledger.shared.call(Shape::Read, statement, |db, asked| Box::pin(explain(db, asked))).await;
    plan.unwrap_or_else(|error| panic!("{}: {error}", statement.name))
}

async fn end_of(ledger: &PostgresLedger, end: &PlannedStatement) -> Option<RowKey> {
    let found = ledger.shared.call(Shape::Read, end, |db, end| Box::pin(db.planned_rows(end.sql, &end.with)));
    found.await.expect("it can be read").pop()
}

/// How many rows the scans of a plan read: those that they answered, and those that they dropped.
fn rows_read(plan: &[String]) -> u64 {
    let number_after = |line: &str, word: &str| {
        let rest = line.split(word).nth(1)?;
        let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        digits.parse::<f64>().ok()
    };
    let (mut sum, mut loops, mut of_table) = (0.0, 1.0, false);
    for line in plan {
        if let Some(rows) = number_after(line, "actual rows=") {
            loops = number_after(line, "loops=").unwrap_or(1.0);
            // What a part drops of the rows of another part was counted there.
            of_table =
                line.contains(" Scan ") && !line.contains("Subquery Scan") && !line.contains("CTE Scan");
            sum += if of_table { rows * loops } else { 0.0 };
        }
        if of_table && let Some(removed) = number_after(line, "Rows Removed by Filter: ") {
            sum += removed * loops;
        }
    }
    sum as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_list_reads_a_bounded_number_of_rows() {
    let (events, letters) = sizes();
    let server = Postgres::start().expect("a server");
    let ledger = PostgresLedger::open(server.url()).await.expect("the ledger can be opened");
    tokio::task::block_in_place(|| fill(&server, events, letters));
    let newest = Value::Bytes(Some(vec![0xff; 17]));
    let mut all = others::<Db<'_>>();
    for list in lists::<Db<'_>>(&newest) {
        let end = list.end();
        let found = match &end {
            Some(end) => end_of(&ledger, end).await,
            None => None,
        };
        all.push(list.rows(found.as_ref()));
        all.extend(end);
    }
    let (mut most, mut slowest) = ((0, String::new()), (Duration::ZERO, String::new()));
    for statement in &all {
        let since = Instant::now();
        let plan = ask(&ledger, statement).await;
        slowest = slowest.max((since.elapsed(), statement.name.clone()));
        let rows = rows_read(&plan);
        assert!(rows < BOUND, "{}: {rows} rows\n{}", statement.name, plan.join("\n"));
        let scans = |line: &String| LARGE.iter().any(|table| line.contains(&format!("Seq Scan on {table} ")));
        assert!(!plan.iter().any(scans), "{}: {}", statement.name, plan.join("\n"));
        most = most.max((rows, statement.name.clone()));
    }
    println!("{} statements over {events} events and {letters} dead letters", all.len());
    println!("most rows: {} of {}", most.0, most.1);
    println!("slowest: {:?} of {}", slowest.0, slowest.1);
    for statement in &groups() {
        let plan = ask(&ledger, statement).await;
        assert!(rows_read(&plan) < 100_000 + BOUND, "{}: {}", statement.name, plan.join("\n"));
        let counted = plan.iter().any(|line| line.contains("Index Only Scan"));
        assert!(counted, "{}: {}", statement.name, plan.join("\n"));
    }
    // These grow with what has failed, and are found by an index.
    for statement in totals::<Db<'_>>().into_iter().chain(failed::<Db<'_>>()) {
        let plan = ask(&ledger, &statement).await;
        let scans = |line: &String| LARGE.iter().any(|table| line.contains(&format!("Seq Scan on {table} ")));
        assert!(!plan.iter().any(scans), "{}: {}", statement.name, plan.join("\n"));
    }
    let since = Instant::now();
    ask(&ledger, &groups()[0]).await;
    println!("all groups: {:?}", since.elapsed());
}
