//! Bursts of many tenants are buffered and drained while servers are killed: every accepted run arrives once, with all its
//! changes, and no tenant waits for another's burst. In full form: `./scripts/prove drain`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use semel_testbed::redis::Persistence;
use semel_testbed::{FaultProxy, Postgres, Redis, wait};
use serde_json::{Value, json};

use super::target;
use crate::kit::{Http, PATIENCE, Semel, Sink, metric};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// Redis, PostgreSQL and a target that several servers share.
struct Deployment {
    redis: Redis,
    postgres: Postgres,
    sink: Sink,
    folder: tempfile::TempDir,
}

impl Deployment {
    fn new() -> Self {
        Self::on(crate::kit::durable_redis(), Postgres::start().unwrap())
    }

    /// Servers that lose everything when they are killed, and do not wait for a disk.
    fn in_memory() -> Self {
        let redis = Redis::options().persistence(Persistence::None).start().unwrap();
        Self::on(redis, Postgres::options().config("fsync", "off").start().unwrap())
    }

    fn on(redis: Redis, postgres: Postgres) -> Self {
        Self { redis, postgres, sink: Sink::start(), folder: tempfile::tempdir().unwrap() }
    }

    /// Starts a server; `gate` are settings of `[gate]`.
    fn serve(&self, gate: &str) -> Semel {
        self.serve_with(&self.redis.url(), gate)
    }

    /// The same with a Redis at another address.
    fn serve_with(&self, redis: &str, gate: &str) -> Semel {
        let text = format!(
            "drain = \"2s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[ledger]\nlease = \"2s\"\n{}\n\
             [gate]\nmode = \"on\"\nbuffer = \"{}\"\nlease = \"2s\"\ncapacity = 1000000\n{gate}",
            self.postgres.url(),
            target("crm", &self.sink, ""),
            redis,
        );
        let file = self.folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        Semel::with_config(&file, &[])
    }
}

// A server that starts while Redis stops must not end: its ledger can take every trigger.
#[test]
fn a_server_starts_though_redis_stops_between_two_of_its_calls() {
    let deployment = Deployment::new();
    let mut hits = 0;
    // What a server asks of Redis before it is ready.
    for call in ["HELLO", "INFO", "CONFIG", "TIME", "SCRIPT", "EVAL", "GET", "SET"] {
        let proxy = FaultProxy::before(deployment.redis.addr()).unwrap();
        proxy.drop_reply_to(call.as_bytes());
        let server = deployment.serve_with(&format!("redis://{}", proxy.addr()), "");
        let body = json!({ "target": "crm", "payload": call, "idempotency_key": call });
        let triggered = server.admin().post("/v1/runs", &body.to_string());
        assert_eq!(triggered.status, 201, "{call}: {}", triggered.text());
        hits += usize::from(server.log().contains("triggers go to the ledger until Redis answers"));
    }
    assert!(hits > 0, "no call was lost");
}

/// What callers were told of one run.
#[derive(Default)]
struct RunHistory {
    /// Its id, where the answer was not lost.
    id: Option<String>,
    buffered: bool,
    /// Increments that were acknowledged, and those whose answers were lost.
    acknowledged: BTreeSet<String>,
    perhaps: BTreeSet<String>,
}

/// All runs in the ledger.
fn runs(admin: &Http) -> Vec<Value> {
    let (mut all, mut page) = (Vec::new(), admin.get("/v1/runs?limit=1000").expect(200));
    loop {
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else { return all };
        page = admin.get(&format!("/v1/runs?limit=1000&cursor={next}")).expect(200);
    }
}

/// Whether nothing is buffered; not where Redis does not answer.
fn buffers_nothing(admin: &Http) -> bool {
    let answer = admin.get("/v1/runs?buffered=true");
    answer.status == 200 && answer.json()["tenants"].as_array().unwrap().is_empty()
}

fn wait_until_empty(admin: &Http) {
    wait::until("all are drained", PATIENCE * 20, || buffers_nothing(admin)).unwrap();
}

/// What is killed beside the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RedisFate {
    Stays,
    /// Killed and restarted with its append-only file, again and again.
    IsKilled,
}

