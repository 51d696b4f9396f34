//! Connections, and how a call is carried over them: repeated where somebody was in the way or a connection broke, and
//! honest where nobody knows.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use semel::key::KeyId;
use semel::store::{AsyncCommit, Pooling};
use semel::together::Together;
use sqlx::postgres::{PgArguments, PgPoolOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Postgres, Row as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::builder::Settings;
use super::database::Db;
use super::fault::{Cure, Fate, Fault, Trouble};
use super::ids::Ids;
use super::intake;
use super::join::Joint;
use super::listen::News;
use crate::ledger::{BoxFuture, Error, KeyState};

/// The oldest server whose SQL and guarantees are the ones used here.
const OLDEST: i32 = 13;

/// What everything that belongs to one ledger shares.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) pool: PgPool,
    pub(super) news: News,
    pub(super) ids: Ids,
    pub(super) joint: Joint,
    pub(super) finds: Arc<Together<KeyId, Result<KeyState, Error>>>,
    /// Up to which event the last sweep has looked.
    pub(super) swept: AtomicI64,
    /// For heartbeats alone: see [`call_apart`](Self::call_apart).
    heartbeats: Mutex<Option<PgConnection>>,
}

/// How a call meets the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// It changes nothing: an unknown fate does no harm.
    Read,
    /// One statement, committed when it answers.
    Statement,
    /// Several statements that stand or fall together.
    Transaction,
    /// The same, for what must not be executed twice: it is not repeated where it may have been committed.
    TransactionOnce,
}

/// What a call answered.
#[derive(Debug)]
pub(super) struct Called<T> {
    pub(super) answer: T,
    /// An earlier try broke off, and may have been executed.
    pub(super) repeated: bool,
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new_cyclic(|shared: &std::sync::Weak<Self>| {
            let shared = shared.clone();
            let pool = PgPoolOptions::new()
                .max_connections(settings.connections)
                .acquire_timeout(settings.patience)
                .test_before_acquire(false)
                .before_acquire(|connection, known| {
                    Box::pin(async move {
                        // One in use was alive a moment ago; an idle one may have lost its server.
                        Ok(known.idle_for < Duration::from_secs(1) || connection.ping().await.is_ok())
                    })
                })
                .after_connect(move |connection, _| {
                    let shared = shared.upgrade();
                    Box::pin(async move {
                        let Some(shared) = shared else { return Ok(()) };
                        check(&shared.settings, connection)
                            .await
                            .map_err(|trouble| sqlx::Error::Configuration(trouble.to_string().into()))
                    })
                })
                .connect_lazy_with(settings.options.clone());
            let news = News::new(settings.schema.name());
            Self {
                settings,
                pool,
                news,
                ids: Ids::default(),
                joint: Joint::default(),
                finds: Together::new(intake::FIND_TOGETHER),
                swept: AtomicI64::new(0),
                heartbeats: Mutex::new(None),
            }
        })
    }

    /// A statement, prepared once for each connection unless a pooler would mix that up.
    pub(super) fn query(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self.settings.pooling == Pooling::Direct)
    }

    /// What a failed statement means.
    pub(super) fn explain(&self, error: &sqlx::Error) -> Fault {
        Fault::Database(Trouble::of(&self.settings.target, error))
    }

    /// A row holds what nobody can have written.
    pub(super) fn corrupt(&self, what: &str) -> Fault {
        Fault::Database(Trouble::corrupt(&self.settings.target, what))
    }

    /// Carries out `work`, and again where that may help, within the patience.
    pub(super) async fn call<A, T, W>(&self, shape: Shape, arguments: &A, work: W) -> Result<T, Error>
    where
        A: Sync + ?Sized,
        T: Send,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        self.call_or_repeat(shape, arguments, work).await.map(|called| called.answer)
    }

    /// As [`call`](Self::call); says whether an earlier try may have been executed too.
    pub(super) async fn call_or_repeat<A, T, W>(
        &self,
        shape: Shape,
        arguments: &A,
        work: W,
    ) -> Result<Called<T>, Error>
    where
        A: Sync + ?Sized,
        T: Send,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        let deadline = Instant::now() + self.settings.patience;
        let mut repeated = false;
        let mut pause = Duration::from_millis(2);
        loop {
            let trouble = match self.once(shape, arguments, &work).await {
                Ok(answer) => return Ok(Called { answer, repeated }),
                Err(Fault::Answer(error)) if !repeated => return Err(error),
                // It may be refused only because the try before it was executed.
                Err(Fault::Answer(_)) => return Err(Error::Store(self.unknown().into())),
                Err(Fault::Database(trouble)) => trouble,
            };
            let trouble = if shape == Shape::Read { trouble.uncommitted() } else { trouble };
            repeated |= trouble.fate == Fate::Unknown;
            let may_repeat = !(repeated && shape == Shape::TransactionOnce);
            let wait = pause + pause.mul_f64(rand::random());
            if !may_repeat || trouble.cure == Cure::None || Instant::now() + wait >= deadline {
                return Err(Error::Store(if repeated { self.unknown().into() } else { trouble.into() }));
            }
            tracing::debug!(%trouble, "the ledger tries again");
            sleep(wait).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// Carries out one statement on a connection apart from the pool, for heartbeats. They must not wait for the statements of
    /// others, who may hold every connection of the pool; and the connection belongs to the caller's runtime, the
    /// heartbeat thread's own, which is never busy with anything else.
    ///
    /// It is tried twice where the connection was an old one: the server may have closed it since.
    pub(super) async fn call_apart<A, T, W>(&self, arguments: &A, work: W) -> Result<T, Error>
    where
        A: Sync + ?Sized,
        T: Send,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        let mut kept = self.heartbeats.lock().await;
        loop {
            // Taken out: where this future is dropped midway, a connection with half an answer goes with it.
            let (mut connection, old) = match kept.take() {
                Some(connection) => (connection, true),
                None => (self.connect_apart().await.map_err(|trouble| Error::Store(trouble.into()))?, false),
            };
            match self.run(Shape::Statement, &mut connection, arguments, &work).await {
                Ok(answer) => {
                    *kept = Some(connection);
                    return Ok(answer);
                }
                Err(Fault::Database(trouble)) if old && trouble.cure == Cure::Reconnect => {}
                Err(Fault::Database(trouble)) => return Err(Error::Store(trouble.into())),
                Err(Fault::Answer(error)) => return Err(error),
            }
        }
    }

    async fn connect_apart(&self) -> Result<PgConnection, Trouble> {
        let connected = self.settings.options.connect().await;
        let mut connection =
            connected.map_err(|error| Trouble::of(&self.settings.target, &error).uncommitted())?;
        check(&self.settings, &mut connection).await?;
        Ok(connection)
    }

    fn unknown(&self) -> Trouble {
        Trouble::silent(&self.settings.target)
    }

    async fn once<A, T, W>(&self, shape: Shape, arguments: &A, work: &W) -> Result<T, Fault>
    where
        A: Sync + ?Sized,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        let acquired = self.pool.acquire().await;
        let mut connection = acquired.map_err(|error| match error {
            // What `check` said of a server that it refused.
            sqlx::Error::Configuration(said) => Trouble::setup_for_now(said.to_string()),
            error => Trouble::of(&self.settings.target, &error).uncommitted(),
        })?;
        // Longer than the server's own limit: it knows better what it did.
        let limit = self.settings.patience * 2 + Duration::from_millis(500);
        let done = timeout(limit, self.run(shape, &mut connection, arguments, work)).await;
        let result = done.unwrap_or_else(|_| Err(Trouble::silent(&self.settings.target).into()));
        if let Err(Fault::Database(trouble)) = &result
            && (trouble.cure == Cure::Reconnect || trouble.fate == Fate::Unknown)
        {
            connection.close_on_drop();
        }
        result
    }

    async fn run<A, T, W>(
        &self,
        shape: Shape,
        connection: &mut PgConnection,
        arguments: &A,
        work: &W,
    ) -> Result<T, Fault>
    where
        A: Sync + ?Sized,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        let is_statement = matches!(shape, Shape::Read | Shape::Statement);
        if is_statement && self.settings.pooling == Pooling::Direct {
            return work(&mut Db { shared: self, connection }, arguments).await;
        }
        let undone = |error: &sqlx::Error| Trouble::of(&self.settings.target, error).uncommitted();
        let begin = AssertSqlSafe(self.settings.begin.clone());
        let mut transaction = connection.begin_with(begin).await.map_err(|error| undone(&error))?;
        let mut db = Db { shared: self, connection: &mut transaction };
        let answer = match work(&mut db, arguments).await {
            Ok(answer) => answer,
            Err(fault) => {
                // Now, and not when the connection is used again: nobody shall find rows held by a call that has ended.
                let _ = transaction.rollback().await;
                return Err(match fault {
                    Fault::Database(trouble) => trouble.uncommitted().into(),
                    answer @ Fault::Answer(_) => answer,
                });
            }
        };
        transaction.commit().await.map_err(|error| self.explain(&error))?;
        Ok(answer)
    }
}

