//! Shared by all servers: folder, port, log, and the process.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::Signal;

use crate::{
    Error, Result,
    error::Doing,
    folder::Folder,
    ports::Port,
    process::{Process, StopMethod},
    wait::{self, PATIENCE},
};

/// How long a server may take to start: one that was killed reads its log first, which is long after a long test.
pub(crate) const START: Duration = Duration::from_secs(180);
/// How often a new server tries another port.
const PORT_TRIES: usize = 8;

/// A server that the test may kill and start again, with the same port and data.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: &'static str,
    ending: StopMethod,
    port: Port,
    process: Mutex<Option<Process>>,
    // The last field: the process ends before its folder is removed.
    folder: Folder,
}

impl Daemon {
    /// Starts a new server on a free port. `command` gets folder and port; `ready` gets the process id.
    pub(crate) fn start(
        name: &'static str,
        ending: StopMethod,
        folder: Folder,
        mut command: impl FnMut(&Folder, u16) -> Result<Command>,
        mut ready: impl FnMut(&Folder, u16, u32) -> Result<bool>,
    ) -> Result<Self> {
        let mut daemon = Self { name, ending, port: Port::pick()?, process: Mutex::new(None), folder };
        for attempt in 1.. {
            let port = daemon.port.number();
            let mut command = command(&daemon.folder, port)?;
            match daemon.launch(&mut command, |pid| ready(&daemon.folder, port, pid)) {
                Err(error) if error.is_port_clash() && attempt < PORT_TRIES => daemon.port = Port::pick()?,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        Ok(daemon)
    }

    /// Starts the killed or stopped server again. Waits for its port if another process has taken it meanwhile.
    pub(crate) fn start_again(
        &self,
        mut command: impl FnMut() -> Result<Command>,
        mut ready: impl FnMut(u32) -> Result<bool>,
    ) -> Result<()> {
        wait::for_some("the port of the restarted server is free", PATIENCE, || {
            match self.launch(&mut command()?, &mut ready) {
                Err(error) if error.is_port_clash() => Ok(None),
                other => other.map(Some),
            }
        })
    }

    fn launch(&self, command: &mut Command, mut ready: impl FnMut(u32) -> Result<bool>) -> Result<()> {
        let path = self.log_path();
        let skip = self.log().len();
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .doing(|| format!("opening {}", path.display()))
        };
        command.stdin(Stdio::null()).stdout(open()?).stderr(open()?);
        let mut process = Process::spawn(command, &self.folder, self.ending)?;
        let pid = process.pid().as_raw_nonzero().get().unsigned_abs();
        let what = format!("{} is ready", self.name);
        let outcome = wait::for_some(&what, START, || {
            if let Some(status) = process.exited() {
                let log = tail(self.log().get(skip..).unwrap_or_default());
                return Err(Error::Start { name: self.name, status: status.to_string(), log });
            }
            Ok(ready(pid)?.then_some(()))
        });
        match outcome {
            Ok(()) => *self.process.lock() = Some(process),
            Err(_) => {
                process.discard();
                self.folder.unwatch();
            }
        }
        outcome
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.with(|process| process.pid().as_raw_nonzero().get().unsigned_abs())
    }

    pub(crate) fn pause(&self) -> Result<()> {
        self.with(Process::pause)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        self.with(Process::resume)
    }

    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.with(Process::cpu_time)
    }

    pub(crate) fn kill(&self) {
        self.end(Process::kill);
    }

    pub(crate) fn stop(&self, signal: Signal) {
        self.end(|process| process.end_with(signal, PATIENCE));
    }

    fn with<T>(&self, act: impl FnOnce(&Process) -> T) -> Result<T> {
        self.process.lock().as_ref().map(act).ok_or(Error::NotRunning { name: self.name })
    }

    fn end(&self, how: impl FnOnce(Process)) {
        let mut process = self.process.lock();
        if let Some(process) = process.take() {
            how(process);
            self.folder.unwatch();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end(Process::discard);
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
