//! The embedded ledger against the contract, each case in a folder of its own.

mod outbox;
mod scale;

use std::sync::Arc;

use semel::store::EmbeddedStore;
use semel::time::ManualClock;
use semel_pipeline::ledger::{EmbeddedLedger, Ledger};
use semel_pipeline::testkit::contract::{LedgerContext, agrees_with_the_model};

/// In memory where there is such a place: that a sync is waited for is shown elsewhere.
fn folder() -> tempfile::TempDir {
    let memory = tempfile::Builder::new().prefix("semel-ledger-").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a temporary folder can be made")
}

async fn fresh() -> LedgerContext {
    let folder = folder();
    let clock = ManualClock::default();
    let path = folder.path().to_owned();
    let open = {
        let clock = clock.clone();
        move || {
            let store = EmbeddedStore::builder(&path).clock(clock.clone()).open();
            async move {
                let store = store.unwrap_or_else(|error| panic!("the folder can be opened: {error}"));
                let ledger = EmbeddedLedger::open(Arc::new(store)).await;
                let ledger = ledger.unwrap_or_else(|error| panic!("the ledger can be opened: {error}"));
                Arc::new(ledger) as Arc<dyn Ledger>
            }
        }
    };
    LedgerContext::new(open().await).clock(clock).reopen(open).keep(folder)
}

semel_pipeline::ledger_tests!(fresh);

#[tokio::test]
async fn long_random_sequences_agree_with_the_model() {
    let context = fresh().await;
    for seed in 2_000..2_004 {
        agrees_with_the_model(&context, seed, 150).await;
    }
}
