//! The ledger in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel::store::{ErrorKind, PostgresStore};
use semel_pipeline::ledger::PostgresLedger;
use semel_pipeline::outbox::Relayed;
use semel_pipeline::outbox::postgres::{PostgresRelay, publish_in};
use semel_pipeline::publish::Publication;
use semel_testbed::{Postgres, wait};
use sqlx::Connection as _;

use super::{check, data, place, process};

const DUMP: &str = include_str!("../../fixtures/format-2/postgres.sql");
const WRITTEN: &str = include_str!("../../fixtures/format-2/postgres.txt");

/// A server with a ledger of format 2.
fn fixture() -> Arc<Postgres> {
    let server = Postgres::start().expect("a server");
    server.sql(DUMP).expect("the fixture is restored");
    Arc::new(server)
}

async fn open(server: &Postgres) -> Arc<PostgresLedger> {
    Arc::new(PostgresLedger::open(server.url()).await.expect("the ledger can be opened"))
}

async fn relay(ledger: Arc<PostgresLedger>) -> Relayed {
    let relay =
        PostgresRelay::new(ledger, Secret::from_bytes([7; 32]), |_: &Publication| vec!["crm".to_owned()]);
    relay.run_once(10).await.expect("it is relayed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_format_2_works() {
    let server = fixture();
    let ledger = open(&server).await;
    check(&*ledger, WRITTEN).await;
    assert_eq!(relay(ledger).await, Relayed { accepted: 1, ..Relayed::default() });
}

/// Tags and the items of jobs that are there already are counted by the migration, later ones by triggers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_format_3_works() {
    let server = Postgres::start().expect("a server");
    server.sql(include_str!("../../fixtures/format-3/postgres.sql")).expect("the fixture is restored");
    let ledger = open(&server).await;
    check(&*ledger, include_str!("../../fixtures/format-3/postgres.txt")).await;
    let tags = "SELECT count(*) FROM (SELECT DISTINCT unnest(tags), number FROM semel.ledger_event) AS t";
    let kept = server.sql("SELECT count(*) FROM semel.ledger_tag").expect("a count");
    assert_eq!(server.sql(tags).expect("a count"), kept);
    let differ = "SELECT count(*) FROM (SELECT job, state, count(*) AS items FROM semel.ledger_item GROUP BY 1, 2) AS i \
                  FULL JOIN semel.ledger_item_total AS t USING (job, state) WHERE coalesce(i.items, 0) <> coalesce(t.items, 0)";
    assert_eq!(server.sql(differ).expect("a count"), "0");
}

