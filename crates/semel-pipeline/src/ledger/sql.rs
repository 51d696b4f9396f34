//! What the SQL ledgers share. Each of them has its own statements ([`Statements`]) and its own way to write; how rows are
//! read, listed and judged is the same for both, and is here.
//!
//! Parameters are `$1`, `$2`… in every statement. The embedded ledger's statements also know `:now`, the time of the call.

pub(super) mod control;
pub(super) mod drain;
pub(super) mod jobs;
pub(super) mod letters;
pub(super) mod page;
pub(super) mod plan;
#[cfg(test)]
pub(super) mod plans;
pub(super) mod reading;
pub(super) mod relay;
pub(super) mod release;
pub(super) mod rows;
pub(super) mod runs;
pub(super) mod traits;
pub(super) mod writing;

use std::time::Duration;

use bytes::Bytes;
use semel::time::Timestamp;

use super::{BoxFuture, DeliveryFilter, Error, EventFilter, LetterFilter, Page, Paged};
use crate::delivery::{Delivery, DeliveryState};
use crate::event::Origin;
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::letter::Status;

/// A database that holds a ledger, inside one call.
pub(super) trait Database {
    /// Why a call ends without an answer.
    type Fault: From<Error>;

    /// Its statements.
    const SQL: Statements;

    /// Reads the rows of a statement one after the other, until `visit` answers false.
    fn each<'a, T: FromRow>(
        &'a mut self,
        sql: &'static str,
        with: &[Value<'_>],
        visit: impl FnMut(T) -> bool + Send + 'a,
    ) -> BoxFuture<'a, Result<(), Self::Fault>>;

    /// Runs a statement whose rows nobody needs. Answers how many rows it changed.
    fn run<'a>(
        &'a mut self,
        sql: &'static str,
        with: &[Value<'_>],
    ) -> BoxFuture<'a, Result<u64, Self::Fault>>;

    /// The cursor of a page that ends with this delivery.
    fn delivery_cursor(number: i64, delivery: &Delivery) -> String;

    /// Where a page of deliveries begins.
    ///
    /// # Errors
    /// The cursor is none of this listing.
    fn deliveries_before(page: &Page) -> Result<Value<'static>, Error>;

    /// All rows of a statement.
    async fn rows<T: FromRow>(
        &mut self,
        sql: &'static str,
        with: &[Value<'_>],
    ) -> Result<Vec<T>, Self::Fault> {
        let mut found = Vec::new();
        let all = self.each(sql, with, |row| {
            found.push(row);
            true
        });
        all.await?;
        Ok(found)
    }

    /// The first row of a statement.
    async fn first<T: FromRow>(
        &mut self,
        sql: &'static str,
        with: &[Value<'_>],
    ) -> Result<Option<T>, Self::Fault> {
        let mut found = None;
        let first = self.each(sql, with, |row| {
            found = Some(row);
            false
        });
        first.await?;
        Ok(found)
    }

    /// All rows of a statement that is planned for its parameters.
    async fn planned_rows<T: FromRow>(
        &mut self,
        sql: &'static str,
        with: &[Value<'_>],
    ) -> Result<Vec<T>, Self::Fault> {
        self.rows(sql, with).await
    }

    /// A page of a listing whose every row is an item. Its statement answers a number before each item; `$1` is where the page
    /// begins, `$2` how many rows to answer, and `more` its other parameters.
    async fn page<T: FromRow>(
        &mut self,
        sql: &'static str,
        (start, more): (Value<'_>, &[Value<'_>]),
        page: &Page,
        cursor: impl Fn(i64, &T) -> String + Send + Sync,
    ) -> Result<Paged<T>, Self::Fault> {
        let with = [&[start, page::rows(page).into()], more].concat();
        let rows = self.planned_rows(sql, &with).await?;
        Ok(page::paged(rows, page, None, cursor))
    }

    /// A page of a listing with a filter. `start` and `filters` are the parameters of [`ListStatements`].
    async fn filtered_page<T: FromRow>(
        &mut self,
        statements: ListStatements,
        (start, filters): (Value<'_>, &[Value<'_>]),
        page: &Page,
        cursor: impl Fn(i64, &T) -> String + Send + Sync,
    ) -> Result<Paged<T>, Self::Fault> {
        let end: Option<RowKey> = match statements.end {
            Some(sql) => {
                let with = [&[start.clone(), page::LOOKED_AT.into()], filters].concat();
                self.planned_rows(sql, &with).await?.pop()
            }
            None => None,
        };
        let last = end.as_ref().map_or_else(|| page::before_all(&start), RowKey::value);
        let with = [&[start, page::rows(page).into()], filters, &[last]].concat();
        let rows = self.planned_rows(statements.rows, &with).await?;
        Ok(page::paged(rows, page, end.map(|end| end.cursor()), cursor))
    }
}

/// The statements of a listing with a filter. Both have an index that finds rows in the order of the listing by one part of the
/// filter; the other parts are applied to what it finds. So a filter that finds little reads a bounded number of rows, and
/// its page is short.
#[derive(Clone, Copy)]
pub(super) struct ListStatements {
    /// Answers a number before each item. `$1` before this row, `$2` rows, then the parts of the filter, at last the row to end
    /// with.
    pub(super) rows: &'static str,
    /// The row after which a page looks no further. `$1` before this row, `$2` how many rows are before it, then the parts of the
    /// filter. `None` where the index applies the whole filter.
    pub(super) end: Option<&'static str>,
}

/// Where a row is in its listing: by its number, or for deliveries by its id.
pub(super) enum RowKey {
    Number(i64),
    Delivery(DeliveryId),
}

impl RowKey {
    fn value(&self) -> Value<'static> {
        match self {
            Self::Number(number) => Value::Integer(*number),
            Self::Delivery(id) => id.to_bytes().into(),
        }
    }

