//! Published in a transaction of the caller's, relayed once.

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel_pipeline::ledger::{EventFilter, LetterFilter, Letters as _, Page, PostgresLedger, Reading as _};
use semel_pipeline::outbox::Relayed;
use semel_pipeline::outbox::postgres::{Outbox, PostgresRelay, publish_in};
use semel_pipeline::publish::Publication;
use semel_testbed::Postgres;
use sqlx::postgres::PgPoolOptions;

use super::open;

fn relay(ledger: &Arc<PostgresLedger>) -> PostgresRelay {
    let secret = Secret::from_bytes([7; 32]);
    PostgresRelay::new(Arc::clone(ledger), secret, |_: &Publication| vec!["crm".to_owned()])
}

fn paid(order: u32) -> Publication {
    Publication::new("order.paid", format!("order-{order}"), format!("{{\"order\":{order}}}"))
}

async fn pool(url: &str) -> sqlx::PgPool {
    PgPoolOptions::new().max_connections(2).connect(url).await.expect("a pool of the caller's own")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_is_relayed_once_and_what_is_rolled_back_never() {
    let server = Postgres::start().expect("a server");
    let ledger = Arc::new(open(&server.url()).await);
    let pool = pool(&server.url()).await;
    let mut kept = pool.begin().await.expect("a transaction");
    let first = publish_in(&mut kept, &paid(1)).await.expect("it is published");
    publish_in(&mut kept, &paid(2)).await.expect("it is published");
    let mut dropped = pool.begin().await.expect("a transaction");
    publish_in(&mut dropped, &paid(3)).await.expect("it is published");
    assert_eq!(relay(&ledger).run_once(10).await.expect("an answer"), Relayed::default());
    kept.commit().await.expect("it is committed");
    dropped.rollback().await.expect("it is rolled back");
    // Two relays at once, as in two processes: one of them does it.
    let other = Arc::new(open(&server.url()).await);
    let (one, another) = (relay(&ledger), relay(&other));
    let (one, another) = tokio::join!(one.run_once(10), another.run_once(10));
    let total = one.expect("an answer").accepted + another.expect("an answer").accepted;
    assert_eq!(total, 2);
    assert_eq!(relay(&ledger).run_once(10).await.expect("an answer").total(), 0);
    let event = ledger.event(first).await.expect("an answer").expect("it has the id it was published under");
    assert_eq!(&event.new.payload[..], b"{\"order\":1}");
    assert_eq!(ledger.deliveries_of(first).await.expect("an answer").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_is_cached_and_a_conflict_is_a_letter() {
    let server = Postgres::start().expect("a server");
    let ledger = Arc::new(open(&server.url()).await);
    let pool = pool(&server.url()).await;
    for event in
        [paid(1), paid(1), Publication { payload: "{}".into(), ..paid(1) }, Publication::new("t", "", "{}")]
    {
        let mut transaction = pool.begin().await.expect("a transaction");
        publish_in(&mut transaction, &event).await.expect("it is published");
        transaction.commit().await.expect("it is committed");
    }
    let relayed = relay(&ledger).run_once(10).await.expect("an answer");
    assert_eq!(relayed, Relayed { accepted: 1, cached: 1, refused: 2 });
    let page = Page { after: None, limit: 10 };
    let letters = ledger.letters(LetterFilter::default(), page.clone()).await.expect("an answer");
    assert_eq!(letters.items.len(), 2);
    assert_eq!(ledger.events(EventFilter::default(), page).await.expect("an answer").items.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_in_another_schema_needs_few_rights_and_wakes_the_relay() {
    let server = Postgres::start().expect("a server");
    let ledger = PostgresLedger::builder(server.url()).schema("pipeline").open().await;
    let ledger = Arc::new(ledger.expect("the ledger can be opened"));
    server
        .sql(
            "CREATE ROLE shop LOGIN; CREATE SCHEMA shop AUTHORIZATION shop; \
             GRANT USAGE ON SCHEMA pipeline TO shop; GRANT INSERT ON pipeline.outbox TO shop; \
             CREATE TABLE shop.paid (id int); ALTER TABLE shop.paid OWNER TO shop",
        )
        .expect("a caller");
    let pool = pool(&server.url().replace("postgres@", "shop@")).await;
    let running = relay(&ledger);
    // Far apart: what is relayed soon was heard of.
    let running = tokio::spawn(async move { running.run(Duration::from_secs(600)).await });
    let outbox = Outbox::in_schema("pipeline");
    let relayed = async {
        for order in 0.. {
            let mut transaction = pool.begin().await.expect("a transaction");
            sqlx::query("INSERT INTO shop.paid VALUES (1)").execute(&mut *transaction).await.expect("a row");
            outbox.publish_in(&mut transaction, &paid(order)).await.expect("it is published");
            transaction.commit().await.expect("it is committed");
            // The first may be said before anybody listens.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let page = Page { after: None, limit: 10 };
            if !ledger.events(EventFilter::default(), page).await.expect("an answer").items.is_empty()
                && order > 0
            {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), relayed).await.expect("the relay was woken");
    running.abort();
}
