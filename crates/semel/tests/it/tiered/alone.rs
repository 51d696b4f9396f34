//! Redis is not there from the start. A sample of the contract, a case or two from each of its groups.

use super::*;

/// A deployment whose Redis is not there.
async fn without_redis() -> Context {
    let servers = Servers::start();
    servers.redis.kill();
    let (store, peer) = (servers.open().await, servers.open().await);
    assert_eq!(store.stats().coordination, Coordination::Away);
    Context::new(store).peer(peer).reopen(move || {
        let servers = Arc::clone(&servers);
        async move { servers.open().await as Arc<dyn Store> }
    })
}

macro_rules! cases {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                contract::run_test(contract::cases(), stringify!($name), without_redis);
            }
        )*
    };
}

cases! {
    claims_follow_the_table,
    claim_wins_once,
    racing_claims_have_one_winner,
    lapsed_claim_goes_to_the_next,
    outcome_is_replayed_byte_for_byte,
    acknowledged_writes_survive,
    forget_cleans_caches_before_it_answers,
    no_wakeup_is_lost_in_a_race,
    scan_pages_in_order,
    sweep_keeps_fences_up,
    dropped_calls_leave_no_reply_behind,
    concurrent_commands_have_an_order,
    random_commands_agree_with_the_rules,
}
