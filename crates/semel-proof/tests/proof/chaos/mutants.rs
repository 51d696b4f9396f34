//! Every deliberate fault of `semel::mutant` is found within a minute: by the checker in a run with random faults, or by a scenario with the
//! one moment that matters. Each proof first passes without the fault, so that it is the fault that breaks it.

use std::time::Duration;

use semel::mutant::Mutant;
use semel_proof::chaos::puppet::{Puppet, PuppetOrder, PuppetReport, SeparateBegin};
use semel_proof::chaos::witness::{self, WitnessProcess};
use semel_proof::place::StorePlace;
use semel_proof::victim::{VictimJob, VictimReport};
use semel_testbed::redis::Persistence;
use semel_testbed::resp::Reply;
use semel_testbed::{Direction, FaultProxy, Postgres, Redis, Storage, wait};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::run::{ChaosRun, ChaosServer, Goal};
use super::serve::Served;
use crate::crash::kill_nine::flood_with;
use crate::crash::supervisor::Victim;
use crate::crash::{PATIENCE, folder, seed};

const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(100_000);
const KEY: u64 = 7;

/// What a scenario found: nothing, or the promise that was broken.
pub(super) type Found = Result<(), String>;

/// Plays a scenario without the fault, which it must pass, and with it, which it must not.
fn is_caught(mutant: Mutant, scenario: impl Fn(Option<&'static str>) -> Found) {
    scenario(None).unwrap_or_else(|why| panic!("{mutant:?}: broken without the fault too: {why}"));
    let start = Instant::now();
    match scenario(Some(mutant.name())) {
        Ok(()) => panic!("{mutant:?} was not caught"),
        Err(why) => {
            println!("{mutant:?} caught after {:.1} s: {why}", start.elapsed().as_secs_f64());
            assert!(start.elapsed() < LIMIT, "{mutant:?} was caught too late");
        }
    }
}

/// Runs with random faults until a promise is broken, or for a minute. A run gets its seed.
pub(super) fn is_caught_by_chance(mutant: Mutant, run: impl Fn(u64) -> Found) {
    let (start, seed) = (Instant::now(), seed());
    for number in 0.. {
        let seed = seed.wrapping_add(number);
        if let Err(why) = run(seed) {
            println!("{mutant:?} caught after {:.1} s: {why}", start.elapsed().as_secs_f64());
            return;
        }
        assert!(start.elapsed() < LIMIT, "SEMEL_SEED={seed}: {mutant:?} was not caught");
    }
}

/// Workers with the fault.
fn workers_with(mutant: Mutant) -> impl Fn(u64) -> Found {
    move |seed| {
        let run = ChaosRun::start(ChaosServer::redis(), seed, Some(mutant.name()));
        let verdict = run.play(Goal { calls: 1_500, kills: 4 });
        if verdict.holds() { Ok(()) } else { Err(verdict.to_string()) }
    }
}

/// A Redis, a witness, and puppets.
struct Stage {
    redis: Redis,
    proxy: FaultProxy,
    mutant: Option<&'static str>,
    _witness: Victim,
    folder: TempDir,
}

impl Stage {
    fn new(mutant: Option<&'static str>) -> Self {
        let folder = folder();
        let redis = Redis::options().persistence(Persistence::Always).storage(Storage::Memory).start();
        let redis = redis.expect("redis-server starts");
        let proxy = FaultProxy::before(redis.addr()).expect("the proxy starts");
        let (socket, ledger) = (folder.path().join("witness.socket"), folder.path().join("ledger"));
        let witness = Victim::start(&VictimJob::Witness(WitnessProcess { socket, ledger }));
        witness.wait_for("it listened", |report| (*report == VictimReport::Ready).then_some(()));
        Self { redis, proxy, mutant, _witness: witness, folder }
    }

    /// A puppet that talks to Redis directly.
    fn puppet(&self, lease: Duration) -> Victim {
        self.puppet_at(self.redis.addr(), lease)
    }

    fn puppet_at(&self, addr: std::net::SocketAddr, lease: Duration) -> Victim {
        let place = StorePlace::Redis { url: format!("redis://{addr}"), prefix: "puppet".to_owned() };
        let job = Puppet { place, witness: self.folder.path().join("witness.socket"), lease };
        let puppet = Victim::start_with(&VictimJob::Puppet(job), |command| {
            if let Some(mutant) = self.mutant {
                command.env("SEMEL_MUTANT", mutant);
            }
        });
        puppet.wait_for("it opened the store", |report| (*report == VictimReport::Ready).then_some(()));
        puppet
    }

    /// One effect at most.
    fn judge(&self) -> Found {
        let mut effects = 0;
        let read =
            witness::read(&self.folder.path().join("ledger"), |entry| effects += u32::from(entry.key == KEY));
        read.expect("the ledger can be read");
        if effects <= 1 { Ok(()) } else { Err(format!("{effects} effects of one key")) }
    }
}

fn report(puppet: &Victim) -> PuppetReport {
    puppet.wait_for("it took the step", |report| match report {
        VictimReport::Step(report) => Some(report.clone()),
        _ => None,
    })
}

fn tell(puppet: &mut Victim, order: PuppetOrder) -> PuppetReport {
    puppet.tell(&order.line());
    report(puppet)
}

fn done(puppet: &mut Victim, order: PuppetOrder) {
    assert_eq!(tell(puppet, order), PuppetReport::Done, "{order:?}");
}

const fn claim(begin: SeparateBegin) -> PuppetOrder {
    PuppetOrder::Claim { key: KEY, begin }
}

/// Claims until another owner's lease is over.
fn take_over(puppet: &mut Victim) {
    let over = || tell(puppet, claim(SeparateBegin::Yes)) == PuppetReport::Done;
    wait::until("the lease is over", PATIENCE, over).expect("a claim that was not begun is taken over");
}

/// Lets so much time pass.
fn pass(time: Duration) {
    wait::until("time passes", time, || false).ok();
}

// The owner is stopped before its begin mark, another one takes over, and the first one goes on.
fn paused_before_begin(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut first, mut second) = (stage.puppet(LEASE), stage.puppet(LEASE));
    done(&mut first, claim(SeparateBegin::Yes));
    first.freeze();
    take_over(&mut second);
    done(&mut second, PuppetOrder::Begin);
    done(&mut second, PuppetOrder::Act);
    first.thaw();
    // Its heartbeats try to renew the claim meanwhile.
    pass(LEASE);
    if tell(&mut first, PuppetOrder::Begin) == PuppetReport::Done {
        done(&mut first, PuppetOrder::Act);
    }
    stage.judge()
}

