//! Connections, and how a call is carried over them: repeated where somebody was in the way or a connection broke, and
//! honest where nobody knows.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use semel::backoff::Backoff;
use semel::batch::Batcher;
use semel::key::KeyId;
use semel::outage::Availability;
use semel::store::Pooling;
use semel_postgres::{Execution, PostgresError, PostgresSettings, Remedy, ReplacedPool};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::database::Db;
use super::fault::{Fault, store_error};
use super::ids::Ids;
use super::intake;
use super::join;
use super::listen::News;
use crate::ledger::{BoxFuture, Error, KeyState};

/// What everything that belongs to one ledger shares.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) availability: Arc<Availability>,
    pool: ReplacedPool,
    pub(super) news: News,
    pub(super) ids: Ids,
    pub(super) accepts: join::AcceptBatcher,
    pub(super) finds: Arc<Batcher<KeyId, Result<KeyState, Error>>>,
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
    pub(super) fn new(settings: PostgresSettings) -> Arc<Self> {
        let settings = Arc::new(settings);
        Arc::new(Self {
            availability: Availability::of_postgres(&settings, "ledger"),
            pool: ReplacedPool::new(&settings),
            news: News::new(settings.schema.name()),
            settings,
            ids: Ids::default(),
            accepts: join::batcher(),
            finds: Batcher::new(intake::FIND_TOGETHER),
            swept: AtomicI64::new(0),
            heartbeats: Mutex::new(None),
        })
    }

    /// A statement, prepared once for each connection unless a pooler would mix that up.
    pub(super) fn query(&self, sql: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self.settings.pooling == Pooling::Direct)
    }

    /// What a failed statement means.
    pub(super) fn explain(&self, error: &sqlx::Error) -> Fault {
        Fault::Database(PostgresError::statement(&self.settings.target, error))
    }

    /// A row holds what nobody can have written.
    pub(super) fn corrupt(&self, what: &str) -> Fault {
        Fault::Database(PostgresError::corrupt(&self.settings.target, what))
    }

    /// Carries out `work`, and again where that may help, within the timeout.
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
        let deadline = Instant::now() + self.settings.timeout;
        let mut repeated = false;
        let mut backoff = Backoff::new(Duration::from_millis(3), Duration::from_millis(375));
        loop {
            let trouble = match self.once(shape, arguments, &work).await {
                Ok(answer) => return Ok(Called { answer, repeated }),
                Err(Fault::Answer(error)) if !repeated => return Err(error),
                // It may be refused only because the try before it was executed.
                Err(Fault::Answer(_)) => return Err(store_error(self.unknown())),
                Err(Fault::Database(trouble)) => self.availability.judge_error(trouble).await,
            };
            let trouble = if shape == Shape::Read { trouble.not_executed() } else { trouble };
            repeated |= trouble.execution == Execution::Unknown;
            if trouble.remedy == Remedy::Wait {
                return Err(store_error(if repeated { trouble.unknown() } else { trouble }));
            }
            let may_repeat = !(repeated && shape == Shape::TransactionOnce);
            let wait = backoff.next_wait();
            if !may_repeat || trouble.remedy == Remedy::None || Instant::now() + wait >= deadline {
                return Err(store_error(if repeated { self.unknown() } else { trouble }));
            }
            tracing::debug!(%trouble, "the ledger tries again");
            sleep(wait).await;
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
                None => {
                    let connecting = semel_postgres::connect(&self.settings);
                    let connected = self.availability.connect(&self.settings, connecting).await;
                    match connected {
                        Ok(connection) => (connection, false),
                        Err(trouble) => {
                            return Err(store_error(self.availability.judge_error(trouble).await));
                        }
                    }
                }
            };
            let running = self.run(Shape::Statement, &mut connection, arguments, &work);
            match self.availability.execute(&self.settings, running).await {
                Ok(answer) => {
                    *kept = Some(connection);
                    return Ok(answer);
                }
                Err(Fault::Database(trouble)) if old && trouble.remedy == Remedy::Reconnect => {}
                Err(Fault::Database(trouble)) => {
                    return Err(store_error(self.availability.judge_error(trouble).await));
                }
                Err(Fault::Answer(error)) => return Err(error),
            }
        }
    }

    fn unknown(&self) -> PostgresError {
        PostgresError::timed_out(&self.settings.target)
    }

    async fn once<A, T, W>(&self, shape: Shape, arguments: &A, work: &W) -> Result<T, Fault>
    where
        A: Sync + ?Sized,
        W: for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Sync,
    {
        let mut connection = self.connection().await?;
        let running = self.run(shape, &mut connection, arguments, work);
        let result = self.availability.execute(&self.settings, running).await;
        if let Err(Fault::Database(trouble)) = &result
            && (matches!(trouble.remedy, Remedy::Reconnect | Remedy::Wait)
                || trouble.execution == Execution::Unknown)
        {
            connection.close_on_drop();
        }
        result
    }

    /// A connection of the pool.
    pub(super) async fn connection(&self) -> Result<PoolConnection<Postgres>, PostgresError> {
        let pool = self.pool.get(self.availability.ended_outages());
        let acquiring = async {
            pool.acquire().await.map_err(|error| {
                PostgresError::connecting(&self.settings.target, self.settings.options.get_username(), &error)
            })
        };
        self.availability.connect(&self.settings, acquiring).await
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
        let undone =
            |error: &sqlx::Error| PostgresError::statement(&self.settings.target, error).not_executed();
        let begin = AssertSqlSafe(self.settings.begin.clone());
        let mut transaction = connection.begin_with(begin).await.map_err(|error| undone(&error))?;
        let mut db = Db { shared: self, connection: &mut transaction };
        let answer = match work(&mut db, arguments).await {
            Ok(answer) => answer,
            Err(fault) => {
                // Now, and not when the connection is used again: nobody shall find rows held by a call that has ended.
                let _ = transaction.rollback().await;
                return Err(match fault {
                    Fault::Database(trouble) => trouble.not_executed().into(),
                    answer @ Fault::Answer(_) => answer,
                });
            }
        };
        transaction.commit().await.map_err(|error| self.explain(&error))?;
        Ok(answer)
    }
}
