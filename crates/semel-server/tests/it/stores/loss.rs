//! The store loses its data and a gateway is restarted: no key runs twice through the gateways that share it. In full
//! form, twenty times: `./scripts/prove gateway-kill`.

use std::path::PathBuf;
use std::thread;

use semel_testbed::{FaultProxy, Postgres, Redis, wait};
use serde_json::Value;

use crate::kit::{Answer, PATIENCE, Semel, Upstream, metric};

/// New keys in each part of a round.
const KEYS: usize = 50;

/// Who makes the deployment's secret.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Secret {
    Configured,
    MadeByTheStore,
}

const CONFIGURED: &str = "a long and random text for this test";

/// What the gateways of a test share.
struct Deployment {
    upstream: Upstream,
    redis: Redis,
    folder: tempfile::TempDir,
    secret: Secret,
    configured: String,
}

impl Deployment {
    fn new(secret: Secret) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let configured = CONFIGURED.to_owned();
        Self { upstream: Upstream::start(), redis: Redis::start().unwrap(), folder, secret, configured }
    }

    /// Starts a gateway that reaches Redis at `url`.
    fn start_at(&self, url: &str) -> Semel {
        self.start_over(&format!("url = \"{url}\""))
    }

    /// Starts a gateway with these settings of the store.
    fn start_over(&self, store: &str) -> Semel {
        let config: PathBuf = self.folder.path().join("semel.toml");
        let secret = match self.secret {
            Secret::Configured => "secret = { env = \"SEMEL_SECRET\" }\n",
            Secret::MadeByTheStore => "",
        };
        let text = format!(
            "{secret}[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}\n\
             [[route]]\nmatch = \"POST /keyed\"\nmode = \"keyed\"\n",
            self.upstream.url(),
        );
        std::fs::write(&config, text).unwrap();
        Semel::with_config(&config, &[("SEMEL_SECRET", &self.configured)])
    }

    fn start(&self) -> Semel {
        self.start_at(&self.redis.url())
    }

    fn lose_everything(&self) {
        self.redis.tell(&["FLUSHALL"]).unwrap();
    }
}

fn send(gateway: &Semel, path: &str, key: &str) -> Answer {
    gateway.gateway().with("idempotency-key", key).post(path, "{}")
}

/// The bodies of all answers to one key are the same.
fn assert_one_answer(key: &str, answers: &[Answer]) {
    for answer in answers {
        assert_eq!(answer.status, 201, "{key}: {}", answer.text());
        assert_eq!(answer.body, answers[0].body, "{key}: one answer for one key");
    }
}

/// When the second gateway is killed.
#[derive(Clone, Copy, Debug)]
enum Restart {
    AfterTheLoss,
    AroundTheLoss,
}

/// Loses all data, restarts one of two gateways, and sends new keys through both at once.
fn lose_and_restart(deployment: &Deployment, round: usize, order: Restart) {
    let upstream = &deployment.upstream;
    let (steady, restarted) = (deployment.start(), deployment.start());
    let before = format!("before-{round}");
    assert_one_answer(&before, &[send(&steady, "/pay", &before), send(&restarted, "/pay", &before)]);

    if matches!(order, Restart::AroundTheLoss) {
        restarted.kill();
        deployment.lose_everything();
    } else {
        deployment.lose_everything();
        restarted.kill();
    }
    let racing: Vec<String> = (0..KEYS).map(|number| format!("racing-{round}-{number}")).collect();
    // These claims race with the restart, and with whatever notices the loss.
    let (first_answers, restarted) = thread::scope(|scope| {
        let answers = scope.spawn(|| racing.iter().map(|key| send(&steady, "/pay", key)).collect::<Vec<_>>());
        let restarted = deployment.start();
        (answers.join().unwrap(), restarted)
    });
    let through_both = |path: &'static str, key: String, number: usize| {
        let (one, other) =
            if number.is_multiple_of(2) { (&steady, &restarted) } else { (&restarted, &steady) };
        let (one, other) = (one.gateway(), other.gateway());
        thread::spawn(move || {
            let at_once = number % 4 >= 2;
            let (one, other) = (one.with("idempotency-key", &key), other.with("idempotency-key", &key));
            let first = thread::spawn(move || one.post(path, "{}"));
            let answers = if at_once {
                let second = other.post(path, "{}");
                [first.join().unwrap(), second]
            } else {
                [first.join().unwrap(), other.post(path, "{}")]
            };
            (key, answers)
        })
    };
    let keyed_before = upstream.keys();
    let marked: Vec<_> = (0..KEYS).map(|n| through_both("/pay", format!("new-{round}-{n}"), n)).collect();
    let marked: Vec<_> = marked.into_iter().map(|call| call.join().unwrap()).collect();
    assert_eq!(upstream.keys(), keyed_before + KEYS);
    let derived: Vec<_> =
        (0..KEYS).map(|n| through_both("/keyed", format!("keyed-{round}-{n}"), n)).collect();
    let derived: Vec<_> = derived.into_iter().map(|call| call.join().unwrap()).collect();

    let twice = |keys: &[String]| keys.iter().filter(|key| upstream.calls(key) > 1).count();
    let racing_answers: Vec<[Answer; 2]> =
        racing.iter().zip(first_answers).map(|(key, first)| [first, send(&restarted, "/pay", key)]).collect();
    let new: Vec<String> = marked.iter().map(|(key, _)| key.clone()).collect();
    let found = (twice(&racing), twice(&new), upstream.keys() - keyed_before - KEYS);
    assert_eq!(
        found,
        (0, 0, KEYS),
        "{order:?}: racing and new keys that ran twice, derived keys of {KEYS} calls"
    );
    let all = marked.iter().chain(&derived).map(|(key, answers)| (key, answers));
    for (key, answers) in all.chain(racing.iter().zip(&racing_answers)) {
        assert_one_answer(key, answers);
    }
    for key in racing.iter().chain(&new) {
        assert_eq!(upstream.calls(key), 1, "{key}");
    }
    for gateway in [&steady, &restarted] {
        gateway.admin().get("/readyz").expect(200);
    }
}

