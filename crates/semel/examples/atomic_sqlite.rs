//! An effect that is a database row: row and outcome commit in one transaction, so there is never any doubt.
//!
//! `cargo run -p semel --example atomic_sqlite`

use std::sync::Arc;

use semel::store::EmbeddedStore;
use semel::store::rusqlite::{self, Transaction};
use semel::{Engine, FailureExt, Key, RunError};

/// Moves money between two rows. An error leaves neither the rows nor the key touched.
fn transfer(transaction: &Transaction<'_>, from: &str, to: &str, cents: i64) -> rusqlite::Result<i64> {
    transaction.execute("UPDATE account SET cents = cents - ?2 WHERE name = ?1", (from, cents))?;
    transaction.execute("UPDATE account SET cents = cents + ?2 WHERE name = ?1", (to, cents))?;
    transaction.query_row("SELECT cents FROM account WHERE name = ?1", [from], |row| row.get(0))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = Arc::new(EmbeddedStore::open(folder.path())?);
    let engine = Engine::builder(store.clone()).build()?;
    store
        .transact(|transaction| {
            transaction.execute_batch(
                "CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
                 INSERT INTO account VALUES ('alice', 1000), ('bob', 0);",
            )
        })
        .await?;

    for (order, cents) in
        [("order-1", 700), ("order-1", 700), ("order-2", 700), ("order-2", 700), ("order-3", 300)]
    {
        let answer = engine
            .once(Key::new("transfer").value(order))
            .fingerprint(&cents)
            .run_in(&store, move |transaction, _attempt| {
                transfer(transaction, "alice", "bob", cents).failed()
            })
            .await;
        match answer {
            Ok(answer) if answer.replayed => println!("{order}: replayed, alice had {} left", answer.value),
            Ok(answer) => println!("{order}: {cents} cents moved, alice has {} left", answer.value),
            Err(RunError::Failed(error)) => println!("{order}: nothing happened: {error}"),
            Err(error) => return Err(error.into()),
        }
    }

    let balances = store
        .transact(|transaction| {
            let mut rows = transaction.prepare("SELECT cents FROM account ORDER BY name")?;
            rows.query_map([], |row| row.get::<_, i64>(0))?.collect::<rusqlite::Result<Vec<_>>>()
        })
        .await?;
    println!("alice {}, bob {}. Events: {}.", balances[0], balances[1], engine.stats());
    assert_eq!(balances, [0, 1000]);
    Ok(())
}
