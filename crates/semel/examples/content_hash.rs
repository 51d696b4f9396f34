//! A worker that gets the same message more than once and has no key for it: the content is the key.
//!
//! `cargo run -p semel --example content_hash`

use semel::canonical::Exclusions;
use semel::key::ContentHash;
use semel::store::MemoryStore;
use semel::{Engine, Failure, Key};

/// Prices a risk: slow, costly, and to be done once per risk.
async fn price(message: &str) -> Result<u64, Failure> {
    println!("   pricing…");
    Ok(message.len() as u64 * 100)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(MemoryStore::new()).build()?;
    // What changes from delivery to delivery says nothing about the risk.
    let exclusions = Exclusions::new(["/meta/sent_at", "/meta/retries"])?;

    let deliveries = [
        (
            "first delivery",
            r#"{"risk": {"sum": 250.00, "term": 12}, "meta": {"sent_at": "09:00", "retries": 0}}"#,
        ),
        (
            "redelivered, members in another order",
            r#"{"meta": {"retries": 1, "sent_at": "09:05"}, "risk": {"term": 12, "sum": 250}}"#,
        ),
        (
            "another risk",
            r#"{"risk": {"sum": 250.01, "term": 12}, "meta": {"sent_at": "09:06", "retries": 0}}"#,
        ),
    ];
    for (what, message) in deliveries {
        println!("{what}:");
        let hash = ContentHash::of_json(message.as_bytes(), &exclusions)?;
        let answer = engine
            .once(Key::new("price-risk").value(hash.to_string()))
            .run(async move || price(message).await)
            .await?;
        println!("   {} ({})", answer.value, if answer.replayed { "replayed" } else { "first run" });
    }
    println!("Three deliveries. Events: {}.", engine.stats());
    assert_eq!(engine.stats().count("won"), 2);
    Ok(())
}
