//! The embedded store against the contract, each case in a folder of its own.

use std::sync::Arc;

use semel::store::{EmbeddedStore, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules};
use semel::time::ManualClock;

async fn fresh() -> Context {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let clock = ManualClock::default();
    let open = {
        let clock = clock.clone();
        move || -> Arc<dyn Store> {
            let store = EmbeddedStore::builder(folder.path()).clock(clock.clone()).open();
            Arc::new(store.unwrap_or_else(|error| panic!("the folder can be opened: {error}")))
        }
    };
    Context::new(open()).clock(clock).reopen(move || {
        let store = open();
        async move { store }
    })
}

semel::contract_tests!(fresh);

#[tokio::test]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 2_000..2_010 {
        agrees_with_the_rules(&context, seed, 400).await;
    }
}
