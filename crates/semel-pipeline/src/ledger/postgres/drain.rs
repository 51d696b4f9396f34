//! Taking runs in from the buffer: nearly all are new and go together in one statement, the others one by one.

use std::collections::HashSet;

use super::database::Db;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::link::{Shape, Shared};
use super::runs;
use crate::event::{Event, NewEvent};
use crate::id::EventId;
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::sql::{bigint, reading};
use crate::ledger::{Arrival, AuditLine, Drained, DrainedRun, Error, Patch, RunAction};
use crate::letter::{Cause, Signature};

/// How often a run that is neither kept nor found is tried again: its key changes hands at that moment.
const ROUNDS: usize = 10;

pub(super) async fn drain(shared: &Shared, drained: &[DrainedRun]) -> Result<Vec<Drained>, Error> {
    let mut answers: Vec<Option<Drained>> = drained.iter().map(|_| None).collect();
    let (mut places, mut runs, mut changes, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, drained) in drained.iter().enumerate() {
        intake::check(&drained.run)?;
        let mut run = drained.run.clone();
        let (cancelled, why) = rules::patch(&mut run, &drained.changes);
        if cancelled == Cancelled::No && drained.then.is_none() {
            places.push(at);
            runs.push(with_generation(run));
            changes.push(bigint(drained.changes.len() as u64));
            refused.push(why);
        }
    }
    if !runs.is_empty() {
        let batch = Batch::drained(shared, &runs, changes);
        let kept =
            shared.call(Shape::Transaction, &batch, |db, batch| Box::pin(intake::write(db, batch))).await?;
        let kept: HashSet<[u8; 16]> = kept.into_iter().collect();
        for ((at, run), refused) in places.into_iter().zip(&runs).zip(refused) {
            if kept.contains(&run.id.to_bytes()) {
                answers[at] = Some(Drained { arrival: Arrival::New, refused });
            }
        }
    }
    for (answer, drained) in answers.iter_mut().zip(drained) {
        if answer.is_none() {
            let shape = match &drained.then {
                Some(RunAction::Change(change)) => runs::shape_of(change),
                Some(RunAction::Cancel(_)) | None => Shape::Transaction,
            };
            let one = shared.call(shape, drained, |db, drained| Box::pin(drain_one(db, drained)));
            *answer = Some(one.await?);
        }
    }
    shared.news.tell();
    Ok(answers.into_iter().flatten().collect())
}

/// A run from the buffer always names its generation: an expired key is not free for it.
fn with_generation(mut run: NewEvent) -> NewEvent {
    if let Some(dedupe) = &mut run.dedupe {
        dedupe.generation = Some(dedupe.generation.unwrap_or_default());
    }
    run
}

async fn drain_one(db: &mut Db<'_>, drained: &DrainedRun) -> Result<Drained, Fault> {
    let id = drained.run.id;
    for _ in 0..ROUNDS {
        let Some(event) = runs::hold(db, id).await? else {
            match arrive(db, drained).await? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        };
        let answer = catch_up(db, &event, &drained.changes).await?;
        match &drained.then {
            None => {}
            Some(RunAction::Change(change)) => {
                drop(runs::change(db, id, change, None).await?);
            }
            Some(RunAction::Cancel(line)) => drop(runs::cancel(db, id, line).await?),
        }
        return Ok(answer);
    }
    let why = "the key of a buffered run changes hands all the time; try again";
    Err(Error::Refused(why.to_owned()).into())
}

