//! PostgreSQL as a [`Database`] for shared code: one connection for the length of a call.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use super::fault::Fault;
use super::link::Shared;
use super::values::{Columns, plain};
use crate::delivery::Delivery;
use crate::id::DeliveryId;
use crate::ledger::sql::page::wrong_cursor;
use crate::ledger::sql::{Database, FromRow, Statements, Value};
use crate::ledger::{BoxFuture, Error, Page};

/// A statement with its parameters.
pub(super) type Prepared = Query<'static, Postgres, PgArguments>;

/// One call's connection.
pub(super) struct Db<'c> {
    pub(super) shared: &'c Shared,
    pub(super) connection: &'c mut PgConnection,
}

impl Db<'_> {
    pub(super) fn query(&self, sql: &'static str) -> Prepared {
        self.shared.query(sql)
    }

    pub(super) fn bind(&self, sql: &'static str, with: &[Value<'_>]) -> Prepared {
        with.iter().fold(self.query(sql), |query, value| match value {
            Value::Integer(number) => query.bind(*number),
            Value::Real(number) => query.bind(*number),
            Value::Text(text) => query.bind(text.map(plain)),
            Value::Bytes(bytes) => query.bind(bytes.clone()),
            Value::Texts(texts) => query.bind(texts.iter().map(|text| plain(text)).collect::<Vec<_>>()),
            Value::Ids(ids) => query.bind(ids.clone()),
        })
    }

    /// Runs a statement and reads its rows.
    pub(super) async fn fetch<T: FromRow>(&mut self, query: Prepared) -> Result<Vec<T>, Fault> {
        let rows = query.fetch_all(&mut *self.connection).await;
        let rows = rows.map_err(|error| self.shared.explain(&error))?;
        rows.iter().map(|row| T::read(&mut Columns::new(self.shared, row))).collect()
    }

    /// Runs a statement whose rows nobody needs. Answers how many rows it changed.
    pub(super) async fn execute(&mut self, query: Prepared) -> Result<u64, Fault> {
        let done = query.execute(&mut *self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| self.shared.explain(&error))
    }
}

impl Database for Db<'_> {
    type Fault = Fault;

    const SQL: Statements = super::statements::STATEMENTS;

    fn each<'a, T: FromRow>(
        &'a mut self,
        sql: &'static str,
        with: &[Value<'_>],
        mut visit: impl FnMut(T) -> bool + Send + 'a,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        let query = self.bind(sql, with);
        Box::pin(async move {
            for row in self.fetch(query).await? {
                if !visit(row) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn run<'a>(&'a mut self, sql: &'static str, with: &[Value<'_>]) -> BoxFuture<'a, Result<u64, Fault>> {
        let query = self.bind(sql, with);
        Box::pin(self.execute(query))
    }

    /// Not prepared: a plan for all parameters could not know which part of a filter finds little.
    async fn planned_rows<T: FromRow>(
        &mut self,
        sql: &'static str,
        with: &[Value<'_>],
    ) -> Result<Vec<T>, Fault> {
        let query = self.bind(sql, with).persistent(false);
        self.fetch(query).await
    }

    fn delivery_cursor(_: i64, delivery: &Delivery) -> String {
        delivery.id.to_string()
    }

    fn deliveries_before(page: &Page) -> Result<Value<'static>, Error> {
        let Some(text) = &page.after else { return Ok(Value::Bytes(Some(vec![0xff; 17]))) };
        let id: DeliveryId = text.parse().map_err(|_| wrong_cursor())?;
        Ok(id.to_bytes().into())
    }
}
