//! A Redis server.

mod options;
mod tls;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use rustix::process::Signal;

pub use self::options::{Persistence, RedisOptions};
use crate::{
    Error, Result,
    daemon::{Daemon, START},
    ports::Port,
    resp::{Conn, Reply},
    wait::{self, PATIENCE},
};

/// The program, and the package that contains it.
const PROGRAM: &str = "redis-server";

/// The user of the harness itself, so that a test can change the default user.
pub(crate) const HARNESS_USER: &str = "testbed";

/// A Redis server for one test. Dropping it stops it and removes its data.
///
/// All methods block for a moment and take `&self`: share it in an `Arc` with the code that puts load on it.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    tls: Option<Port>,
    certificates: Option<PathBuf>,
    // Reserved, so that no other server of this process gets it while this one is down.
    _bus: Option<Port>,
}

impl Redis {
    /// Starts a server with the defaults of [`RedisOptions`].
    ///
    /// # Errors
    /// [`Error::Missing`] without `redis-server`; otherwise why it did not start, with the end of its log.
    pub fn start() -> Result<Self> {
        Self::options().start()
    }

    /// The options for a start.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// Its listen address.
    pub fn addr(&self) -> SocketAddr {
        self.daemon.addr()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Its address as a URL, without user and password.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Its listen address for TLS, if started [with TLS](RedisOptions::tls).
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls.as_ref().map(|port| (Ipv4Addr::LOCALHOST, port.number()).into())
    }

    /// Its URL for TLS, if started [with TLS](RedisOptions::tls). The certificate is for `localhost` and `127.0.0.1`.
    pub fn tls_url(&self) -> Option<String> {
        self.tls.as_ref().map(|port| format!("rediss://localhost:{}", port.number()))
    }

    /// The certificate (PEM) of the authority that signed the server's certificate, if started [with TLS](RedisOptions::tls).
    pub fn ca_cert(&self) -> Option<PathBuf> {
        self.certificates.as_deref().map(tls::ca_cert)
    }