fn rounds() -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { 10 } else { 1 }
}

#[test]
fn redis_loss_and_a_restart_never_run_a_key_twice() {
    let deployment = Deployment::new(Secret::MadeByTheStore);
    for round in 0..rounds() {
        lose_and_restart(&deployment, 2 * round, Restart::AfterTheLoss);
        lose_and_restart(&deployment, 2 * round + 1, Restart::AroundTheLoss);
    }
}

#[test]
fn redis_loss_and_a_restart_with_a_configured_secret_never_run_a_key_twice() {
    let deployment = Deployment::new(Secret::Configured);
    for round in 0..rounds() {
        lose_and_restart(&deployment, 2 * round, Restart::AfterTheLoss);
        lose_and_restart(&deployment, 2 * round + 1, Restart::AroundTheLoss);
    }
}

// A gateway that nobody can ask for its secret (it is cut off from Redis while the data are lost and another gateway
// starts) works under another secret afterwards. It refuses, and says why, until it is restarted.
#[test]
fn a_gateway_with_another_secret_than_redis_is_not_ready_and_refuses() {
    let deployment = Deployment::new(Secret::MadeByTheStore);
    let upstream = &deployment.upstream;
    let proxy = FaultProxy::before(deployment.redis.addr()).unwrap();
    let behind = format!("redis://{}", proxy.addr());
    let (cut_off, restarted) = (deployment.start_at(&behind), deployment.start());
    let old = "old";
    assert_one_answer(old, &[send(&cut_off, "/pay", old), send(&cut_off, "/pay", old)]);
    proxy.refuse();
    proxy.cut();
    deployment.lose_everything();
    restarted.kill();
    let restarted = deployment.start();
    proxy.heal();

    // Immediately, before it can have looked by itself.
    let keys: Vec<String> = (0..KEYS).map(|number| format!("new-{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let (first, second) =
            if number.is_multiple_of(2) { (&cut_off, &restarted) } else { (&restarted, &cut_off) };
        let (first, second) = (send(first, "/pay", key), send(second, "/pay", key));
        let (refused, ran) = if number.is_multiple_of(2) { (first, second) } else { (second, first) };
        assert_eq!((ran.status, upstream.calls(key)), (201, 1), "{key}");
        assert_eq!(refused.expect(503)["code"], "store_unavailable", "{key}");
        assert!(refused.header("retry-after").is_some(), "{key}");
    }
    let refused = send(&cut_off, "/pay", old);
    assert_eq!(refused.expect(503)["code"], "store_unavailable", "what it remembers is not replayed either");

    // An answer of the last half second may still be given.
    let not_ready = wait::for_some("it is not ready", PATIENCE, || {
        Ok(Some(cut_off.admin().get("/readyz")).filter(|answer| answer.status == 503))
    });
    let why = not_ready.unwrap().expect(503)["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("another secret") && why.contains("restart this process"), "{why}");
    assert_eq!(cut_off.admin().get("/healthz").status, 200, "it still runs");
    assert_eq!(metric(&cut_off.admin(), "semel_store_up").to_string(), "0");
    restarted.admin().get("/readyz").expect(200);
    cut_off.logged("secret_differs");
    let log = cut_off.log();
    assert_eq!(log.matches("secret_differs").count(), 1, "said once: {log}");

    // The way out that it names.
    cut_off.kill();
    let again = deployment.start_at(&behind);
    again.admin().get("/readyz").expect(200);
    for key in &keys {
        let answer = send(&again, "/pay", key);
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, Some("true")), "{key}");
        assert_eq!(upstream.calls(key), 1, "{key}");
    }
}

