//! The memory store against the contract.

use std::sync::Arc;

use semel::store::{MemoryStore, Store};
use semel::testkit::contract::{self, Context, agrees_with_the_rules};
use semel::time::ManualClock;

async fn fresh() -> Context {
    let clock = ManualClock::default();
    Context::new(Arc::new(MemoryStore::with_clock(clock.clone()))).clock(clock)
}

semel::contract_tests!(fresh);

/// All cases at the same time in one store and on the machine's clock, as they run against a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_a_shared_store_in_real_time() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut cases = tokio::task::JoinSet::new();
    for case in contract::cases() {
        let context = Context::new(Arc::clone(&store)).shared();
        cases.spawn(async move { case.run(&context).await });
    }
    while let Some(ended) = cases.join_next().await {
        ended.expect("the case holds");
    }
}

#[tokio::test]
async fn long_random_sequences_agree_with_the_rules() {
    for seed in 1_000..1_200 {
        agrees_with_the_rules(&fresh().await, seed, 1_000).await;
    }
}
