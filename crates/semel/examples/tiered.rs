//! PostgreSQL keeps the records, and Redis in front of it answers replays without a query.
//!
//! Needs a PostgreSQL 13 and a Redis 6.2, or newer: `cargo run -p semel --features postgres,redis --example tiered --
//! postgres://postgres@127.0.0.1:5432/postgres redis://127.0.0.1:6379`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use semel::Engine;
use semel::store::TieredStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut urls = std::env::args().skip(1);
    let postgres = urls.next().unwrap_or_else(|| "postgres://postgres@127.0.0.1:5432/postgres".to_owned());
    let redis = urls.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    run(&postgres, &redis).await
}

/// The example, for a server of its own.
pub(crate) async fn run(postgres: &str, redis: &str) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(TieredStore::open(postgres, redis).await?);
    // Without the cache of this process, every replay asks the store.
    let engine = Engine::builder(store.clone()).hot_cache(0, Duration::ZERO).build()?;
    let order = format!("order-{}", std::process::id());
    for call in 1..=5 {
        let answer = engine.once(order.as_str()).run(async move || Ok(call)).await?;
        println!("call {call}: receipt of call {}, from the record: {}", answer.value, answer.replayed);
        assert_eq!(answer.value, 1);
    }
    println!("{:?}", store.stats());
    Ok(())
}
