//! Same key, same run, through several processes on a cold gate. In full form: `./scripts/prove cold-gate`.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel_testbed::redis::Persistence;
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
    redis: Redis,
    _postgres: Postgres,
}

impl Deployment {
    fn new(servers: usize, redis: Redis) -> Self {
        let (postgres, sink) = (Postgres::start().unwrap(), Sink::start());
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n{}\n\
             [gate]\nmode = \"on\"\nthreshold = {THRESHOLD}\nwindow = \"60s\"\nhold = \"50ms\"\nbuffer = \"{}\"\n\
             lease = \"3s\"\nwait = \"30s\"\n",
            postgres.url(),
            target("crm", &sink, "concurrency = 16"),
            redis.url(),
        );
        let file = folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        let servers = (0..servers).map(|_| Semel::with_config(&file, &[])).collect();
        Self { file, servers, sink, _folder: folder, redis, _postgres: postgres }
    }

    fn admins(&self) -> Vec<Http> {
        self.servers.iter().map(Semel::admin).collect()
    }

    /// Waits until this many effects have happened, and nothing is left to be drained or delivered.
    fn wait_for_effects(&self, count: usize) {
        wait::until("each is delivered", PATIENCE * 2, || self.sink.effects().len() >= count).unwrap();
        let admin = &self.admins()[0];
        let open = || {
            let buffered = admin.get("/v1/runs?buffered=true").expect(200);
            let path = "/v1/deliveries?state=idle,queued,running,retry_wait&limit=1";
            let deliveries = admin.get(path).expect(200);
            buffered["tenants"].as_array().unwrap().len() + deliveries["items"].as_array().unwrap().len()
        };
        wait::until("nothing is left", PATIENCE * 2, || open() == 0).unwrap();
    }

    /// What the servers logged of a Redis that did not answer.
    fn outages(&self) -> Vec<String> {
        let lines = |server: &Semel| {
            let of_redis = |line: &&str| line.contains("continues without Redis");
            server.log().lines().filter(of_redis).map(str::to_owned).collect::<Vec<_>>()
        };
        self.servers.iter().flat_map(lines).collect()
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

/// How many runs of a burst pass the gate. Its window is longer than a burst, and each burst has its own tenant: the gate is
/// cold at the beginning of each.
const THRESHOLD: usize = 5;

/// Other keys in a burst of one key: one key alone is one run, which does not trip the gate.
const OTHERS: usize = 12;

fn ask(server: &Http, tenant: &str, key: &str) -> Option<Value> {
    let body =
        json!({ "target": "crm", "tenant": tenant, "payload": { "key": key }, "idempotency_key": key });
    let answer = server.try_send("POST", "/v1/runs", &body.to_string()).ok()?;
    (200..300).contains(&answer.status).then(|| answer.json())
}

/// Triggers one run `count` times at once, over all servers, and some other keys once each. The key is the tenant too. Answers what
/// was told.
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
                        Ok(ask(&servers[at % servers.len()], key, &format!("{key}-other-{number}")))
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
                    (0..count / threads).filter_map(|n| ask(server(n), key, key)).collect::<Vec<_>>()
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
    // Redis is not killed here, so it need not wait for a disk.
    let redis = Redis::options().persistence(Persistence::None).start().unwrap();
    let mut deployment = Deployment::new(servers, redis);
    let (mut keys, mut buffered_in_rounds) = (0, 0);
    for round in 0..rounds {
        let Answers { ids, first, answered, buffered } =
            burst(&deployment.admins(), &format!("k{round}"), triggers);
        assert_eq!((ids.len(), first, answered), (1, 1, triggers), "round {round}: {ids:?}");
        // The gate lets its threshold pass and no more. The run of the one key can be buffered although the gate let it pass: by a
        // process that knows that the gate holds.
        let diverted = 1 + OTHERS - THRESHOLD;
        let fits = (diverted..=diverted + 1).contains(&buffered);
        assert!(fits, "round {round}: {buffered} buffered; {:?}", deployment.outages());
        buffered_in_rounds += buffered;
        keys += 1 + OTHERS;
    }
    // Each key was claimed once and placed once.
    let (buffered, direct) = (
        deployment.sum("semel_triggers_total{to=\"buffer\"}"),
        deployment.sum("semel_triggers_total{to=\"ledger\"}"),
    );
    assert_eq!(buffered + direct, keys, "{buffered} buffered, {direct} to the ledger");
    assert_eq!(buffered, buffered_in_rounds, "as the callers were told");
    let claims = ["won", "timed_out", "failed_open", "unpublished", "lost"]
        .map(|outcome| deployment.sum(&format!("semel_trigger_claims_total{{outcome=\"{outcome}\"}}")));
    assert_eq!(claims, [keys, 0, 0, 0, 0]);
    assert_eq!(deployment.sum("semel_gate_decisions_total{reason=\"failed_open\"}"), 0);
    // A process dies in the middle of it.
    let mut buffered_under_kills = 0;
    for round in 0..kills {
        let admins = deployment.admins();
        let key = format!("killed{round}");
        let victim = round % servers;
        let dead = deployment.servers.remove(victim);
        let told = std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                wait::until("a moment", Duration::from_millis(3 + (round % 7) as u64 * 4), || false).ok();
                dead.kill();
            });
            let told = burst(&admins, &key, triggers);
            killer.join().unwrap();
            told
        });
        deployment.servers.insert(victim, Semel::with_config(&deployment.file, &[]));
        assert!(told.ids.len() <= 1 && told.first <= 1, "round {round}: {told:?}");
        // The surviving servers answer all their other keys, and the gate lets at most its threshold pass.
        let diverted = OTHERS - OTHERS / servers - THRESHOLD;
        let fits = told.buffered >= diverted;
        assert!(fits, "round {round} reaches the buffer: {told:?}; {:?}", deployment.outages());
        buffered_under_kills += told.buffered;
        // Later callers are told the same.
        let after: BTreeSet<String> = deployment
            .admins()
            .iter()
            .map(|admin| ask(admin, &key, &key).unwrap()["id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(after.len(), 1);
        assert!(told.ids.is_empty() || told.ids == after, "{told:?} then {after:?}");
        keys += 1 + OTHERS;
    }
    deployment.wait_for_effects(keys);
    assert_eq!(deployment.sink.effects().len(), keys, "each once");
    println!(
        "{rounds} rounds of {triggers} triggers, {kills} with a process killed: one run each; {buffered} buffered, {direct} not, \
         then {buffered_under_kills} buffered"
    );
}

