//! Many callers over many handles, through the engine: one effect, equal answers, woken by push.

use std::sync::atomic::{AtomicU32, Ordering};

use semel::outcome::Outcome;
use semel::record::Mode;
use semel::{Engine, Key};

use super::*;

// Polling is set so wide that only a push can wake the waiters in time.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_callers_on_four_handles_have_one_effect() {
    let server = server();
    let runs = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for _ in 0..4 {
        let store: Arc<dyn Store> = connect(&server.url()).await;
        let engine = Engine::builder(store)
            .backstop(Duration::from_secs(30))
            .wait(Duration::from_secs(20))
            .build()
            .expect("good settings");
        for _ in 0..50 {
            let (engine, runs) = (engine.clone(), Arc::clone(&runs));
            callers.push(tokio::spawn(async move {
                let once = engine.once(Key::new("charge").value("order-1")).fingerprint(&"ten euros");
                let answer = once.run(async move || {
                    let run = runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok(run)
                });
                answer.await.map(|answer| (answer.value, answer.replayed))
            }));
        }
    }
    let mut first = 0;
    for caller in callers {
        let answer = tokio::time::timeout(Duration::from_secs(15), caller).await.expect("woken by push");
        let (value, replayed) = answer.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(value, 0, "the first run's outcome");
        first += u32::from(!replayed);
    }
    assert_eq!((first, runs.load(Ordering::SeqCst)), (1, 1));
}

/// How often the server was asked to run a script.
fn scripts_run(server: &Redis) -> u64 {
    let stats = server.tell(&["INFO", "commandstats"]).expect("a healthy server").text();
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("eval") + calls("evalsha")
}

/// Claims and completes many records at once, and says how many scripts that took.
async fn claim_and_complete(server: &Redis, store: &Arc<RedisStore>, many: usize) -> u64 {
    let (ids, before) = ((0..many).map(|_| key()).collect::<Vec<_>>(), scripts_run(server));
    let callers: Vec<_> = ids
        .iter()
        .map(|id| {
            let (store, id) = (Arc::clone(store), *id);
            tokio::spawn(async move {
                let terms = Arc::new(Terms { mode: Mode::Keyed, ..Terms::default() });
                let grant = won(ask(&store, id, &NewClaim { terms, ..claim() }).await);
                accepted(store.apply(id, complete(grant, &id.to_string())).await);
                // An owner that asks again gets the same answer, and one that comes too late gets another's.
                accepted(store.apply(id, complete(grant, &id.to_string())).await);
                let Ok(Ruling::Lost { winner }) = store.apply(id, complete(grant, "another")).await else {
                    panic!("completed twice, with two outcomes");
                };
                assert_eq!(*winner.expect("it is known"), Outcome::new("text", id.to_string()));
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    let took = scripts_run(server) - before;
    for id in ids {
        let outcome = replayed(ask(store, id, &claim()).await);
        assert_eq!(*outcome, Outcome::new("text", id.to_string()), "each has its own outcome");
    }
    took
}

// First claims need no script, and completions of many share one
#[tokio::test(flavor = "multi_thread")]
async fn many_completions_share_a_script() {
    let server = server();
    let store = connect(&server.url()).await;
    let took = claim_and_complete(&server, &store, 400).await;
    // No claim needs one. Of 1200 completions the rules decide on 800, one by one, after all of them went together.
    assert!(took < 800 + 1200 / 2, "{took} scripts");
}

// A cluster of one server, given as a plain server: keys have to go one by one, and do.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_one_key_at_a_time_is_served_so() {
    let server = Redis::options().config("cluster-enabled", "yes").start().expect("redis-server starts");
    server.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("it takes all slots");
    eventually("the cluster is up", async || {
        let state = server.tell(&["CLUSTER", "INFO"]).expect("it answers").text();
        state.contains("cluster_state:ok").then_some(())
    })
    .await;
    let store = connect(&server.url()).await;
    claim_and_complete(&server, &store, 200).await;
}

// A process remembers its last walk for the next page. It continued a listing of another process with that, where both had
// stopped at the same record: what was added between its walk and the listing was missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_another_process_continues_misses_nothing() {
    let server = server();
    let [one, other] = [connect(&server.url()).await, connect(&server.url()).await];
    let page = async |store: &Arc<RedisStore>, after| {
        let page = store.scan(Scan { phase: None, after, limit: 1 }).await.expect("a healthy server");
        (page.items.first().map(|item| item.id), page.next)
    };
    let mut ids = [key(), key(), key()];
    ids.sort_unstable();
    let [first, second, added] = ids;
    won(ask(&one, first, &claim()).await);
    won(ask(&one, second, &claim()).await);
    let (found, _) = page(&one, None).await;
    assert_eq!(found, Some(first));
    won(ask(&other, added, &claim()).await);
    let (mut listed, mut after) = page(&other, None).await;
    let mut all = Vec::from_iter(listed);
    while after.is_some() {
        (listed, after) = page(&one, after).await;
        all.extend(listed);
    }
    assert_eq!(all, [first, second, added]);
}