// 200,000 triggers of 50 tenants, drainers killed.
#[test]
fn every_accepted_run_arrives_once_with_all_its_changes() {
    check_that_all_arrive(RedisFate::Stays);
}

#[test]
fn every_accepted_run_arrives_once_while_redis_is_killed_too() {
    check_that_all_arrive(RedisFate::IsKilled);
}

fn check_that_all_arrive(fate: RedisFate) {
    // A tenant's burst trips the gate however slow the machine is.
    const GATE: &str = "threshold = 1\nwindow = \"5s\"\nhold = \"1s\"\nbatch = 50\n";
    const BURST: usize = 200;
    let (count, tenants, servers, kills) = if in_full() { (200_000, 50, 3, 50) } else { (1_200, 6, 2, 3) };
    let deployment = Deployment::new();
    let running: Vec<Mutex<Semel>> = (0..servers).map(|_| Mutex::new(deployment.serve(GATE))).collect();
    let (told, begun, threads) = (Mutex::new(BTreeMap::new()), AtomicUsize::new(0), 16);
    let (mut killed_with_work, redis_kills) = (0, AtomicUsize::new(0));
    // A kill is due when this many have begun. Nobody goes on before the successor of the server to be killed is there.
    let (due_at, successors) = (|kill: usize| count * kill / (kills + 1), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        if fate == RedisFate::IsKilled {
            let pause = if in_full() { Duration::from_secs(5) } else { Duration::from_millis(700) };
            let (redis, begun, redis_kills) = (&deployment.redis, &begun, &redis_kills);
            scope.spawn(move || {
                while begun.load(Ordering::SeqCst) < count {
                    let ended = || begun.load(Ordering::SeqCst) >= count;
                    // Until the next kill is due, or nothing is left to kill it under.
                    wait::until("the triggers have ended", pause, ended).ok();
                    redis.kill();
                    redis.restart().unwrap();
                    redis.compact().unwrap();
                    redis_kills.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..threads {
            let (running, told, begun, successors) = (&running, &told, &begun, &successors);
            scope.spawn(move || {
                loop {
                    let number = begun.fetch_add(1, Ordering::SeqCst);
                    if number >= count {
                        return;
                    }
                    let may_go = || number < due_at(successors.load(Ordering::SeqCst) + 1);
                    wait::until("the next server is there", PATIENCE * 10, may_go).unwrap();
                    let heard = trigger(&running[number % servers], number, number / BURST % tenants);
                    told.lock().insert(number, heard);
                }
            });
        }
        for kill in 1..=kills {
            let successor = deployment.serve(GATE);
            successors.store(kill, Ordering::SeqCst);
            let due = || begun.load(Ordering::SeqCst) > due_at(kill);
            wait::until("the next kill is due", PATIENCE * 10, due).unwrap();
            let victim = running[kill % servers].lock().admin();
            let has_work = || !buffers_nothing(&victim);
            killed_with_work += usize::from(match fate {
                RedisFate::Stays => wait::until("runs are buffered", PATIENCE, has_work).is_ok(),
                RedisFate::IsKilled => has_work(),
            });
            std::mem::replace(&mut *running[kill % servers].lock(), successor).kill();
        }
    });
    let told: BTreeMap<usize, RunHistory> = told.into_inner();
    let (buffered, direct) = told
        .values()
        .filter(|told| told.id.is_some())
        .fold((0, 0), |(b, d), told| if told.buffered { (b + 1, d) } else { (b, d + 1) });
    assert!(buffered > 0 && direct > 0, "{buffered} buffered, {direct} not");
    if fate == RedisFate::Stays {
        assert!(buffered > count / 2, "only {buffered} of {count} were buffered");
    }
    match fate {
        RedisFate::Stays => assert_eq!(killed_with_work, kills, "servers killed while runs were buffered"),
        RedisFate::IsKilled => assert!(killed_with_work > 0, "no server was killed while runs were buffered"),
    }
    assert!(buffered + direct > count / 2, "most were accepted: {buffered} and {direct}");
    let admin = running[0].lock().admin();
    wait_until_empty(&admin);
    let (mut present, mut unheard) = (BTreeMap::new(), 0);
    for run in runs(&admin) {
        let number = usize::try_from(run["metadata"]["number"].as_u64().unwrap()).unwrap();
        let id = run["id"].as_str().unwrap().to_owned();
        match &told[&number].id {
            Some(told) => assert_eq!(*told, id, "run {number} has another id than its caller was told"),
            None => unheard += 1,
        }
        assert!(present.insert(number, run).is_none(), "run {number} is there twice");
    }
    for (number, told) in &told {
        let Some(run) = present.get(number) else {
            assert_eq!(told.id, None, "run {number} was accepted, and is nowhere");
            continue;
        };
        check_changes(&admin, run, told);
    }
    let redis_kills = redis_kills.into_inner();
    assert_eq!(redis_kills > 0, fate == RedisFate::IsKilled);
    println!(
        "{kills} kills, {redis_kills} of Redis, {buffered} runs buffered and {direct} not, {unheard} whose answers were lost"
    );
}

/// Every acknowledged increment is made once, and no other.
fn check_changes(admin: &Http, run: &Value, RunHistory { acknowledged, perhaps, .. }: &RunHistory) {
    if acknowledged.is_empty() && perhaps.is_empty() {
        assert_eq!(run["metadata"]["n"], Value::Null, "{run}");
        return;
    }
    let shown = admin.get(&format!("/v1/runs/{}", run["id"].as_str().unwrap())).expect(200);
    let metadata = shown["metadata"].as_object().unwrap();
    let made: BTreeSet<String> = metadata.keys().filter(|name| name.starts_with("op")).cloned().collect();
    assert!(acknowledged.is_subset(&made), "{acknowledged:?} were acknowledged: {shown}");
    assert!(made.iter().all(|name| acknowledged.contains(name) || perhaps.contains(name)), "{shown}");
    assert!(made.iter().all(|name| metadata[name] == 1), "each once: {shown}");
    assert_eq!(metadata.get("n").map_or(0, |n| n.as_u64().unwrap()), made.len() as u64, "{shown}");
}

/// Triggers one run, and changes some of them.
fn trigger(server: &Mutex<Semel>, number: usize, tenant: usize) -> RunHistory {
    let body = json!({
        "target": "crm", "payload": number, "tenant": format!("tenant-{tenant}"),
        "idempotency_key": format!("run-{number}"), "delay": "1h", "metadata": { "number": number },
    });
    let ask = |method: &str, path: &str, body: &str| {
        let admin: Http = server.lock().admin();
        let answer = admin.try_send(method, path, body).ok().filter(|answer| answer.status != 503)?;
        assert!((200..300).contains(&answer.status), "{} {}", answer.status, answer.text());
        Some(answer.json())
    };
    let mut told = RunHistory::default();
    // The answer may be lost with its server: then it was accepted or not.
    let Some(answer) = ask("POST", "/v1/runs", &body.to_string()) else { return told };
    let id = answer["id"].as_str().unwrap().to_owned();
    told.buffered = answer["buffered"] == true;
    if number.is_multiple_of(50) {
        for change in 0..3 {
            let name = format!("op{change}");
            let body = json!({ "increment": { "n": 1, &name: 1 } }).to_string();
            match ask("PATCH", &format!("/v1/runs/{id}"), &body) {
                Some(_) => told.acknowledged.insert(name),
                None => told.perhaps.insert(name),
            };
        }
    }
    RunHistory { id: Some(id), ..told }
}

// One tenant sends twenty times as much as is drained. Every other tenant has a turn in each round all the same.
#[test]
fn a_burst_of_one_tenant_takes_no_turn_from_the_others() {
    let measured = (0..3).find_map(|_| measure_turns());
    measured.expect("three tries: calls of the drainer failed, or the burst was too slow").check();
}

/// What a drainer took in, and how.
struct Turns {
    ledger: Vec<Value>,
    quiet: Vec<String>,
    batch: usize,
    turns_of_quiet: usize,
}

/// Lets one slow drainer take in what a noisy and some quiet tenants send, twenty times as much as it drains meanwhile. `None` if
/// it drained more than that, or if one of its calls failed: it takes in the runs of that turn later, which says nothing about
/// the order of turns.
fn measure_turns() -> Option<Turns> {
    const BATCH: usize = 2;
    let (noisy_runs, quiet_tenants, turns_of_quiet) = if in_full() { (1_000, 20, 4) } else { (200, 4, 2) };
    let deployment = Deployment::in_memory();
    let producer = deployment.serve("threshold = 0\ndrainers = 0\n");
    let slow = deployment.serve(&format!("threshold = 0\ndrainers = 1\nbatch = {BATCH}\nrest = \"500ms\"\n"));
    let admin = producer.admin();
    let put = |tenant: &str, count: usize| {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::SeqCst) < count {
                        let body = json!({ "target": "crm", "payload": 1, "tenant": tenant, "delay": "1h" });
                        assert_eq!(admin.post("/v1/runs", &body.to_string()).status, 202);
                    }
                });
            }
        });
    };
    let quiet: Vec<String> = (0..quiet_tenants).map(|number| format!("quiet-{number}")).collect();
    // Not while a turn may take a part of what a tenant sends first.
    slow.signal(Signal::STOP);
    put("noisy", noisy_runs / 2);
    for tenant in &quiet {
        put(tenant, BATCH * turns_of_quiet);
    }
    slow.signal(Signal::CONT);
    put("noisy", noisy_runs / 2);
    let all = noisy_runs + quiet_tenants * BATCH * turns_of_quiet;
    let counted = |outcome| {
        metric(&slow.admin(), &format!("semel_buffer_drained_total{{outcome=\"{outcome}\"}}")) as usize
    };
    // A producer that was held up: what came is not a burst.
    if all < 20 * counted("drained") {
        return None;
    }
    let of = |runs: &[Value], tenant: &str| runs.iter().filter(|run| run["tenant"] == tenant).count();
    let mut ledger = Vec::new();
    wait::until("all of the quiet tenants are drained", PATIENCE * 5, || {
        ledger = runs(&admin);
        quiet.iter().all(|tenant| of(&ledger, tenant) == BATCH * turns_of_quiet)
    })
    .unwrap();
    let failed = counted("failure");
    slow.kill();
    // What is left arrives too.
    let _fast = deployment.serve("threshold = 0\n");
    wait_until_empty(&admin);
    assert_eq!(runs(&admin).len(), all);
    (failed == 0).then_some(Turns { ledger, quiet, batch: BATCH, turns_of_quiet })
}

