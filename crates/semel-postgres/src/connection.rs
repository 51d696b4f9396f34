//! Connecting, and the check of the server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Row as _};
use tokio::time::timeout;

use crate::{AsyncCommit, PostgresError, PostgresSettings, Remedy};

/// The oldest server with the required SQL and guarantees.
const OLDEST: i32 = 13;

/// A pool that is replaced after every outage. A connection from before it may be dead without a sign, and would keep its
/// place in the pool until the system gives it up, which takes minutes.
#[derive(Debug)]
pub struct ReplacedPool {
    settings: Arc<PostgresSettings>,
    /// The pool, and the number of outages that had ended when it was made.
    current: Mutex<(u64, PgPool)>,
}

impl ReplacedPool {
    /// A pool that connects on first use.
    pub fn new(settings: &Arc<PostgresSettings>) -> Self {
        Self { settings: Arc::clone(settings), current: Mutex::new((0, pool(settings))) }
    }

    /// The pool for calls after this number of ended outages.
    pub fn get(&self, ended_outages: u64) -> PgPool {
        let mut current = self.current.lock();
        if current.0 != ended_outages {
            *current = (ended_outages, pool(&self.settings));
        }
        current.1.clone()
    }
}

/// A pool that connects on first use, and checks every new connection.
fn pool(settings: &Arc<PostgresSettings>) -> PgPool {
    let checked = Arc::clone(settings);
    PgPoolOptions::new()
        .max_connections(settings.connections)
        .acquire_timeout(settings.timeout)
        // The caller logs what is slow or fails.
        .acquire_slow_threshold(Duration::MAX)
        .test_before_acquire(false)
        .before_acquire(|connection, known| {
            Box::pin(async move {
                // A connection that was in use recently is alive; an idle one may have lost its server.
                Ok(known.idle_for < Duration::from_secs(1) || connection.ping().await.is_ok())
            })
        })
        .after_connect(move |connection, _| {
            let settings = Arc::clone(&checked);
            Box::pin(async move {
                let checked = check(&settings, connection).await;
                checked.map_err(|error| sqlx::Error::Configuration(error.message.into()))
            })
        })
        .connect_lazy_with(settings.options.clone())
}

/// Connects, and refuses a server that cannot meet the promises.
///
/// # Errors
/// The server does not answer, refuses the user, or is refused by [`check`].
pub async fn connect(settings: &PostgresSettings) -> Result<PgConnection, PostgresError> {
    let connected = settings.options.connect().await;
    let mut connection = connected.map_err(|error| {
        PostgresError::connecting(&settings.target, settings.options.get_username(), &error)
    })?;
    check(settings, &mut connection).await?;
    Ok(connection)
}

/// Connects and writes one row, as a claim or an accept does. Returns once the write is committed.
///
/// # Errors
/// As [`connect`], or the write failed. A row that another transaction has locked is no failure.
pub async fn probe(settings: &PostgresSettings) -> Result<(), PostgresError> {
    let mut connection = connect(settings).await?;
    // Every store and ledger has such a row.
    let sql =
        format!("UPDATE {}.meta SET number = number WHERE name LIKE '%format'", settings.schema.quoted());
    let written = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
    let _ = timeout(CLOSE, connection.close()).await;
    match written.map_err(|error| PostgresError::statement(&settings.target, &error).not_executed()) {
        Err(error) if error.remedy != Remedy::Retry => Err(error),
        _ => Ok(()),
    }
}

/// How long a goodbye to the server may take.
pub(crate) const CLOSE: Duration = Duration::from_millis(200);

