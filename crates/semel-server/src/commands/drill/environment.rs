//! The environment of a drill: servers, Redis, PostgreSQL, and the list of checks.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::remote::ask_raw;
use super::DrillArgs;
use super::postgres::DrillPostgres;
use super::redis::DrillRedis;
use super::watchdog::{Watchdog, WatchdogProcess};
use super::wire::DrillWire;
use crate::client::{AdminClient, Request};

/// Timeout of every step of a drill.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A check.
pub(super) struct DrillCheck {
    pub(super) what: String,
    pub(super) passed: bool,
    /// The observed value.
    pub(super) seen: String,
}

/// The requirements of a drill besides the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DrillNeeds {
    /// Nothing.
    Nothing,
    /// A Redis.
    Redis,
    /// A Redis server of its own, which it cuts off or kills, and a shared ledger if there is one.
    OwnRedis,
    /// A Redis server, and a shared ledger if there is one.
    Several,
    /// Its own Redis and PostgreSQL servers.
    OwnBoth,
}

impl DrillNeeds {
    /// True if the drill uses a Redis server that the user names.
    pub(super) fn uses_named_redis(self) -> bool {
        matches!(self, Self::Redis | Self::Several)
    }

    /// True if the drill uses a PostgreSQL database that the user names.
    pub(super) fn uses_named_postgres(self) -> bool {
        self != Self::OwnBoth
    }
}

/// Why a drill was skipped.
#[derive(Debug)]
pub(in crate::commands) struct Skipped(pub(in crate::commands) &'static str);

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Skipped {}

/// The environment of a drill.
pub(super) struct DrillEnvironment {
    folder: tempfile::TempDir,
    watchdog: Watchdog,
    watchdog_process: WatchdogProcess,
    pub(super) redis: Option<DrillRedis>,
    /// A PostgreSQL database that several processes share. Without it they use an embedded ledger one after the other.
    pub(super) postgres: Option<DrillPostgres>,
    /// Timeout of a server for its PostgreSQL.
    pub(super) postgres_timeout: &'static str,
    checks: Vec<DrillCheck>,
    notes: Vec<String>,
}

impl DrillEnvironment {
    /// Starts the requirements.
    ///
    /// # Errors
    /// [`Skipped`] if something is not installed; otherwise the reason why it did not start.
    pub(super) fn new(args: &DrillArgs, needs: DrillNeeds) -> anyhow::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("semel-drill-").tempdir().context("a temporary folder")?;
        let (watchdog, watchdog_process) = Watchdog::start()?;
        watchdog.folder(folder.path())?;
        let redis = match needs {
            DrillNeeds::Nothing => None,
            DrillNeeds::Redis | DrillNeeds::Several => Some(DrillRedis::find(args.redis.as_deref())?),
            DrillNeeds::OwnRedis | DrillNeeds::OwnBoth => Some(DrillRedis::find(None)?),
        };
        if let Some(redis) = redis.as_ref().filter(|redis| redis.is_foreign()) {
            watchdog.redis(&redis.url, &redis.prefix)?;
        }
        let named = match args.postgres.as_deref().filter(|_| needs.uses_named_postgres()) {
            Some(url) => {
                let named = DrillPostgres::named(url, DrillPostgres::new_schema());
                watchdog.postgres(&named.url, &named.schema)?;
                Some(named)
            }
            None => None,
        };
        let postgres = match (needs, named) {
            (_, Some(named)) => Some(named),
            (DrillNeeds::Nothing | DrillNeeds::Redis, None) => None,
            (DrillNeeds::Several | DrillNeeds::OwnRedis | DrillNeeds::OwnBoth, None) => {
                DrillPostgres::start()?
            }
        };
        if needs == DrillNeeds::OwnBoth && postgres.is_none() {
            let why = "it must start a PostgreSQL server: install one (initdb and postgres on the path)";
            return Err(Skipped(why).into());
        }
        let mut environment = Self {
            folder,
            watchdog,
            watchdog_process,
            redis,
            postgres,
            postgres_timeout: "5s",
            checks: Vec::new(),
            notes: Vec::new(),
        };
        if matches!(needs, DrillNeeds::Several | DrillNeeds::OwnRedis) && environment.postgres.is_none() {
            environment.note(
                "no PostgreSQL is installed and --postgres names none: one process at a time, because only one process can open an embedded ledger",
            );
        }
        Ok(environment)
    }

    /// Removes everything that the drill started, and returns the checks and the notes.
    pub(super) fn end(self) -> (Vec<DrillCheck>, Vec<String>) {
        let Self { folder, watchdog, watchdog_process, redis, postgres, checks, mut notes, .. } = self;
        watchdog.end();
        notes.extend(watchdog_process.wait().err().map(|error| format!("{error:#}")));
        // Each of them waits until its process has ended.
        drop((redis, postgres, folder));
        (checks, notes)
    }

    /// Adds a note for the reader of the checks.
    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// True if several processes share the ledger.
    pub(super) fn is_shared(&self) -> bool {
        self.postgres.is_some()
    }

    /// Skips a drill that needs several processes.
    pub(super) fn need_shared(&self) -> anyhow::Result<()> {
        let why = "it needs PostgreSQL, so that several processes share a ledger: install it, or use --postgres URL";
        if self.is_shared() { Ok(()) } else { Err(Skipped(why).into()) }
    }

    /// A wire to the Redis server.
    pub(super) async fn wire(&self) -> anyhow::Result<DrillWire> {
        DrillWire::to(self.redis()?.port().context("this drill has a Redis of its own")?).await
    }

    /// Records a check.
    pub(super) fn check(&mut self, what: &str, passed: bool, seen: impl std::fmt::Display) {
        self.checks.push(DrillCheck { what: what.to_owned(), passed, seen: seen.to_string() });
    }

    /// Records whether two values are equal.
    pub(super) fn same<T: PartialEq + std::fmt::Display>(&mut self, what: &str, seen: &T, expected: &T) {
        let told = if seen == expected { seen.to_string() } else { format!("{seen} instead of {expected}") };
        self.check(what, seen == expected, told);
    }

    pub(super) fn redis(&self) -> anyhow::Result<&DrillRedis> {
        self.redis.as_ref().context("this drill has a Redis")
    }

    /// Starts a server process with this config, in addition to the listeners and the store.
    pub(super) async fn serve(&self, config: &[&str]) -> anyhow::Result<DrillServer> {
        let store = match &self.postgres {
            Some(DrillPostgres { url, schema, .. }) => {
                format!("url = {url:?}\nschema = {schema:?}\ntimeout = {:?}\n", self.postgres_timeout)
            }
            None => format!("url = \"embedded:{}\"\n", self.folder.path().join("data").display()),
        };
        let config = config.concat();
        let file = self.folder.path().join(format!("semel-{:08x}.toml", rand::random::<u32>()));
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"error\"\n\
             [store]\n{store}[ledger]\nlease = \"1s\"\n{config}\n"
        );
        std::fs::write(&file, text).context("the config")?;
        DrillServer::start(file, self.watchdog.clone()).await
    }
}

