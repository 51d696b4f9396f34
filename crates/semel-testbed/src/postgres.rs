//! A PostgreSQL server.

mod options;
mod template;

use std::{
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::process::Signal;

pub use self::options::PostgresOptions;
use crate::{
    Error, Result,
    daemon::Daemon,
    process::{SystemUser, run},
    programs::PostgresPrograms,
    wait::{self, PATIENCE},
};

/// A PostgreSQL server for one test. Dropping it stops it and removes its data.
///
/// It has a superuser `postgres` and a database `postgres`. All methods block for a moment and take `&self`: share it in an `Arc` with
/// the code that puts load on it.
#[derive(Debug)]
pub struct Postgres {
    daemon: Daemon,
    programs: PostgresPrograms,
    owner: Option<SystemUser>,
    options: PostgresOptions,
    databases: AtomicU32,
}

impl Postgres {
    /// Starts a server with the defaults of [`PostgresOptions`].
    ///
    /// # Errors
    /// [`Error::Missing`] without `postgres`; otherwise why it did not start, with the end of its log.
    pub fn start() -> Result<Self> {
        Self::options().start()
    }

    /// The options for a start.
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// Starts a hot standby that streams from a running primary, with the settings of the primary's [`PostgresOptions`].
    ///
    /// # Errors
    /// Why the base backup failed, or why the standby did not start.
    pub fn standby_of(primary: &Postgres) -> Result<Self> {
        Self::standby_via(primary, primary.addr())
    }

    /// As [`standby_of`](Self::standby_of), streaming from another address, such as a [`FaultProxy`](crate::FaultProxy) in front of the
    /// primary.
    ///
    /// # Errors
    /// As [`standby_of`](Self::standby_of).
    pub fn standby_via(primary: &Postgres, stream: SocketAddr) -> Result<Self> {
        primary.options.start_standby(primary, stream)
    }

    /// Its listen address.
    pub fn addr(&self) -> SocketAddr {
        self.daemon.addr()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// The URL of the database `postgres` for the superuser, with the password if one was chosen.
    pub fn url(&self) -> String {
        self.url_at(self.addr(), "postgres")
    }

    /// As [`url`](Self::url), for another database and another address, such as a [`FaultProxy`](crate::FaultProxy) in front of the
    /// server.
    pub fn url_at(&self, addr: SocketAddr, database: &str) -> String {
        let password = self.options.password.as_ref().map(|word| format!(":{word}")).unwrap_or_default();
        format!("postgres://postgres{password}@{addr}/{database}")
    }

    /// Creates an empty database and returns its name.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub fn fresh_database(&self) -> Result<String> {
        let name = format!("fresh_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Its version as the programs print it, such as `postgres (PostgreSQL) 15.13`.
    pub fn version(&self) -> &str {
        &self.programs.version
    }

    /// The process id of the postmaster.
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

    /// CPU time of the server and all its backends since the last start, including those that have ended.
    ///
    /// # Errors
    /// [`Error::NotRunning`].
    pub fn cpu_time(&self) -> Result<Duration> {
        self.daemon.cpu_time()
    }

    /// Runs SQL in the database `postgres` as the superuser, over its own socket and never through a proxy. Returns one line per row,
    /// with columns separated by `|`.
    ///
    /// # Errors
    /// [`Error::Command`] with the message of the server.
    pub fn sql(&self, sql: &str) -> Result<String> {
        self.sql_in("postgres", sql)
    }

    /// As [`sql`](Self::sql), in another database.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub fn sql_in(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.path("psql")?);
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", sql]);
        psql.arg("-h").arg(self.daemon.folder().path()).arg("-p").arg(self.port().to_string());
        plain(&mut psql).env("PGCONNECT_TIMEOUT", "10");
        run(&mut psql).map(|answer| answer.trim_end().to_owned())
    }

    /// Changes a setting of `postgresql.conf` for new and existing sessions (`ALTER SYSTEM` and a reload). It survives a restart; some
    /// settings need one.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        self.sql(&format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''")))?;
        self.sql("SELECT pg_reload_conf()").map(drop)
    }

    /// Terminates the client backends that match the condition on `pg_stat_activity`, such as `datname = 'fresh_0'`, and returns their
    /// number. The calling backend is excluded.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub fn terminate_backends(&self, condition: &str) -> Result<usize> {
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND ({condition})"
        );
        Ok(self.sql(&sql)?.lines().filter(|line| *line == "t").count())
    }

    /// Kills the whole server like a power cut (SIGKILL), and reaps it. Does nothing if it is not running.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Shuts it down with a checkpoint, without waiting for clients (SIGINT). Does nothing if it is not running.
    pub fn stop(&self) {
        self.daemon.stop(Signal::INT);
    }

    /// Freezes the server with all its backends (SIGSTOP): connections stay open, nothing is answered.
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

    /// Starts it with the same port and data, and waits until it has recovered. Kills it first if it is running.
    ///
    /// # Errors
    /// Why it did not start, with the end of its log.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        let start = || {
            self.daemon.start_again(
                || options::command(&self.programs, self.daemon.folder(), self.owner),
                |pid| Ok(options::is_ready(self.daemon.folder(), pid)),
            )
        };
        // A backend that was forked while the server was killed ends by itself, and holds the shared memory until then.
        wait::for_some("the backends of the killed server end", PATIENCE, || match start() {
            Err(Error::Start { log, .. }) if log.contains("pre-existing shared memory") => Ok(None),
            ended => ended.map(Some),
        })
    }

    /// Waits until this standby has applied everything that the primary has written so far.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not catch up.
    pub fn catch_up(&self, primary: &Postgres) -> Result<()> {
        let goal = primary.sql("SELECT pg_current_wal_lsn()")?;
        wait::for_some("the standby has replayed all", PATIENCE, || {
            Ok((self.sql(&format!("SELECT pg_last_wal_replay_lsn() >= '{goal}'"))? == "t").then_some(()))
        })
    }

    /// Promotes a standby to primary, and waits until it accepts writes.
    ///
    /// # Errors
    /// [`Error::Reply`] if it did not become a primary within ten seconds; [`Error::Command`] if it is not a standby.
    pub fn promote(&self) -> Result<()> {
        match self.sql("SELECT pg_promote(true, 10)")?.as_str() {
            "t" => Ok(()),
            answer => Err(Error::Reply { asked: "pg_promote".to_owned(), answer: answer.to_owned() }),
        }
    }
}

/// Removes environment variables about other servers from a PostgreSQL program.
fn plain(command: &mut Command) -> &mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC").current_dir("/")
}
