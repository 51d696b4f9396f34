//! Ten concurrent calls through two engines over one PostgreSQL: one charge, ten equal receipts.
//!
//! Needs a PostgreSQL 13 or newer:
//! `cargo run -p semel --features postgres --example postgres -- postgres://postgres@127.0.0.1:5432/postgres`

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::PostgresStore;
use semel::{Engine, Key};

static CHARGES: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    run(&url.unwrap_or_else(|| "postgres://postgres@127.0.0.1:5432/postgres".to_owned())).await
}

/// The example, for a server of its own.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(Engine::builder(PostgresStore::open(url).await?).build()?);
    }
    let order = format!("order-{}", std::process::id());
    let calls = (0..10).map(|call| {
        let once = engines[call % 2].once(Key::new("charge").scope("acct_1").value(&order));
        tokio::spawn(once.run(async || Ok(CHARGES.fetch_add(1, Ordering::SeqCst) + 1)))
    });
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await??;
        println!("receipt {}, from the record: {}", answer.value, answer.replayed);
    }
    assert_eq!(CHARGES.load(Ordering::SeqCst), 1);
    Ok(())
}
