//! The embedded ledger as a [`Database`] for shared code: its statements, and how they are sent.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use semel::store::BoxFuture;
use semel::store::rusqlite::types::ToSqlOutput;
use semel::store::rusqlite::{self, CachedStatement, Statement, ToSql};

use super::columns::{Columns, micros};
use super::work::{Done, Fault, Work};
use crate::delivery::Delivery;
use crate::ledger::sql::page::before;
use crate::ledger::sql::{Database, FromRow, Statements, Value};
use crate::ledger::{Error, Page};

impl Work<'_> {
    pub(super) fn prepare(&self, sql: &str, with: &[Value<'_>]) -> rusqlite::Result<CachedStatement<'_>> {
        let mut statement = self.sql.prepare_cached(sql)?;
        for (number, value) in (1..).zip(with) {
            bind(&mut statement, &format!("${number}"), value)?;
        }
        bind(&mut statement, ":now", &Value::Integer(micros(self.now)))?;
        Ok(statement)
    }

    fn query<T: FromRow>(
        &self,
        sql: &str,
        with: &[Value<'_>],
        mut visit: impl FnMut(T) -> bool,
    ) -> rusqlite::Result<()> {
        let mut statement = self.prepare(sql, with)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            if !visit(T::read(&mut Columns::of(row))?) {
                break;
            }
        }
        Ok(())
    }
}

/// Binds a parameter, where the statement has it.
fn bind(statement: &mut Statement<'_>, name: &str, value: &Value<'_>) -> rusqlite::Result<()> {
    match statement.parameter_index(name)? {
        Some(at) => statement.raw_bind_parameter(at, value),
        None => Ok(()),
    }
}

/// Lists are JSON; ids in them are hexadecimal.
impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Integer(number) => number.to_sql(),
            Self::Real(number) => number.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
            Self::Texts(texts) => Ok(crate::ledger::sql::to_json(texts).into()),
            Self::Ids(ids) => {
                let ids: Vec<String> =
                    ids.iter().map(|id| format!("{:032x}", u128::from_be_bytes(*id))).collect();
                Ok(crate::ledger::sql::to_json(&ids).into())
            }
        }
    }
}

impl Database for Work<'_> {
    type Fault = Fault;

    const SQL: Statements = super::statements::STATEMENTS;

    fn each<'a, T: FromRow>(
        &'a mut self,
        sql: &'static str,
        with: &[Value<'_>],
        visit: impl FnMut(T) -> bool + Send + 'a,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(std::future::ready(self.query(sql, with, visit).map_err(Fault::from)))
    }

    fn run<'a>(&'a mut self, sql: &'static str, with: &[Value<'_>]) -> BoxFuture<'a, Result<u64, Fault>> {
        let changed = self.prepare(sql, with).and_then(|mut statement| statement.raw_execute());
        Box::pin(std::future::ready(changed.map(|rows| rows as u64).map_err(Fault::from)))
    }

    fn delivery_cursor(number: i64, _: &Delivery) -> String {
        number.to_string()
    }

    fn deliveries_before(page: &Page) -> Result<Value<'static>, Error> {
        before(page).map(Value::Integer)
    }
}

/// The answer of shared code over [`Work`], which never waits.
pub(super) fn now<T>(answer: impl Future<Output = Done<T>>) -> Done<T> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("SQLite answers at once"),
    }
}
