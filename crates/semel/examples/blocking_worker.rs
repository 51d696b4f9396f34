//! A worker without a runtime: plain threads, plain functions, a queue that delivers at least once.
//!
//! `cargo run -p semel --example blocking_worker`

use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::EmbeddedStore;
use semel::{Engine, Failure, Key, RunError};

static TRIED: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);

/// Sends an invoice. The mail server is down at the second try: nothing happened, so the next delivery tries again.
fn send_invoice(invoice: &str) -> Result<String, Failure> {
    if TRIED.fetch_add(1, Ordering::SeqCst) == 1 {
        return Err(Failure::Failed("mail server refused the connection".into()));
    }
    Ok(format!("{invoice} sent as mail {}", SENT.fetch_add(1, Ordering::SeqCst) + 1))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::builder(EmbeddedStore::open(folder.path())?).build()?;

    for delivery in ["inv-1", "inv-2", "inv-1", "inv-2", "inv-2"] {
        let outcome = engine
            .once(Key::new("send-invoice").value(delivery))
            .run_blocking(|_attempt| send_invoice(delivery));
        match outcome {
            Ok(answer) if answer.replayed => println!("{delivery}: {} (replayed)", answer.value),
            Ok(answer) => println!("{delivery}: {}", answer.value),
            Err(RunError::Failed(error)) => println!("{delivery}: {error}; left in the queue"),
            Err(error) => return Err(error.into()),
        }
    }
    println!("Five deliveries, {} invoices sent. Events: {}.", SENT.load(Ordering::SeqCst), engine.stats());
    assert_eq!(SENT.load(Ordering::SeqCst), 2);
    Ok(())
}