/// The format of this version, as its first release wrote it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_format_4_works() {
    let server = Postgres::start().expect("a server");
    server.sql(include_str!("../../fixtures/format-4/postgres.sql")).expect("the fixture is restored");
    let ledger = open(&server).await;
    check(&*ledger, include_str!("../../fixtures/format-4/postgres.txt")).await;
    assert_eq!(relay(ledger).await, Relayed { accepted: 1, ..Relayed::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_is_kept_and_every_object_is_renamed() {
    let server = fixture();
    let indexes = || {
        let sql = "SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid \
                   WHERE c.relnamespace = 'semel'::regnamespace";
        server.sql(sql).expect("a count")
    };
    assert_eq!(indexes(), "40");
    drop(open(&server).await);
    // Format 4 has 12 more, and neither the one of failed deliveries nor the one of tags.
    assert_eq!(indexes(), "50");
    let old = "SELECT relname FROM pg_class WHERE relnamespace = 'semel'::regnamespace AND relkind IN ('r', 'i', 'S') \
               AND relname !~ '^(ledger|meta)' \
               UNION ALL SELECT conname FROM pg_constraint WHERE connamespace = 'semel'::regnamespace \
               AND conname !~ '^(ledger|meta)' \
               UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'semel'::regnamespace \
               AND relname ~ '_seq(_|$)' AND relname !~ '_number_seq$'";
    assert_eq!(server.sql(old).expect("names"), "");
}

/// Applications publish in their own transactions, and are not upgraded with the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_of_the_previous_version_keeps_its_right() {
    let server = fixture();
    server
        .sql("CREATE ROLE shop; GRANT USAGE ON SCHEMA semel TO shop; GRANT INSERT ON semel.outbox TO shop")
        .expect("a right");
    let ledger = open(&server).await;
    server
        .sql(
            "SET ROLE shop; INSERT INTO semel.outbox (id, event, payload, published_at) \
             VALUES (decode(repeat('ff', 16), 'hex'), '{\"event_type\":\"order.paid\",\"dedupe_key\":\"17\",\
             \"content_type\":\"application/json\",\"tenant\":\"\",\"order_key\":null,\"headers\":[],\
             \"request_id\":null,\"traceparent\":null}', '{}', statement_timestamp())",
        )
        .expect("it is published");
    assert_eq!(relay(ledger).await, Relayed { accepted: 2, ..Relayed::default() });
}

/// Another session holds a table, so that the migration waits in its middle until this connection is dropped.
async fn stuck(server: &Arc<Postgres>) -> sqlx::PgConnection {
    let mut connection = sqlx::PgConnection::connect(&server.url()).await.expect("a connection");
    let lock = "BEGIN; LOCK TABLE semel.item IN ACCESS SHARE MODE";
    sqlx::raw_sql(lock).execute(&mut connection).await.expect("a lock");
    connection
}

const HALF_WAY: &str = "query LIKE '%RENAME COLUMN seq TO number%' AND wait_event_type = 'Lock'";

fn wait_until_half_way(server: &Postgres) {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {HALF_WAY} AND pid <> pg_backend_pid()");
    let arrived = || server.sql(&sql).is_ok_and(|number| number == "1");
    wait::until("the migration is half way", Duration::from_secs(20), arrived).expect("it gets there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_whose_connection_ends_half_way_starts_again() {
    let server = fixture();
    let other = stuck(&server).await;
    let url = server.url();
    let opening = tokio::spawn(async move { PostgresLedger::open(url).await });
    tokio::task::block_in_place(|| wait_until_half_way(&server));
    assert_eq!(server.terminate_backends(HALF_WAY).expect("its connection ends"), 1);
    let error = opening.await.expect("an answer").expect_err("its connection has ended");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(other);
    let old = server.sql("SELECT count(*) FROM semel.letter").expect("the old tables are there");
    assert_eq!(old, "8");
    check(&*open(&server).await, WRITTEN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_whose_process_is_killed_half_way_starts_again() {
    let server = fixture();
    let other = stuck(&server).await;
    let mut child = process("migration::postgres::open_ledger", &server.url());
    tokio::task::block_in_place(|| wait_until_half_way(&server));
    child.kill().expect("it is killed");
    child.wait().expect("it has ended");
    drop(other);
    check(&*open(&server).await, WRITTEN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_migrate_at_once() {
    let server = fixture();
    let other = stuck(&server).await;
    let started: Vec<_> =
        (0..3).map(|_| process("migration::postgres::open_ledger", &server.url())).collect();
    // The store migrates the same schema under its own lock.
    let url = server.url();
    let store = tokio::spawn(async move { PostgresStore::open(&url).await });
    tokio::task::block_in_place(|| wait_until_half_way(&server));
    drop(other);
    for child in started {
        let output = tokio::task::block_in_place(|| child.wait_with_output()).expect("it has ended");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    drop(store.await.expect("an answer").expect("the store can be opened"));
    check(&*open(&server).await, WRITTEN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process for the tests above"]
async fn open_ledger() {
    drop(PostgresLedger::open(place()).await.expect("the ledger can be opened"));
}

/// A binary of format 2 refuses a ledger that serves later ones only; one of format 3 works on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binary_of_format_2_is_refused() {
    let server = fixture();
    drop(open(&server).await);
    let sql = "SELECT name, number FROM semel.meta WHERE name LIKE 'ledger%' ORDER BY name";
    assert_eq!(server.sql(sql).expect("facts"), "ledger_format|4\nledger_serves|3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes the fixture of the present version into the folder SEMEL_PLACE"]
async fn write_fixture() {
    let (place, server) = (place(), Postgres::start().expect("a server"));
    let ledger = open(&server).await;
    data::fill(&*ledger).await;
    let mut connection = sqlx::PgConnection::connect(&server.url()).await.expect("a connection");
    publish_in(&mut connection, &data::published()).await.expect("it is published");
    let text = data::describe(&*ledger).await.join("\n");
    std::fs::write(format!("{place}/postgres.txt"), text).expect("it is written");
    let dump = std::process::Command::new("pg_dump")
        .args(["--inserts", "--no-owner", "--no-comments", "--schema=semel", "-f"])
        .args([format!("{place}/postgres.sql"), server.url()])
        .status();
    assert!(dump.expect("pg_dump runs").success());
}
