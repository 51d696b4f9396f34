//! From the outbox into the ledger, in one transaction.

use bytes::Bytes;
use semel::key::KeyError;
use semel::store::rusqlite::{self, params};

use super::EmbeddedLedger;
use super::work::{Done, Work};
use crate::event::{Accepted, NewEvent};
use crate::id::{EventId, EventKind, LetterId};
use crate::ledger::Error;
use crate::letter::{Cause, NewLetter, SourceMessage};
use crate::outbox::embedded::STREAM;
use crate::outbox::{Published, Relayed};

/// What waits in the outbox.
struct Waiting {
    number: i64,
    id: EventId,
    event: String,
    payload: Bytes,
}

impl EmbeddedLedger {
    /// Accepts what waits in the outbox, at most `limit`, and takes it away there.
    pub(crate) async fn relay<F>(&self, limit: u32, place: F) -> Result<Relayed, Error>
    where
        F: Fn(EventId, Published) -> Result<NewEvent, KeyError> + Send + 'static,
    {
        self.write(move |work, _| {
            let mut relayed = Relayed::default();
            for waiting in work.waiting(limit)? {
                match work.relay(&waiting, &place)? {
                    Accepted::First(_) => relayed.accepted += 1,
                    Accepted::Cached(_) => relayed.cached += 1,
                    Accepted::Conflict | Accepted::Stale => relayed.refused += 1,
                }
                work.sql
                    .prepare_cached("DELETE FROM ledger_outbox WHERE number = ?1")?
                    .execute([waiting.number])?;
            }
            Ok(relayed)
        })
        .await
    }
}

impl Work<'_> {
    fn waiting(&self, limit: u32) -> rusqlite::Result<Vec<Waiting>> {
        self.sql
            .prepare_cached("SELECT number, id, event, payload FROM ledger_outbox ORDER BY number LIMIT ?1")?
            .query_map(params![limit], |row| {
                Ok(Waiting {
                    number: row.get(0)?,
                    id: EventId::from_bytes(EventKind::Event, row.get(1)?),
                    event: row.get(2)?,
                    payload: Bytes::from(row.get::<_, Vec<u8>>(3)?),
                })
            })?
            .collect()
    }

    /// Accepts one; what cannot be accepted is kept as a dead letter.
    fn relay(
        &mut self,
        waiting: &Waiting,
        place: &impl Fn(EventId, Published) -> Result<NewEvent, KeyError>,
    ) -> Done<Accepted> {
        let read = serde_json::from_str::<Published>(&waiting.event);
        let (event, why) = match read {
            Ok(event) => {
                let event = Published { payload: waiting.payload.clone(), ..event };
                match place(waiting.id, event.clone()) {
                    Ok(new) => match self.accept(&new)? {
                        Accepted::Conflict | Accepted::Stale => {
                            let why = "another event has its dedupe key and other bytes".to_owned();
                            (Some(event), why)
                        }
                        accepted => return Ok(accepted),
                    },
                    Err(error) => (Some(event), error.to_string()),
                }
            }
            Err(error) => (None, format!("it is not what the outbox writes: {error}")),
        };
        let cause = if event.is_some() { Cause::NonRetryable } else { Cause::Undecodable };
        let mut headers = vec![("event".to_owned(), waiting.event.clone())];
        let (tenant, content_type) = match event {
            Some(event) => {
                headers.extend(event.headers);
                (event.tenant, event.content_type)
            }
            None => (String::new(), "application/octet-stream".to_owned()),
        };
        self.put(&NewLetter {
            id: LetterId::new(self.now),
            tenant,
            source: SourceMessage { stream: STREAM.to_owned(), message: waiting.id.to_string() },
            payload: waiting.payload.clone(),
            content_type,
            headers,
            cause,
            error: why,
            attempts: 0,
        })?;
        Ok(Accepted::Conflict)
    }
}
