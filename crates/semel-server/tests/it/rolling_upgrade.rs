//! Two versions of the binary on one store under traffic, while processes are killed and replaced: no key runs twice, and both
//! versions give the same answers.
//!
//! The short form starts the store from records of an earlier format, and runs two processes of this version. The full form
//! (`./scripts/prove rolling-upgrade`) builds the last revision before the current formats, and runs it beside this one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::process::Signal;
use semel_testbed::{Postgres, wait};
use serde_json::json;

use crate::kit::{Answer, PATIENCE, Semel, Upstream, durable_redis};
use crate::records_upgrade::{POSTGRES, restore_redis};

/// The file and the line in it that came with the current formats: the commit before is the previous version.
const SCHEMA: &str = "crates/semel-pipeline/src/ledger/postgres/schema.rs";
const LINE: &str = "FORMAT: i64 = 4";

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

fn current() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_semel"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn git(args: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(root()).args(args).output().expect("git runs");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A work tree of a revision. Dropped, it is removed.
pub(crate) struct WorkTree(tempfile::TempDir);

impl WorkTree {
    pub(crate) fn of(revision: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        git(&["worktree", "add", "--detach", &tree.path().display().to_string(), revision]);
        tree
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("tree")
    }
}

impl Drop for WorkTree {
    fn drop(&mut self) {
        git(&["worktree", "remove", "--force", &self.path().display().to_string()]);
    }
}

/// The binary of the revision before the current formats, or of `SEMEL_EARLIER_REVISION`.
fn earlier() -> PathBuf {
    let revision = std::env::var("SEMEL_EARLIER_REVISION").unwrap_or_else(|_| {
        let commits = git(&["log", "--format=%H", "-S", LINE, "--", SCHEMA]);
        let first = commits.lines().last().expect("the history has the commit of the current formats");
        format!("{first}^")
    });
    binary_of(&git(&["rev-parse", &revision]))
}

/// The binary of a commit of the history. It is built once.
pub(crate) fn binary_of(revision: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let target = target.join("earlier").join(revision);
    let binary = target.join("debug/semel");
    if !binary.exists() {
        let tree = WorkTree::of(revision);
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "-p", "semel-server", "--bin", "semel"])
            .current_dir(tree.path())
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
    binary
}

struct Cluster {
    upstream: Upstream,
    folder: tempfile::TempDir,
    store: String,
}

impl Cluster {
    fn new(store: String) -> Self {
        Self { upstream: Upstream::start(), folder: tempfile::tempdir().unwrap(), store }
    }

