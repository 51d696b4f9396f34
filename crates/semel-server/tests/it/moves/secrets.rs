//! A move keeps the secret of the servers, and a protection after a loss of data: otherwise every key would run again.

use super::*;

const OURS: (&str, &str) = ("OURS", "a secret of this deployment");
const THEIRS: (&str, &str) = ("THEIRS", "a secret of another deployment");

struct Configs {
    folder: tempfile::TempDir,
    upstream: Upstream,
}

impl Configs {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), upstream: Upstream::start() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn embedded(&self, name: &str) -> String {
        format!("embedded:{}", self.path(name))
    }

    /// Writes a config file. `more` is at its beginning.
    fn write(&self, name: &str, store: &str, more: &str) -> String {
        let text = format!(
            "{more}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n",
            self.upstream.url(),
        );
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn with_secret(&self, name: &str, store: &str, (variable, _): (&str, &str)) -> String {
        self.write(name, store, &format!("secret = {{ env = \"{variable}\" }}"))
    }
}

/// Runs the key on the server of this config file.
fn pay(config: &str, key: &str) -> crate::kit::Answer {
    let mut server = Semel::with_config(config.as_ref(), &[OURS, THEIRS]);
    let answer = server.gateway().with("idempotency-key", key).post("/pay", "{}");
    server.signal(Signal::TERM);
    server.wait();
    answer
}

/// Whether it worked, and what it said.
fn store(args: &[&str]) -> (bool, String) {
    let mut command = semel();
    let output = command.arg("store").args(args).envs([OURS, THEIRS]).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn refused(args: &[&str], why: &str) {
    let (worked, said) = store(args);
    assert!(!worked && said.contains(why), "{args:?}: {said}");
}

fn worked(args: &[&str]) {
    let (worked, said) = store(args);
    assert!(worked, "{args:?}: {said}");
}

/// Cause: a configured secret is not in the store, so a copy by URL neither copied nor compared it. Consequence: new
/// servers without it made another one, and every key ran again. Fix: a copy that does not know the secret is refused.
#[test]
fn a_configured_secret_is_not_lost() {
    let all = Configs::new();
    let (old_url, new_url) = (all.embedded("data"), all.embedded("new"));
    let old = all.with_secret("old.toml", &old_url, OURS);
    let new = all.with_secret("new.toml", &new_url, OURS);
    let without = all.write("without.toml", &new_url, "");
    let foreign = all.with_secret("foreign.toml", &new_url, THEIRS);
    assert_eq!(pay(&old, "order-1").status, 201);

    let file = all.path("keys.jsonl");
    refused(&["copy", &old_url, &new_url, "--switch"], "use their config file instead of the URL");
    refused(&["export", &old_url, &file], "use their config file instead of the URL");
    refused(&["copy", &old, &new_url, "--switch"], "give the config file of the new servers");
    refused(&["copy", &old, &without, "--switch"], "give the config file of the new servers");
    refused(&["copy", &old, &foreign, "--switch"], "Configure the `secret` of the old servers");

    worked(&["export", &old, &file, "--switch"]);
    refused(&["import", &file, &foreign], "Configure the `secret` of the old servers for the new ones");
    worked(&["import", &file, &new]);
    let again = pay(&new, "order-1");
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    // The file has the secret, so servers without a configured one get it from their store.
    let bare = all.write("bare.toml", &all.embedded("bare"), "");
    worked(&["import", &file, &bare]);
    let again = pay(&bare, "order-1");
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(all.upstream.calls("order-1"), 1);
}

/// A Redis that lost data: only the config file says that its servers accept the risk.
#[test]
fn a_store_that_lost_data_is_not_copied_by_url() {
    let (all, redis) = (Configs::new(), Redis::start().unwrap());
    let config = all.write("old.toml", &redis.url(), "");
    let server = Semel::with_config(config.as_ref(), &[]);
    redis.tell(&["FLUSHALL"]).unwrap();
    server.logged("came back with less data");
    assert_eq!(server.gateway().with("idempotency-key", "order-1").post("/pay", "{}").status, 201);
    refused(&["copy", &redis.url(), &all.embedded("new"), "--switch"], "lost data and grants no claims");
    refused(&["export", &redis.url(), &all.path("keys.jsonl")], "lost data and grants no claims");
    worked(&["copy", &config, &all.embedded("new"), "--switch", "--wait", "0s"]);
}
