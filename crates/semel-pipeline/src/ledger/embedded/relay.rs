//! From the outbox into the ledger, in one transaction.

use semel::key::KeyError;

use super::EmbeddedLedger;
use super::database::now;
use super::work::{Done, Work};
use crate::event::{Accepted, NewEvent};
use crate::id::EventId;
use crate::ledger::Error;
use crate::ledger::sql::Database as _;
use crate::ledger::sql::relay::{KEY_IS_TAKEN, Waiting};
use crate::outbox::Relayed;
use crate::publish::Publication;

const WAITING: &str = "SELECT number, id, event, payload FROM ledger_outbox ORDER BY number LIMIT $1";

impl EmbeddedLedger {
    /// Accepts what waits in the outbox, at most `limit`, and takes it away there.
    pub(crate) async fn relay<F>(&self, limit: u32, place: F) -> Result<Relayed, Error>
    where
        F: Fn(EventId, Publication) -> Result<NewEvent, KeyError> + Send + 'static,
    {
        self.write(move |work, _| {
            let mut relayed = Relayed::default();
            let all: Vec<Waiting> = now(work.rows(WAITING, &[i64::from(limit).into()]))?;
            for waiting in all {
                match work.relay(&waiting, &place)? {
                    Accepted::First(_) => relayed.accepted += 1,
                    Accepted::Cached(_) => relayed.cached += 1,
                    Accepted::Conflict | Accepted::Stale => relayed.refused += 1,
                }
                work.execute("DELETE FROM ledger_outbox WHERE number = ?1", [waiting.number])?;
            }
            Ok(relayed)
        })
        .await
    }
}

impl Work<'_> {
    /// Accepts one; what cannot be accepted is kept as a dead letter.
    fn relay(
        &mut self,
        waiting: &Waiting,
        place: &impl Fn(EventId, Publication) -> Result<NewEvent, KeyError>,
    ) -> Done<Accepted> {
        let letter = match waiting.event(place, self.now) {
            Ok(event) => match self.accept(&event)? {
                Accepted::Conflict | Accepted::Stale => waiting.refused(&event, KEY_IS_TAKEN, self.now),
                accepted => return Ok(accepted),
            },
            Err(letter) => *letter,
        };
        self.put(&letter)?;
        Ok(Accepted::Conflict)
    }
}
