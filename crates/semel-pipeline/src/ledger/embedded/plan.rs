//! What a replay would do: which deliveries are meant, and what is to become of each.

use semel::store::rusqlite::{self, Connection, OptionalExtension as _, params};

use super::columns::Columns;
use super::work::{Done, not_found, refused};
use crate::delivery::State;
use crate::id::{DeliveryId, EventId, EventKind, LetterId};
use crate::ledger::rules::verdict;
use crate::letter::Status;
use crate::replay::{Action, Mode, Planned, Selection};

/// A delivery that may be replayed.
struct Candidate {
    delivery: DeliveryId,
    event: EventId,
    target: String,
    tenant: String,
    state: State,
    letter: Option<(LetterId, Status, String)>,
}

const CANDIDATE: &str = "SELECT d.id, e.kind, e.id, d.target, d.tenant, d.state, l.id, l.status, l.signature";

impl Candidate {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let mut columns = Columns::of(row);
        let delivery = DeliveryId::from_bytes(columns.get()?);
        let kind = columns.name(EventKind::from_name)?;
        let event = EventId::from_bytes(kind, columns.get()?);
        let (target, tenant) = (columns.get()?, columns.get()?);
        let state = columns.name(State::from_name)?;
        let letter = columns.get::<Option<[u8; 16]>>()?.map(LetterId::from_bytes);
        let (status, signature) = (columns.maybe_name(Status::from_name)?, columns.get()?);
        let letter = letter
            .zip(status)
            .zip(signature)
            .map(|((letter, status), signature)| (letter, status, signature));
        Ok(Self { delivery, event, target, tenant, state, letter })
    }

    fn planned(self, mode: Mode, targets: &[String]) -> Planned {
        let status = self.letter.as_ref().map(|(_, status, _)| *status);
        let (action, why) = if targets.contains(&self.target) {
            verdict(self.state, status, mode)
        } else {
            (Action::Conflict, "its target is not in the config")
        };
        let (letter, signature) = self.letter.map(|(letter, _, signature)| (letter, signature)).unzip();
        Planned {
            delivery: self.delivery,
            letter,
            event: self.event,
            target: self.target,
            tenant: self.tenant,
            signature: signature.unwrap_or_default(),
            action,
            why: why.to_owned(),
        }
    }
}

/// Everything a selection means, with what would be done.
pub(super) fn plan(
    connection: &Connection,
    selection: &Selection,
    mode: Mode,
    targets: &[String],
) -> Done<Vec<Planned>> {
    let candidates = match selection {
        Selection::Failed { limit, tenant, targets, signature } => {
            failed(connection, *limit, tenant.as_deref(), targets, signature.as_deref())?
        }
        Selection::Letters(letters) => {
            letters.iter().map(|letter| of_letter(connection, *letter)).collect::<Done<_>>()?
        }
        Selection::Event { id, targets } => of_event(connection, *id, targets)?,
    };
    Ok(candidates.into_iter().map(|candidate| candidate.planned(mode, targets)).collect())
}

/// What ended in `dlq` or `blocked` and has a letter that waits, or none; the oldest first.
fn failed(
    connection: &Connection,
    limit: u64,
    tenant: Option<&str>,
    targets: &[String],
    signature: Option<&str>,
) -> rusqlite::Result<Vec<Candidate>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found: Vec<(i64, Candidate)> = Vec::new();
    let mut statement = connection.prepare_cached(&format!(
        "{CANDIDATE}, d.number FROM ledger_deliveries AS d INDEXED BY ledger_deliveries_state
         JOIN ledger_events AS e ON e.number = d.event LEFT JOIN ledger_letters AS l ON l.number = d.letter
         WHERE d.state = ?1 AND d.state <> 'done' AND (l.status IS NULL OR l.status = 'pending')
           AND (?2 IS NULL OR d.tenant = ?2) AND (?3 IS NULL OR l.signature = ?3)
         ORDER BY d.number"
    ))?;
    for state in [State::Dlq, State::Blocked] {
        let mut rows = statement.query(params![state.as_str(), tenant, signature])?;
        let mut of_state = 0;
        while of_state < limit
            && let Some(row) = rows.next()?
        {
            let candidate = Candidate::read(row)?;
            if targets.is_empty() || targets.contains(&candidate.target) {
                found.push((row.get("number")?, candidate));
                of_state += 1;
            }
        }
    }
    found.sort_by_key(|(number, _)| *number);
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, candidate)| candidate).collect())
}

fn of_letter(connection: &Connection, letter: LetterId) -> Done<Candidate> {
    let found = connection
        .prepare_cached(&format!(
            "{CANDIDATE} FROM ledger_letters AS l JOIN ledger_deliveries AS d ON d.number = l.delivery
             JOIN ledger_events AS e ON e.number = d.event WHERE l.id = ?1"
        ))?
        .query_row([letter.to_bytes()], Candidate::read)
        .optional()?;
    if let Some(found) = found {
        return Ok(found);
    }
    let there = connection
        .prepare_cached("SELECT 1 FROM ledger_letters WHERE id = ?1")?
        .exists([letter.to_bytes()])?;
    Err(if there {
        refused(format!(
            "{letter} is a raw message without an event: make an edited copy of it and replay that"
        ))
    } else {
        not_found("dead letter", letter)
    })
}

/// The newest delivery of an event to each of these targets; all that failed where none is named.
fn of_event(connection: &Connection, id: EventId, targets: &[String]) -> Done<Vec<Candidate>> {
    let there = connection
        .prepare_cached("SELECT 1 FROM ledger_events WHERE id = ?1 AND kind = ?2")?
        .exists(params![id.to_bytes(), id.kind().as_str()])?;
    if !there {
        return Err(not_found("event", id));
    }
    let all: Vec<Candidate> = connection
        .prepare_cached(&format!(
            "{CANDIDATE} FROM ledger_events AS e JOIN ledger_deliveries AS d ON d.event = e.number
             LEFT JOIN ledger_letters AS l ON l.number = d.letter WHERE e.id = ?1 ORDER BY d.number"
        ))?
        .query_map([id.to_bytes()], Candidate::read)?
        .collect::<rusqlite::Result<_>>()?;
    if targets.is_empty() {
        let failed = |candidate: &Candidate| matches!(candidate.state, State::Dlq | State::Blocked);
        return Ok(all.into_iter().filter(failed).collect());
    }
    if let Some(unknown) = targets.iter().find(|target| all.iter().all(|known| known.target != **target)) {
        return Err(refused(format!("{id} has no delivery to `{unknown}`")));
    }
    let mut newest: Vec<Candidate> = Vec::new();
    for candidate in all.into_iter().filter(|candidate| targets.contains(&candidate.target)) {
        newest.retain(|older| older.target != candidate.target);
        newest.push(candidate);
    }
    Ok(newest)
}
