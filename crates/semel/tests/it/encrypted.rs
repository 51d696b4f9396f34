//! Sealed outcomes: the contract over sealed stores, what is on disk, rotation, and shared transactions.
//!
//! Wherever a store has two handles they are in the middle of a rotation: each seals with the key that the other only
//! opens with.

mod at_rest;
mod joined;
mod rotation;

use std::sync::Arc;

use semel::store::{EncryptedStore, Keyring, SealingKey, Store};
use semel::testkit::contract::{Context, agrees_with_the_rules, run_case};

fn key(id: &str) -> SealingKey {
    SealingKey::from_passphrase(id.as_bytes())
}

/// A ring that seals with the first key and opens with all.
fn ring(ids: &[&str]) -> Keyring {
    let (current, others) = ids.split_first().expect("a ring has a key");
    let ring = Keyring::new(current, &key(current)).expect("a good id");
    others.iter().fold(ring, |ring, id| ring.also_opens(id, &key(id)).expect("a good id"))
}

fn sealed<S: Store + ?Sized>(store: &Arc<S>, ids: &[&str]) -> Arc<EncryptedStore<S>> {
    Arc::new(EncryptedStore::over(Arc::clone(store), ring(ids)))
}

mod memory {
    use semel::store::MemoryStore;
    use semel::time::ManualClock;

    use super::*;

    async fn fresh() -> Context {
        let clock = ManualClock::default();
        let below = Arc::new(MemoryStore::with_clock(clock.clone()));
        Context::new(sealed(&below, &["a", "b"])).peer(sealed(&below, &["b", "a"])).clock(clock)
    }

    semel::contract_tests!(fresh);

    #[tokio::test]
    async fn long_random_sequences_agree_with_the_rules() {
        for seed in 5_000..5_050 {
            agrees_with_the_rules(&fresh().await, seed, 500).await;
        }
    }
}

#[cfg(feature = "embedded")]
mod embedded {
    use semel::store::EmbeddedStore;
    use semel::time::ManualClock;

    use super::*;

    async fn fresh() -> Context {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let clock = ManualClock::default();
        let open = {
            let clock = clock.clone();
            move || -> Arc<dyn Store> {
                let store = EmbeddedStore::builder(folder.path()).clock(clock.clone()).open();
                sealed(
                    &Arc::new(store.unwrap_or_else(|error| panic!("the folder can be opened: {error}"))),
                    &["a"],
                )
            }
        };
        Context::new(open()).clock(clock).reopen(move || {
            let store = open();
            async move { store }
        })
    }

    semel::contract_tests!(fresh);
}

/// The cases in which outcomes go down and come up again; all others are the store's own.
const ABOUT_OUTCOMES: [&str; 8] = [
    "outcome_is_replayed_byte_for_byte",
    "tombstone_is_replayed",
    "complete_is_repeatable",
    "outcome_never_changes",
    "refused_owner_sees_the_winner_of_its_payload_only",
    "settle_done_is_replayed",
    "racing_completes_leave_one_outcome",
    "scan_pages_in_order",
];

async fn hold(case: &str, context: Context) {
    run_case(case, &context).await.expect("the case is known");
    if case == "complete_is_repeatable" {
        agrees_with_the_rules(&context, 5_000, 150).await;
    }
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_sealed_on_redis() {
    let server = semel_testbed::Redis::start().expect("redis-server starts");
    for case in ABOUT_OUTCOMES {
        let open = async || {
            let store = semel::store::RedisStore::builder(&server.url()).prefix(case).connect().await;
            Arc::new(store.expect("a healthy server"))
        };
        let context =
            Context::new(sealed(&open().await, &["a", "b"])).peer(sealed(&open().await, &["b", "a"]));
        hold(case, context.shared()).await;
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_sealed_on_postgres() {
    let server = semel_testbed::Postgres::start().expect("a PostgreSQL server can be started");
    for case in ABOUT_OUTCOMES {
        let open = async || {
            let store = semel::store::PostgresStore::open(&server.url()).await;
            Arc::new(store.expect("a healthy server"))
        };
        let context =
            Context::new(sealed(&open().await, &["a", "b"])).peer(sealed(&open().await, &["b", "a"]));
        hold(case, context.shared()).await;
    }
}
