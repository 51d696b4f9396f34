//! Two processes share their keys over Redis: the second one gets the receipt of the first.
//!
//! Needs a Redis 6.2 or newer: `cargo run -p semel --features redis --example redis -- redis://127.0.0.1:6379`

use std::error::Error;

use semel::store::RedisStore;
use semel::{Engine, Key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned())).await
}

/// The example, for a server of its own.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let order = format!("order-{}", std::process::id());
    for process in ["first process", "second process"] {
        let engine = Engine::builder(RedisStore::connect(url).await?).build()?;
        let answer = engine
            .once(Key::new("charge").scope("acct_1").value(&order))
            .fingerprint(&1200)
            .run(async move || Ok(format!("receipt of the {process}")))
            .await?;
        println!("{process}: {}, from the record: {}", answer.value, answer.replayed);
        assert_eq!(answer.value, "receipt of the first process");
    }
    Ok(())
}
