//! Options of a Redis server.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use super::{HARNESS_USER, PROGRAM, Redis, command, explain, is_ready, tls};
use crate::{
    Result, Storage, daemon::Daemon, error::Doing, folder::Folder, ports::Port, process::StopMethod,
    programs::on_path,
};

pub(super) const CONFIG: &str = "redis.conf";

/// When Redis writes an accepted change to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Never: the server is empty after a restart.
    None,
    /// Once a second. A killed process loses nothing that the kernel has; a power cut may lose a second.
    #[default]
    EverySecond,
    /// Before the reply.
    Always,
}

/// Options of a Redis server: see [`Redis::options`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    storage: Storage,
    persistence: Persistence,
    role: RedisRole,
    transport: RedisTransport,
    certificates: Option<PathBuf>,
    lines: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RedisRole {
    #[default]
    Alone,
    ClusterNode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RedisTransport {
    #[default]
    Plain,
    PlainAndTls,
}

impl RedisOptions {
    /// Where the data is stored; on disk by default.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// When changes are written to disk; once a second by default.
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Another line of `redis.conf`; it overrides those of the harness.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// The password of the default user. The harness itself does not need it.
    pub fn password(self, password: &str) -> Self {
        self.config("requirepass", password)
    }

    /// An ACL user with its rules, such as `("app", "on >secret ~semel:* +@all -config")`.
    pub fn user(self, name: &str, rules: &str) -> Self {
        self.config("user", &format!("{name} {rules}"))
    }

    /// A second port with TLS, with a certificate that `openssl` creates for this server.
    pub fn tls(mut self) -> Self {
        self.transport = RedisTransport::PlainAndTls;
        self
    }

    /// Uses the certificates of another server, so that nodes trust the same authority.
    #[cfg(feature = "harness")]
    pub(crate) fn certificates(mut self, folder: Option<PathBuf>) -> Self {
        self.certificates = folder;
        self
    }

    /// A cluster node, with a port for the cluster bus.
    #[cfg(feature = "harness")]
    pub(crate) fn cluster_node(mut self) -> Self {
        self.role = RedisRole::ClusterNode;
        self
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) without `redis-server` (or `openssl`, for TLS); otherwise why it did not
    /// start, with the end of its log.
    pub fn start(&self) -> Result<Redis> {
        on_path(PROGRAM, PROGRAM)?;
        let folder = Folder::create("redis", self.storage, None)?;
        let certificates = match (self.transport, &self.certificates) {
            (RedisTransport::Plain, _) => None,
            (RedisTransport::PlainAndTls, Some(others)) => Some(others.clone()),
            (RedisTransport::PlainAndTls, None) => {
                tls::make_certificates(folder.path())?;
                Some(folder.path().to_owned())
            }
        };
        let (mut tls, mut bus) = (None, None);
        let daemon = Daemon::start(
            "redis-server",
            StopMethod::Kill,
            folder,
            |folder, port| {
                let mut lines = self.lines(folder.path(), port);
                if let Some(certificates) = &certificates {
                    let port = tls.insert(Port::pick()?).number();
                    lines.push_str(&tls::lines(certificates, port));
                }
                if self.role == RedisRole::ClusterNode {
                    let port = bus.insert(Port::pick()?).number();
                    lines.push_str(&format!("cluster-enabled yes\ncluster-port {port}\n"));
                    if certificates.is_some() {
                        // Without these settings, nodes do not announce their TLS ports to clients.
                        lines.push_str("tls-cluster yes\ntls-replication yes\n");
                    }
                }
                let config = folder.path().join(CONFIG);
                lines.push_str(&self.lines.join("\n"));
                fs::write(&config, lines).doing(|| format!("writing {}", config.display()))?;
                command(config)
            },
            |_, port, pid| is_ready((Ipv4Addr::LOCALHOST, port).into(), pid),
        )
        .map_err(explain)?;
        Ok(Redis { daemon, tls, certificates, _bus: bus })
    }

    fn lines(&self, folder: &Path, port: u16) -> String {
        let persistence = match self.persistence {
            Persistence::None => "appendonly no",
            // Without rewrites: Redis 7.0 does not start again when it is killed at the start of one ("the truncated file is not the
            // last file").
            Persistence::EverySecond => "appendonly yes\nappendfsync everysec\nauto-aof-rewrite-percentage 0",
            Persistence::Always => "appendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0",
        };
        // Replication without delays: the defaults are for data centres and too slow for tests.
        format!(
            "bind 127.0.0.1\nport {port}\ndir {dir}\ndaemonize no\nsave \"\"\n{persistence}\n\
             user {HARNESS_USER} on >{HARNESS_USER} ~* &* +@all\nmasteruser {HARNESS_USER}\nmasterauth {HARNESS_USER}\n\
             repl-diskless-sync yes\nrepl-diskless-sync-delay 0\nrepl-ping-replica-period 1\n\
             maxmemory-policy noeviction\n",
            dir = folder.display(),
        )
    }
}
