//! What is refused at start, and who may open at once.

use std::sync::Arc;

use semel::store::{AsyncCommit, PostgresStore};
use semel_pipeline::ledger::{Intake as _, PostgresLedger};
use semel_testbed::Postgres;

use super::{event, open};

async fn refusal(url: &str) -> String {
    PostgresLedger::open(url).await.expect_err("it is refused").to_string()
}

// sync_commit_off, replica_lag
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_keep_promises_is_refused() {
    let server = Postgres::start().expect("a server");
    let standby = Postgres::standby_of(&server).expect("a standby");
    assert!(refusal(&standby.url()).await.contains("is a standby"));
    server.set("synchronous_commit", "off").expect("a setting");
    assert!(refusal(&server.url()).await.contains("synchronous_commit = off"));
    let accepted = PostgresLedger::builder(server.url()).async_commit(AsyncCommit::Accept).open().await;
    drop(accepted.expect("it was told to accept it"));
    assert!(refusal("http://db.internal").await.contains("must start with postgres://"));
}

// migration_live
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_open_an_empty_database_at_once() {
    let server = Arc::new(Postgres::start().expect("a server"));
    let url = server.url();
    let opened = (0..4).map(|_| {
        let url = url.clone();
        tokio::spawn(async move {
            let ledger = open(&url).await;
            ledger.accept(vec![event("crm", "")]).await.expect("it is accepted");
        })
    });
    let mut opened: Vec<_> = opened.collect();
    // The store migrates the same schema under its own lock.
    opened.push(tokio::spawn(async move {
        drop(PostgresStore::open(&url).await.expect("the store can be opened"));
    }));
    for one in opened {
        one.await.expect("all of them can be opened");
    }
    assert_eq!(server.sql("SELECT count(*) FROM semel.ledger_event").expect("a count"), "4");
}

// migration_live
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_format_is_met_with_a_sentence() {
    let server = Postgres::start().expect("a server");
    drop(open(&server.url()).await);
    server.sql("UPDATE semel.meta SET number = 9 WHERE name = 'ledger_format'").expect("a newer binary");
    drop(open(&server.url()).await);
    server.sql("UPDATE semel.meta SET number = 9 WHERE name = 'ledger_serves'").expect("a newer binary");
    assert!(refusal(&server.url()).await.contains("upgrade Semel"));
}

// The views are for people: their ids are the API's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_in_the_views_are_those_of_the_api() {
    let server = Postgres::start().expect("a server");
    let ledger = open(&server.url()).await;
    let event = event("crm", "acme");
    let id = event.id.to_string();
    ledger.accept(vec![event]).await.expect("it is accepted");
    assert_eq!(server.sql("SELECT id FROM semel.events").expect("a row"), id);
    assert_eq!(
        server.sql("SELECT event, state FROM semel.deliveries").expect("a row"),
        format!("{id}|queued")
    );
    let found = format!("SELECT tenant FROM semel.ledger_event WHERE id = semel.id_bytes('{id}')");
    assert_eq!(server.sql(&found).expect("a row"), "acme");
    assert_eq!(server.sql("SELECT count(*) FROM semel.dead_letters, semel.replay_jobs").expect("a row"), "0");
}
