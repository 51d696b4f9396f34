//! Deliveries as the writer holds them while a step is made, and the one way in which their state changes.

use semel::store::rusqlite::{self, params};
use semel::time::Timestamp;

use super::broken;
use super::columns::{Columns, micros};
use super::work::{Done, Work};
use crate::delivery::{DeliveryState, DeliveryStep};
use crate::id::{DeliveryId, EventId, JobId};
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
    /// Attempts that count, also those before a replay.
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

/// The columns of a row.
macro_rules! columns {
    () => {
        "id, event, target, tenant, event_type, order_key, state, front, due_at, deliver_until, attempts, crashes, total_attempts, last_attempt, epoch, token, lease_until, error, letter, job, item, created_at, started_at, completed_at"
    };
}

/// Rows by this condition.
macro_rules! rows {
    ($which:literal) => {
        concat!("SELECT number, ", columns!(), " FROM ledger_delivery WHERE ", $which)
    };
}

impl Row {
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
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

impl Row {
    /// Another delivery of the same event to the same target.
    pub(super) fn begun(self, now: Timestamp) -> Self {
        Self {
            id: DeliveryId::new(now),
            state: DeliveryState::Queued,
            due_at: now,
            deliver_until: None,
            attempts: 0,
            crashes: 0,
            total_attempts: 0,
            last_attempt: 0,
            token: None,
            lease_until: None,
            error: None,
            letter: None,
            created_at: now,
            started_at: None,
            completed_at: None,
            ..self
        }
    }

    /// Runs a statement whose parameters are the columns of the row, in their order.
    fn write(&self, sql: &str, work: &Work<'_>) -> rusqlite::Result<usize> {
        work.execute(
            sql,
            params![
                self.number,
                self.id.to_bytes(),
                self.event,
                self.target,
                self.tenant,
                self.event_type,
                self.order_key,
                self.state.as_str(),
                self.front,
                micros(self.due_at),
                self.deliver_until.map(micros),
                self.attempts,
                self.crashes,
                self.total_attempts,
                self.last_attempt,
                self.epoch,
                self.token.map(u128::to_be_bytes),
                self.lease_until.map(micros),
                self.error,
                self.letter,
                self.item.map(|(job, _)| job.to_bytes()),
                self.item.map(|(_, position)| position),
                micros(self.created_at),
                self.started_at.map(micros),
                self.completed_at.map(micros),
            ],
        )
    }
}

impl Work<'_> {
    /// A delivery by its id.
    pub(super) fn find_row(&self, id: DeliveryId) -> rusqlite::Result<Option<Row>> {
        self.one(rows!("id = ?1"), [id.to_bytes()], Row::read)
    }

    /// A delivery that another row speaks of.
    pub(super) fn row(&self, number: i64) -> Done<Row> {
        let found = self.one(rows!("number = ?1"), [number], Row::read)?;
        found.ok_or_else(|| broken(&format!("there is no delivery {number}")))
    }

    /// The deliveries of an event, the first one first.
    pub(super) fn rows_of(&self, event: EventId) -> rusqlite::Result<Vec<Row>> {
        let sql = rows!("event = (SELECT number FROM ledger_event WHERE id = ?1) ORDER BY number");
        self.all(sql, [event.to_bytes()], Row::read)
    }

    /// Adds a delivery in its first state. Its number is set here.
    pub(super) fn add_row(&mut self, mut row: Row) -> Done<Row> {
        // Whether it is at the front of its order is found out when it is there.
        row.front = row.order_key.is_none();
        row.write(
            concat!(
                "INSERT INTO ledger_delivery (",
                columns!(),
                ") VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)"
            ),
            self,
        )?;
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
        row.write(
            "UPDATE ledger_delivery SET state = ?8, front = ?9, due_at = ?10, deliver_until = ?11, attempts = ?12, crashes = ?13,
                    total_attempts = ?14, last_attempt = ?15, epoch = ?16, token = ?17, lease_until = ?18, error = ?19,
                    letter = ?20, job = ?21, item = ?22, started_at = ?24, completed_at = ?25
             WHERE number = ?1",
            self,
        )?;
        self.place(row)
    }

    /// One delivery fewer, or more, keeps its event from being swept.
    pub(super) fn unsettle(&self, event: i64, by: i64) -> rusqlite::Result<()> {
        self.execute(
            "UPDATE ledger_event SET unsettled = unsettled + ?2, settled_at = CASE WHEN unsettled + ?2 = 0 THEN ?3 END
             WHERE number = ?1",
            params![event, by, micros(self.now)],
        )
        .map(drop)
    }
}
