//! From the outbox into the ledger, in one transaction.

use semel::key::KeyError;
use semel::time::{Clock as _, SystemClock};

use super::PostgresLedger;
use super::database::Db;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::link::Shape;
use super::values::plain;
use crate::event::{Accepted, NewEvent};
use crate::id::EventId;
use crate::ledger::Error;
use crate::ledger::sql::Database as _;
use crate::ledger::sql::relay::{KEY_IS_TAKEN, Waiting};
use crate::ledger::sql::writing::Writing as _;
use crate::outbox::Relayed;
use crate::publish::Publication;

/// One relay at a time: so what one caller published in order stays in order. The others find nothing to do.
const ALONE: &str =
    "SELECT 1 WHERE pg_try_advisory_xact_lock(hashtextextended('semel outbox ' || current_schema(), 0))";

const WAITING: &str = "SELECT number, id, event::text, payload FROM ledger_outbox ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED";

const RELAYED: &str = "DELETE FROM ledger_outbox WHERE number = ANY($1)";

const SOME_WAIT: &str = "SELECT 1 FROM ledger_outbox LIMIT 1";

/// Makes the event that the ledger accepts of one that was published.
pub(crate) type PlaceEvent<'a> =
    dyn Fn(EventId, Publication) -> Result<NewEvent, KeyError> + Send + Sync + 'a;

impl PostgresLedger {
    /// Accepts what waits in the outbox, at most `limit`, and takes it away there.
    pub(crate) async fn relay(&self, limit: u32, place: &PlaceEvent<'_>) -> Result<Relayed, Error> {
        let some = self.call(Shape::Read, (), |db, ()| Box::pin(db.first::<()>(SOME_WAIT, &[])));
        if some.await?.is_none() {
            return Ok(Relayed::default());
        }
        let relayed = self.call(Shape::Transaction, (limit, place), |db, (limit, place)| {
            Box::pin(relay(db, *limit, *place))
        });
        let relayed = relayed.await?;
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

async fn relay(db: &mut Db<'_>, limit: u32, place: &PlaceEvent<'_>) -> Result<Relayed, Fault> {
    if db.first::<()>(ALONE, &[]).await?.is_none() {
        return Ok(Relayed::default());
    }
    let now = SystemClock.now();
    let (mut relayed, mut gone) = (Relayed::default(), Vec::new());
    let (mut waiting, mut events, mut letters) = (Vec::new(), Vec::new(), Vec::new());
    for one in db.rows::<Waiting>(WAITING, &[i64::from(limit).into()]).await? {
        let letter = match one.event(place, now) {
            Ok(event) => match intake::check(&event) {
                Ok(()) => {
                    events.push(event);
                    waiting.push(one);
                    continue;
                }
                Err(why) => one.refused(&event, why.to_string(), now),
            },
            Err(letter) => *letter,
        };
        gone.push(one.number);
        letters.push(letter);
    }
    let batch = Batch::new(db.shared, &events);
    let kept = if events.is_empty() { Vec::new() } else { intake::write(db, &batch).await? };
    let answers = intake::answers(db, &events, kept).await?;
    for ((one, event), answer) in waiting.iter().zip(&events).zip(answers) {
        match answer {
            Some(Accepted::First(_)) => relayed.accepted += 1,
            Some(Accepted::Cached(_)) => relayed.cached += 1,
            Some(Accepted::Conflict | Accepted::Stale) => letters.push(one.refused(event, KEY_IS_TAKEN, now)),
            // The holder of the key is gone by now: the next round decides.
            None => continue,
        }
        gone.push(one.number);
    }
    relayed.refused = letters.len() as u64;
    for letter in &mut letters {
        letter.tenant = plain(&letter.tenant);
    }
    if !letters.is_empty() {
        db.put_letters(&letters).await?;
    }
    db.execute(db.query(RELAYED).bind(gone)).await?;
    Ok(relayed)
}