    fn cursor(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Delivery(id) => id.to_string(),
        }
    }
}

/// A number, or none and the id of a delivery.
impl FromRow for RowKey {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        match columns.integer_or_none()? {
            Some(number) => Ok(Self::Number(number)),
            None => Ok(Self::Delivery(DeliveryId::from_bytes(columns.id()?))),
        }
    }
}

/// The statements of a database, as far as shared code sends them.
pub(super) struct Statements {
    /// `$1` id, `$2` kind.
    pub(super) event: &'static str,
    /// `$3` kind, `$4` tenant, `$5` type, `$6` tag.
    pub(super) events: fn(&EventFilter) -> ListStatements,
    /// `$1` id.
    pub(super) delivery: &'static str,
    /// `$1` event.
    pub(super) deliveries_of: &'static str,
    /// `$3` target, `$4` tenant, `$5` states, `$6` event.
    pub(super) deliveries: fn(&DeliveryFilter) -> ListStatements,
    /// Event, state and number of deliveries. `$1` events.
    pub(super) states_of: &'static str,
    /// `$1` delivery.
    pub(super) attempts: &'static str,
    /// `$1` request id, `$2` delivery, `$3` key, `$4` tags.
    pub(super) find_events: &'static str,
    /// `$1` who, `$2` action, `$3` subject, `$4` reason.
    pub(super) audit: &'static str,
    /// Target, state and number of deliveries.
    pub(super) delivery_totals: &'static str,
    /// Status and number of letters.
    pub(super) letter_totals: &'static str,
    /// Targets with a delivery that is due, and for how many microseconds the oldest one has been.
    pub(super) oldest_due: &'static str,
    /// Removes lines of the audit log, of the oldest `$2` those that are older than `$1` microseconds.
    pub(super) sweep_audit: &'static str,
    /// Pauses a target, unless it is paused. `$1` target, `$2` who, `$3` reason.
    pub(super) pause: &'static str,
    /// `$1` id.
    pub(super) letter: &'static str,
    /// `$3` tenant, `$4` target, `$5` status, `$6` signature.
    pub(super) letters: fn(&LetterFilter) -> ListStatements,
    /// `$1` stream, `$2` rows.
    pub(super) unmirrored: &'static str,
    /// `$1` letters.
    pub(super) mirrored: &'static str,
    /// `$1` id.
    pub(super) job: &'static str,
    /// `$1` before this number, `$2` rows.
    pub(super) jobs: &'static str,
    /// `$1` rows, `$2` tenant, `$3` targets, `$4` signature.
    pub(super) failed: &'static str,
    /// `$1` letters.
    pub(super) deliveries_of_letters: &'static str,
    /// `$1` event.
    pub(super) candidates_of_event: &'static str,
    /// `$1` key, `$2` generation, `$3` fingerprint.
    pub(super) find_keyless: &'static str,
    /// Keeps others from changing an event. `$1` id, `$2` kind.
    pub(super) hold_event: &'static str,
    /// Keeps others from changing the lanes of an event's deliveries. `$1` event.
    pub(super) lock_lanes: Option<&'static str>,
    /// The ids and states of an event's deliveries, which nobody else changes from then on. `$1` event.
    pub(super) hold_deliveries: &'static str,
    /// Keeps others from resetting a key. `$1` key.
    pub(super) lock_key: Option<&'static str>,
    /// `$1` event, `$2` how many changes of the buffer it holds.
    pub(super) holds_changes: &'static str,
    /// `$1` event.
    pub(super) drop_key: &'static str,
    /// The status of a letter and the state of its delivery, which nobody else changes from then on. `$1` id.
    pub(super) hold_letter: &'static str,
    /// The letter of an event that is an edited copy. `$1` event, `$2` the letter that was copied.
    pub(super) letter_of_copy: &'static str,
    /// `$1` letter.
    pub(super) touch_letter: &'static str,
    /// Keeps others from changing a job. `$1` id.
    pub(super) hold_job: &'static str,
    /// `$1` id, `$2` selection, `$3` mode, `$4` reason, `$5` who asked, `$6` rate, `$7` concurrency, `$8` canary, `$9` pause above.
    pub(super) add_job: &'static str,
    /// `$1` job, `$2` state, `$3` note.
    pub(super) set_job_state: &'static str,
    /// Ends jobs whose items have all ended. `$1` jobs.
    pub(super) end_jobs: &'static str,
    /// The next items of a job to be released. `$1` job, `$2` rows.
    pub(super) next_items: &'static str,
    /// The targets of the next items of a job and of those in progress. `$1` job.
    pub(super) unfinished_targets: &'static str,
    /// The ids and states of deliveries, which nobody else changes from then on. `$1` deliveries.
    pub(super) hold_items: &'static str,
    /// The ids and statuses of letters, which nobody else changes from then on. `$1` letters.
    pub(super) hold_letters: &'static str,
}

