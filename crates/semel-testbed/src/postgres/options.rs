//! Options of a PostgreSQL server.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::AtomicU32,
};

use super::{Postgres, plain, template};
use crate::{
    Result, Storage,
    daemon::Daemon,
    error::Doing,
    folder::Folder,
    process::{StopMethod, SystemUser, run},
    programs::PostgresPrograms,
};

/// PostgreSQL refuses to run as root.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// Options of a PostgreSQL server: see [`Postgres::options`].
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    storage: Storage,
    pub(super) password: Option<String>,
    lines: Vec<String>,
    is_without_template: bool,
}

impl PostgresOptions {
    /// Where the data is stored; on disk by default. Syncs are made in both cases.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// A setting of `postgresql.conf`; it overrides those of the harness.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} = '{}'", value.replace('\'', "''")));
        self
    }

    /// Requires a password from every client over TCP, and sets it for the superuser. Letters and digits only, because it goes into
    /// URLs. By default no password is required.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Runs `initdb` for this server. By default all servers of a build folder copy one template, which a program that is installed
    /// elsewhere cannot store.
    pub fn without_template(mut self) -> Self {
        self.is_without_template = true;
        self
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) without `postgres`; otherwise why it did not start, with the end of its
    /// log.
    pub fn start(&self) -> Result<Postgres> {
        let fill = if self.is_without_template { template::initialize } else { template::copy_to };
        let server = self.start_on(fill, "")?;
        if let Some(password) = &self.password {
            // Must not wait for a synchronous standby that the test has not started yet.
            server
                .sql(&format!("SET synchronous_commit = local; ALTER USER postgres PASSWORD '{password}'"))?;
        }
        Ok(server)
    }

    pub(super) fn start_standby(&self, primary: &Postgres, stream: SocketAddr) -> Result<Postgres> {
        let source = primary.daemon.folder().path();
        let fill = |data: &Path, programs: &PostgresPrograms, owner: Option<SystemUser>| {
            let mut backup = Command::new(programs.path("pg_basebackup")?);
            backup.arg("-h").arg(source).arg("-p").arg(primary.port().to_string()).arg("-D").arg(data);
            backup.args(["-U", "postgres", "-X", "stream", "--checkpoint=fast", "--no-sync"]);
            SystemUser::apply(owner, plain(&mut backup));
            run(&mut backup)?;
            write(&data.join("standby.signal"), "", owner)
        };
        // Reconnects quickly, because tests cut this stream on purpose.
        let lines = format!(
            "primary_conninfo = 'host={} port={} user=postgres application_name=standby'\nwal_retrieve_retry_interval = 200ms\n",
            stream.ip(),
            stream.port()
        );
        self.start_on(fill, &lines)
    }

    fn start_on(
        &self,
        fill: impl FnOnce(&Path, &PostgresPrograms, Option<SystemUser>) -> Result<()>,
        more: &str,
    ) -> Result<Postgres> {
        let programs = PostgresPrograms::newest()?;
        let owner = SystemUser::unless_user(&USERS)?;
        let folder = Folder::create("postgres", self.storage, owner)?;
        fill(&data(&folder), &programs, owner)?;
        write(&data(&folder).join("pg_hba.conf"), self.access(), owner)?;
        let daemon = Daemon::start(
            "postgres",
            StopMethod::Quit,
            folder,
            |folder, port| {
                write(&data(folder).join("postgresql.conf"), &self.lines(folder.path(), port, more), owner)?;
                command(&programs, folder, owner)
            },
            |folder, _, pid| Ok(is_ready(folder, pid)),
        )?;
        Ok(Postgres { daemon, programs, owner, options: self.clone(), databases: AtomicU32::new(0) })
    }

    /// The access rules. The harness uses the socket in its own folder, standbys use TCP; neither needs a password.
    fn access(&self) -> &'static str {
        match self.password {
            None => {
                "local all all trust\nlocal replication all trust\nhost all all all trust\nhost replication all all trust\n"
            }
            Some(_) => {
                "local all all trust\nlocal replication all trust\nhost all all all scram-sha-256\nhost replication all all trust\n"
            }
        }
    }

    fn lines(&self, folder: &Path, port: u16, more: &str) -> String {
        // Shared memory for parallel queries is in the folder, so that it is removed with it even after a kill.
        format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{folder}'\n\
             dynamic_shared_memory_type = mmap\nmax_connections = 300\nshared_buffers = 64MB\n\
             timezone = UTC\nlog_timezone = UTC\nmax_wal_senders = 10\nwal_keep_size = 64MB\n{own}\n{more}",
            folder = folder.display(),
            own = self.lines.join("\n"),
        )
    }
}

/// Starts the server itself, never `pg_ctl`: only a parent can reap it, and a zombie blocks a restart.
pub(super) fn command(
    programs: &PostgresPrograms,
    folder: &Folder,
    owner: Option<SystemUser>,
) -> Result<Command> {
    let mut command = Command::new(programs.path("postgres")?);
    command.arg("-D").arg(data(folder));
    SystemUser::apply(owner, plain(&mut command));
    Ok(command)
}

/// True if this process accepts connections, according to the file that it writes to its data folder.
pub(super) fn is_ready(folder: &Folder, pid: u32) -> bool {
    let status = fs::read_to_string(data(folder).join("postmaster.pid")).unwrap_or_default();
    let mut lines = status.lines();
    lines.next() == Some(pid.to_string().as_str()) && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

fn data(folder: &Folder) -> PathBuf {
    folder.path().join("data")
}

fn write(path: &Path, text: &str, owner: Option<SystemUser>) -> Result<()> {
    fs::write(path, text).doing(|| format!("writing {}", path.display()))?;
    let Some(owner) = owner else { return Ok(()) };
    std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid))
        .doing(|| format!("giving {} to its server", path.display()))
}
