//! The plans of every list, and what they read in a full ledger.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use semel::store::EmbeddedStore;
use semel::store::rusqlite::{StatementStatus, Transaction};
use semel::time::{Clock as _, SystemClock};

use super::EmbeddedLedger;
use super::database::now as poll;
use super::work::Work;
use crate::ledger::sql::plans::{
    COMMON, PlannedStatement, RARE, failed, groups, lists, others, sizes, totals,
};
use crate::ledger::sql::{Database as _, RowKey, Value};

/// Rows with common values, after a few with rare ones.
fn fill(transaction: &Transaction<'_>, events: u64, letters: u64) {
    let series = |rows: u64| {
        format!("WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {rows})")
    };
    let value = format!("iif(n <= 5, '{RARE}', '{COMMON}')");
    let (of_events, of_letters) = (series(events), series(letters));
    let sql = format!(
        "{of_events} INSERT INTO ledger_event (number, id, kind, tenant, event_type, content_type, headers, origin, targets, delay,
             tags, metadata, accepted_at, version, unsettled, request_id)
         SELECT n, unhex(printf('%032x', n)), iif(n <= 5, 'run', 'event'), {value}, {value}, 'application/json', '[]',
             '\"outbox\"', '[]', 0, '[]', '{{}}', n, 0, 1, '{COMMON}' FROM series;
         {of_events} INSERT INTO ledger_payload (event, payload) SELECT n, x'7b7d' FROM series;
         {of_events} INSERT INTO ledger_tag (tag, event) SELECT {value}, n FROM series;
         {of_events} INSERT INTO ledger_delivery (number, id, event, target, tenant, event_type, state, front, due_at, attempts,
             crashes, total_attempts, last_attempt, epoch, created_at)
         SELECT n, unhex(printf('%032x', n)), n, {value}, {value}, 'a',
             CASE WHEN n <= 5 THEN 'blocked' WHEN n % 7 = 0 THEN 'dlq' WHEN n % 11 = 0 THEN 'retry_wait' ELSE 'done' END,
             1, n, 1, 0, 1, 1, 0, n FROM series;
         {of_letters} INSERT INTO ledger_dead_letter (number, id, tenant, event, target, cause, error, signature, status, attempts,
             failed_replays, mirrored, created_at, updated_at)
         SELECT n, unhex(printf('%032x', n)), {value}, n, {value}, 'exhausted', 'it is down', {value},
             iif(n <= 5, 'pending', 'discarded'), 3, 0, 0, n, n FROM series;
         {of_letters} INSERT INTO ledger_audit (number, at, who, action, subject, reason)
         SELECT n, n, 'ann', 'discard', '{COMMON}', 'because' FROM series;
         {of_letters} INSERT INTO ledger_item (job, position, delivery, event, kind, target, state)
         SELECT zeroblob(16), n, zeroblob(16), zeroblob(16), 'event', '{COMMON}', 'pending' FROM series;
         INSERT INTO ledger_turn (target, tenant, turn, due_at) VALUES ('{COMMON}', '{COMMON}', 1, 1);"
    );
    transaction.execute_batch(&sql).expect("the rows are written");
}

async fn full() -> (tempfile::TempDir, Arc<EmbeddedStore>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("the store can be opened"));
    drop(EmbeddedLedger::open(Arc::clone(&store)).await.expect("the ledger can be opened"));
    let (events, letters) = sizes();
    let filled = store.transact(move |transaction| {
        fill(transaction, events, letters);
        Ok(())
    });
    filled.await.expect("the ledger is filled");
    (folder, store)
}

/// The lines of a plan.
fn plan(work: &Work<'_>, statement: &PlannedStatement) -> Vec<String> {
    let sql = format!("EXPLAIN QUERY PLAN {}", statement.sql);
    let mut explained = work.prepare(&sql, &statement.with).expect("a statement");
    let mut rows = explained.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().expect("a row") {
        lines.push(row.get::<_, String>(3).expect("a line of the plan"));
    }
    lines
}

/// Runs a statement. Answers how many steps SQLite's machine took: some dozens for each row that it reads.
fn steps(work: &Work<'_>, statement: &PlannedStatement) -> i32 {
    let mut prepared = work.prepare(statement.sql, &statement.with).expect("a statement");
    prepared.reset_status(StatementStatus::VmStep);
    let mut rows = prepared.raw_query();
    while rows.next().expect("a row").is_some() {}
    drop(rows);
    prepared.get_status(StatementStatus::VmStep)
}

/// True if the line is about a scan of a whole table. Subqueries and functions that answer rows are no tables.
fn scans_a_table(line: &str, subqueries: &[&str]) -> bool {
    let Some(scanned) = line.strip_prefix("SCAN ") else { return false };
    let name = scanned.split(' ').next().unwrap_or_default();
    let is_subquery = subqueries.contains(&name) || name.starts_with("(subquery-");
    !is_subquery && !scanned.contains("VIRTUAL TABLE") && !scanned.contains("CONSTANT ROW")
}

#[tokio::test]
async fn every_list_is_found_by_an_index_and_reads_a_bounded_number_of_rows() {
    let (_folder, store) = full().await;
    let (events, letters) = sizes();
    let now = SystemClock.now();
    let read = store.read(|connection| {
        let mut work = Work::new(connection, now);
        let mut all = others::<Work<'_>>();
        for list in lists::<Work<'_>>(&Value::Integer(i64::MAX)) {
            let end = list.end();
            let found: Option<RowKey> =
                end.as_ref().and_then(|end| poll(work.first(end.sql, &end.with)).expect("it can be read"));
            all.push(list.rows(found.as_ref()));
            all.extend(end);
        }
        let (mut most, mut slowest) = ((0, String::new()), (Duration::ZERO, String::new()));
        for statement in &all {
            let lines = plan(&work, statement);
            let subqueries: &[&str] =
                if statement.name == "the oldest due" { &["l", "each", "waiting"] } else { &["f"] };
            let scanned = lines.iter().any(|line| scans_a_table(line, subqueries));
            assert!(!scanned, "{}: {lines:#?}", statement.name);
            let since = Instant::now();
            let taken = steps(&work, statement);
            slowest = slowest.max((since.elapsed(), statement.name.clone()));
            most = most.max((taken, statement.name.clone()));
            // A row takes less than 100 steps. A page looks at 4,096 of them, in each state of deliveries.
            assert!(taken < 1_000_000, "{}: {taken} steps, {lines:#?}", statement.name);
        }
        println!("{} statements over {events} events and {letters} dead letters", all.len());
        println!("most steps: {} of {}", most.0, most.1);
        println!("slowest: {:?} of {}", slowest.0, slowest.1);
        for statement in groups() {
            let lines = plan(&work, &statement);
            let is_covered = |line: &String| line.contains("USING COVERING INDEX ledger_dead_letter_");
            assert!(lines.iter().any(is_covered), "{}: {lines:#?}", statement.name);
        }
        for statement in totals::<Work<'_>>().into_iter().chain(failed::<Work<'_>>()) {
            let lines = plan(&work, &statement);
            let scanned = lines.iter().any(|line| scans_a_table(line, &["f", "failed"]));
            assert!(!scanned, "{}: {lines:#?}", statement.name);
        }
        let since = Instant::now();
        steps(&work, &groups()[0]);
        println!("all groups: {:?}", since.elapsed());
        Ok(())
    });
    read.expect("the ledger can be read");
}
