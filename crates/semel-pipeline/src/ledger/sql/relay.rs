//! From the outbox into the ledger: what becomes of an event that was published.

use bytes::Bytes;
use semel::key::KeyError;
use semel::time::Timestamp;

use super::{Columns, FromRow};
use crate::event::NewEvent;
use crate::id::{EventId, EventKind, LetterId};
use crate::letter::{Cause, NewLetter, SourceMessage};
use crate::outbox::STREAM;
use crate::publish::Publication;

/// An event that waits in the outbox.
pub(crate) struct Waiting {
    /// Its number there.
    pub(crate) number: i64,
    id: EventId,
    text: String,
    payload: Bytes,
}

impl FromRow for Waiting {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self {
            number: columns.integer()?,
            id: EventId::from_bytes(EventKind::Event, columns.id()?),
            text: columns.text()?,
            payload: columns.bytes()?,
        })
    }
}

impl Waiting {
    /// The event that the ledger accepts, made by `place`; otherwise the dead letter that it becomes.
    pub(crate) fn event(
        &self,
        place: impl Fn(EventId, Publication) -> Result<NewEvent, KeyError>,
        now: Timestamp,
    ) -> Result<NewEvent, Box<NewLetter>> {
        let published = match serde_json::from_str::<Publication>(&self.text) {
            Ok(event) => Publication { payload: self.payload.clone(), ..event },
            Err(error) => {
                let why = format!("it is not what the outbox writes: {error}");
                return Err(Box::new(self.letter(Cause::Undecodable, why, now)));
            }
        };
        place(self.id, published.clone()).map_err(|error| {
            let mut letter = self.letter(Cause::NonRetryable, error.to_string(), now);
            letter.headers.extend(published.headers);
            let (tenant, content_type) = (published.tenant, published.content_type);
            Box::new(NewLetter { tenant, content_type, ..letter })
        })
    }

    /// The dead letter of an event that the ledger does not accept.
    pub(crate) fn refused(&self, event: &NewEvent, why: impl Into<String>, now: Timestamp) -> NewLetter {
        let mut letter = self.letter(Cause::NonRetryable, why.into(), now);
        letter.headers.extend(event.headers.iter().cloned());
        let (tenant, content_type) = (event.tenant.clone(), event.content_type.clone());
        NewLetter { tenant, content_type, ..letter }
    }

    fn letter(&self, cause: Cause, error: String, now: Timestamp) -> NewLetter {
        NewLetter {
            id: LetterId::new(now),
            tenant: String::new(),
            source: SourceMessage { stream: STREAM.to_owned(), message: self.id.to_string() },
            payload: self.payload.clone(),
            content_type: "application/octet-stream".to_owned(),
            headers: vec![("event".to_owned(), self.text.clone())],
            cause,
            error,
            attempts: 0,
        }
    }
}

/// Why an event whose key another event holds is refused.
pub(crate) const KEY_IS_TAKEN: &str = "another event has its dedupe key and other bytes";