/// A `semel serve` process. Dropping it kills it.
pub(super) struct DrillServer {
    child: tokio::process::Child,
    /// Its process id, also after its end.
    pid: u32,
    admin: String,
    watchdog: Watchdog,
}

impl Drop for DrillServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.start_kill();
        self.watchdog.ended(self.pid);
    }
}

impl DrillServer {
    async fn start(file: PathBuf, watchdog: Watchdog) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("where this program is")?;
        let mut child = tokio::process::Command::new(own)
            .arg("serve")
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the drill, which then ends its servers.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("a server")?;
        let pid = child.id().context("a server that has just started")?;
        watchdog.started(pid)?;
        let stdout = child.stdout.take().context("its output")?;
        let mut server = Self { child, pid, admin: String::new(), watchdog };
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(STEP_TIMEOUT, lines.next_line())
            .await
            .context("a server that is not ready")??;
        let ready = ready.context("the server ended immediately: run `semel serve` to see why")?;
        let admin = ready.split_whitespace().find_map(|word| word.strip_prefix("admin="));
        admin.with_context(|| format!("the ready line {ready:?}"))?.clone_into(&mut server.admin);
        Ok(server)
    }

    /// Kills it, like a crash.
    pub(super) async fn kill(mut self) {
        // It may have ended already.
        let _ = self.child.kill().await;
    }

    /// Stops it with a signal: it keeps its connections and does nothing.
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        if let Some(pid) = pid {
            // It may have ended already.
            let _ = kill_process(pid, signal);
        }
    }

    /// The value of a metric, by its name with labels; zero if it is absent.
    pub(super) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let reply = AdminClient::own(&self.admin)?.send(&Request::get("/metrics")).await?;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// The ids of the runs in the ledger, up to a thousand.
    pub(super) async fn runs(&self) -> anyhow::Result<Vec<Value>> {
        let page = self.get("/v1/runs?limit=1000").await?;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|item| item["id"].clone()).collect())
    }

    /// Sends a request to its admin API.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: impl Into<String>,
    ) -> anyhow::Result<Value> {
        ask_raw(&AdminClient::own(&self.admin)?, method, path, body.into()).await
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path, "").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, body.to_string()).await
    }

    /// Sends a request whose answer is read later and may never come.
    pub(super) fn post_later(&self, path: &str, body: &Value) -> JoinHandle<anyhow::Result<Value>> {
        let (admin, path, body) = (self.admin.clone(), path.to_owned(), body.to_string());
        tokio::spawn(async move { ask_raw(&AdminClient::own(&admin)?, Method::POST, &path, body).await })
    }

    /// Number of deliveries in these states, up to a thousand.
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

/// Polls until the condition is true.
///
/// # Errors
/// The condition was not true in time.
pub(super) async fn until<F: Future<Output = anyhow::Result<bool>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let limit = Instant::now() + STEP_TIMEOUT;
    loop {
        if ask().await? {
            return Ok(());
        }
        if Instant::now() >= limit {
            bail!("timed out waiting for: {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
