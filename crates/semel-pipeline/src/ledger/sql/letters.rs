//! Dead letters: looking at them, and what people do with them.

use semel::time::Timestamp;

use super::page::before;
use super::reading::{self, audit};
use super::writing::Writing;
use super::{Columns, Database, FromRow, Value, not_found};
use crate::delivery::DeliveryState;
use crate::event::NewEvent;
use crate::id::LetterId;
use crate::ledger::{AuditLine, LetterFilter, Page, Paged, rules};
use crate::letter::{Cause, FailureGroup, FailureGroups, Letter, LetterStory, NewLetter, Signature, Status};

pub(crate) async fn story<D: Database>(db: &mut D, id: LetterId) -> Result<Option<LetterStory>, D::Fault> {
    let found: Option<(i64, Letter)> = db.first(D::SQL.letter, &[id.to_bytes().into()]).await?;
    let Some((_, letter)) = found else { return Ok(None) };
    let attempts = match letter.delivery {
        Some(delivery) => reading::attempts(db, delivery).await?,
        None => Vec::new(),
    };
    let copies = db.rows(super::COPIES, &[id.to_bytes().into()]).await?;
    Ok(Some(LetterStory { letter, attempts, copies }))
}

pub(crate) async fn letters<D: Database>(
    db: &mut D,
    filter: &LetterFilter,
    page: &Page,
) -> Result<Paged<Letter>, D::Fault> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let parts = [tenant.into(), target.into(), status.map(Status::as_str).into(), signature.into()];
    let with = (before(page)?.into(), &parts[..]);
    db.filtered_page((D::SQL.letters)(filter), with, page, |number, _| number.to_string()).await
}

pub(crate) async fn unmirrored<D: Database>(
    db: &mut D,
    stream: &str,
    limit: u32,
) -> Result<Vec<Letter>, D::Fault> {
    let found: Vec<(i64, Letter)> =
        db.rows(D::SQL.unmirrored, &[stream.into(), i64::from(limit).into()]).await?;
    Ok(found.into_iter().map(|(_, letter)| letter).collect())
}

pub(crate) async fn mirrored<D: Database>(db: &mut D, letters: &[LetterId]) -> Result<(), D::Fault> {
    let ids = letters.iter().map(|letter| letter.to_bytes()).collect();
    db.run(D::SQL.mirrored, &[Value::Ids(ids)]).await.map(drop)
}

/// The letters of a group in one status.
struct GroupPart {
    group: FailureGroup,
    /// The number of its newest letter, which is its sample.
    newest: i64,
}

impl FromRow for GroupPart {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let signature = Signature::from_kept(columns.text()?);
        let (target, cause) = (columns.text_or_none()?, columns.name(Cause::from_name)?);
        let counts = vec![(columns.name(Status::from_name)?, columns.count()?)];
        let (first_at, last_at): (Timestamp, Timestamp) = (columns.time()?, columns.time()?);
        let (sample, error) = (LetterId::from_bytes(columns.id()?), columns.text()?);
        let group = FailureGroup { signature, target, cause, counts, first_at, last_at, sample, error };
        Ok(Self { group, newest: columns.integer()? })
    }
}

pub(crate) async fn groups<D: Database>(
    db: &mut D,
    filter: &LetterFilter,
) -> Result<FailureGroups, D::Fault> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let status = status.map(Status::as_str);
    let with = [status.into(), tenant.into(), target.into(), signature.into()];
    let (sql, more, of_status) = match status {
        None => (super::GROUPS, super::MORE_LETTERS, &[][..]),
        Some(_) => (super::GROUPS_IN_STATUS, super::MORE_LETTERS_IN_STATUS, &with[..1]),
    };
    let is_partial = !db.planned_rows::<()>(more, of_status).await?.is_empty();
    let mut groups: Vec<GroupPart> = Vec::new();
    for part in db.planned_rows::<GroupPart>(sql, &with).await? {
        let one = part.group;
        match groups.last_mut() {
            Some(GroupPart { group, newest }) if group.signature == one.signature => {
                group.counts.extend(one.counts);
                group.first_at = group.first_at.min(one.first_at);
                group.last_at = group.last_at.max(one.last_at);
                if part.newest > *newest {
                    (*newest, group.sample, group.error) = (part.newest, one.sample, one.error);
                }
            }
            _ => groups.push(GroupPart { group: one, newest: part.newest }),
        }
    }
    let mut groups: Vec<FailureGroup> = groups.into_iter().map(|part| part.group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.counts.iter().map(|(_, count)| *count).sum::<u64>()));
    Ok(FailureGroups { groups, is_partial })
}

pub(crate) async fn put<D: Writing>(db: &mut D, letters: &[NewLetter]) -> Result<Vec<LetterId>, D::Fault> {
    for letter in letters {
        D::check_text("the tenant", &letter.tenant)?;
        D::check_text("the name of a stream", &letter.source.stream)?;
        D::check_text("the id of a message", &letter.source.message)?;
    }
    db.put_letters(letters).await
}

/// The status of a letter that must be there, and the state of its delivery.
async fn hold<D: Database>(db: &mut D, id: LetterId) -> Result<(Status, Option<DeliveryState>), D::Fault> {
    let found = db.first(D::SQL.hold_letter, &[id.to_bytes().into()]).await?;
    Ok(found.ok_or_else(|| not_found("dead letter", id))?)
}

pub(crate) async fn discard<D: Writing>(db: &mut D, id: LetterId, line: &AuditLine) -> Result<(), D::Fault> {
    let (status, _) = hold(db, id).await?;
    let Some(next) = rules::discard(id, status)? else { return Ok(()) };
    db.set_letter(id, status, next).await?;
    audit(db, line).await
}

pub(crate) async fn restore<D: Writing>(db: &mut D, id: LetterId, line: &AuditLine) -> Result<(), D::Fault> {
    let (status, delivery) = hold(db, id).await?;
    let Some(next) = rules::restore(id, status, delivery)? else { return Ok(()) };
    db.set_letter(id, status, next).await?;
    audit(db, line).await
}

pub(crate) async fn edit<D: Writing>(
    db: &mut D,
    id: LetterId,
    copy: &NewEvent,
    line: &AuditLine,
) -> Result<LetterId, D::Fault> {
    D::check_event(copy)?;
    hold(db, id).await?;
    let target = rules::target_of_copy(copy)?;
    let Some(made) = db.copy_letter(id, copy, target).await? else {
        let with = [copy.id.to_bytes().into(), id.to_bytes().into()];
        let found: Option<Option<LetterId>> = db.first(D::SQL.letter_of_copy, &with).await?;
        let made = found.ok_or_else(rules::key_of_copy_is_taken)?;
        return Ok(made.ok_or_else(|| rules::id_of_copy_is_taken(copy.id))?);
    };
    db.run(D::SQL.touch_letter, &[id.to_bytes().into()]).await?;
    audit(db, line).await?;
    Ok(made)
}
