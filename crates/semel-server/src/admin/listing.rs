//! What lists share: their query, their pages.

use std::marker::PhantomData;
use std::str::FromStr;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use schemars::JsonSchema;
use semel_pipeline::ledger;
use serde::Serialize;

use super::answer::{Answer, Refusal};
use super::schema::Names;

const MAX_LIMIT: u32 = 1_000;
const DEFAULT_LIMIT: u32 = 100;
/// How many rows with a payload are in memory at once.
pub(super) const PAYLOADS: u32 = 50;

/// A filter of a list.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) values: Option<fn() -> Vec<&'static str>>,
}

impl Parameter {
    pub(super) const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, description, values: None }
    }

    /// One that takes the names of `T`.
    pub(super) const fn one_of<T: Names>(name: &'static str, description: &'static str) -> Self {
        Self { name, description, values: Some(T::names) }
    }
}

/// The filters of a list.
pub(super) trait Filters {
    const PARAMETERS: &'static [Parameter];
}

/// A list without filters.
impl Filters for () {
    const PARAMETERS: &'static [Parameter] = &[];
}

/// The query of a list that has the filters `F`. The handler reads it when it has checked what comes first.
pub(super) struct ListQuery<F>(Vec<(String, String)>, PhantomData<F>);

impl<F, S: Send + Sync> FromRequestParts<S> for ListQuery<F> {
    type Rejection = QueryRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, QueryRejection> {
        let Query(pairs) = Query::from_request_parts(parts, state).await?;
        Ok(Self(pairs, PhantomData))
    }
}

impl<F: Filters> ListQuery<F> {
    /// Reads `cursor`, `limit`, and the filters of this list.
    pub(super) fn read(self) -> Result<ListRequest, Refusal> {
        let known = || F::PARAMETERS.iter().map(|parameter| parameter.name);
        let page = ledger::Page { after: None, limit: DEFAULT_LIMIT };
        let mut request = ListRequest { filters: Vec::new(), page };
        for (name, given) in self.0 {
            match name.as_str() {
                "cursor" => request.page.after = Some(given),
                "limit" => {
                    let limit = given.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    request.page.limit = limit.ok_or_else(|| {
                        Refusal::bad(format!("limit: expected a number from 1 to {MAX_LIMIT}"))
                    })?;
                }
                _ if known().any(|known| known == name) => request.filters.push((name, given)),
                _ => {
                    let known: Vec<&str> = known().chain(["cursor", "limit"]).collect();
                    let detail = format!("{name:?} is not known here; there are {}", known.join(", "));
                    return Err(Refusal::bad(detail));
                }
            }
        }
        Ok(request)
    }
}

/// What a list is asked for.
pub(super) struct ListRequest {
    filters: Vec<(String, String)>,
    pub(super) page: ledger::Page,
}

impl ListRequest {
    /// The filter of this name.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.filters.iter().position(|(known, _)| known == name)?;
        Some(self.filters.remove(at).1)
    }

    /// A filter that is one of a few words.
    pub(super) fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, Refusal> {
        let Some(given) = self.take(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == given).map(|(_, found)| *found);
        found.map(Some).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Refusal::bad(format!("{name}: expected one of {}", words.join(", ")))
        })
    }
}

/// A page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Page<T> {
    items: Vec<T>,
    /// Cursor of the next page; null on the last page.
    next: Option<String>,
}

impl<T> Page<T> {
    pub(super) fn with(items: Vec<T>, next: Option<String>) -> Self {
        Self { items, next }
    }

    pub(super) fn answer(items: Vec<T>, next: Option<String>) -> Result<Answer<Self>, Refusal> {
        Answer::ok(Self { items, next })
    }

    /// A page of the ledger.
    pub(super) fn of<U>(page: ledger::Paged<U>, show: fn(&U) -> T) -> Result<Answer<Self>, Refusal> {
        Self::answer(page.items.iter().map(show).collect(), page.next)
    }
}

/// Reads a page in parts. Rows of the ledger come with their payloads, of which a list shows only the size: a page of a thousand
/// would take a gigabyte.
pub(super) async fn read_in_parts<T, F>(
    page: ledger::Page,
    mut read: impl FnMut(ledger::Page) -> F,
) -> Result<Page<T>, Refusal>
where
    F: Future<Output = Result<Page<T>, Refusal>>,
{
    let ledger::Page { mut after, limit } = page;
    let mut items = Vec::new();
    loop {
        let left = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
        let wanted = left.min(PAYLOADS);
        let part = read(ledger::Page { after, limit: wanted }).await?;
        // A filter that finds little reads no further: its caller goes on with the cursor.
        let is_short = part.items.len() < wanted as usize;
        items.extend(part.items);
        after = part.next;
        if after.is_none() || is_short || items.len() >= limit as usize {
            return Ok(Page { items, next: after });
        }
    }
}

/// An id of the kind that is meant.
pub(crate) fn id_of<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| Refusal::bad(format!("{text:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of the numbers below `rows`, read in parts, and how many rows each part was asked for.
    async fn page(rows: u32, after: Option<&str>, limit: u32) -> (Page<u32>, Vec<u32>) {
        let mut asked = Vec::new();
        let page = read_in_parts(ledger::Page { after: after.map(str::to_owned), limit }, |part| {
            asked.push(part.limit);
            let first = part.after.map_or(0, |after| after.parse::<u32>().unwrap());
            let end = (first + part.limit).min(rows);
            let next = (end < rows).then(|| end.to_string());
            async move { Ok(Page::with((first..end).collect(), next)) }
        });
        let page = page.await.unwrap();
        (page, asked)
    }

    #[tokio::test]
    async fn a_page_is_read_in_parts_and_has_all_its_rows() {
        let (all, asked) = page(1_000, None, 120).await;
        assert_eq!((all.items, all.next), ((0..120).collect(), Some("120".to_owned())));
        assert_eq!(asked, [50, 50, 20]);
        let (rest, asked) = page(170, Some("120"), 120).await;
        assert_eq!((rest.items, rest.next), ((120..170).collect(), None));
        assert_eq!(asked, [50], "the last row is the last of a part");
        let (none, asked) = page(0, None, 1_000).await;
        assert_eq!((none.items, none.next, asked), (vec![], None, vec![50]));
    }

    // What the ledger looked at in vain counts: the caller gets the cursor instead of waiting.
    #[tokio::test]
    async fn a_short_part_ends_its_page() {
        let mut parts = 0;
        let page = read_in_parts(ledger::Page { after: None, limit: 100 }, |_| {
            parts += 1;
            async { Ok(Page::with(vec![1], Some("7".to_owned()))) }
        });
        let page = page.await.unwrap();
        assert_eq!((page.items, page.next, parts), (vec![1], Some("7".to_owned()), 1));
    }
}