/// `None` where the run, or the holder of its key, came at the same moment.
async fn arrive(db: &mut Db<'_>, drained: &DrainedRun) -> Result<Option<Drained>, Fault> {
    let mut run = drained.run.clone();
    let (cancelled, refused) = rules::patch(&mut run, &drained.changes);
    rules::act(&mut run, drained.then.as_ref()).map_err(Error::Refused)?;
    let run = with_generation(run);
    let arrival = match &run.dedupe {
        None => Arrival::New,
        Some(dedupe) => {
            let key = intake::find_in(db, &[dedupe.id]).await?.pop().unwrap_or_default();
            rules::arrival(dedupe.generation, key)
        }
    };
    let batch =
        Batch::drained(db.shared, std::slice::from_ref(&run), vec![bigint(drained.changes.len() as u64)]);
    let batch = if arrival == Arrival::New { batch } else { batch.keyless() };
    if intake::write(db, &batch).await?.is_empty() {
        return Ok(None);
    }
    match (cancelled, arrival) {
        (Cancelled::Yes, _) => {
            db.execute(db.query(ARRIVE_CANCELLED).bind(run.id.to_bytes())).await?;
            let line = AuditLine::by_semel("cancel", run.id, rules::CANCELLED_IN_BUFFER);
            reading::audit(db, &line).await?;
        }
        (Cancelled::No, Arrival::LostKey(winner)) => lose_key(db, &run, winner).await?,
        (Cancelled::No, _) => {}
    }
    match &drained.then {
        None => {}
        Some(RunAction::Cancel(line)) => drop(runs::cancel(db, run.id, line).await?),
        // It is one more change than those of the buffer.
        Some(RunAction::Change(_)) => {
            db.execute(db.query(ONE_MORE).bind(run.id.to_bytes())).await?;
        }
    }
    Ok(Some(Drained { arrival, refused }))
}

const ONE_MORE: &str = "UPDATE ledger_event SET version = version + 1 WHERE id = $1";

const ARRIVE_CANCELLED: &str = r"
UPDATE ledger_delivery SET state = 'cancelled', waits = false, completed_at = statement_timestamp() WHERE event = $1";

/// The delivery of a run that lost its key is set aside before anybody has seen it.
const SET_ASIDE: &str = r"
UPDATE ledger_delivery SET state = 'dlq', waits = false, error = $2, completed_at = statement_timestamp()
WHERE event = $1 RETURNING id, target";

const WRITE_LETTER: &str = r"
WITH aside AS (UPDATE ledger_delivery SET letter = $2 WHERE id = $3)
INSERT INTO ledger_dead_letter (id, tenant, event, delivery, target, event_type, content_type, headers, cause, error, signature,
  status, attempts, created_at, updated_at)
SELECT $2, e.tenant, e.id, $3, $4, e.event_type, e.content_type, e.headers, $5, $6, $7, 'pending', 0,
  statement_timestamp(), statement_timestamp()
FROM ledger_event AS e WHERE e.id = $1";

async fn lose_key(db: &mut Db<'_>, run: &NewEvent, winner: EventId) -> Result<(), Fault> {
    let error = rules::lost_key(winner);
    let query = db.query(SET_ASIDE).bind(run.id.to_bytes()).bind(error.as_str());
    for (delivery, target) in db.fetch::<([u8; 16], String)>(query).await? {
        let signature = Signature::of(Some(&target), Cause::NonRetryable, None, &error);
        let query = db
            .query(WRITE_LETTER)
            .bind(run.id.to_bytes())
            .bind(db.shared.ids.letter().to_bytes())
            .bind(delivery)
            .bind(target)
            .bind(Cause::NonRetryable.as_str())
            .bind(error.as_str())
            .bind(signature.as_str().to_owned());
        db.execute(query).await?;
    }
    Ok(())
}

const HOLDS_CHANGES: &str = "UPDATE ledger_event SET changes = greatest(changes, $2) WHERE id = $1";
const DROP_KEY: &str = "UPDATE ledger_event SET dedupe_live = false WHERE id = $1";

/// Applies the changes that a run in the ledger does not hold yet. The caller holds its row.
async fn catch_up(db: &mut Db<'_>, event: &Event, changes: &[Patch]) -> Result<Drained, Fault> {
    let (id, mut refused) = (event.new.id, Vec::new());
    for change in rules::behind(changes, event.changes) {
        let applied = match change {
            Patch::Change(change) => runs::change(db, id, change, None).await.map(drop),
            Patch::Cancel => {
                let line = AuditLine::by_semel("cancel", id, rules::CANCELLED_IN_BUFFER);
                runs::cancel(db, id, &line).await.map(drop)
            }
            Patch::DropKey => db.execute(db.query(DROP_KEY).bind(id.to_bytes())).await.map(drop),
        };
        match applied {
            // Neither wrote anything before it was refused.
            Err(Fault::Answer(error)) => refused.push(error.to_string()),
            applied => applied?,
        }
    }
    let query = db.query(HOLDS_CHANGES).bind(id.to_bytes()).bind(bigint(changes.len() as u64));
    db.execute(query).await?;
    Ok(Drained { arrival: Arrival::Known, refused })
}
