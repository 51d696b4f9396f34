//! A server or a URL that cannot keep the promises is refused, in a sentence that says what to do.

use std::time::Duration;

use semel::record::{Command, Ruling};
use semel::store::{AsyncCommit, Durability, ErrorKind, PostgresStore, Store as _};
use semel_testbed::Postgres;

use super::{key, open, server, win};

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
    let quick = |url: String| PostgresStore::builder(url).timeout(Duration::from_secs(3)).open();
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
    server.sql("ALTER ROLE poor SET default_transaction_read_only = on").expect("a healthy server");
    let refused = quick(format!("postgres://poor:poor@127.0.0.1:{port}/postgres")).await.unwrap_err();
    assert!(refused.to_string().contains("SET default_transaction_read_only = off"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::Setup);
}
