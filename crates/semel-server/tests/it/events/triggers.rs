//! Same key, same run, through several processes on a cold gate. In full form: `./scripts/prove cold-gate`.

use std::collections::BTreeSet;
use std::sync::Barrier;

use semel_testbed::{Postgres, Redis, wait};
use serde_json::{Value, json};

use super::target;
use crate::kit::{Http, PATIENCE, Semel, Sink, metric};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// Servers that share a ledger in PostgreSQL, and a gate that a burst trips.
struct Deployment {
    file: std::path::PathBuf,
    servers: Vec<Semel>,
    sink: Sink,
    _folder: tempfile::TempDir,
    _redis: Redis,
    _postgres: Postgres,
}

impl Deployment {
    fn new(servers: usize) -> Self {
        let (redis, postgres, sink) = (Redis::start().unwrap(), Postgres::start().unwrap(), Sink::start());
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n{}\n\
             [gate]\nmode = \"on\"\nthreshold = 5\nwindow = \"1s\"\nhold = \"50ms\"\nbuffer = \"{}\"\n\
             lease = \"3s\"\nwait = \"30s\"\n",
            postgres.url(),
            target("crm", &sink, "concurrency = 16"),
            redis.url(),
        );
        let file = folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        let servers = (0..servers).map(|_| Semel::with_config(&file, &[])).collect();
        Self { file, servers, sink, _folder: folder, _redis: redis, _postgres: postgres }
    }

    fn admins(&self) -> Vec<Http> {
        self.servers.iter().map(Semel::admin).collect()
    }

    /// The sum of a metric over all servers.
    fn sum(&self, name: &str) -> usize {
        self.admins().iter().map(|admin| metric(admin, name) as usize).sum()
    }
}

/// What the callers of one key were told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    ids: BTreeSet<String>,
    /// How often the run was said to be new.
    first: usize,
    answered: usize,
    /// How often a new run was buffered, of this key and of the others in the burst.
    buffered: usize,
}

impl Answers {
    fn hear(&mut self, body: &Value) {
        self.ids.insert(body["id"].as_str().unwrap().to_owned());
        self.answered += 1;
        self.first += usize::from(body["cached"] == false);
        self.buffered += usize::from(body["cached"] == false && body["buffered"] == true);
    }
}

/// Other keys in a burst of one key: one key alone is one run, which does not trip the gate.
const OTHERS: usize = 12;

fn ask(server: &Http, key: &str) -> Option<Value> {
    let body = json!({ "target": "crm", "payload": { "key": key }, "idempotency_key": key }).to_string();
    let answer = server.try_send("POST", "/v1/runs", &body).ok()?;
    (200..300).contains(&answer.status).then(|| answer.json())
}

/// Triggers one run `count` times at once, over all servers, and some other keys once each. Answers what was told.
fn burst(servers: &[Http], key: &str, count: usize) -> Answers {
    let threads = 50.min(count);
    let barrier = Barrier::new(threads + OTHERS);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..OTHERS)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    // Whose server has died goes to the next one.
                    let mut at = number;
                    wait::for_some("another key is triggered", PATIENCE, || {
                        at += 1;
                        Ok(ask(&servers[at % servers.len()], &format!("{key}-other-{number}")))
                    })
                    .unwrap()
                })
            })
            .collect();
        let callers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let server = |n: usize| &servers[(thread + n) % servers.len()];
                    (0..count / threads).filter_map(|n| ask(server(n), key)).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut told = Answers::default();
        for body in callers.into_iter().flat_map(|thread| thread.join().unwrap()) {
            told.hear(&body);
        }
        let mut of_others = Answers::default();
        for other in others {
            of_others.hear(&other.join().unwrap());
        }
        assert_eq!(of_others.ids.len(), OTHERS, "{of_others:?}");
        told.buffered += of_others.buffered;
        told
    })
}

#[test]
fn a_burst_of_one_key_over_several_processes_is_one_run() {
    let (servers, triggers, rounds, kills) = if in_full() { (4, 500, 200, 50) } else { (3, 150, 4, 3) };
    let mut deployment = Deployment::new(servers);
    let mut keys = 0;
    for round in 0..rounds {
        let Answers { ids, first, answered, .. } =
            burst(&deployment.admins(), &format!("k{round}"), triggers);
        assert_eq!((ids.len(), first, answered), (1, 1, triggers), "round {round}: {ids:?}");
        keys += 1 + OTHERS;
    }
    // Each key was claimed once and placed once, and the gate has tripped.
    let (buffered, direct) = (
        deployment.sum("semel_triggers_total{to=\"buffer\"}"),
        deployment.sum("semel_triggers_total{to=\"ledger\"}"),
    );
    assert_eq!(buffered + direct, keys, "{buffered} buffered, {direct} to the ledger");
    assert!(buffered > 0 && direct > 0, "{buffered} buffered, {direct} to the ledger");
    let claims = ["won", "timed_out", "failed_open", "unpublished", "lost"]
        .map(|outcome| deployment.sum(&format!("semel_trigger_claims_total{{outcome=\"{outcome}\"}}")));
    assert_eq!(claims, [keys, 0, 0, 0, 0]);
    // A process dies in the middle of it.
    let mut buffered_under_kills = 0;
    for round in 0..kills {
        let admins = deployment.admins();
        let key = format!("killed{round}");
        let victim = round % servers;
        let dead = deployment.servers.remove(victim);
        let told = std::thread::scope(|scope| {
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
        deployment.servers.insert(victim, Semel::with_config(&deployment.file, &[]));
        assert!(told.ids.len() <= 1 && told.first <= 1, "round {round}: {told:?}");
        buffered_under_kills += told.buffered;
        // Later callers are told the same.
        let after: BTreeSet<String> = deployment
            .admins()
            .iter()
            .map(|admin| ask(admin, &key).unwrap()["id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(after.len(), 1);
        assert!(told.ids.is_empty() || told.ids == after, "{told:?} then {after:?}");
        keys += 1 + OTHERS;
    }
    assert!(buffered_under_kills > 0, "the rounds with kills reach the buffer");
    wait::until("each is delivered", PATIENCE * 2, || deployment.sink.effects().len() >= keys).unwrap();
    let admin = &deployment.admins()[0];
    let open = || {
        let buffered = admin.get("/v1/runs?buffered=true").expect(200);
        let deliveries = admin.get("/v1/deliveries?state=idle,queued,running,retry_wait&limit=1").expect(200);
        buffered["tenants"].as_array().unwrap().len() + deliveries["items"].as_array().unwrap().len()
    };
    wait::until("nothing is left", PATIENCE, || open() == 0).unwrap();
    assert_eq!(deployment.sink.effects().len(), keys, "each once");
    println!(
        "{rounds} rounds of {triggers} triggers, {kills} with a process killed: one run each; {buffered} buffered, {direct} not, \
         then {buffered_under_kills} buffered"
    );
}
