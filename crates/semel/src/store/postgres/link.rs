//! A connection that reconnects by itself.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Postgres, Row as _};
use tokio::time::timeout;

use super::builder::{AsyncCommit, Pooling, Settings};
use super::fault::{Cure, Fate, Fault};
use crate::store::ErrorKind;

/// The oldest server with the required SQL and guarantees.
const OLDEST: i32 = 13;

/// A connection of one task. Opened on first use, and closed after every failure that may have left it in an unknown
/// state.
#[derive(Debug)]
pub(super) struct OwnConnection {
    settings: Arc<Settings>,
    connection: Option<PgConnection>,
}

impl OwnConnection {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self { settings, connection: None }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects and checks the server, if there is no connection.
    pub(super) async fn connect(&mut self) -> Result<&mut PgConnection, Fault> {
        if self.connection.is_none() {
            let connected = timeout(self.settings.patience, connect(&self.settings)).await;
            self.connection = Some(connected.unwrap_or_else(|_| {
                Err(Fault::unavailable(format!(
                    "{} cannot be reached: no answer; check host and port in the URL",
                    self.settings.target
                )))
            })?);
        }
        Ok(self.connection.as_mut().expect("it was just made"))
    }

    /// Runs one statement, committed when this returns.
    pub(super) async fn fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Fault> {
        let settings = Arc::clone(&self.settings);
        // Longer than the server's own limit: the server knows the result better.
        let limit = settings.patience * 2 + Duration::from_millis(500);
        // A failure to connect has sent nothing.
        let connection = self.connect().await?;
        let fetched = timeout(limit, run(&settings, connection, query)).await;
        let result = match fetched {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(Fault::statement(&settings.target, &error)),
            Err(_) => Err(Fault::silent(&settings.target)),
        };
        if let Err(fault) = &result
            && (fault.cure == Cure::Reconnect
                || fault.fate == Fate::Unknown
                || settings.pooling == Pooling::Transaction)
        {
            self.connection = None;
        }
        result
    }

    /// Closes the connection properly, so that the server's log stays clean.
    pub(super) async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = timeout(Duration::from_millis(200), connection.close()).await;
        }
    }
}

/// Runs one statement: directly, or in a transaction with its own limits.
pub(super) async fn run(
    settings: &Settings,
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    match settings.pooling {
        Pooling::Direct => query.fetch_all(connection).await,
        Pooling::Transaction => {
            sqlx::raw_sql(AssertSqlSafe(settings.begin())).execute(&mut *connection).await?;
            let rows = query.fetch_all(&mut *connection).await?;
            sqlx::raw_sql("COMMIT").execute(connection).await?;
            Ok(rows)
        }
    }
}

/// Connects, and refuses a server that cannot meet the promises.
pub(super) async fn connect(settings: &Settings) -> Result<PgConnection, Fault> {
    let mut connection = settings
        .options
        .connect()
        .await
        .map_err(|error| Fault::connecting(&settings.target, &settings.user, &error))?;
    check(settings, &mut connection).await?;
    Ok(connection)
}

pub(super) async fn check(settings: &Settings, connection: &mut PgConnection) -> Result<(), Fault> {
    let target = &settings.target;
    let unreadable = |error: &sqlx::Error| Fault::statement(target, error);
    // Not prepared: a transaction pooler would send the two halves to two servers.
    let row = sqlx::raw_sql(
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int / 10000, \
         current_setting('synchronous_commit'), current_setting('default_transaction_read_only')::bool",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(|error| unreadable(&error))?;
    let standby: bool = row.try_get(0).map_err(|error| unreadable(&error))?;
    let version: i32 = row.try_get(1).map_err(|error| unreadable(&error))?;
    let commit: String = row.try_get(2).map_err(|error| unreadable(&error))?;
    let read_only: bool = row.try_get(3).map_err(|error| unreadable(&error))?;
    accept(settings, &PostgresServerInfo { standby, version, commit, read_only })?;
    notice_failover(settings, connection).await;
    Ok(())
}

#[derive(Debug)]
struct PostgresServerInfo {
    standby: bool,
    version: i32,
    commit: String,
    read_only: bool,
}

fn accept(settings: &Settings, facts: &PostgresServerInfo) -> Result<(), Fault> {
    let (target, version) = (&settings.target, facts.version);
    if version < OLDEST {
        return Err(Fault::setup(format!(
            "{target} is PostgreSQL {version}: Semel needs {OLDEST} or later, upgrade the server"
        )));
    }
    if facts.standby {
        // It may be promoted in a moment, so a retry can help.
        return Err(Fault::new(
            ErrorKind::Setup,
            format!(
                "{target} is a standby, and a standby shows the past: point the URL at the primary, or add target_session_attrs in your pooler"
            ),
            Fate::Undone,
            Cure::Reconnect,
        ));
    }
    if facts.read_only {
        return Err(Fault::setup(format!(
            "{target} gives this user read-only transactions: ALTER ROLE or ALTER DATABASE SET default_transaction_read_only = off"
        )));
    }
    if facts.commit == "off" && settings.async_commit == AsyncCommit::Refuse {
        return Err(Fault::setup(format!(
            "{target} has synchronous_commit = off, so a crash can lose acknowledged claims and effects happen twice: ALTER ROLE or ALTER DATABASE SET synchronous_commit = on, or accept it with AsyncCommit::Accept"
        )));
    }
    Ok(())
}

/// Logs when a promoted standby has replaced the server: it has a new timeline, and writes that had not reached it
/// are lost. Nothing is logged if the server does not report its timeline.
async fn notice_failover(settings: &Settings, connection: &mut PgConnection) {
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
    use crate::store::PostgresStore;

    fn refused(version: i32, commit: &str) -> Option<String> {
        let builder = PostgresStore::builder("postgres://db.internal/app");
        let facts =
            PostgresServerInfo { standby: false, version, commit: commit.to_owned(), read_only: false };
        accept(&builder.settings().expect("a URL that can be read"), &facts)
            .err()
            .map(|fault| fault.to_string())
    }

    #[test]
    fn an_old_server_is_told_what_to_do() {
        let refused = refused(OLDEST - 1, "on").expect("refused");
        assert!(
            refused.contains("is PostgreSQL 12: Semel needs 13 or later, upgrade the server"),
            "{refused}"
        );
    }

    #[test]
    fn what_keeps_the_promises_is_accepted() {
        for commit in ["on", "remote_apply", "remote_write", "local"] {
            assert_eq!(refused(OLDEST, commit), None, "{commit}");
        }
    }
}
