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

/// An id of the kind that is meant.
pub(crate) fn id_of<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| Refusal::bad(format!("{text:?}: {error}")))
}
