//! Pages of listings, the newest first.
//!
//! A cursor is the number of the last row that was looked at. Rows get growing numbers, so what is added while somebody
//! pages stands before the first page, and moves nothing in the later ones.

use super::work::{Done, refused};
use crate::ledger::{Page, Paged};

/// The most rows that are looked at for one page: a filter that finds little does not hold up its thread.
const LOOK_AT: usize = 4_096;

/// The most items of a page, whatever was asked for.
const LONGEST: u32 = 1_000;

/// Where a page begins, for listings that go down.
pub(super) fn position(page: &Page) -> Done<i64> {
    cursor(page).map(|cursor| cursor.unwrap_or(i64::MAX))
}

/// The cursor of a page.
pub(super) fn cursor(page: &Page) -> Done<Option<i64>> {
    let Some(text) = &page.after else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => {
            Err(refused("the cursor is not one of this listing: give the `next` of its last page, or none"))
        }
    }
}

/// How many rows to ask for where not every row is an item.
pub(super) fn look_at() -> i64 {
    i64::try_from(LOOK_AT + 1).unwrap_or(i64::MAX)
}

/// Gathers a page.
pub(super) struct Listing<T> {
    items: Vec<T>,
    limit: usize,
    looked_at: usize,
    last: Option<i64>,
    more: bool,
}

impl<T> Listing<T> {
    pub(super) fn of(page: &Page) -> Self {
        let limit = page.limit.clamp(1, LONGEST) as usize;
        Self { items: Vec::new(), limit, looked_at: 0, last: None, more: false }
    }

    /// How many rows to ask for where every row is an item: one more than fit, to know whether there are more.
    pub(super) fn exactly(&self) -> i64 {
        i64::try_from(self.limit + 1).unwrap_or(i64::MAX)
    }

    /// Looks at a row, which is an item or not one that is wanted. Answers whether to go on.
    pub(super) fn look(&mut self, number: i64, item: Option<T>) -> bool {
        if self.items.len() >= self.limit || self.looked_at >= LOOK_AT {
            self.more = true;
            return false;
        }
        self.looked_at += 1;
        self.last = Some(number);
        self.items.extend(item);
        true
    }

    pub(super) fn end(self) -> Paged<T> {
        let next = self.last.filter(|_| self.more).map(|last| last.to_string());
        Paged { items: self.items, next }
    }
}
