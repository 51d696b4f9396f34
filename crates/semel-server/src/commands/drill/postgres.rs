//! A PostgreSQL database for a drill, so that several processes share a ledger: an existing one, or a server started for the drill.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use semel::store::sqlx::{self, Connection as _, PgConnection, Row as _};

use super::ground::until;

/// PostgreSQL refuses to run as root, so it runs as one of these users.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A PostgreSQL database.
pub(super) struct DrillPostgres {
    pub(super) url: String,
    /// The schema of all tables of this drill: an existing database may contain others.
    pub(super) schema: String,
    /// The server, if the drill started it.
    own: Option<Own>,
}

/// A server that was started for the drill. Dropping it stops it.
struct Own {
    programs: PathBuf,
    /// The system user of the server, if it is another one.
    user: Option<(u32, u32)>,
    folder: tempfile::TempDir,
    port: u16,
    server: Option<Child>,
}

impl DrillPostgres {
    /// The database at `url`.
    pub(super) fn named(url: &str) -> Self {
        Self { url: url.to_owned(), schema: format!("semel_drill_{:08x}", rand::random::<u32>()), own: None }
    }

    /// Starts a server; `None` if PostgreSQL is not installed.
    ///
    /// # Errors
    /// It is installed, but cannot be started.
    pub(super) async fn start() -> anyhow::Result<Option<Self>> {
        let Some(programs) = programs() else { return Ok(None) };
        let user = user()?;
        let folder = tempfile::Builder::new().prefix("semel-drill-postgres-").tempdir()?;
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid))?;
        }
        // Free at this moment; another process is unlikely to take it.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut own = Own { programs, user, folder, port, server: None };
        let mut initdb = own.command("initdb");
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let made = initdb.output().context("initdb")?;
        if !made.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        own.start()?;
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let postgres = Self { own: Some(own), ..Self::named(&url) };
        postgres.ready().await?;
        Ok(Some(postgres))
    }

    async fn ready(&self) -> anyhow::Result<()> {
        until("PostgreSQL answers", || async { Ok(PgConnection::connect(&self.url).await.is_ok()) }).await
    }

    /// Kills it, like a crash.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.own.as_mut().context("it is somebody else's")?.kill();
        Ok(())
    }

    /// Starts it again with its data.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        self.own.as_mut().context("it is somebody else's")?.start()?;
        self.ready().await
    }

    /// Counts rows of the drill's tables, directly in the database. `what` follows SELECT.
    pub(super) async fn count(&self, what: &str) -> anyhow::Result<i64> {
        let sql = format!("SET search_path = {}", self.schema);
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
        let row =
            sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {what}"))).fetch_one(&mut connection).await?;
        Ok(row.try_get(0)?)
    }

    /// Removes the drill's data from an existing database.
    pub(super) async fn end(self) {
        if self.own.is_some() {
            return;
        }
        if let Ok(mut connection) = PgConnection::connect(&self.url).await {
            let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut connection).await;
        }
    }
}

impl Own {
    /// One of its programs, on its data, without the environment variables of other servers.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-D").arg(self.folder.path().join("data"));
        command.env_clear().env("PATH", path()).env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("postgres");
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB"] {
            command.args(["-c", setting]);
        }
        command.args(["-c", &format!("port={}", self.port)]).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(command.spawn().context("postgres")?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            // SIGQUIT ends its processes immediately, without a checkpoint, and frees their shared memory.
            let _ = kill_process(Pid::from_child(&server), Signal::QUIT);
            let _ = server.wait();
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.kill();
    }
}

fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}

/// The folder with the PostgreSQL programs: on the path, or where packages install them. The newest version is the last one.
fn programs() -> Option<PathBuf> {
    let versions = ["/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt"];
    let mut packaged: Vec<PathBuf> = versions
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path().join("bin"))
        .collect();
    packaged.sort();
    let on_path: Vec<PathBuf> = std::env::split_paths(&path()).collect();
    let all = on_path.into_iter().rev().chain(packaged);
    all.rev().filter(|folder| folder.join("initdb").is_file()).find_map(|folder| home(&folder))
}

/// The real path: the programs look for their files relative to it.
fn home(folder: &Path) -> Option<PathBuf> {
    folder.join("postgres").canonicalize().ok()?.parent().map(Path::to_owned)
}

/// The user of the server, if it cannot run as the current one.
fn user() -> anyhow::Result<Option<(u32, u32)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    let find = |name: &&str| {
        users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [found, _, uid, gid, ..] = fields.as_slice() else { return None };
            (found == name).then_some((uid.parse().ok()?, gid.parse().ok()?))
        })
    };
    let user = USERS.iter().find_map(find);
    user.map(Some).context("PostgreSQL does not run as root, and there is no user postgres or nobody")
}
