//! An effect that is a row of your own table: row and outcome commit in your transaction, so there is never any doubt.
//!
//! Needs a PostgreSQL 13 or newer:
//! `cargo run -p semel --features postgres --example atomic_postgres -- postgres://postgres@127.0.0.1:5432/postgres`

use std::error::Error;
use std::sync::Arc;

use semel::store::{PostgresStore, sqlx};
use semel::{Engine, FailureExt, Key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    run(&url.unwrap_or_else(|| "postgres://postgres@127.0.0.1:5432/postgres".to_owned())).await
}

/// The example, for a server of its own.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(PostgresStore::open(url).await?);
    let engine = Engine::builder(store.clone()).build()?;
    let pool = sqlx::PgPool::connect(url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS booking (seat TEXT)").execute(&pool).await?;

    let seat = format!("seat-{}", std::process::id());
    for _ in 0..3 {
        let mut transaction = pool.begin().await?;
        let answer = engine
            .once(Key::new("book").value(&seat))
            .run_in_transaction(&store, &mut transaction, async |connection, _attempt| {
                let insert = sqlx::query("INSERT INTO booking VALUES ($1)").bind(&seat);
                Ok(insert.execute(connection).await.failed()?.rows_affected())
            })
            .await?;
        transaction.commit().await?;
        println!("{} row, from the record: {}", answer.value, answer.replayed);
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM booking WHERE seat = $1")
        .bind(&seat)
        .fetch_one(&pool)
        .await?;
    assert_eq!(rows, 1);
    Ok(())
}