    /// The folder of its certificates, if started [with TLS](RedisOptions::tls).
    #[cfg(feature = "harness")]
    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        self.certificates.clone()
    }

    /// Its process id.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn pid(&self) -> Result<u32> {
        self.daemon.pid()
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// CPU time of the server and its children since the last start.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn cpu_time(&self) -> Result<Duration> {
        self.daemon.cpu_time()
    }

    /// A new connection, logged in with all permissions.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not accept or answer.
    pub fn connect(&self) -> Result<Conn> {
        connect(self.addr())
    }

    /// Sends one command over a new connection.
    ///
    /// # Errors
    /// [`Error::Io`] if no answer arrives, [`Error::Reply`] for an error reply.
    pub fn tell(&self, args: &[&str]) -> Result<Reply> {
        self.connect()?.tell(args)
    }

    /// One field of `INFO`; empty if it does not exist.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn info(&self, field: &str) -> Result<String> {
        Ok(info_field(&self.tell(&["INFO", "everything"])?.text(), field))
    }

    /// Changes a setting. A restart resets it, unless [`replica_of`](Self::replica_of) or [`promote`](Self::promote) was called
    /// afterwards.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn config_set(&self, name: &str, value: &str) -> Result<()> {
        self.tell(&["CONFIG", "SET", name, value]).map(drop)
    }

    /// Kills it like a power cut (SIGKILL), and reaps it. Does nothing if it is not running.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Shuts it down (SIGTERM). Does nothing if it is not running.
    pub fn stop(&self) {
        self.daemon.stop(Signal::TERM);
    }

    /// Freezes it (SIGSTOP): connections stay open, and new ones are accepted by the kernel, but nothing is answered.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn pause(&self) -> Result<()> {
        self.daemon.pause()
    }

    /// Continues it after [`pause`](Self::pause).
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn resume(&self) -> Result<()> {
        self.daemon.resume()
    }

    /// Starts it with the same port and data, and waits until it has loaded them. Kills it first if it is running.
    ///
    /// # Errors
    /// Why it did not start, with the end of its log.
    pub fn restart(&self) -> Result<()> {
        // Redis keeps changes of up to two seconds to itself while the disk is busy. It has all of them written before it answers
        // this.
        if self.pid().is_ok() {
            let _ = self.tell(&["CONFIG", "SET", "appendfsync", "always"]);
        }
        self.kill();
        let command = || command(self.daemon.folder().path().join(options::CONFIG));
        self.daemon.start_again(command, |pid| is_ready(self.addr(), pid))
    }

    /// Rewrites its append-only file to what it has now, and waits for the end. Nothing else does: a long test that kills and restarts
    /// it would otherwise load all that was ever written each time.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the rewrite does not end; [`Error::Reply`] if it failed.
    pub fn compact(&self) -> Result<()> {
        self.tell(&["BGREWRITEAOF"])?;
        wait::for_some("the append-only file is rewritten", START, || {
            let info = self.tell(&["INFO", "persistence"])?.text();
            let is = |field: &str, value: &str| info_field(&info, field) == value;
            let rests = is("aof_rewrite_in_progress", "0") && is("aof_rewrite_scheduled", "0");
            match rests && !is("aof_last_bgrewrite_status", "ok") {
                true => Err(Error::Reply { asked: "BGREWRITEAOF".to_owned(), answer: info }),
                false => Ok(rests.then_some(())),
            }
        })
    }

    /// Makes it a replica of a primary, and waits until they are in sync. It stays a replica after a restart.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the link is not established.
    pub fn replica_of(&self, primary: &Redis) -> Result<()> {
        self.replicate_from(primary.addr())
    }

    /// As [`replica_of`](Self::replica_of), with an address, such as a [`FaultProxy`](crate::FaultProxy) in front of the primary.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the link is not established.
    pub fn replicate_from(&self, primary: SocketAddr) -> Result<()> {
        let (ip, port) = (primary.ip().to_string(), primary.port().to_string());
        self.tell(&["REPLICAOF", &ip, &port])?;
        self.tell(&["CONFIG", "REWRITE"])?;
        wait::for_some("the replica is in sync", PATIENCE, || {
            Ok((self.info("master_link_status")? == "up").then_some(()))
        })?;
        // After a full copy it begins a new file. Until that is done, a restart would load the old one.
        wait::for_some("the append-only file is rewritten", PATIENCE, || {
            let info = self.tell(&["INFO", "persistence"])?.text();
            let is_over = |field| info_field(&info, field) == "0";
            Ok((is_over("aof_rewrite_in_progress") && is_over("aof_rewrite_scheduled")).then_some(()))
        })
    }

    /// Promotes a replica to primary, as an operator or Sentinel would.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn promote(&self) -> Result<()> {
        self.tell(&["REPLICAOF", "NO", "ONE"])?;
        self.tell(&["CONFIG", "REWRITE"]).map(drop)
    }
}

/// A connection of the harness's user.
pub(crate) fn connect(addr: SocketAddr) -> Result<Conn> {
    let mut conn = Conn::connect(addr)?;
    conn.tell(&["AUTH", HARNESS_USER, HARNESS_USER])?;
    Ok(conn)
}

pub(crate) fn command(config: PathBuf) -> Result<Command> {
    let mut command = Command::new(crate::programs::on_path(PROGRAM, PROGRAM)?);
    command.arg(config).env("LC_ALL", "C");
    Ok(command)
}

/// True if this process, and not another one on its port, answers and has loaded its data.
pub(crate) fn is_ready(addr: SocketAddr, pid: u32) -> Result<bool> {
    let answer = connect(addr).and_then(|mut conn| conn.tell(&["INFO", "everything"]));
    let Ok(info) = answer else { return Ok(false) };
    let info = info.text();
    Ok(info_field(&info, "process_id") == pid.to_string() && info_field(&info, "loading") != "1")
}

pub(crate) fn info_field(info: &str, field: &str) -> String {
    let find = |line: &str| Some(line.trim_end().strip_prefix(field)?.strip_prefix(':')?.to_owned());
    info.lines().find_map(find).unwrap_or_default()
}

/// Explains common reasons of a failed start.
fn explain(error: Error) -> Error {
    match error {
        Error::Start { name, status, log } if log.contains("tls-port") => Error::Start {
            name,
            status,
            log: format!(
                "{log}\nThis redis-server was built without TLS. Use one that has it, such as Debian's."
            ),
        },
        other => other,
    }
}