// The owner is stopped, another one takes over, and the first one releases its claim.
fn paused_before_release(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut first, mut second) = (stage.puppet(LEASE), stage.puppet(LEASE));
    done(&mut first, claim(SeparateBegin::Yes));
    first.freeze();
    take_over(&mut second);
    done(&mut second, PuppetOrder::Begin);
    done(&mut second, PuppetOrder::Act);
    first.thaw();
    done(&mut first, PuppetOrder::Release);
    let mut third = stage.puppet(LEASE);
    if tell(&mut third, claim(SeparateBegin::Yes)) == PuppetReport::Done {
        done(&mut third, PuppetOrder::Begin);
        done(&mut third, PuppetOrder::Act);
    }
    stage.judge()
}

// The owner dies in its effect.
fn killed_in_effect(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut first, mut second) = (stage.puppet(LEASE), stage.puppet(LEASE));
    done(&mut first, claim(SeparateBegin::No));
    done(&mut first, PuppetOrder::Begin);
    done(&mut first, PuppetOrder::Act);
    first.kill();
    let won = wait::for_some("the lease is over", PATIENCE, || {
        Ok(match tell(&mut second, claim(SeparateBegin::No)) {
            PuppetReport::Done => Some(true),
            PuppetReport::Refused(why) if why.contains("InDoubt") => Some(false),
            _ => None,
        })
    });
    let won = won.expect("the claim ends with its owner");
    if won {
        done(&mut second, PuppetOrder::Begin);
        done(&mut second, PuppetOrder::Act);
    }
    stage.judge()
}

// Two processes want the same key at the same time.
fn two_claims(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    for puppet in [&mut stage.puppet(LONG), &mut stage.puppet(LONG)] {
        if tell(puppet, claim(SeparateBegin::No)) == PuppetReport::Done {
            done(puppet, PuppetOrder::Begin);
            done(puppet, PuppetOrder::Act);
        }
        // Its claim must outlive it, as that of a process that is slow.
        puppet.freeze();
    }
    stage.judge()
}

