//! The database comes to hold another secret than the one that a process uses, or none.

use std::sync::Arc;

use semel::record::{Begin, Command, Mode, NewClaim, Ruling, Terms};
use semel::secret::Secret;
use semel::store::{ErrorKind, Pooling, PostgresStore, Store};
use semel::{Engine, Failure, Key, RunError};
use semel_testbed::{Postgres, wait};

use super::open;
use crate::by_hand::*;

fn server() -> Postgres {
    Postgres::start().expect("a PostgreSQL server can be started")
}

async fn given(store: &PostgresStore) -> Secret {
    store.secret(Secret::random()).await.unwrap_or_else(|error| panic!("{error}"))
}

fn another_is_kept(server: &Postgres) {
    let changed = "UPDATE semel.meta SET bytes = decode(repeat('07', 32), 'hex') WHERE name = 'secret'";
    server.sql(changed).expect("a healthy server");
}

fn kept(server: &Postgres) -> String {
    server.sql("SELECT encode(bytes, 'hex') FROM semel.meta WHERE name = 'secret'").expect("a healthy server")
}

fn hex(secret: &Secret) -> String {
    secret.expose().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn records(server: &Postgres) -> String {
    server.sql("SELECT count(*) FROM semel.record WHERE state IN (2, 3)").expect("a healthy server")
}

async fn refused(store: &PostgresStore, claim: NewClaim) {
    let refused = store.apply(key(), Command::Claim(claim)).await.expect_err("the secret is another");
    assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
}

// Alone, alone over the spare connection, and with others: nothing is won, nothing is replayed, nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_not_won_under_another_secret() {
    let server = server();
    let pooled = PostgresStore::builder(server.url()).pooling(Pooling::Transaction);
    for store in [open(&server.url()).await, pooled.open().await.expect("a healthy server")] {
        server.sql("DELETE FROM semel.meta WHERE name = 'secret'").expect("a healthy server");
        let secret = given(&store).await;
        let done = key();
        let grant = won(store.apply(done, Command::Claim(claim())).await);
        accepted(store.apply(done, complete(grant, "once")).await);
        for _ in 0..20 {
            // Until lone claims take the short way.
            let id = key();
            let grant = won(store.apply(id, Command::Claim(claim())).await);
            accepted(store.apply(id, Command::Release(grant)).await);
        }
        another_is_kept(&server);
        for mode in [Mode::Marked, Mode::Keyed, Mode::Rerun] {
            let terms = Arc::new(Terms { mode, ..Terms::default() });
            refused(&store, NewClaim { terms: Arc::clone(&terms), ..claim() }).await;
            refused(&store, NewClaim { terms, begin: Begin::Later, ..claim() }).await;
        }
        let store = Arc::new(store);
        let crowd: Vec<_> = (0..50)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { refused(&store, claim()).await })
            })
            .collect();
        for one in crowd {
            one.await.expect("refused");
        }
        let replay = store.apply(done, Command::Claim(claim())).await.expect_err("nor is it replayed");
        assert_eq!(replay.kind(), ErrorKind::SecretDiffers, "{replay}");
        assert_eq!(records(&server), "0", "nothing was written");
        let again =
            store.secret(Secret::random()).await.expect_err("nor is another one given to this process");
        assert_eq!(again.kind(), ErrorKind::SecretDiffers, "{again}");

        let back =
            format!("UPDATE semel.meta SET bytes = decode('{}', 'hex') WHERE name = 'secret'", hex(&secret));
        server.sql(&back).expect("a healthy server");
        replayed(store.apply(done, Command::Claim(claim())).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_gone_is_put_back() {
    let server = server();
    let store = open(&server.url()).await;
    let secret = given(&store).await;
    server.sql("DELETE FROM semel.meta WHERE name = 'secret'").expect("a healthy server");
    won(store.apply(key(), Command::Claim(claim())).await);
    assert_eq!(kept(&server), hex(&secret), "before anything was won");
    // Without a claim too.
    server.sql("DELETE FROM semel.meta WHERE name = 'secret'").expect("a healthy server");
    wait::until("it is put back", std::time::Duration::from_secs(30), || kept(&server) == hex(&secret))
        .expect("within a beat");
    assert_eq!(given(&open(&server.url()).await).await.expose(), secret.expose());
}

// What a process remembers is not replayed once its secret is not the one that is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_replayed_from_memory_under_another_secret() {
    let server = server();
    let engine = Engine::builder(open(&server.url()).await).build().expect("an engine");
    let once = async || {
        let call = engine.once(Key::new("charge").value("order-1"));
        call.run(async || Ok::<u32, Failure>(1)).await
    };
    let remembers = || {
        let key = Key::new("charge").value("order-1");
        engine.at_hand(&key, semel::fingerprint::Payload::none()).is_some()
    };
    let timeout = std::time::Duration::from_secs(30);
    while !remembers() {
        once().await.expect("a healthy server");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    another_is_kept(&server);
    wait::until("it is forgotten", timeout, || !remembers()).expect("within a beat");
    let Err(RunError::Store(refused)) = once().await else { panic!("it is refused") };
    assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_secret_is_not_compared() {
    let server = server();
    let store: Arc<dyn Store> = Arc::new(open(&server.url()).await);
    let engine = Engine::builder(store).secret(Secret::from_bytes([1; 32])).build().expect("an engine");
    given(&open(&server.url()).await).await;
    another_is_kept(&server);
    engine.verify(5).await.expect("claims work");
    let id = key();
    let first = engine.store().apply(id, Command::Claim(claim())).await;
    assert!(matches!(first, Ok(Ruling::Won(_))), "{first:?}");
}
