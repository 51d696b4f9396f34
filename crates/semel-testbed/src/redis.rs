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

pub use self::options::{Options, Persistence};
use crate::{
    Error, Result,
    daemon::Daemon,
    ports::Port,
    resp::{Conn, Reply},
    wait::{self, PATIENCE},
};

/// The user the harness itself logs in as, so that a test can do to the default user what it likes.
pub(crate) const HARNESS_USER: &str = "testbed";

/// A Redis server of its own for one test. Dropping it ends it and removes its data.
///
/// All methods block for a moment and take `&self`: share it in an `Arc` with whatever puts load on it.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    tls: Option<Port>,
    certificates: Option<PathBuf>,
    // Kept, so that no other server of this process gets it while this one is down.
    _bus: Option<Port>,
}

impl Redis {
    /// Starts a server with the defaults of [`Options`].
    ///
    /// # Errors
    /// [`Error::Missing`] without `redis-server`; otherwise why it did not start, with the end of its log.
    pub fn start() -> Result<Self> {
        Self::options().start()
    }

    /// What can be chosen before the start.
    pub fn options() -> Options {
        Options::default()
    }

    /// Where it listens.
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

    /// Where it listens for TLS, if started [with it](Options::tls).
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls.as_ref().map(|port| (Ipv4Addr::LOCALHOST, port.number()).into())
    }

    /// Its address for TLS as a URL, if started [with it](Options::tls). The certificate is for `localhost` and `127.0.0.1`.
    pub fn tls_url(&self) -> Option<String> {
        self.tls.as_ref().map(|port| format!("rediss://localhost:{}", port.number()))
    }

    /// The certificate (PEM) of the authority that signed the server's, if started [with TLS](Options::tls).
    pub fn ca_cert(&self) -> Option<PathBuf> {
        self.certificates.as_deref().map(tls::ca_cert)
    }

    /// Where its certificates lie, if started [with TLS](Options::tls).
    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        self.certificates.clone()
    }

    /// Its process number.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn pid(&self) -> Result<u32> {
        self.daemon.pid()
    }

    /// All it has logged since its first start.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Processor time of the server since it was last started, with that of its children.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn cpu_time(&self) -> Result<Duration> {
        self.daemon.cpu_time()
    }

    /// A fresh connection, logged in with all rights.
    ///
    /// # Errors
    /// [`Error::Io`] when it does not accept or answer.
    pub fn connect(&self) -> Result<Conn> {
        connect(self.addr())
    }

    /// Sends one command over a fresh connection.
    ///
    /// # Errors
    /// [`Error::Io`] when no answer comes, [`Error::Reply`] for an error answer.
    pub fn tell(&self, args: &[&str]) -> Result<Reply> {
        self.connect()?.tell(args)
    }

    /// One field of `INFO`, empty if there is none of that name.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn info(&self, field: &str) -> Result<String> {
        Ok(info_field(&self.tell(&["INFO", "everything"])?.text(), field))
    }

    /// Changes a setting. A restart forgets it, unless [`replica_of`](Self::replica_of) or
    /// [`promote`](Self::promote) came after.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn config_set(&self, name: &str, value: &str) -> Result<()> {
        self.tell(&["CONFIG", "SET", name, value]).map(drop)
    }

    /// Kills it as a power cut would (SIGKILL) and reaps it. Does nothing if it does not run.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Stops it in good order (SIGTERM). Does nothing if it does not run.
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

    /// Lets it run on after [`pause`](Self::pause).
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn resume(&self) -> Result<()> {
        self.daemon.resume()
    }

    /// Starts it on the same port and data, and waits until it has loaded them. One that still runs is killed first.
    ///
    /// # Errors
    /// Why it did not start, with the end of its log.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        let command = || command(self.daemon.folder().path().join(options::CONFIG));
        self.daemon.start_again(command, |pid| is_ready(self.addr(), pid))
    }

    /// Makes it a replica of a primary, and waits until the two are in step. It stays one over a restart.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the link does not come up.
    pub fn replica_of(&self, primary: &Redis) -> Result<()> {
        self.replicate_from(primary.addr())
    }

    /// As [`replica_of`](Self::replica_of), with an address: of a [`FaultProxy`](crate::FaultProxy) before the primary.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the link does not come up.
    pub fn replicate_from(&self, primary: SocketAddr) -> Result<()> {
        let (ip, port) = (primary.ip().to_string(), primary.port().to_string());
        self.tell(&["REPLICAOF", &ip, &port])?;
        self.tell(&["CONFIG", "REWRITE"])?;
        wait::for_some("the replica is in step", PATIENCE, || {
            Ok((self.info("master_link_status")? == "up").then_some(()))
        })
    }

    /// Makes a replica a primary, as an operator or Sentinel would.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn promote(&self) -> Result<()> {
        self.tell(&["REPLICAOF", "NO", "ONE"])?;
        self.tell(&["CONFIG", "REWRITE"]).map(drop)
    }
}

/// A connection of the harness's own user.
pub(crate) fn connect(addr: SocketAddr) -> Result<Conn> {
    let mut conn = Conn::connect(addr)?;
    conn.tell(&["AUTH", HARNESS_USER, HARNESS_USER])?;
    Ok(conn)
}

pub(crate) fn command(config: PathBuf) -> Result<Command> {
    let mut command = Command::new(crate::programs::on_path("redis-server", "redis-server")?);
    command.arg(config).env("LC_ALL", "C");
    Ok(command)
}

/// Whether the process itself, and not another that has its port, answers and has loaded its data.
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

/// What a start may fail with beside the server's own words.
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
