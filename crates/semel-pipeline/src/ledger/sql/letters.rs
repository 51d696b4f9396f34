//! Dead letters: looking at them.

use semel::time::Timestamp;

use super::page::before;
use super::reading::{self, is_wanted};
use super::{Columns, Database, FromRow, Value};
use crate::id::LetterId;
use crate::ledger::{LetterFilter, Page, Paged};
use crate::letter::{Cause, FailureGroup, Letter, LetterStory, Signature, Status};

pub(crate) async fn story<D: Database>(db: &mut D, id: LetterId) -> Result<Option<LetterStory>, D::Fault> {
    let found: Option<(i64, Letter)> = db.first(D::SQL.letter, &[id.to_bytes().into()]).await?;
    let Some((_, letter)) = found else { return Ok(None) };
    let attempts = match letter.delivery {
        Some(delivery) => reading::attempts(db, delivery).await?,
        None => Vec::new(),
    };
    let copies = db.rows(D::SQL.copies, &[id.to_bytes().into()]).await?;
    Ok(Some(LetterStory { letter, attempts, copies }))
}

pub(crate) async fn letters<D: Database>(
    db: &mut D,
    filter: &LetterFilter,
    page: &Page,
) -> Result<Paged<Letter>, D::Fault> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let with = [
        before(page)?.into(),
        D::page_rows(page).into(),
        tenant.into(),
        target.into(),
        status.map(Status::as_str).into(),
        signature.into(),
    ];
    let wanted = |letter: &Letter| {
        is_wanted(status.as_ref(), &letter.status)
            && is_wanted(tenant.as_ref(), &letter.tenant)
            && (target.is_none() || *target == letter.target)
    };
    db.page((D::SQL.letters)(filter), &with, page, |number, _| number.to_string(), wanted).await
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
    db.first::<()>(D::SQL.mirrored, &[Value::Ids(ids)]).await.map(drop)
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
) -> Result<Vec<FailureGroup>, D::Fault> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let with = [status.map(Status::as_str).into(), tenant.into(), target.into(), signature.into()];
    let mut groups: Vec<GroupPart> = Vec::new();
    for part in db.rows::<GroupPart>(D::SQL.groups, &with).await? {
        let one = part.group;
        match groups.last_mut() {
            Some(GroupPart { group, newest })
                if (&group.signature, &group.target, group.cause)
                    == (&one.signature, &one.target, one.cause) =>
            {
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
    Ok(groups)
}
