//! From the outbox into the ledger, in one transaction.

use bytes::Bytes;
use semel::key::KeyError;
use semel::time::{Clock as _, SystemClock};
use sqlx::PgConnection;

use super::PostgresLedger;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::letters;
use super::link::{Shape, Shared};
use super::reading::rows_of;
use super::values::{Columns, plain};
use crate::event::NewEvent;
use crate::id::{EventId, EventKind, LetterId};
use crate::ledger::Error;
use crate::letter::{Cause, NewLetter, SourceMessage};
use crate::outbox::postgres::STREAM;
use crate::outbox::{Published, Relayed};

/// One relay at a time: so what one caller published in order stays in order. The others find nothing to do.
const ALONE: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended('semel outbox ' || current_schema(), 0))";

const WAITING: &str =
    "SELECT seq, id, event::text, payload FROM outbox ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED";

const RELAYED: &str = "DELETE FROM outbox WHERE seq = ANY($1)";

const SOME_WAIT: &str = "SELECT 1 FROM outbox LIMIT 1";

/// Makes the event that the ledger accepts of one that was published.
pub(crate) type Place<'a> = dyn Fn(EventId, Published) -> Result<NewEvent, KeyError> + Send + Sync + 'a;

/// What waits in the outbox.
struct Waiting {
    seq: i64,
    id: EventId,
    text: String,
    payload: Bytes,
}

/// What is to become of it.
enum Fate {
    /// At this place among the events to be accepted.
    Event(usize),
    Letter(Box<NewLetter>),
}

impl PostgresLedger {
    /// Accepts what waits in the outbox, at most `limit`, and takes it away there.
    pub(crate) async fn relay(&self, limit: u32, place: &Place<'_>) -> Result<Relayed, Error> {
        let some = self.shared.call(Shape::Read, &(), |s, c, ()| {
            Box::pin(async move { Ok(!rows_of(s, c, s.query(SOME_WAIT)).await?.is_empty()) })
        });
        if !some.await? {
            return Ok(Relayed::default());
        }
        let asked = (limit, place);
        let relayed =
            self.shared.call(Shape::Transaction, &asked, |s, c, a| Box::pin(relay(s, c, a.0, a.1))).await?;
        if relayed.accepted > 0 {
            self.shared.news.tell();
        }
        Ok(relayed)
    }

    /// Ends when something may have been published, or after a while.
    pub(crate) async fn published(&self, longest: std::time::Duration) {
        self.shared.news.published(longest).await;
    }
}

async fn relay(
    shared: &Shared,
    connection: &mut PgConnection,
    limit: u32,
    place: &Place<'_>,
) -> Result<Relayed, Fault> {
    let rows = rows_of(shared, connection, shared.query(ALONE)).await?;
    let alone: bool = rows.first().map_or(Ok(false), |row| Columns::new(shared, row).get(0))?;
    if !alone {
        return Ok(Relayed::default());
    }
    let waiting = waiting(shared, connection, limit).await?;
    let mut events = Vec::new();
    let mut fates: Vec<Fate> = waiting.iter().map(|waiting| fate(waiting, place, &mut events)).collect();
    let batch = Batch::new(shared, &events);
    let kept = if events.is_empty() { Vec::new() } else { intake::write(shared, connection, &batch).await? };
    let holders = intake::holders(shared, connection, &events, &kept).await?;
    let mut relayed = Relayed::default();
    let (mut gone, mut letters) = (Vec::new(), Vec::new());
    for (waiting, fate) in waiting.iter().zip(&mut fates) {
        match fate {
            Fate::Event(at) => match &holders[*at] {
                intake::Holder::Kept => relayed.accepted += 1,
                intake::Holder::Same => relayed.cached += 1,
                intake::Holder::Other => {
                    relayed.refused += 1;
                    let why = "another event has its dedupe key and other bytes";
                    letters.push(letter(waiting, Some(&events[*at]), why.to_owned()));
                }
                // Whoever had the key is gone by now: the next round decides.
                intake::Holder::Nobody => continue,
            },
            Fate::Letter(letter) => {
                relayed.refused += 1;
                letters.push((**letter).clone());
            }
        }
        gone.push(waiting.seq);
    }
    if !letters.is_empty() {
        letters::put(shared, connection, &letters).await?;
    }
    rows_of(shared, connection, shared.query(RELAYED).bind(gone)).await?;
    Ok(relayed)
}

async fn waiting(shared: &Shared, connection: &mut PgConnection, limit: u32) -> Result<Vec<Waiting>, Fault> {
    let rows = rows_of(shared, connection, shared.query(WAITING).bind(i64::from(limit))).await?;
    rows.iter()
        .map(|row| {
            let columns = Columns::new(shared, row);
            Ok(Waiting {
                seq: columns.get(0)?,
                id: EventId::from_bytes(EventKind::Event, columns.bytes(1)?),
                text: columns.get(2)?,
                payload: Bytes::from(columns.get::<Vec<u8>>(3)?),
            })
        })
        .collect()
}

fn fate(waiting: &Waiting, place: &Place<'_>, events: &mut Vec<NewEvent>) -> Fate {
    let read = serde_json::from_str::<Published>(&waiting.text);
    let event = match read {
        Ok(event) => Published { payload: waiting.payload.clone(), ..event },
        Err(error) => {
            let why = format!("it is not what the outbox writes: {error}");
            return Fate::Letter(Box::new(letter(waiting, None, why)));
        }
    };
    let placed = place(waiting.id, event).map_err(|error| error.to_string());
    match placed.and_then(|event| intake::check(&event).map(|()| event).map_err(|error| error.to_string())) {
        Ok(event) => {
            events.push(event);
            Fate::Event(events.len() - 1)
        }
        Err(why) => {
            let letter = letter(waiting, None, why);
            Fate::Letter(Box::new(NewLetter { cause: Cause::NonRetryable, ..letter }))
        }
    }
}

/// What cannot be accepted is kept as a dead letter.
fn letter(waiting: &Waiting, event: Option<&NewEvent>, why: String) -> NewLetter {
    let mut headers = vec![("event".to_owned(), waiting.text.clone())];
    headers.extend(event.into_iter().flat_map(|event| event.headers.iter().cloned()));
    NewLetter {
        id: LetterId::new(SystemClock.now()),
        tenant: event.map(|event| plain(&event.tenant)).unwrap_or_default(),
        source: SourceMessage { stream: STREAM.to_owned(), message: waiting.id.to_string() },
        payload: waiting.payload.clone(),
        content_type: event
            .map_or_else(|| "application/octet-stream".to_owned(), |event| event.content_type.clone()),
        headers,
        cause: if event.is_some() { Cause::NonRetryable } else { Cause::Undecodable },
        error: why,
        attempts: 0,
    }
}
