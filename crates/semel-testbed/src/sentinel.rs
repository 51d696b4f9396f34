//! A Redis Sentinel: watches a primary, and promotes a replica when the primary fails.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use crate::{
    Error, Redis, Result, Storage,
    daemon::Daemon,
    error::Doing,
    folder::Folder,
    process::StopMethod,
    redis::{self, HARNESS_USER},
    resp::{Conn, Reply},
    wait,
};

/// The name of the primary for the Sentinel of [`Sentinel::watch`].
pub const SERVICE: &str = "semel";

/// How long a Sentinel may take to notice a change. It looks for replicas only every ten seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// One Sentinel that decides alone (a quorum of one), half a second after its primary stopped answering.
#[derive(Debug)]
pub struct Sentinel {
    daemon: Daemon,
}

impl Sentinel {
    /// Starts a Sentinel for a running primary, and waits until it knows all its replicas. Start those first.
    ///
    /// # Errors
    /// As [`Redis::start`]; [`Error::Timeout`] if it does not find the replicas.
    pub fn watch(primary: &Redis) -> Result<Self> {
        let folder = Folder::create("sentinel", Storage::Memory, None)?;
        let (ip, watched) = (primary.addr().ip(), primary.port());
        let daemon = Daemon::start(
            "redis-sentinel",
            StopMethod::Kill,
            folder,
            |folder, port| {
                let config = folder.path().join("sentinel.conf");
                let lines = format!(
                    "bind 127.0.0.1\nport {port}\ndir {dir}\nsentinel monitor {SERVICE} {ip} {watched} 1\n\
                     sentinel auth-user {SERVICE} {HARNESS_USER}\nsentinel auth-pass {SERVICE} {HARNESS_USER}\n\
                     sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 5000\n",
                    dir = folder.path().display(),
                );
                fs::write(&config, lines).doing(|| format!("writing {}", config.display()))?;
                let mut command = redis::command(config)?;
                command.arg("--sentinel");
                Ok(command)
            },
            |_, port, pid| Ok(is_ready((Ipv4Addr::LOCALHOST, port).into(), pid)),
        )?;
        let sentinel = Self { daemon };
        let replicas = primary.info("connected_slaves")?;
        wait::for_some("the Sentinel knows the replicas", PATIENCE, || {
            let known = sentinel.tell(&["SENTINEL", "REPLICAS", SERVICE])?;
            Ok(matches!(known, Reply::Array(list) if list.len().to_string() == replicas).then_some(()))
        })?;
        Ok(sentinel)
    }

    /// Its listen address.
    pub fn addr(&self) -> SocketAddr {
        self.daemon.addr()
    }

    /// The address of the current primary.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not answer.
    pub fn primary(&self) -> Result<SocketAddr> {
        let reply = self.tell(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?.text();
        let unclear = |_| Error::Reply { asked: "the primary's address".to_owned(), answer: reply.clone() };
        reply.replace(' ', ":").parse().map_err(unclear)
    }

    /// Waits until it reports another primary than this one, and returns its address.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no replica was promoted.
    pub fn wait_for_other_than(&self, old: SocketAddr) -> Result<SocketAddr> {
        wait::for_some("the Sentinel has promoted a replica", PATIENCE, || {
            Ok(Some(self.primary()?).filter(|now| *now != old))
        })
    }

    /// Sends one command to the Sentinel itself.
    ///
    /// # Errors
    /// [`Error::Io`] if no answer arrives, [`Error::Reply`] for an error reply.
    pub fn tell(&self, args: &[&str]) -> Result<Reply> {
        Conn::connect(self.addr())?.tell(args)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Kills it (SIGKILL).
    pub fn kill(&self) {
        self.daemon.kill();
    }
}

fn is_ready(addr: SocketAddr, pid: u32) -> bool {
    let info = Conn::connect(addr).and_then(|mut conn| conn.tell(&["INFO", "server"]));
    info.is_ok_and(|info| redis::info_field(&info.text(), "process_id") == pid.to_string())
}