// A key in doubt is settled: whatever its lost owner still sends comes too late.
fn settled(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut first, mut second) = (stage.puppet(LEASE), stage.puppet(LEASE));
    // So that it knows the secret of the deployment.
    done(&mut second, PuppetOrder::Claim { key: 1, begin: SeparateBegin::Yes });
    done(&mut first, claim(SeparateBegin::No));
    done(&mut first, PuppetOrder::Begin);
    first.freeze();
    let fence = |puppet: &mut Victim| match tell(puppet, PuppetOrder::Fence { key: KEY }) {
        PuppetReport::Fence(fence) => fence,
        other => panic!("{other:?}"),
    };
    let before = fence(&mut second);
    let settles = || tell(&mut second, PuppetOrder::Settle { key: KEY }) == PuppetReport::Done;
    wait::until("the key is in doubt", PATIENCE, settles).expect("a key whose owner stopped is in doubt");
    let after = fence(&mut second);
    if after > before { Ok(()) } else { Err(format!("the fence was {before} and is {after}")) }
}

// The outcome comes between the question of a waiter and its subscription.
fn outcome_before_subscription(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut owner, mut waiter) = (stage.puppet(LONG), stage.puppet(LONG));
    done(&mut owner, claim(SeparateBegin::No));
    done(&mut owner, PuppetOrder::Begin);
    done(&mut owner, PuppetOrder::Act);
    let follow = PuppetOrder::Follow { key: KEY, wait: Duration::from_secs(15) };
    assert_eq!(tell(&mut waiter, follow), PuppetReport::Watches);
    done(&mut owner, PuppetOrder::Complete);
    waiter.tell(&PuppetOrder::Go.line());
    match report(&waiter) {
        PuppetReport::Done => Ok(()),
        PuppetReport::Refused(why) => Err(format!("the waiter was not woken: {why}")),
        other => panic!("{other:?}"),
    }
}

// A reply of the server is held in the network, and the process that reads it late counts the server's clock wrongly.
fn late_clock(mutant: Option<&'static str>) -> Found {
    let stage = Stage::new(mutant);
    let (mut late, mut other) = (stage.puppet_at(stage.proxy.addr(), LEASE), stage.puppet(LEASE));
    done(&mut late, PuppetOrder::Claim { key: 1, begin: SeparateBegin::Yes });
    done(&mut late, PuppetOrder::Release);
    stage.proxy.hold(Direction::ToClient);
    late.tell(&PuppetOrder::RunAfter { first: 2, key: KEY }.line());
    // Longer than the lease of the second claim, shorter than the client waits for a reply.
    pass(LEASE + LEASE / 2);
    stage.proxy.release();
    match report(&late) {
        PuppetReport::InEffect => {}
        // The reply came after the client's timeout, or its claim was too old to use: nothing ran.
        PuppetReport::Refused(_) => return stage.judge(),
        other => panic!("{other:?}"),
    }
    // Its owner lives and renews its claim. A process that wins it now was granted a claim that was over when it was written.
    if tell(&mut other, PuppetOrder::RunNow { key: KEY }) == PuppetReport::InEffect {
        other.tell(&PuppetOrder::Go.line());
    }
    stage.judge()
}

/// Redis, PostgreSQL, and servers with the fault.
struct TriggerStage {
    redis: Redis,
    postgres: Postgres,
    mutant: Option<&'static str>,
    folder: TempDir,
}

impl TriggerStage {
    fn new(mutant: Option<&'static str>) -> Self {
        let redis = Redis::options().persistence(Persistence::Always).storage(Storage::Memory).start();
        let postgres = Postgres::options().storage(Storage::Memory).start();
        let (redis, postgres) = (redis.expect("redis-server starts"), postgres.expect("postgres starts"));
        Self { redis, postgres, mutant, folder: folder() }
    }

    /// A server that buffers every run, with this number of drainers, and PostgreSQL at this address.
    fn serve(&self, name: &str, drainers: u32, postgres: std::net::SocketAddr) -> Served {
        let text = format!(
            "drain = \"1s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[ledger]\nlease = \"2s\"\n\
             [[target]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9\"\n\
             [gate]\nbuffer = \"{}\"\nmode = \"on\"\nthreshold = 0\nhold = \"1ms\"\nlease = \"2s\"\ndrainers = {drainers}\n",
            self.postgres.url_at(postgres, "postgres"),
            self.redis.url(),
        );
        let config = self.folder.path().join(name);
        std::fs::write(&config, text).expect("the config can be written");
        Served::start(&config, self.mutant).expect("the server starts")
    }

    /// The number of members of all keys that match a pattern.
    fn count(&self, pattern: &str, size: &str) -> i64 {
        let Reply::Array(keys) = self.redis.tell(&["KEYS", pattern]).expect("Redis answers") else {
            return 0;
        };
        let size = |key: &Reply| match self.redis.tell(&[size, &key.text()]).expect("Redis answers") {
            Reply::Int(size) => size,
            other => panic!("{other:?}"),
        };
        keys.iter().map(size).sum()
    }
}

