//! The Redis store against the contract and against what breaks, each case on a server of its own.

mod server;

use std::sync::Arc;

use semel::store::{RedisStore, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules};

use self::server::Server;

async fn connect(server: &Server) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(&server.url()).await.unwrap_or_else(|error| panic!("{error}")))
}

async fn fresh() -> Context {
    let server = Arc::new(Server::start(&[]));
    let store: Arc<dyn Store> = connect(&server).await;
    let peer: Arc<dyn Store> = connect(&server).await;
    Context::new(store).peer(peer).reopen(move || {
        let server = Arc::clone(&server);
        async move { connect(&server).await as Arc<dyn Store> }
    })
}

semel::contract_tests!(fresh);

#[tokio::test]
async fn long_random_sequences_agree_with_the_rules() {
    let context = fresh().await;
    for seed in 3_000..3_010 {
        agrees_with_the_rules(&context, seed, 400).await;
    }
}
