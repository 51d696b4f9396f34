//! What a replay would do: which deliveries are meant, and what is to become of each.

use std::collections::HashSet;

use super::{Columns, Database, FromRow, Value, bigint, not_found};
use crate::delivery::DeliveryState;
use crate::id::{DeliveryId, EventId, LetterId};
use crate::ledger::Error;
use crate::ledger::rules::verdict;
use crate::letter::Status;
use crate::replay::{Planned, ReplayAction, ReplayMode, Selection};

/// A delivery that may be replayed.
struct Candidate {
    delivery: DeliveryId,
    event: EventId,
    target: String,
    tenant: String,
    state: DeliveryState,
    letter: Option<(LetterId, Status, String)>,
}

impl FromRow for Candidate {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self {
            delivery: DeliveryId::from_bytes(columns.id()?),
            event: columns.event_id()?,
            target: columns.text()?,
            tenant: columns.text()?,
            state: columns.name(DeliveryState::from_name)?,
            letter: match columns.id_or_none()?.map(LetterId::from_bytes) {
                Some(letter) => Some((letter, columns.name(Status::from_name)?, columns.text()?)),
                None => None,
            },
        })
    }
}

impl Candidate {
    fn planned(self, mode: ReplayMode, targets: &[String]) -> Planned {
        let status = self.letter.as_ref().map(|(_, status, _)| *status);
        let (action, why) = if targets.contains(&self.target) {
            verdict(self.state, status, mode)
        } else {
            (ReplayAction::Conflict, "its target is not in the config")
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
pub(crate) async fn plan<D: Database>(
    db: &mut D,
    selection: &Selection,
    mode: ReplayMode,
    targets: &[String],
) -> Result<Vec<Planned>, D::Fault> {
    let candidates = match selection {
        Selection::Failed { limit, tenant, targets, signature } => {
            let targets = Value::Texts(targets.iter().map(String::as_str).collect());
            db.rows(D::SQL.failed, &[bigint(*limit).into(), tenant.into(), targets, signature.into()]).await?
        }
        Selection::Letters(letters) => of_letters(db, letters).await?,
        Selection::Event { id, targets } => of_event(db, *id, targets).await?,
    };
    Ok(candidates.into_iter().map(|candidate| candidate.planned(mode, targets)).collect())
}

async fn of_letters<D: Database>(db: &mut D, letters: &[LetterId]) -> Result<Vec<Candidate>, D::Fault> {
    let ids = letters.iter().map(|letter| letter.to_bytes()).collect();
    let found: Vec<Candidate> = db.rows(D::SQL.deliveries_of_letters, &[Value::Ids(ids)]).await?;
    // A set: a replay can name 100,000 dead letters, and the transaction that creates it excludes other writers meanwhile.
    let known: HashSet<LetterId> = found.iter().filter_map(|found| Some(found.letter.as_ref()?.0)).collect();
    let Some(missing) = letters.iter().find(|letter| !known.contains(letter)) else { return Ok(found) };
    let there: Option<()> = db.first(super::LETTER_EXISTS, &[missing.to_bytes().into()]).await?;
    let refusal = match there {
        None => not_found("dead letter", missing),
        Some(()) => Error::Refused(format!(
            "{missing} is a raw message without an event: make an edited copy of it and replay that"
        )),
    };
    Err(refusal.into())
}

/// The newest delivery of an event to each of these targets; all that failed where none is named.
async fn of_event<D: Database>(
    db: &mut D,
    id: EventId,
    targets: &[String],
) -> Result<Vec<Candidate>, D::Fault> {
    let with = [id.to_bytes().into(), id.kind().as_str().into()];
    if db.first::<()>(super::EVENT_EXISTS, &with).await?.is_none() {
        return Err(not_found("event", id).into());
    }
    let all: Vec<Candidate> = db.rows(D::SQL.candidates_of_event, &[id.to_bytes().into()]).await?;
    if targets.is_empty() {
        let failed =
            |candidate: &Candidate| matches!(candidate.state, DeliveryState::Dlq | DeliveryState::Blocked);
        return Ok(all.into_iter().filter(failed).collect());
    }
    if let Some(unknown) = targets.iter().find(|target| all.iter().all(|known| known.target != **target)) {
        return Err(Error::Refused(format!("{id} has no delivery to `{unknown}`")).into());
    }
    let mut newest: Vec<Candidate> = Vec::new();
    for candidate in all.into_iter().filter(|candidate| targets.contains(&candidate.target)) {
        newest.retain(|older| older.target != candidate.target);
        newest.push(candidate);
    }
    Ok(newest)
}
