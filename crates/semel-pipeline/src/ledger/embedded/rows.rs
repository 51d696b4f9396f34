//! Deliveries as the writer holds them while a step is made, and the one way in which their state changes.

use semel::store::rusqlite::{self, OptionalExtension as _, params};
use semel::time::Timestamp;

use super::broken;
use super::columns::{Columns, micros};
use super::work::{Done, Work};
use crate::delivery::{DeliveryState, DeliveryStep};
use crate::id::{DeliveryId, JobId};
use crate::ledger::sql::Columns as _;

/// A delivery's row, as far as steps look at it or change it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) number: i64,
    pub(super) id: DeliveryId,
    pub(super) event: i64,
    pub(super) target: String,
    pub(super) tenant: String,
    pub(super) event_type: String,
    pub(super) order_key: Option<String>,
    pub(super) state: DeliveryState,
    pub(super) front: bool,
    pub(super) due_at: Timestamp,
    pub(super) deliver_until: Option<Timestamp>,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// Attempts of all rounds that count.
    pub(super) total_attempts: u32,
    /// The number of the last attempt, counted or not.
    pub(super) last_attempt: u32,
    pub(super) epoch: u32,
    pub(super) token: Option<u128>,
    pub(super) lease_until: Option<Timestamp>,
    pub(super) error: Option<String>,
    pub(super) letter: Option<i64>,
    /// The replay job that released it, and the item's place in it.
    pub(super) item: Option<(JobId, i64)>,
    pub(super) created_at: Timestamp,
    pub(super) started_at: Option<Timestamp>,
    pub(super) completed_at: Option<Timestamp>,
}

const COLUMNS: &str = "number, id, event, target, tenant, event_type, order_key, state, front, due_at, deliver_until, attempts, crashes, total_attempts, last_attempt, epoch, token, lease_until, error, letter, job, item, created_at, started_at, completed_at";

impl Row {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let mut columns = Columns::of(row);
        Ok(Self {
            number: columns.get()?,
            id: DeliveryId::from_bytes(columns.get()?),
            event: columns.get()?,
            target: columns.get()?,
            tenant: columns.get()?,
            event_type: columns.get()?,
            order_key: columns.get()?,
            state: columns.name(DeliveryState::from_name)?,
            front: columns.get()?,
            due_at: columns.time()?,
            deliver_until: columns.time_or_none()?,
            attempts: columns.get()?,
            crashes: columns.get()?,
            total_attempts: columns.get()?,
            last_attempt: columns.get()?,
            epoch: columns.get()?,
            token: columns.get::<Option<[u8; 16]>>()?.map(u128::from_be_bytes),
            lease_until: columns.time_or_none()?,
            error: columns.get()?,
            letter: columns.get()?,
            item: columns.get::<Option<[u8; 16]>>()?.map(JobId::from_bytes).zip(columns.get()?),
            created_at: columns.time()?,
            started_at: columns.time_or_none()?,
            completed_at: columns.time_or_none()?,
        })
    }
}

impl Work<'_> {
    /// A delivery by its id.
    pub(super) fn find_row(&self, id: DeliveryId) -> rusqlite::Result<Option<Row>> {
        self.sql
            .prepare_cached(&format!("SELECT {COLUMNS} FROM ledger_delivery WHERE id = ?1"))?
            .query_row([id.to_bytes()], Row::read)
            .optional()
    }

    /// A delivery that another row speaks of.
    pub(super) fn row(&self, number: i64) -> Done<Row> {
        let found = self
            .sql
            .prepare_cached(&format!("SELECT {COLUMNS} FROM ledger_delivery WHERE number = ?1"))?
            .query_row([number], Row::read)
            .optional()?;
        found.ok_or_else(|| broken(&format!("there is no delivery {number}")))
    }

    /// The deliveries of an event, the first one first.
    pub(super) fn rows_of(&self, event: i64) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.sql.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM ledger_delivery WHERE event = ?1 ORDER BY number"
        ))?;
        statement.query_map([event], Row::read)?.collect()
    }

    /// Adds a delivery in its first state. Its number is set here.
    pub(super) fn add_row(&mut self, mut row: Row) -> Done<Row> {
        // Whether it is at the front of its order is found out when it is there.
        row.front = row.order_key.is_none();
        self.sql
            .prepare_cached(&format!(
                "INSERT INTO ledger_delivery ({COLUMNS})
                 VALUES (NULL, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
            ))?
            .execute(params![
                rusqlite::types::Null,
                row.id.to_bytes(),
                row.event,
                row.target,
                row.tenant,
                row.event_type,
                row.order_key,
                row.state.as_str(),
                row.front,
                micros(row.due_at),
                row.deliver_until.map(micros),
                row.attempts,
                row.crashes,
                row.total_attempts,
                row.last_attempt,
                row.epoch,
                row.token.map(u128::to_be_bytes),
                row.lease_until.map(micros),
                row.error,
                row.letter,
                row.item.map(|(job, _)| job.to_bytes()),
                row.item.map(|(_, position)| position),
                micros(row.created_at),
                row.started_at.map(micros),
                row.completed_at.map(micros),
            ])?;
        row.number = self.sql.last_insert_rowid();
        self.count_delivery(&row.target, row.state, 1);
        self.place(&row)?;
        Ok(row)
    }

    /// Takes a step, if it is drawn. The row is not written yet.
    pub(super) fn step(&mut self, row: &mut Row, step: DeliveryStep) -> Done<()> {
        let next = row.state.after(step)?;
        self.count_delivery(&row.target, row.state, -1);
        self.count_delivery(&row.target, next, 1);
        row.state = next;
        Ok(())
    }

    /// Writes a row after its steps, and finds out what they mean for others of its order.
    pub(super) fn save(&mut self, row: &mut Row) -> Done<()> {
        if row.order_key.is_some() && !row.state.holds_order() {
            row.front = false;
        }
        self.sql
            .prepare_cached(
                "UPDATE ledger_delivery SET state = ?2, front = ?3, due_at = ?4, deliver_until = ?5, attempts = ?6,
                        crashes = ?7, total_attempts = ?8, last_attempt = ?9, epoch = ?10, token = ?11, lease_until = ?12,
                        error = ?13, letter = ?14, job = ?15, item = ?16, started_at = ?17, completed_at = ?18
                 WHERE number = ?1",
            )?
            .execute(params![
                row.number,
                row.state.as_str(),
                row.front,
                micros(row.due_at),
                row.deliver_until.map(micros),
                row.attempts,
                row.crashes,
                row.total_attempts,
                row.last_attempt,
                row.epoch,
                row.token.map(u128::to_be_bytes),
                row.lease_until.map(micros),
                row.error,
                row.letter,
                row.item.map(|(job, _)| job.to_bytes()),
                row.item.map(|(_, position)| position),
                row.started_at.map(micros),
                row.completed_at.map(micros),
            ])?;
        self.place(row)
    }

    /// One delivery fewer, or more, keeps its event from being swept.
    pub(super) fn unsettle(&self, event: i64, by: i64) -> rusqlite::Result<()> {
        self.sql
            .prepare_cached(
                "UPDATE ledger_event SET unsettled = unsettled + ?2,
                        settled_at = CASE WHEN unsettled + ?2 = 0 THEN ?3 END
                 WHERE number = ?1",
            )?
            .execute(params![event, by, micros(self.now)])?;
        Ok(())
    }
}
