//! Pages of listings, the newest first.
//!
//! A cursor names the last row that was read. Rows get growing numbers, so rows that are added while somebody pages come
//! before the first page, and move nothing in the later ones.

use super::Value;
use crate::ledger::{Error, Page, Paged};

/// The most items of a page, whatever was asked for.
const LONGEST: u32 = 1_000;

/// How many rows a page looks at before the last one, where not every row is an item: a filter that finds little does not hold
/// up its caller.
pub(crate) const LOOKED_AT: i64 = 4_095;

/// The number before which a page begins, for listings that go down.
pub(crate) fn before(page: &Page) -> Result<i64, Error> {
    cursor(page).map(|cursor| cursor.unwrap_or(i64::MAX))
}

/// The number after which a page begins, for listings that go up from zero.
pub(crate) fn after(page: &Page) -> Result<i64, Error> {
    cursor(page).map(|cursor| cursor.unwrap_or(-1))
}

fn cursor(page: &Page) -> Result<Option<i64>, Error> {
    page.after.as_deref().map(|text| text.parse().map_err(|_| wrong_cursor())).transpose()
}

/// The refusal of a cursor that is none of the listing.
pub(crate) fn wrong_cursor() -> Error {
    Error::Refused(
        "the cursor is not one of this listing: give the `next` of its last page, or none".to_owned(),
    )
}

fn limit(page: &Page) -> u32 {
    page.limit.clamp(1, LONGEST)
}

/// How many rows to ask for: one more than fit, to know whether there are more.
pub(crate) fn rows(page: &Page) -> i64 {
    i64::from(limit(page)) + 1
}

/// A row before all others of a listing that begins at `start`.
pub(crate) fn before_all(start: &Value<'_>) -> Value<'static> {
    match start {
        Value::Bytes(_) => Value::Bytes(Some(Vec::new())),
        _ => Value::Integer(i64::MIN),
    }
}

/// The page of these rows. `end` is the cursor of the last row that was looked at, if there may be more behind it.
pub(crate) fn paged<T>(
    mut rows: Vec<(i64, T)>,
    page: &Page,
    end: Option<String>,
    cursor: impl Fn(i64, &T) -> String,
) -> Paged<T> {
    let limit = limit(page) as usize;
    let next = if rows.len() > limit {
        rows.truncate(limit);
        rows.last().map(|(number, item)| cursor(*number, item))
    } else {
        end
    };
    Paged { items: rows.into_iter().map(|(_, item)| item).collect(), next }
}
