//! Pages of listings, the newest first.
//!
//! A cursor names the last row that was read. Rows get growing numbers, so rows that are added while somebody pages come
//! before the first page, and move nothing in the later ones.

use crate::ledger::{Error, Page, Paged};

/// The most rows that are read for one page: a filter that finds little does not hold up its thread.
const LOOK_AT: usize = 4_096;

/// The most items of a page, whatever was asked for.
const LONGEST: u32 = 1_000;

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

/// How many rows to ask for where not every row is an item.
#[cfg(feature = "embedded")]
pub(crate) fn look_at() -> i64 {
    i64::try_from(LOOK_AT + 1).unwrap_or(i64::MAX)
}

/// How many rows to ask for where every row is an item: one more than fit, to know whether there are more.
pub(crate) fn exactly(page: &Page) -> i64 {
    i64::from(page.limit.clamp(1, LONGEST)) + 1
}

/// Gathers a page.
pub(crate) struct Listing<T> {
    items: Vec<T>,
    limit: usize,
    looked_at: usize,
    last: Option<String>,
    more: bool,
}

impl<T> Listing<T> {
    pub(crate) fn of(page: &Page) -> Self {
        let limit = page.limit.clamp(1, LONGEST) as usize;
        Self { items: Vec::new(), limit, looked_at: 0, last: None, more: false }
    }

    /// Adds a row, which is an item or not one that is wanted. Answers whether to go on.
    pub(crate) fn look(&mut self, cursor: String, item: Option<T>) -> bool {
        if self.items.len() >= self.limit || self.looked_at >= LOOK_AT {
            self.more = true;
            return false;
        }
        self.looked_at += 1;
        self.last = Some(cursor);
        self.items.extend(item);
        true
    }

    pub(crate) fn end(self) -> Paged<T> {
        Paged { items: self.items, next: self.last.filter(|_| self.more) }
    }
}
