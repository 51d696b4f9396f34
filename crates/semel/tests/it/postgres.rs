//! The PostgreSQL store against the contract, over two handles, on a server of its own for each case.

mod atomic;
mod faults;
mod pooler;
mod secret;

use std::sync::Arc;

use semel::store::{PostgresStore, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules};
use semel_testbed::Postgres;

pub(crate) async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(url).await.unwrap_or_else(|error| panic!("the store can be opened: {error}"))
}

/// How much a test does: `short` in the normal run, `full` where `SEMEL_PROVE` is set.
fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { full } else { short }
}

async fn fresh() -> Context {
    let server = Arc::new(Postgres::start().expect("a PostgreSQL server can be started"));
    let store = open(&server.url()).await;
    let peer = open(&server.url()).await;
    Context::new(Arc::new(store)).peer(Arc::new(peer)).reopen(move || {
        let server = Arc::clone(&server);
        async move { Arc::new(open(&server.url()).await) as Arc<dyn Store> }
    })
}

semel::contract_tests!(fresh);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 3_000..3_004 {
        agrees_with_the_rules(&context, seed, 150).await;
    }
}