// While Redis does not answer, a key may be given two runs: one that waits in the buffer, unseen, and one in the ledger. Only the
// one that holds the key is delivered; the other keeps its id and is a dead letter.
#[test]
fn a_burst_while_redis_is_killed_has_one_effect_for_each_key() {
    let (servers, triggers, rounds, pause) = if in_full() {
        (4, 500, 100, Duration::from_secs(5))
    } else {
        (2, 100, 6, Duration::from_millis(700))
    };
    let deployment = Deployment::new(servers, crate::kit::durable_redis());
    let (running, redis_kills) = (AtomicBool::new(true), AtomicUsize::new(0));
    let told: Vec<Answers> = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            while running.load(Ordering::SeqCst) {
                // Until the next kill is due, or nothing is left to kill it under.
                wait::until("the rounds have ended", pause, || !running.load(Ordering::SeqCst)).ok();
                deployment.redis.kill();
                deployment.redis.restart().unwrap();
                deployment.redis.compact().unwrap();
                redis_kills.fetch_add(1, Ordering::SeqCst);
            }
        });
        let admins = deployment.admins();
        let mut told = Vec::new();
        // One that panicked kills no more: the scope reports it.
        while told.len() < rounds || (redis_kills.load(Ordering::SeqCst) < 2 && !killer.is_finished()) {
            told.push(burst(&admins, &format!("k{}", told.len()), triggers));
        }
        running.store(false, Ordering::SeqCst);
        told
    });
    let admin = &deployment.admins()[0];
    wait::until("Redis is used again", PATIENCE, || admin.get("/v1/runs?buffered=true").status == 200)
        .unwrap();
    // A key whose callers were all sent away has a run or none: it has one now.
    for (round, told) in told.iter().enumerate() {
        let key = format!("k{round}");
        let now = wait::for_some("the key is answered", PATIENCE, || Ok(ask(admin, &key, &key))).unwrap();
        let ids = &told.ids;
        assert!(ids.is_empty() || ids.contains(now["id"].as_str().unwrap()), "{key}: {now} after {ids:?}");
    }
    let keys = told.len() * (1 + OTHERS);
    assert!(told.iter().any(|told| told.buffered > 0), "nothing was buffered: {told:?}");
    deployment.wait_for_effects(keys);
    assert_eq!(deployment.sink.effects().len(), keys, "each key once");
    let mut without_key = 0;
    for id in told.iter().flat_map(|told| &told.ids) {
        let run = admin.get(&format!("/v1/runs/{id}")).expect(200);
        assert_eq!(run["id"], json!(id), "every id that was told is that run");
        match run["status"].as_str() {
            Some("done") => {}
            Some("dlq") => without_key += 1,
            other => panic!("{id} is {other:?}"),
        }
    }
    let two: usize = told.iter().map(|told| told.ids.len().saturating_sub(1)).sum();
    assert_eq!(without_key, two, "of two runs of a key one is delivered");
    println!("{} rounds, Redis killed {redis_kills:?} times, {two} keys with two runs", told.len());
}
