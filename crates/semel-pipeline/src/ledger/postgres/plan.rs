//! What a replay would do: which deliveries are meant, and what is to become of each.

use sqlx::PgConnection;

use super::fault::Fault;
use super::letters::not_found;
use super::link::Shared;
use super::reading::rows_of;
use super::values::{Columns, plain};
use crate::delivery::State;
use crate::id::{DeliveryId, EventId, EventKind, LetterId};
use crate::ledger::Error;
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

macro_rules! candidate {
    () => {
        "SELECT d.id, e.id, e.kind, d.target, d.tenant, d.state, l.id, l.status, l.signature \
         FROM delivery AS d JOIN event AS e ON e.id = d.event "
    };
}

/// What ended in `dlq` or `blocked` and has a letter that waits, or none; the oldest first.
const FAILED: &str = concat!(
    candidate!(),
    r"LEFT JOIN letter AS l ON l.id = d.letter
WHERE d.state IN ('dlq', 'blocked') AND (l.status IS NULL OR l.status = 'pending')
  AND ($2::text IS NULL OR d.tenant = $2) AND (cardinality($3::text[]) = 0 OR d.target = ANY($3))
  AND ($4::text IS NULL OR l.signature = $4)
ORDER BY d.id LIMIT $1"
);

const OF_LETTERS: &str = concat!(
    candidate!(),
    "JOIN letter AS l ON l.delivery = d.id JOIN unnest($1::bytea[]) WITH ORDINALITY AS w(id, n) ON w.id = l.id ORDER BY w.n"
);

const LETTERS_THERE: &str = "SELECT id FROM letter WHERE id = ANY($1)";

const OF_EVENT: &str =
    concat!(candidate!(), "LEFT JOIN letter AS l ON l.id = d.letter WHERE d.event = $1 ORDER BY d.seq");

const EVENT_THERE: &str = "SELECT 1 FROM event WHERE id = $1 AND kind = $2";

impl Candidate {
    fn read(row: Columns<'_>) -> Result<Self, Fault> {
        let letter = match row.bytes_or_none(6)? {
            Some(id) => Some((LetterId::from_bytes(id), row.word(7, Status::from_name)?, row.get(8)?)),
            None => None,
        };
        Ok(Self {
            delivery: DeliveryId::from_bytes(row.bytes(0)?),
            event: EventId::from_bytes(row.word(2, EventKind::from_name)?, row.bytes(1)?),
            target: row.get(3)?,
            tenant: row.get(4)?,
            state: row.word(5, State::from_name)?,
            letter,
        })
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
pub(super) async fn plan(
    shared: &Shared,
    connection: &mut PgConnection,
    selection: &Selection,
    mode: Mode,
    targets: &[String],
) -> Result<Vec<Planned>, Fault> {
    let candidates = match selection {
        Selection::Failed { limit, tenant, targets, signature } => {
            let query = shared
                .query(FAILED)
                .bind(i64::try_from(*limit).unwrap_or(i64::MAX))
                .bind(tenant.as_deref().map(plain))
                .bind(targets.iter().map(|target| plain(target)).collect::<Vec<_>>())
                .bind(signature.as_deref().map(plain));
            read(shared, &rows_of(shared, connection, query).await?)?
        }
        Selection::Letters(letters) => of_letters(shared, connection, letters).await?,
        Selection::Event { id, targets } => of_event(shared, connection, *id, targets).await?,
    };
    Ok(candidates.into_iter().map(|candidate| candidate.planned(mode, targets)).collect())
}

fn read(shared: &Shared, rows: &[sqlx::postgres::PgRow]) -> Result<Vec<Candidate>, Fault> {
    rows.iter().map(|row| Candidate::read(Columns::new(shared, row))).collect()
}

async fn of_letters(
    shared: &Shared,
    connection: &mut PgConnection,
    letters: &[LetterId],
) -> Result<Vec<Candidate>, Fault> {
    let ids: Vec<[u8; 16]> = letters.iter().map(|letter| letter.to_bytes()).collect();
    let found = rows_of(shared, connection, shared.query(OF_LETTERS).bind(ids.as_slice())).await?;
    let found = read(shared, &found)?;
    let is_found = |letter: &LetterId| {
        found.iter().any(|found| found.letter.as_ref().is_some_and(|(id, ..)| id == letter))
    };
    let Some(missing) = letters.iter().find(|letter| !is_found(letter)) else { return Ok(found) };
    let there = shared.query(LETTERS_THERE).bind(vec![missing.to_bytes()]);
    Err(if rows_of(shared, connection, there).await?.is_empty() {
        not_found("dead letter", missing)
    } else {
        Fault::Answer(Error::Refused(format!(
            "{missing} is a raw message without an event: make an edited copy of it and replay that"
        )))
    })
}

/// The newest delivery of an event to each of these targets; all that failed where none is named.
async fn of_event(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
    targets: &[String],
) -> Result<Vec<Candidate>, Fault> {
    let there = shared.query(EVENT_THERE).bind(id.to_bytes()).bind(id.kind().as_str());
    if rows_of(shared, connection, there).await?.is_empty() {
        return Err(not_found("event", id));
    }
    let all = rows_of(shared, connection, shared.query(OF_EVENT).bind(id.to_bytes())).await?;
    let all = read(shared, &all)?;
    if targets.is_empty() {
        let failed = |candidate: &Candidate| matches!(candidate.state, State::Dlq | State::Blocked);
        return Ok(all.into_iter().filter(failed).collect());
    }
    if let Some(unknown) = targets.iter().find(|target| all.iter().all(|known| known.target != **target)) {
        return Err(Fault::Answer(Error::Refused(format!("{id} has no delivery to `{unknown}`"))));
    }
    let mut newest: Vec<Candidate> = Vec::new();
    for candidate in all.into_iter().filter(|candidate| targets.contains(&candidate.target)) {
        newest.retain(|older| older.target != candidate.target);
        newest.push(candidate);
    }
    Ok(newest)
}
