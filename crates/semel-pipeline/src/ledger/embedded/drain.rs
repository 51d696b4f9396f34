//! Taking runs in from the buffer.

use semel::store::rusqlite::params;

use super::database::now;
use super::intake::{key_state, targets};
use super::work::{Done, Fault, Work};
use crate::delivery::DeliveryState;
use crate::event::{Event, NewEvent};
use crate::id::EventId;
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::sql::bigint;
use crate::ledger::sql::reading::numbered_event;
use crate::ledger::{Arrival, AuditLine, Drained, DrainedRun, Error, Patch, RunAction};
use crate::letter::Cause;

impl Work<'_> {
    /// Takes a run in from the buffer, with the changes that it does not hold yet.
    pub(super) fn drain(&mut self, drained: &DrainedRun) -> Done<Drained> {
        let id = drained.run.id;
        let then = drained.then.as_ref();
        match now(numbered_event(&mut self.reader(), id))? {
            None => self.arrive(drained.run.clone(), &drained.changes, then),
            Some((number, event)) => {
                let answer = self.catch_up(number, &event, &drained.changes)?;
                match then {
                    None => {}
                    Some(RunAction::Change(change)) => drop(self.change(id, change, None)?),
                    Some(RunAction::Cancel(line)) => drop(self.cancel(id, line)?),
                }
                Ok(answer)
            }
        }
    }

    fn arrive(&mut self, mut run: NewEvent, changes: &[Patch], then: Option<&RunAction>) -> Done<Drained> {
        let (cancelled, refused) = rules::patch(&mut run, changes);
        rules::act(&mut run, then).map_err(Error::Refused)?;
        let mut arrival = Arrival::New;
        if let Some(dedupe) = &mut run.dedupe {
            arrival = rules::arrival(dedupe.generation, key_state(self.sql, dedupe.id, self.now)?);
            dedupe.generation = Some(dedupe.generation.unwrap_or_default());
        }
        let number = self.add_keyless_event(&run, changes.len() as u64)?;
        if let (Arrival::New, Some(dedupe)) = (arrival, &run.dedupe) {
            self.hold_key(dedupe, run.id)?;
        }
        for target in targets(&run) {
            let mut row = self.first_row(&run, number, target);
            match (cancelled, arrival) {
                (Cancelled::Yes, _) => {
                    row.state = DeliveryState::Cancelled;
                    row.completed_at = Some(self.now);
                    self.add_row(row)?;
                    self.unsettle(number, -1)?;
                }
                (Cancelled::No, Arrival::LostKey(winner)) => {
                    self.add_dead_row(row, rules::lost_key(winner), Cause::NonRetryable, None)?;
                }
                (Cancelled::No, _) => drop(self.add_row(row)?),
            }
        }
        if cancelled == Cancelled::Yes {
            self.audit(&AuditLine::by_semel("cancel", run.id, rules::CANCELLED_IN_BUFFER))?;
        }
        match then {
            None => {}
            Some(RunAction::Cancel(line)) => drop(self.cancel(run.id, line)?),
            // It is one more change than those of the buffer.
            Some(RunAction::Change(_)) => {
                let sql = "UPDATE ledger_event SET version = version + 1 WHERE number = ?1";
                self.sql.prepare_cached(sql)?.execute([number])?;
            }
        }
        Ok(Drained { arrival, refused })
    }

    /// Applies the changes that a run in the ledger does not hold yet.
    fn catch_up(&mut self, number: i64, event: &Event, changes: &[Patch]) -> Done<Drained> {
        let (id, mut refused) = (event.new.id, Vec::new());
        for change in rules::behind(changes, event.changes) {
            let applied = match change {
                Patch::Change(change) => self.change(id, change, None).map(drop),
                Patch::Cancel => {
                    let line = AuditLine::by_semel("cancel", id, rules::CANCELLED_IN_BUFFER);
                    self.cancel(id, &line).map(drop)
                }
                Patch::DropKey => self.drop_key(id),
            };
            match applied {
                // Neither wrote anything before it was refused.
                Err(Fault::Answer(error)) => refused.push(error.to_string()),
                applied => applied?,
            }
        }
        self.sql
            .prepare_cached("UPDATE ledger_event SET changes = max(changes, ?2) WHERE number = ?1")?
            .execute(params![number, bigint(changes.len() as u64)])?;
        Ok(Drained { arrival: Arrival::Known, refused })
    }

    fn drop_key(&self, id: EventId) -> Done<()> {
        self.sql.prepare_cached("DELETE FROM ledger_key WHERE event = ?1")?.execute([id.to_bytes()])?;
        Ok(())
    }
}
