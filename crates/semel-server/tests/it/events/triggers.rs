//! Same key, same run, through several processes on a cold gate. In full form: `./scripts/prove cold-gate`.

use std::collections::BTreeSet;
use std::sync::Barrier;

use semel_testbed::{Postgres, Redis, wait};
use serde_json::json;

use super::target;
use crate::kit::{Http, PATIENCE, Semel, Sink};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// Servers that share a ledger in PostgreSQL, and a gate that trips at once.
struct Ground {
    file: std::path::PathBuf,
    servers: Vec<Semel>,
    sink: Sink,
    _folder: tempfile::TempDir,
    _redis: Redis,
    _postgres: Postgres,
}

impl Ground {
    fn new(servers: usize) -> Self {
        let (redis, postgres, sink) = (Redis::start().unwrap(), Postgres::start().unwrap(), Sink::start());
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n{}\n\
             [gate]\nmode = \"on\"\nthreshold = 5\nwindow = \"50ms\"\nhold = \"50ms\"\nbuffer = \"{}\"\n\
             lease = \"1s\"\nwait = \"30s\"\n",
            postgres.url(),
            target("crm", &sink, "concurrency = 16"),
            redis.url(),
        );
        let file = folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        let servers = (0..servers).map(|_| Semel::with_config(&file, &[])).collect();
        Self { file, servers, sink, _folder: folder, _redis: redis, _postgres: postgres }
    }
}

/// Triggers one run `count` times at once, over all servers. Answers what was told.
fn burst(servers: &[Http], key: &str, count: usize) -> (BTreeSet<String>, usize, usize) {
    let threads = 50.min(count);
    let barrier = Barrier::new(threads);
    let body = json!({ "target": "crm", "payload": { "key": key }, "idempotency_key": key }).to_string();
    let told: Vec<Vec<Option<(String, bool)>>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    (0..count / threads)
                        .map(|n| {
                            let server = &servers[(thread + n) % servers.len()];
                            let answer = server.try_send("POST", "/v1/runs", body).ok()?;
                            if !(200..300).contains(&answer.status) {
                                return None;
                            }
                            let told = answer.expect(answer.status);
                            Some((told["id"].as_str()?.to_owned(), told["cached"] == true))
                        })
                        .collect()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let told: Vec<(String, bool)> = told.into_iter().flatten().flatten().collect();
    let first = told.iter().filter(|(_, cached)| !cached).count();
    (told.iter().map(|(id, _)| id.clone()).collect(), first, told.len())
}

// G1, G18
#[test]
fn a_burst_of_one_key_over_several_processes_is_one_run() {
    let (servers, triggers, rounds, kills) = if in_full() { (4, 500, 200, 50) } else { (3, 150, 4, 3) };
    let mut ground = Ground::new(servers);
    let mut keys = 0;
    for round in 0..rounds {
        let admins: Vec<Http> = ground.servers.iter().map(Semel::admin).collect();
        let (ids, first, answered) = burst(&admins, &format!("k{round}"), triggers);
        assert_eq!((ids.len(), first, answered), (1, 1, triggers), "round {round}: {ids:?}");
        keys += 1;
    }
    // A process dies in the middle of it.
    for round in 0..kills {
        let admins: Vec<Http> = ground.servers.iter().map(Semel::admin).collect();
        let key = format!("killed{round}");
        let victim = round % servers;
        let dead = ground.servers.remove(victim);
        let (ids, first, _) = std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                wait::until("a moment", std::time::Duration::from_millis(3 + (round % 7) as u64 * 4), || {
                    false
                })
                .ok();
                dead.kill();
            });
            let told = burst(&admins, &key, triggers);
            killer.join().unwrap();
            told
        });
        ground.servers.insert(victim, Semel::with_config(&ground.file, &[]));
        assert!(ids.len() <= 1 && first <= 1, "round {round}: {ids:?}, {first} first");
        // Whoever asks afterwards is told the same.
        let admins: Vec<Http> = ground.servers.iter().map(Semel::admin).collect();
        let (after, _, _) = burst(&admins, &key, servers);
        assert_eq!(after.len(), 1);
        assert!(ids.is_empty() || ids == after, "{ids:?} then {after:?}");
        keys += 1;
    }
    wait::until("each is delivered once", PATIENCE, || ground.sink.effects().len() == keys).unwrap();
    println!("{rounds} rounds of {triggers} triggers, {kills} with a process killed: one run each");
}