/// The columns of a row of the audit log.
macro_rules! audit_log {
    ($which:literal) => {
        concat!(
            "SELECT number, at, who, action, subject, reason FROM ledger_audit WHERE number < $1 ",
            $which,
            "ORDER BY number DESC LIMIT $2"
        )
    };
}

/// `$1` before this number, `$2` rows.
const AUDIT_LOG: &str = audit_log!("");

/// The same; `$3` subject.
const AUDIT_LOG_OF: &str = audit_log!("AND subject = $3 ");

/// `$1` the letter that they are copies of.
const COPIES: &str =
    "SELECT id FROM ledger_dead_letter WHERE copy_of = $1 AND copy_of IS NOT NULL ORDER BY number";

/// The newest dead letters, at most as many as groups are made of.
macro_rules! newest_letters {
    ($which:literal) => {
        concat!(
            "SELECT number, signature, status, tenant, target FROM ledger_dead_letter WHERE ",
            $which,
            " ORDER BY number DESC"
        )
    };
}

/// Groups of dead letters: each status of a group with the number of its letters, the oldest and the newest one.
macro_rules! groups {
    ($which:literal) => {
        concat!(
            "SELECT g.signature, s.target, s.cause, g.status, g.letters, f.created_at, s.created_at, s.id, s.error, g.newest
            FROM (
                SELECT signature, status, count(*) AS letters, min(number) AS oldest, max(number) AS newest
                FROM (",
            newest_letters!($which),
            " LIMIT 100000) AS looked
                WHERE ($1 IS NULL OR status = $1) AND ($2 IS NULL OR tenant = $2) AND ($3 IS NULL OR target = $3)
                    AND ($4 IS NULL OR signature = $4)
                GROUP BY signature, status
            ) AS g JOIN ledger_dead_letter AS s ON s.number = g.newest
                JOIN ledger_dead_letter AS f ON f.number = g.oldest
            ORDER BY g.signature, g.status"
        )
    };
}

/// `$1` no status, `$2` tenant, `$3` target, `$4` signature.
const GROUPS: &str = groups!("number > 0");

/// The same; `$1` status.
const GROUPS_IN_STATUS: &str = groups!("status = $1");

/// Whether there are more dead letters than groups are made of.
const MORE_LETTERS: &str =
    concat!("SELECT 1 FROM (", newest_letters!("number > 0"), " LIMIT 1 OFFSET 100000) AS more");

/// The same; `$1` status.
const MORE_LETTERS_IN_STATUS: &str =
    concat!("SELECT 1 FROM (", newest_letters!("status = $1"), " LIMIT 1 OFFSET 100000) AS more");

/// `$1` letter.
const LETTER_EXISTS: &str = "SELECT 1 FROM ledger_dead_letter WHERE id = $1";

/// `$1` event, `$2` kind.
const EVENT_EXISTS: &str = "SELECT 1 FROM ledger_event WHERE id = $1 AND kind = $2";

/// `$1` event.
const RAISE_VERSION: &str = "UPDATE ledger_event SET version = version + 1 WHERE id = $1";

/// The ids of jobs that are running.
const RUNNING: &str = "SELECT id FROM ledger_job WHERE state = 'running' ORDER BY number";

/// `$1` after this position, `$2` rows, `$3` job.
const ITEMS: &str =
    "SELECT i.position, i.delivery, i.letter, i.kind, i.event, i.target, i.state, i.new_event, i.error
    FROM ledger_item AS i WHERE i.job = $3 AND i.position > $1 ORDER BY i.position LIMIT $2";

/// `$1` job, `$2` rate, `$3` concurrency, `$4` canary, `$5` pause above.
const SET_PACE: &str =
    "UPDATE ledger_job SET rate = $2, concurrency = $3, canary = $4, pause_above = $5 WHERE id = $1";

/// `$1` the id that leads to another run.
const RESOLVE: &str = "SELECT winner FROM ledger_alias WHERE ghost = $1";

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Integer(i64),
    Real(f64),
    Text(Option<&'a str>),
    Bytes(Option<Vec<u8>>),
    Texts(Vec<&'a str>),
    Ids(Vec<[u8; 16]>),
}

/// Makes parameters.
macro_rules! value {
    ($($from:ty: $given:ident => $value:expr;)*) => {$(
        impl<'a> From<$from> for Value<'a> {
            fn from($given: $from) -> Self {
                $value
            }
        }
    )*};
}

value! {
    i64: number => Self::Integer(number);
    f64: number => Self::Real(number);
    &'a str: text => Self::Text(Some(text));
    Option<&'a str>: text => Self::Text(text);
    &'a Option<String>: text => Self::Text(text.as_deref());
    [u8; 16]: id => Self::Bytes(Some(id.to_vec()));
    Option<[u8; 16]>: id => Self::Bytes(id.map(|id| id.to_vec()));
}

/// A row, whose columns are read from the left to the right.
pub(super) trait Columns {
    /// Why a column cannot be read.
    type Error;

    fn integer_or_none(&mut self) -> Result<Option<i64>, Self::Error>;
    fn real(&mut self) -> Result<f64, Self::Error>;
    fn flag(&mut self) -> Result<bool, Self::Error>;
    fn str_or_none(&mut self) -> Result<Option<&str>, Self::Error>;
    fn bytes_or_none(&mut self) -> Result<Option<&[u8]>, Self::Error>;
    fn time_or_none(&mut self) -> Result<Option<Timestamp>, Self::Error>;

    /// Where an event came from.
    fn origin(&mut self) -> Result<Origin, Self::Error>;

    /// The column that was read last holds what Semel never writes.
    fn corrupt(&self, what: &str) -> Self::Error;

    fn integer(&mut self) -> Result<i64, Self::Error> {
        let number = self.integer_or_none()?;
        number.ok_or_else(|| self.corrupt("no number"))
    }

    /// A number that is never negative.
    fn count<N: TryFrom<i64>>(&mut self) -> Result<N, Self::Error> {
        let number = self.integer()?;
        N::try_from(number).map_err(|_| self.corrupt("a number out of range"))
    }

    fn text(&mut self) -> Result<String, Self::Error> {
        let text = self.text_or_none()?;
        text.ok_or_else(|| self.corrupt("no text"))
    }

    fn text_or_none(&mut self) -> Result<Option<String>, Self::Error> {
        Ok(self.str_or_none()?.map(str::to_owned))
    }

    fn bytes(&mut self) -> Result<Bytes, Self::Error> {
        let bytes = self.bytes_or_none()?.map(Bytes::copy_from_slice);
        bytes.ok_or_else(|| self.corrupt("no bytes"))
    }

    /// An id, a token or a hash.
    fn id<const N: usize>(&mut self) -> Result<[u8; N], Self::Error> {
        let id = self.id_or_none()?;
        id.ok_or_else(|| self.corrupt("no id"))
    }

    fn id_or_none<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Self::Error> {
        let id = self.bytes_or_none()?.map(<[u8; N]>::try_from).transpose();
        id.map_err(|_| self.corrupt("an id of another length"))
    }

    fn time(&mut self) -> Result<Timestamp, Self::Error> {
        let time = self.time_or_none()?;
        time.ok_or_else(|| self.corrupt("no time"))
    }

    /// A duration, kept in microseconds.
    fn duration(&mut self) -> Result<Duration, Self::Error> {
        Ok(self.duration_or_none()?.unwrap_or_default())
    }

    fn duration_or_none(&mut self) -> Result<Option<Duration>, Self::Error> {
        let micros = self.integer_or_none()?;
        Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    /// One of a fixed set of names.
    fn name<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Self::Error> {
        let name = self.name_or_none(read)?;
        name.ok_or_else(|| self.corrupt("no name"))
    }

    fn name_or_none<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Self::Error> {
        let Some(text) = self.str_or_none()? else { return Ok(None) };
        let name = read(text);
        if name.is_none() { Err(self.corrupt("a name of another version")) } else { Ok(name) }
    }

    fn json<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Self::Error> {
        let value = serde_json::from_str(self.str_or_none()?.unwrap_or("null"));
        value.map_err(|_| self.corrupt("JSON of another form"))
    }

    /// The kind of an event, then its id.
    fn event_id(&mut self) -> Result<EventId, Self::Error> {
        let event = self.event_id_or_none()?;
        event.ok_or_else(|| self.corrupt("no event"))
    }

    fn event_id_or_none(&mut self) -> Result<Option<EventId>, Self::Error> {
        let kind = self.name_or_none(EventKind::from_name)?;
        Ok(kind.zip(self.id_or_none()?).map(|(kind, id)| EventId::from_bytes(kind, id)))
    }
}

/// Something that is read from the next columns of a row.
pub(super) trait FromRow: Sized + Send + 'static {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error>;
}

/// Nothing is read.
impl FromRow for () {
    fn read<C: Columns>(_: &mut C) -> Result<Self, C::Error> {
        Ok(())
    }
}

/// Reads what one column holds.
macro_rules! from_column {
    ($($what:ty: $columns:ident => $read:expr;)*) => {$(
        impl FromRow for $what {
            fn read<C: Columns>($columns: &mut C) -> Result<Self, C::Error> {
                $read
            }
        }
    )*};
}

from_column! {
    i64: columns => columns.integer();
    u64: columns => columns.count();
    String: columns => columns.text();
    [u8; 16]: columns => columns.id();
    Option<i64>: columns => columns.integer_or_none();
    Option<[u8; 16]>: columns => columns.id_or_none();
    Duration: columns => columns.duration();
    Option<Duration>: columns => columns.duration_or_none();
    DeliveryState: columns => columns.name(DeliveryState::from_name);
    Option<DeliveryState>: columns => columns.name_or_none(DeliveryState::from_name);
    Status: columns => columns.name(Status::from_name);
    EventId: columns => columns.event_id();
    LetterId: columns => columns.id().map(LetterId::from_bytes);
    Option<LetterId>: columns => Ok(columns.id_or_none()?.map(LetterId::from_bytes));
    DeliveryId: columns => columns.id().map(DeliveryId::from_bytes);
    JobId: columns => columns.id().map(JobId::from_bytes);
}

impl<A: FromRow, B: FromRow> FromRow for (A, B) {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok((A::read(columns)?, B::read(columns)?))
    }
}

impl<A: FromRow, B: FromRow, D: FromRow> FromRow for (A, B, D) {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok((A::read(columns)?, B::read(columns)?, D::read(columns)?))
    }
}

/// A number as the databases keep it.
pub(super) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A value as JSON text.
pub(super) fn to_json(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("plain data without maps of odd keys")
}

/// There is no such thing.
pub(super) fn not_found(what: &'static str, id: impl std::fmt::Display) -> Error {
    Error::NotFound { what, id: id.to_string() }
}
