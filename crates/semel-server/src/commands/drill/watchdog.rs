//! Removes everything that a drill started, however the drill ends.
//!
//! A drill that is killed cannot clean up. So a second process of this program waits on a pipe whose other end the drill holds. When the
//! pipe closes, the watchdog kills the drill's servers and removes its data. A drill that ends by itself is cleaned up in the same way.
//! Redis and PostgreSQL servers that a drill starts have watchers of their own, in `semel-testbed`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::postgres::DrillPostgres;
use super::redis::DrillRedis;

/// The argument that starts it.
pub(crate) const COMMAND: &str = "drill-watchdog";
/// How often the removal of a folder is tried: a killed server may still write into it.
const REMOVALS: usize = 20;

/// What the watchdog must know, one line of JSON each.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// A folder to remove.
    Folder(PathBuf),
    /// A server to kill.
    Started(u32),
    /// It was killed already, so its id may be reused.
    Ended(u32),
    /// Keys to remove from a Redis that the drill did not start.
    Redis { url: String, prefix: String },
    /// A schema to remove from a PostgreSQL that the drill did not start.
    Postgres { url: String, schema: String },
    /// The drill is over.
    End,
}

/// The drill's side. Cloned for every server.
#[derive(Clone)]
pub(in crate::commands) struct Watchdog(Arc<Mutex<ChildStdin>>);

/// The process. It is waited for at the end of the drill.
pub(in crate::commands) struct WatchdogProcess(Child);

impl Watchdog {
    /// Starts it.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(in crate::commands) fn start() -> anyhow::Result<(Self, WatchdogProcess)> {
        let own = std::env::current_exe().context("where this program is")?;
        let mut child = Command::new(own)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .current_dir("/")
            // Ctrl-C and a signal to the drill's group must not end it.
            .process_group(0)
            .spawn()
            .context("the watchdog of the drill")?;
        let pipe = child.stdin.take().context("the pipe to the watchdog")?;
        Ok((Self(Arc::new(Mutex::new(pipe))), WatchdogProcess(child)))
    }

    /// Removes this folder at the end.
    pub(in crate::commands) fn folder(&self, path: &Path) -> anyhow::Result<()> {
        self.tell(&Entry::Folder(path.to_owned()))
    }

    /// Kills this process at the end.
    pub(in crate::commands) fn started(&self, pid: u32) -> anyhow::Result<()> {
        self.tell(&Entry::Started(pid))
    }

    /// This process was killed.
    pub(in crate::commands) fn ended(&self, pid: u32) {
        // Without the watchdog nobody would kill a process of that id.
        let _ = self.tell(&Entry::Ended(pid));
    }

    /// Removes the drill's keys from this Redis at the end.
    pub(in crate::commands) fn redis(&self, url: &str, prefix: &str) -> anyhow::Result<()> {
        self.tell(&Entry::Redis { url: url.to_owned(), prefix: prefix.to_owned() })
    }

    /// Removes the drill's schema from this PostgreSQL at the end.
    pub(in crate::commands) fn postgres(&self, url: &str, schema: &str) -> anyhow::Result<()> {
        self.tell(&Entry::Postgres { url: url.to_owned(), schema: schema.to_owned() })
    }

    /// The drill is over: everything is removed now.
    pub(in crate::commands) fn end(&self) {
        // It notices the end of this process in any case.
        let _ = self.tell(&Entry::End);
    }

    fn tell(&self, entry: &Entry) -> anyhow::Result<()> {
        let line = format!("{}\n", serde_json::to_string(entry)?);
        self.0.lock().write_all(line.as_bytes()).context("the watchdog of the drill has ended")
    }
}

impl WatchdogProcess {
    /// Waits until everything is removed, after [`Watchdog::end`].
    ///
    /// # Errors
    /// Something could not be removed; the watchdog has printed what.
    pub(in crate::commands) fn wait(mut self) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { bail!("the drill's data could not be removed") }
    }
}

/// Runs the watchdog: waits for the end of the drill, then removes what is left.
///
/// # Errors
/// Something could not be removed.
pub(crate) fn run() -> anyhow::Result<()> {
    let (mut servers, mut rest) = (BTreeSet::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        // A line that was cut off by the death of the drill is not an entry.
        let Some(entry) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { continue };
        match entry {
            Entry::Started(pid) => _ = servers.insert(pid),
            Entry::Ended(pid) => _ = servers.remove(&pid),
            Entry::End => break,
            other => rest.push(other),
        }
    }
    for pid in servers {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended with the drill.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(remove_all(rest))
}

async fn remove_all(rest: Vec<Entry>) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    // The folder is the first entry, and is removed last.
    for entry in rest.into_iter().rev() {
        let removed = match entry {
            Entry::Folder(path) => remove(&path).await.with_context(|| path.display().to_string()),
            Entry::Redis { url, prefix } => DrillRedis::named(&url, prefix).remove_data().await,
            Entry::Postgres { url, schema } => DrillPostgres::named(&url, schema).remove_data().await,
            Entry::Started(_) | Entry::Ended(_) | Entry::End => Ok(()),
        };
        failed.extend(removed.err());
    }
    match failed.into_iter().next() {
        None => Ok(()),
        Some(error) => Err(error.context("what the drill left behind could not be removed")),
    }
}

async fn remove(folder: &Path) -> std::io::Result<()> {
    let mut tried = 0;
    loop {
        tried += 1;
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if tried < REMOVALS => tokio::time::sleep(Duration::from_millis(100)).await,
            removed => return removed,
        }
    }
}