/// A run that is not delivered within the test.
fn run_of(key: &str) -> Value {
    json!({ "target": "crm", "payload": 1, "idempotency_key": key, "ttl": "2s", "delay": "1h" })
}

/// Buffers a run, and returns its key and its id. A trigger goes to the ledger if Redis is slow to answer, so this may take several.
fn buffered(server: &Served) -> (String, Value) {
    let mut keys = (0..).map(|number| format!("key-{number}"));
    let found = wait::for_some("a run is buffered", PATIENCE, || {
        let key = keys.next().expect("there are enough keys");
        let told = server.ask("POST", "/v1/runs", &run_of(&key), PATIENCE);
        Ok(told.filter(|(status, _)| *status == 202).map(|(_, told)| (key, told["id"].clone())))
    });
    found.expect("the gate is always closed")
}

// A key expires while its run is buffered: the next trigger of the key is another run.
fn key_used_again(mutant: Option<&'static str>) -> Found {
    let stage = TriggerStage::new(mutant);
    let server = stage.serve("only.toml", 0, stage.postgres.addr());
    let (key, first) = buffered(&server);
    let again = wait::until("the key can be used again", LIMIT / 4, || {
        // A trigger that meets the run of an ended generation waits for a long time.
        let told = server.ask("POST", "/v1/runs", &run_of(&key), LIMIT / 4);
        told.is_some_and(|(status, told)| (200..300).contains(&status) && told["id"] != first)
    });
    again.map_err(|_| "the key stays with the run of its first generation".to_owned())
}

// A drainer dies while the ledger does not answer it.
fn drainer_killed(mutant: Option<&'static str>) -> Found {
    let stage = TriggerStage::new(mutant);
    let proxy = FaultProxy::before(stage.postgres.addr()).expect("the proxy starts");
    let mut drainer = stage.serve("drainer.toml", 1, proxy.addr());
    let producer = stage.serve("producer.toml", 0, stage.postgres.addr());
    proxy.hold(Direction::ToServer);
    let (_, id) = buffered(&producer);
    let taken = || stage.count("*:leased", "ZCARD") > 0 || stage.count("*:about", "HLEN") == 0;
    wait::until("the drainer has the run", PATIENCE, taken).expect("it drains");
    pass(Duration::from_millis(500));
    drainer.kill();
    drop(proxy);
    let _successor = stage.serve("successor.toml", 1, stage.postgres.addr());
    let is_drained = || stage.count("*:about", "HLEN") == 0;
    wait::until("the buffer is empty", PATIENCE, is_drained).expect("a dead drainer's lease expires");
    let path = format!("/v1/runs/{}", id.as_str().expect("an id"));
    match producer.ask("GET", &path, &Value::Null, PATIENCE) {
        Some((200, _)) => Ok(()),
        other => Err(format!("an accepted run is lost: {other:?}")),
    }
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn key_without_generation() {
    is_caught(Mutant::KeyWithoutGeneration, key_used_again);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn ack_before_ledger() {
    is_caught(Mutant::AckBeforeLedger, drainer_killed);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn ack_before_durable() {
    flood_with(None).expect("nothing is lost without the fault");
    is_caught_by_chance(Mutant::AckBeforeDurable, |_| flood_with(Some(Mutant::AckBeforeDurable.name())));
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn fence_off() {
    is_caught(Mutant::FenceOff, paused_before_begin);
}

#[test]
fn owner_token_off() {
    is_caught(Mutant::OwnerTokenOff, two_claims);
}

#[test]
fn settle_keeps_fence() {
    is_caught(Mutant::SettleKeepsFence, settled);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn begin_mark_off() {
    is_caught(Mutant::BeginMarkOff, killed_in_effect);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn release_unguarded() {
    is_caught(Mutant::ReleaseUnguarded, paused_before_release);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn no_recheck() {
    is_caught(Mutant::NoRecheck, outcome_before_subscription);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn no_clock_check() {
    is_caught(Mutant::NoClockCheck, late_clock);
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn by_chance_owner_token_off() {
    is_caught_by_chance(Mutant::OwnerTokenOff, workers_with(Mutant::OwnerTokenOff));
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn by_chance_begin_mark_off() {
    is_caught_by_chance(Mutant::BeginMarkOff, workers_with(Mutant::BeginMarkOff));
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn by_chance_effect_tied_to_caller() {
    is_caught_by_chance(Mutant::EffectTiedToCaller, workers_with(Mutant::EffectTiedToCaller));
}