// A process that remembers outcomes answers nothing from memory once its secret is not the one that Redis keeps.
#[test]
fn a_gateway_with_another_secret_than_redis_replays_nothing_from_memory() {
    let deployment = Deployment::new(Secret::MadeByTheStore);
    let gateway = deployment.start();
    let key = "remembered";
    assert_one_answer(key, &[send(&gateway, "/pay", key), send(&gateway, "/pay", key)]);
    // Only the secret: the record is still there, under an id that nobody else would compute.
    deployment.redis.tell(&["SET", "semel:secret", &"x".repeat(32)]).unwrap();
    let ready = || gateway.admin().get("/readyz");
    wait::until("it is not ready", PATIENCE, || ready().status == 503).unwrap();
    let refused: Value = send(&gateway, "/pay", key).expect(503);
    assert_eq!(refused["code"], "store_unavailable");
    assert_eq!(deployment.upstream.calls(key), 1);
}

// PostgreSQL in the place of Redis: somebody takes all its tables away while a gateway runs, and the one that starts next
// makes them again.
#[test]
fn an_emptied_database_and_a_restart_never_run_a_key_twice() {
    let (deployment, postgres) = (Deployment::new(Secret::MadeByTheStore), Postgres::start().unwrap());
    let upstream = &deployment.upstream;
    let store = format!("url = \"{}\"", postgres.url());
    let (steady, restarted) = (deployment.start_over(&store), deployment.start_over(&store));
    assert_one_answer("before", &[send(&steady, "/pay", "before"), send(&restarted, "/pay", "before")]);
    postgres.sql("DROP SCHEMA semel CASCADE").unwrap();
    restarted.kill();
    let restarted = deployment.start_over(&store);
    for number in 0..KEYS {
        let key = format!("new-{number}");
        let (first, second) =
            if number.is_multiple_of(2) { (&steady, &restarted) } else { (&restarted, &steady) };
        let (first, second) = (send(first, "/pay", &key), send(second, "/pay", &key));
        assert_eq!(upstream.calls(&key), 1, "{key}: {} and {}", first.text(), second.text());
        let (steady, restarted) = if number.is_multiple_of(2) { (first, second) } else { (second, first) };
        assert_eq!(restarted.status, 201, "{key}: {}", restarted.text());
        // Whichever of the two was first to keep its secret in the new tables.
        match steady.status {
            201 => assert_eq!(steady.body, restarted.body, "{key}"),
            _ => assert_eq!(steady.expect(503)["code"], "store_unavailable", "{key}"),
        }
    }
}

// Redis in front of PostgreSQL: the secret is in PostgreSQL, and nothing but copies is lost.
#[test]
fn redis_loss_before_postgresql_and_a_restart_never_run_a_key_twice() {
    let (deployment, postgres) = (Deployment::new(Secret::MadeByTheStore), Postgres::start().unwrap());
    let store = format!("url = \"{}\"\ncoordinate = \"{}\"", postgres.url(), deployment.redis.url());
    let (steady, restarted) = (deployment.start_over(&store), deployment.start_over(&store));
    assert_one_answer("before", &[send(&steady, "/pay", "before"), send(&restarted, "/pay", "before")]);
    deployment.lose_everything();
    restarted.kill();
    let restarted = deployment.start_over(&store);
    for key in (0..KEYS).map(|number| format!("new-{number}")).chain(["before".to_owned()]) {
        assert_one_answer(&key, &[send(&steady, "/pay", &key), send(&restarted, "/pay", &key)]);
        assert_eq!(deployment.upstream.calls(&key), 1, "{key}");
    }
}

// Without a configured secret `serve` says so, because the data of a Redis can get lost.
#[test]
fn a_secret_of_ones_own_is_recommended_for_redis() {
    let recommendation = "set `secret` in the config";
    let own = Deployment::new(Secret::Configured);
    assert!(!own.start().log().contains(recommendation));
    let made = Deployment::new(Secret::MadeByTheStore);
    made.start().logged(recommendation);
}

// A deployment that ran without one configures the one that it has, as the docs say, one process after the other.
#[test]
fn a_secret_made_by_redis_can_be_configured_later() {
    let mut deployment = Deployment::new(Secret::MadeByTheStore);
    let unconfigured = deployment.start();
    assert_one_answer("one", &[send(&unconfigured, "/pay", "one")]);
    let docs = include_str!("../../../../../docs/howto/rotate-keys.md");
    let command = docs.lines().find(|line| line.contains("GET semel:secret")).expect("the docs say how");
    let command = command.replace("redis-cli", &format!("redis-cli -p {}", deployment.redis.port()));
    let printed = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
    deployment.configured = String::from_utf8(printed.stdout).unwrap().trim().to_owned();
    deployment.secret = Secret::Configured;
    let configured = deployment.start();
    assert_one_answer("one", &[send(&configured, "/pay", "one"), send(&unconfigured, "/pay", "one")]);
    assert_one_answer("two", &[send(&configured, "/pay", "two"), send(&unconfigured, "/pay", "two")]);
    assert_eq!((deployment.upstream.calls("one"), deployment.upstream.calls("two")), (1, 1));
}