/// Refuses a server that cannot keep the promises.
pub(super) async fn check(settings: &Settings, connection: &mut PgConnection) -> Result<(), Trouble> {
    let target = &settings.target;
    let unreadable = |error: sqlx::Error| Trouble::of(target, &error).uncommitted();
    // Not prepared: a transaction pooler would give the two halves of it to two servers.
    let row = sqlx::raw_sql(
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int / 10000, \
         current_setting('synchronous_commit'), current_setting('default_transaction_read_only')::bool",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(unreadable)?;
    let standby: bool = row.try_get(0).map_err(unreadable)?;
    let version: i32 = row.try_get(1).map_err(unreadable)?;
    let commit: String = row.try_get(2).map_err(unreadable)?;
    let read_only: bool = row.try_get(3).map_err(unreadable)?;
    if version < OLDEST {
        return Err(Trouble::setup(format!(
            "{target} is PostgreSQL {version}: Semel needs {OLDEST} or later, upgrade the server"
        )));
    }
    if standby {
        // It may be promoted in a moment: worth trying again where somebody waits.
        return Err(Trouble::setup_for_now(format!(
            "{target} is a standby, and a standby shows the past: point the URL at the primary"
        )));
    }
    if read_only {
        return Err(Trouble::setup(format!(
            "{target} gives this user read-only transactions: ALTER ROLE or ALTER DATABASE SET default_transaction_read_only = off"
        )));
    }
    if commit == "off" && settings.async_commit == AsyncCommit::Refuse {
        return Err(Trouble::setup(format!(
            "{target} has synchronous_commit = off, so a crash can lose acknowledged events: ALTER ROLE or ALTER DATABASE SET synchronous_commit = on, or accept it with AsyncCommit::Accept"
        )));
    }
    Ok(())
}
