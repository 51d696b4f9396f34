//! The contract over two processes: every command is executed by a process of its own, in turn or at once.

use std::sync::Arc;

use semel::store::Store;
use semel::testkit::contract::{Context, agrees_with_the_rules, run_case};
use semel_proof::grounds::{Servers, StoreKind};
use semel_proof::place::{SealedWith, StorePlace};
use semel_proof::remote::{InTurn, RemoteStore};

use crate::crash::Form;

async fn remote(place: &StorePlace) -> Arc<dyn Store> {
    let store = RemoteStore::start(env!("CARGO_BIN_EXE_semel-victim"), place).await;
    Arc::new(store.unwrap_or_else(|error| panic!("it can be opened: {error}")))
}

/// The cases in which two parties meet. All others look at one handle, and hold in one process.
const MEETINGS: [&str; 14] = [
    "racing_claims_have_one_winner",
    "racing_repeats_of_one_claim_all_win",
    "racing_completes_leave_one_outcome",
    "racing_release_and_complete_leave_one",
    "racing_settle_and_complete_leave_one",
    "many_keys_in_parallel",
    "one_key_through_many_lives",
    "complete_wakes",
    "change_between_look_and_wait_is_seen",
    "no_wakeup_is_lost_in_a_race",
    "forget_cleans_caches_before_it_answers",
    "concurrent_commands_have_an_order",
    "dropped_claim_can_be_repeated",
    "dropped_calls_leave_no_reply_behind",
];

async fn two_processes(one: &StorePlace, other: &StorePlace) {
    let stores = [remote(one).await, remote(other).await];
    for seed in 7_000..7_000 + Form::asked().pick(4, 200) {
        let in_turn: Arc<dyn Store> = Arc::new(InTurn::new(stores.to_vec()));
        agrees_with_the_rules(&Context::new(in_turn).shared(), seed, 150).await;
    }
    for case in MEETINGS {
        let [one, other] = stores.clone();
        run_case(case, &Context::new(one).peer(other).shared()).await.expect("the case is known");
    }
}

async fn on(ground: StoreKind) {
    let servers = Servers::default();
    let place = servers.place(ground).expect("the server starts").expect("the store can be shared");
    two_processes(&place, &place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    on(StoreKind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster() {
    on(StoreKind::RedisCluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    on(StoreKind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiered() {
    on(StoreKind::Tiered).await;
}

// Each process seals with the key that the other only opens with, as in the middle of a rotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted() {
    let servers = Servers::default();
    let below = servers.place(StoreKind::Redis).expect("the server starts").expect("the store can be shared");
    let with = |key| StorePlace::Sealed { key, over: Box::new(below.clone()) };
    two_processes(&with(SealedWith::Old), &with(SealedWith::New)).await;
}