impl Turns {
    /// Counts turns: a batch that one drainer takes in is accepted at one time.
    fn check(&self) {
        let Self { ledger, quiet, batch, turns_of_quiet } = self;
        let mut turns: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for run in ledger {
            let turn = (run["accepted_at"].as_str().unwrap(), run["tenant"].as_str().unwrap());
            *turns.entry(turn).or_default() += 1;
        }
        assert!(turns.values().all(|runs| runs == batch), "every turn is a batch: {turns:?}");
        let order: Vec<&str> = turns.keys().map(|(_, tenant)| *tenant).collect();
        // From the first turn of the last tenant that came, until one of them is done, everybody has one turn in each round.
        let everybody = quiet.len() + 1;
        let all_there =
            quiet.iter().map(|tenant| order.iter().position(|turn| turn == tenant).unwrap()).max().unwrap();
        let last_turn = |tenant: &String| order.iter().rposition(|turn| turn == tenant).unwrap();
        let one_done = quiet.iter().map(last_turn).min().unwrap();
        let together = &order[all_there.min(one_done)..=one_done.max(all_there)];
        for round in together.windows(everybody) {
            let tenants: BTreeSet<&&str> = round.iter().collect();
            assert_eq!(tenants.len(), everybody, "one turn each in {round:?} of {order:?}");
        }
        for tenant in quiet {
            let own: Vec<usize> = (0..order.len()).filter(|at| order[*at] == tenant).collect();
            assert_eq!(own.len(), *turns_of_quiet, "{tenant}: {order:?}");
            for pair in own.windows(2) {
                let noisy = order[pair[0]..pair[1]].iter().filter(|turn| **turn == "noisy").count();
                assert_eq!(noisy, 1, "between two turns of {tenant}: {order:?}");
            }
        }
    }
}
