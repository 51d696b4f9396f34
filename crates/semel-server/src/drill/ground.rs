//! What drills stand on: servers, targets that count, a Redis, and the list of what was checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use http::Method;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::redis::Redis;
use crate::cli::DrillArgs;
use crate::client::Client;
use crate::remote::ask_raw;

/// How long anything may take before a drill fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Something that was checked.
pub(super) struct Check {
    pub(super) what: String,
    pub(super) passed: bool,
    /// What was seen.
    pub(super) seen: String,
}

/// Where a drill takes place.
pub(super) struct Ground {
    folder: tempfile::TempDir,
    pub(super) redis: Option<Redis>,
    /// A PostgreSQL that several processes can share, where one was named.
    pub(super) postgres: Option<String>,
    checks: Vec<Check>,
}

impl Ground {
    pub(super) async fn new(args: &DrillArgs, redis: bool) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("semel-drill-").tempdir().context("a temporary folder")?;
        let redis = match redis {
            true => Some(Redis::find(args.redis.as_deref(), folder.path()).await?),
            false => None,
        };
        Ok(Self { folder, redis, postgres: args.postgres.clone(), checks: Vec::new() })
    }

    /// Ends it. What was checked.
    pub(super) async fn end(self) -> Vec<Check> {
        if let Some(redis) = self.redis {
            redis.end().await;
        }
        self.checks
    }

    /// Notes what was checked.
    pub(super) fn check(&mut self, what: &str, passed: bool, seen: impl std::fmt::Display) {
        self.checks.push(Check { what: what.to_owned(), passed, seen: seen.to_string() });
    }

    /// Notes whether two things are the same.
    pub(super) fn same<T: PartialEq + std::fmt::Display>(&mut self, what: &str, seen: &T, expected: &T) {
        let told = if seen == expected { seen.to_string() } else { format!("{seen} instead of {expected}") };
        self.check(what, seen == expected, told);
    }

    pub(super) fn redis(&self) -> anyhow::Result<&Redis> {
        self.redis.as_ref().context("this drill has a Redis")
    }

    /// Starts a server of its own process with this config behind the listeners and the store.
    pub(super) async fn serve(&self, config: &[&str]) -> anyhow::Result<Server> {
        let store = match &self.postgres {
            Some(url) => url.clone(),
            None => format!("embedded:{}", self.folder.path().join("data").display()),
        };
        let config = config.concat();
        let file = self.folder.path().join(format!("semel-{:08x}.toml", rand::random::<u32>()));
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"error\"\n[store]\nurl = {store:?}\n[ledger]\nlease = \"1s\"\n{config}\n"
        );
        std::fs::write(&file, text).context("the config")?;
        Server::start(file).await
    }
}

/// A `semel serve` of its own. Dropped, it is killed.
pub(super) struct Server {
    child: tokio::process::Child,
    admin: String,
}

impl Server {
    async fn start(file: PathBuf) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("where this program is")?;
        let mut child = tokio::process::Command::new(own)
            .arg("serve")
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("a server")?;
        let stdout = child.stdout.take().context("its output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .context("a server that is not ready")??;
        let ready = ready.context("a server that ended at once: run `semel serve` to see why")?;
        let admin = ready.split_whitespace().find_map(|word| word.strip_prefix("admin="));
        let admin = admin.with_context(|| format!("the ready line {ready:?}"))?.to_owned();
        Ok(Self { child, admin })
    }

    /// Ends it as a crash would.
    pub(super) async fn kill(mut self) {
        // It may have ended already.
        let _ = self.child.kill().await;
    }

    /// Asks its admin side.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: impl Into<String>,
    ) -> anyhow::Result<Value> {
        ask_raw(&Client::own(&self.admin)?, method, path, body.into()).await
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path, "").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, body.to_string()).await
    }

    /// How many deliveries are in these states, up to a thousand.
    pub(super) async fn deliveries(&self, states: &str) -> anyhow::Result<usize> {
        let page = self.get(&format!("/v1/deliveries?limit=1000&state={states}")).await?;
        Ok(page["items"].as_array().map_or(0, Vec::len))
    }

    /// The dead letters with this status, up to a thousand.
    pub(super) async fn letters(&self, status: &str) -> anyhow::Result<Vec<Value>> {
        let page = self.get(&format!("/v1/dead-letters?limit=1000&status={status}")).await?;
        Ok(page["items"].as_array().cloned().unwrap_or_default())
    }
}

/// Asks again and again until the answer is yes.
///
/// # Errors
/// It is not, for too long.
pub(super) async fn until<F: Future<Output = anyhow::Result<bool>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let limit = Instant::now() + PATIENCE;
    loop {
        if ask().await? {
            return Ok(());
        }
        if Instant::now() >= limit {
            bail!("waited in vain: {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A target that counts, by the key of what it is sent.
pub(super) struct Target {
    at: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

struct Shared {
    status: AtomicU16,
    taken: Mutex<BTreeMap<String, u32>>,
    calls: Mutex<Vec<(String, String)>>,
}

impl Target {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let at = listener.local_addr()?;
        let shared = Arc::new(Shared {
            status: AtomicU16::new(200),
            taken: Mutex::default(),
            calls: Mutex::default(),
        });
        let mut target = Self { at, shared, serving: None };
        target.serve(listener);
        Ok(target)
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new().fallback(any(take)).with_state(Arc::clone(&self.shared));
        self.serving = Some(tokio::spawn(async move { drop(axum::serve(listener, router).await) }));
    }

    /// Nobody listens any more.
    pub(super) async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// At the same address again.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.at).await.context("the target's port")?;
        self.serve(listener);
        Ok(())
    }

    pub(super) fn answer_with(&self, status: u16) {
        self.shared.status.store(status, Ordering::SeqCst);
    }

    /// A `[[target]]` that gives up soon.
    pub(super) fn config(&self, name: &str) -> String {
        format!(
            "[[target]]\nname = \"{name}\"\nurl = \"http://{}/\"\n\
             retry = {{ max_attempts = 3, base = \"20ms\", cap = \"100ms\", timeout = \"5s\" }}\n",
            self.at
        )
    }

    /// How many keys it took.
    pub(super) fn effects(&self) -> usize {
        self.shared.taken.lock().len()
    }

    /// Every call: its key and its body.
    pub(super) fn calls(&self) -> Vec<(String, String)> {
        self.shared.calls.lock().clone()
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: String) -> StatusCode {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("").to_owned();
    shared.calls.lock().push((key.clone(), body));
    let status = StatusCode::from_u16(shared.status.load(Ordering::SeqCst)).unwrap_or(StatusCode::OK);
    if status.is_success() {
        *shared.taken.lock().entry(key).or_default() += 1;
    }
    status
}

/// A child that is killed when it is dropped.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a program can be started.
pub(super) fn exists(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