/// Refuses a server that cannot meet the promises.
///
/// # Errors
/// A standby, an old server, read-only transactions, `synchronous_commit = off`.
pub async fn check(settings: &PostgresSettings, connection: &mut PgConnection) -> Result<(), PostgresError> {
    // Not prepared: a transaction pooler would send the two halves to two servers.
    let asked = sqlx::raw_sql(
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int / 10000, \
         current_setting('synchronous_commit'), current_setting('default_transaction_read_only')::bool",
    );
    let read = asked.fetch_one(&mut *connection).await.and_then(|row| {
        Ok(PostgresServerInfo {
            standby: row.try_get(0)?,
            version: row.try_get(1)?,
            commit: row.try_get(2)?,
            read_only: row.try_get(3)?,
        })
    });
    let info = read.map_err(|error| PostgresError::statement(&settings.target, &error).not_executed())?;
    accept(settings, &info)?;
    if settings.profile.logs_failover {
        log_failover(settings, connection).await;
    }
    Ok(())
}

struct PostgresServerInfo {
    standby: bool,
    version: i32,
    commit: String,
    read_only: bool,
}

fn accept(settings: &PostgresSettings, info: &PostgresServerInfo) -> Result<(), PostgresError> {
    let (target, version) = (&settings.target, info.version);
    if version < OLDEST {
        return Err(PostgresError::setup(format!(
            "{target} is PostgreSQL {version}: Semel needs {OLDEST} or later, upgrade the server"
        )));
    }
    if info.standby {
        let error = PostgresError::setup(format!(
            "{target} is a standby, and a standby shows the past: point the URL at the primary, or add target_session_attrs in your pooler"
        ));
        // It may be promoted in a moment, so a retry can help.
        return Err(error.with_remedy(Remedy::Reconnect));
    }
    if info.read_only {
        return Err(PostgresError::setup(format!(
            "{target} gives this user read-only transactions: ALTER ROLE or ALTER DATABASE SET default_transaction_read_only = off"
        )));
    }
    if info.commit == "off" && settings.async_commit == AsyncCommit::Refuse {
        return Err(PostgresError::setup(format!(
            "{target} has synchronous_commit = off, so a crash can lose acknowledged writes and effects happen twice: ALTER ROLE or ALTER DATABASE SET synchronous_commit = on, or accept it with AsyncCommit::Accept"
        )));
    }
    Ok(())
}

/// Logs when a promoted standby has replaced the server: it has a new timeline, and writes that had not reached it
/// are lost. Nothing is logged if the server does not report its timeline.
async fn log_failover(settings: &PostgresSettings, connection: &mut PgConnection) {
    let asked = sqlx::raw_sql("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)");
    let Ok(timeline) = asked.fetch_one(connection).await.and_then(|row| row.try_get::<String, _>(0)) else {
        return;
    };
    let before = settings.timeline.lock().replace(timeline.clone());
    if let Some(before) = before.filter(|before| *before != timeline) {
        tracing::error!(
            store = %settings.address,
            store_failover = true,
            before,
            timeline,
            "another server has taken the primary's place: commits that had not reached it are lost, unless replication was synchronous; effects whose records were lost can run again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opens, PostgresBuilder, Profile};

    /// Opens nothing, and returns its settings.
    struct SettingsOnly(PostgresSettings);

    impl Opens for SettingsOnly {
        const PROFILE: Profile = Profile {
            name: "test",
            application_name: "semel-test",
            connections: 1,
            lock_wait: Duration::ZERO,
            session: &[],
            logs_failover: false,
        };
        type Error = PostgresError;

        async fn open(settings: PostgresSettings) -> Result<Self, PostgresError> {
            Ok(Self(settings))
        }
    }

    async fn refused(version: i32, commit: &str) -> Option<String> {
        let builder = PostgresBuilder::<SettingsOnly>::new("postgres://db.internal/app");
        let settings = builder.open().await.expect("a URL that can be read").0;
        let info =
            PostgresServerInfo { standby: false, version, commit: commit.to_owned(), read_only: false };
        accept(&settings, &info).err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_old_server_is_told_what_to_do() {
        let refused = refused(OLDEST - 1, "on").await.expect("refused");
        assert!(
            refused.contains("is PostgreSQL 12: Semel needs 13 or later, upgrade the server"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn what_keeps_the_promises_is_accepted() {
        for commit in ["on", "remote_apply", "remote_write", "local"] {
            assert_eq!(refused(OLDEST, commit).await, None, "{commit}");
        }
    }
}
