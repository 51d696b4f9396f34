//! What is in `deploy/`: linters read the Containerfile, the manifests, the alert rules and the dashboard; the configurations and the
//! sample API run, on real servers. No container engine is needed: the parts of a deployment run as processes, under the addresses of
//! this machine.

mod linters;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use semel_testbed::{Postgres, Redis, wait};

use crate::kit::{Http, PATIENCE, Semel, semel};
use crate::packages::artifacts::{VERSION, root};

/// The sample API of `deploy/compose`.
struct SampleApi {
    process: Child,
    url: String,
}

impl SampleApi {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let mut command = Command::new("python3");
        command.arg("-u").arg(root().join("deploy/compose/api.py")).arg(&at);
        let process = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
        let api = Self { process, url: format!("http://{at}") };
        let answers = || Http::new(&api.url).try_send("POST", "/ready", "").is_ok();
        wait::until("the sample API answers", PATIENCE, answers).unwrap();
        api
    }
}

impl Drop for SampleApi {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A configuration of `deploy/`, with other addresses. Each must be in it.
fn configuration(path: &str, replaced: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(root().join("deploy").join(path)).unwrap();
    for (address, other) in replaced {
        assert!(text.contains(address), "{address} in {path}");
        text = text.replace(address, other);
    }
    text
}

/// Starts two servers with this configuration. A request through one is repeated through the other: one charge.
fn one_charge_through_two_servers(config: &str, folder: &Path, env: &[(&str, &str)]) {
    let file = folder.join("semel.toml");
    fs::write(&file, config).unwrap();
    let servers = [(); 2].map(|()| Semel::with_config(&file, env));
    let answers = servers.each_ref().map(|server| {
        let client = server.gateway().with("authorization", "Bearer me").with("idempotency-key", "order-42");
        client.post("/v1/payments", "{}")
    });
    assert_eq!((answers[0].status, answers[1].status), (201, 201), "{}", answers[0].text());
    assert_eq!(answers[0].body, answers[1].body, "the same charge");
    assert_eq!(answers[1].header("idempotent-replayed"), Some("true"));
    for server in &servers {
        for arguments in [&["health"][..], &["health", "--live"]] {
            let probe = semel().args(arguments).env("SEMEL_ADMIN", server.admin_url()).output().unwrap();
            assert!(probe.status.success(), "{probe:?}");
        }
    }
}

/// Starts the two gateways of the compose file with this Redis.
fn compose(redis: &str) {
    let (postgres, api) = (Postgres::start().unwrap(), SampleApi::start());
    let folder = tempfile::tempdir().unwrap();
    let mut config = configuration(
        "compose/semel.toml",
        &[("0.0.0.0:8080", "127.0.0.1:0"), ("http://api:3000", &api.url), ("redis://redis:6379", redis)],
    );
    // Two servers on one machine need two ports.
    config += "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let env = [("SEMEL_SECRET", "a secret of the deployment"), ("STORE_URL", &postgres.url())];
    one_charge_through_two_servers(&config, folder.path(), &env);
}

#[test]
fn the_parts_of_the_compose_file_make_one_charge() {
    let redis = Redis::start().unwrap();
    compose(&redis.url());
}

// The compose file waited for a healthy Redis, which its gateways do not need.
#[test]
fn the_gateways_of_the_compose_file_do_not_need_redis() {
    let file = fs::read_to_string(root().join("deploy/compose/compose.yaml")).unwrap();
    assert!(file.contains("redis: { condition: service_started }"), "they start without it");
    let stopped = Redis::start().unwrap().url();
    compose(&stopped);
}

/// The files that a manifest mounts from the secret `semel`.
fn secrets(folder: &Path, store: &str) {
    let token = "0123456789abcdef0123456789abcdef";
    for (name, value) in
        [("secret", "a secret of the deployment"), ("operator-token", token), ("store-url", store)]
    {
        fs::write(folder.join(name), value).unwrap();
    }
}

#[test]
fn replicas_of_the_kubernetes_gateway_make_one_charge() {
    let (postgres, api, folder) =
        (Postgres::start().unwrap(), SampleApi::start(), tempfile::tempdir().unwrap());
    secrets(folder.path(), &postgres.url());
    let config = configuration(
        "kubernetes/gateway/semel.toml",
        &[
            ("0.0.0.0:8080", "127.0.0.1:0"),
            ("0.0.0.0:8081", "127.0.0.1:0"),
            ("http://payments:3000", &api.url),
            ("/etc/semel/secrets", folder.path().to_str().unwrap()),
        ],
    );
    one_charge_through_two_servers(&config, folder.path(), &[]);
}

#[test]
fn sidecars_make_one_charge() {
    let (postgres, api, folder) =
        (Postgres::start().unwrap(), SampleApi::start(), tempfile::tempdir().unwrap());
    secrets(folder.path(), &postgres.url());
    let mut config = configuration(
        "kubernetes/sidecar/semel.toml",
        &[
            ("0.0.0.0:8080", "127.0.0.1:0"),
            ("http://127.0.0.1:3000", &api.url),
            ("/etc/semel/secrets", folder.path().to_str().unwrap()),
        ],
    );
    config += "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    one_charge_through_two_servers(&config, folder.path(), &[]);
}

// A release changes the version in one place, Cargo.toml. The others must follow.
#[test]
fn every_file_names_the_version_of_the_binary() {
    let mut wrong = Vec::new();
    let tag = |text: &str| {
        text.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect::<String>()
    };
    for (path, before) in [
        ("deploy/container/Containerfile", "--tag semel:"),
        ("deploy/container/Containerfile", "image.version=\""),
        ("deploy/compose/compose.yaml", "image: semel:"),
        ("deploy/kubernetes/gateway/deployment.yaml", "image: semel:"),
        ("deploy/kubernetes/sidecar/deployment.yaml", "image: semel:"),
        ("deploy/kubernetes/gateway/kustomization.yaml", "newName: semel\n    newTag: "),
        ("deploy/kubernetes/sidecar/kustomization.yaml", "newName: semel\n    newTag: "),
        ("clients/python/pyproject.toml", "\nversion = \""),
        ("clients/typescript/package.json", "\"version\": \""),
        ("README.md", "tar -xzf semel-"),
        ("docs/howto/install.md", "tar -xzf semel-"),
        ("docs/howto/install.md", "semel_"),
        ("docs/howto/check-in-ci.md", "semel-0"),
        ("docs/howto/run-in-containers.md", "--tag semel:"),
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        // `semel-0` finds names of tarballs: the digit belongs to the version.
        let back = if before.ends_with('0') { 1 } else { 0 };
        let found: Vec<String> =
            text.match_indices(before).map(|(at, _)| tag(&text[at + before.len() - back..])).collect();
        if found.is_empty() || found.iter().any(|version| version.trim_end_matches('.') != VERSION) {
            wrong.push(format!("{path}: {before}{found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_changelog_begins_with_the_version_of_the_binary() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let newest = text.split("\n## ").skip(1).find(|section| !section.starts_with("Unreleased")).unwrap();
    assert_eq!(newest.split(' ').next(), Some(VERSION));
}