    fn start(&self, binary: &Path) -> Semel {
        let text = format!(
            "secret = {{ env = \"SECRET\" }}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n\
             [[route]]\nmatch = \"POST /**\"\nkey = {{ header = \"Idempotency-Key\", required = true }}\n\
             lease = \"2s\"\nwait = \"1s\"\nretention = \"3650d\"\nmemory = \"3650d\"\n",
            self.upstream.url(),
            self.store,
        );
        let file = self.folder.path().join("semel.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(file).env("SECRET", "the secret of the fixtures");
        for name in ["SEMEL_TOKEN", "SEMEL_ADMIN", "SEMEL_ADMIN_CA", "SEMEL_SECRET"] {
            command.env_remove(name);
        }
        Semel::spawn(command)
    }
}

fn send(semel: &Semel, key: &str, path: &str) -> std::io::Result<Answer> {
    let client = semel.gateway().with("authorization", "Bearer shop").with("accept", "*/*");
    let client = client.with("content-type", "application/json").with("idempotency-key", key);
    client.try_send("POST", path, r#"{"amount": 42}"#)
}

/// What callers were told of a key: the bodies of all successes.
type Told = Mutex<BTreeMap<String, BTreeSet<String>>>;

/// Sends a key twice, over both processes. An answer may be lost with its process.
fn call(running: &[RwLock<Semel>; 2], number: usize, told: &Told) {
    let key = format!("rolling-{number}");
    for try_number in 0..2 {
        let process = running[(number + try_number) % 2].read();
        let Ok(answer) = send(&process, &key, "/pay") else { continue };
        match answer.status {
            201 => {
                told.lock().entry(key.clone()).or_default().insert(answer.text());
            }
            409 | 503 => {}
            other => panic!("{key}: {other} {}", answer.text()),
        }
    }
}

/// Keys under traffic while the processes are replaced: the first by the new version, then the other one, then one of them by the
/// old version again, and so on. Every second one is killed, the others are told to stop.
fn check(cluster: &Cluster, old: &Path, new: &Path) {
    let (count, steps) = if in_full() { (6_000, 30) } else { (300, 4) };
    let running = [RwLock::new(cluster.start(old)), RwLock::new(cluster.start(old))];
    let (begun, told) = (AtomicUsize::new(0), Told::default());
    let due_at = |step: usize| count * step / (steps + 1);
    let replaced = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let number = begun.fetch_add(1, Ordering::SeqCst);
                    if number >= count {
                        return;
                    }
                    // Nobody goes on before the process that is due was replaced: traffic lasts until the end.
                    let may_go = || number < due_at(replaced.load(Ordering::SeqCst) + 1) + 6;
                    wait::until("the next replacement", PATIENCE * 4, may_go).unwrap();
                    call(&running, number, &told);
                }
            });
        }
        for step in 1..=steps {
            let due = || begun.load(Ordering::SeqCst) >= due_at(step);
            wait::until("the next replacement is due", PATIENCE * 4, due).unwrap();
            let place = &running[(step - 1) % 2];
            // new, new, old, new, old, new: both versions run side by side most of the time, in either order.
            let binary = if step == 3 || step % 4 == 1 && step > 1 { old } else { new };
            let next = cluster.start(binary);
            if step % 2 == 1 {
                // Killed under its calls: the lock is waited for afterwards.
                place.read().signal(Signal::KILL);
                *place.write() = next;
            } else {
                let mut last = std::mem::replace(&mut *place.write(), next);
                last.signal(Signal::TERM);
                assert!(last.wait().success());
            }
            replaced.store(step, Ordering::SeqCst);
        }
    });
    let [one, other] = running.map(RwLock::into_inner);
    drop(one);
    // One of each version at the end.
    let processes = [cluster.start(old), other, cluster.start(new)];
    let told = told.into_inner();
    let mut in_doubt = 0;
    for number in 0..count {
        let key = format!("rolling-{number}");
        let mut bodies = told.get(&key).cloned().unwrap_or_default();
        let acknowledged = !bodies.is_empty();
        let mut doubts = 0;
        for process in &processes {
            let mut answer = send(process, &key, "/pay").unwrap();
            // A dead owner's lease ends first.
            wait::until("an answer", PATIENCE, || {
                let is_busy =
                    answer.status == 503 || answer.status == 409 && answer.json()["code"] != "in_doubt";
                if is_busy {
                    answer = send(process, &key, "/pay").unwrap();
                }
                !is_busy
            })
            .unwrap_or_else(|_| panic!("{key}: {}", answer.text()));
            match answer.status {
                201 => {
                    bodies.insert(answer.text());
                }
                409 => doubts += 1,
                other => panic!("{key}: {other} {}", answer.text()),
            }
        }
        assert!(doubts == 0 || doubts == processes.len(), "{key}: all versions agree on doubt");
        assert!(!acknowledged || doubts == 0, "{key}: an acknowledged outcome stays");
        assert!(bodies.len() <= 1, "{key}: one outcome, not {bodies:?}");
        assert!(cluster.upstream.calls(&key) <= 1, "{key} ran twice");
        in_doubt += usize::from(doubts > 0);
    }
    // A kill leaves at most what was in progress: no more than the callers.
    assert!(in_doubt <= 6 * steps.div_ceil(2), "{in_doubt} in doubt");
    assert!(told.len() * 10 >= count * 8, "only {} of {count} were answered", told.len());
    println!("{count} keys, {steps} replacements, {in_doubt} in doubt, none ran twice");
}

/// Records of the first format are answered by every process.
fn check_fixture(cluster: &Cluster, binaries: &[&Path]) {
    for binary in binaries {
        let semel = cluster.start(binary);
        for key in ["order-1", "order-2"] {
            let answer = send(&semel, key, "/v1/orders").unwrap();
            assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, Some("true")));
        }
        let settled = send(&semel, "doubt-2", "/lost").unwrap();
        assert_eq!(settled.expect(201), json!({ "id": "settled" }));
        assert_eq!(cluster.upstream.total(), 0, "nothing ran again");
    }
}

fn check_versions(store: String) {
    let cluster = Cluster::new(store);
    let old = if in_full() { earlier() } else { current() };
    // The new version migrates; the old one goes on afterwards.
    check_fixture(&cluster, &[&old, &current(), &old]);
    check(&cluster, &old, &current());
}

#[test]
fn rolling_upgrade_on_postgres() {
    let postgres = Postgres::start().unwrap();
    postgres.sql(POSTGRES).unwrap();
    check_versions(postgres.url());
}

#[test]
fn rolling_upgrade_on_redis() {
    let redis = durable_redis();
    restore_redis(&redis);
    check_versions(redis.url());
}
