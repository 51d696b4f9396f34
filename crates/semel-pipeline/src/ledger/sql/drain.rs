//! Taking one run in from the buffer.

use super::bigint;
use super::reading::audit;
use super::runs;
use super::writing::Writing;
use crate::event::{Event, NewEvent};
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::{Arrival, AuditLine, Drained, DrainedRun, Error, Patch, RunAction};

/// How often a run that is neither written nor found is tried again: its key changes hands at that moment.
const ROUNDS: usize = 10;

/// A run from the buffer always names its generation: an expired key is not free for it.
pub(crate) fn with_generation(mut run: NewEvent) -> NewEvent {
    if let Some(dedupe) = &mut run.dedupe {
        dedupe.generation = Some(dedupe.generation.unwrap_or_default());
    }
    run
}

/// Takes a run in with the changes that it does not hold yet.
pub(crate) async fn drain<D: Writing>(db: &mut D, drained: &DrainedRun) -> Result<Drained, D::Fault> {
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
            Some(RunAction::Change(change)) => drop(runs::change(db, id, change, None).await?),
            Some(RunAction::Cancel(line)) => drop(runs::cancel(db, id, line).await?),
        }
        return Ok(answer);
    }
    let why = "the key of a buffered run changes hands all the time; try again";
    Err(Error::Refused(why.to_owned()).into())
}

/// `None` where the run, or the holder of its key, came at the same moment.
async fn arrive<D: Writing>(db: &mut D, drained: &DrainedRun) -> Result<Option<Drained>, D::Fault> {
    let mut run = drained.run.clone();
    let (cancelled, refused) = rules::patch(&mut run, &drained.changes);
    rules::act(&mut run, drained.then.as_ref()).map_err(Error::Refused)?;
    let run = with_generation(run);
    let arrival = match &run.dedupe {
        None => Arrival::New,
        Some(dedupe) => rules::arrival(dedupe.generation, db.key_state(dedupe.id).await?),
    };
    if !db.add_run(&run, drained.changes.len() as u64, cancelled, arrival).await? {
        return Ok(None);
    }
    if cancelled == Cancelled::Yes {
        audit(db, &AuditLine::by_semel("cancel", run.id, rules::CANCELLED_IN_BUFFER)).await?;
    }
    match &drained.then {
        None => {}
        Some(RunAction::Cancel(line)) => drop(runs::cancel(db, run.id, line).await?),
        // It is one more change than those of the buffer.
        Some(RunAction::Change(_)) => {
            db.run(super::RAISE_VERSION, &[run.id.to_bytes().into()]).await?;
        }
    }
    Ok(Some(Drained { arrival, refused }))
}

/// Applies the changes that a run in the ledger does not hold yet. The caller holds its row.
async fn catch_up<D: Writing>(db: &mut D, event: &Event, changes: &[Patch]) -> Result<Drained, D::Fault> {
    let (id, mut refused) = (event.new.id, Vec::new());
    for change in rules::behind(changes, event.changes) {
        let applied = match change {
            Patch::Change(change) => runs::change(db, id, change, None).await.map(drop),
            Patch::Cancel => {
                let line = AuditLine::by_semel("cancel", id, rules::CANCELLED_IN_BUFFER);
                runs::cancel(db, id, &line).await.map(drop)
            }
            Patch::DropKey => db.run(D::SQL.drop_key, &[id.to_bytes().into()]).await.map(drop),
        };
        // Neither wrote anything before it was refused.
        if let Err(fault) = applied {
            refused.push(D::refusal(fault)?.to_string());
        }
    }
    let with = [id.to_bytes().into(), bigint(changes.len() as u64).into()];
    db.run(D::SQL.holds_changes, &with).await?;
    Ok(Drained { arrival: Arrival::Known, refused })
}
