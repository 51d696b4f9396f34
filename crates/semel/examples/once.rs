//! An effect that happens once, however often it is asked for.
//!
//! `cargo run -p semel --example once`

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::store::EmbeddedStore;
use semel::{Engine, Failure, Key, RunError};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize)]
struct Payment {
    account: String,
    order: String,
    cents: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    number: u32,
    cents: u64,
}

/// Counts what the card company would have booked.
static CHARGES: AtomicU32 = AtomicU32::new(0);

async fn charge_card(payment: &Payment, derived_key: &str) -> Result<Receipt, Failure> {
    println!("   card company: charging {} cents under its own key {}…", payment.cents, &derived_key[..8]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(Receipt { number: CHARGES.fetch_add(1, Ordering::SeqCst) + 1, cents: payment.cents })
}

async fn pay(engine: &Engine, payment: &Payment) -> Result<(), RunError> {
    let payment = payment.clone();
    let answer = engine
        .once(Key::new("charge").scope(&payment.account).value(&payment.order))
        .fingerprint(&payment)
        .run_with(async move |attempt| {
            charge_card(&payment, &attempt.derived_key("card-company").to_string()).await
        })
        .await?;
    let how = if answer.replayed { "replayed" } else { "first run" };
    println!("   {how}: receipt {} over {} cents", answer.value.number, answer.value.cents);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::builder(EmbeddedStore::open(folder.path())?)
        .lease(Duration::from_secs(30))
        .wait(Duration::from_secs(5))
        .retention(Duration::from_secs(24 * 60 * 60))
        .build()?;
    let payment = Payment { account: "acct_1".into(), order: "order-42".into(), cents: 1200 };

    println!("1. A client pays, gets no answer in time, and tries twice more:");
    for _ in 0..3 {
        pay(&engine, &payment).await?;
    }

    println!("2. Two clients of another order at the same moment:");
    let other = Payment { order: "order-43".into(), ..payment.clone() };
    let (one, two) = tokio::join!(pay(&engine, &other), pay(&engine, &other));
    one.and(two)?;

    println!("3. The same order with another amount:");
    let changed = Payment { cents: 999_999, ..payment };
    if let Err(error) = pay(&engine, &changed).await {
        println!("   refused: {error}");
    }

    println!("Six calls, {} charges. Events: {}.", CHARGES.load(Ordering::SeqCst), engine.stats());
    assert_eq!(CHARGES.load(Ordering::SeqCst), 2);
    Ok(())
}
