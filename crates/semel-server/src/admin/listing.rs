//! What lists of the ledger share: their query, their pages.

use std::str::FromStr;

use axum::response::Response;
use semel_pipeline::ledger::Page;
use serde_json::{Value, json};

use super::answer::{self, Refusal};

const MOST: u32 = 1_000;
const USUAL: u32 = 100;

/// What a list is asked for.
pub(super) struct Asked {
    filters: Vec<(String, String)>,
    page: Page,
}

impl Asked {
    /// Reads a query: `cursor`, `limit`, and the filters of this list.
    pub(super) fn read(query: Vec<(String, String)>, known: &[&str]) -> Result<Self, Refusal> {
        let mut asked = Self { filters: Vec::new(), page: Page { after: None, limit: USUAL } };
        for (name, given) in query {
            match name.as_str() {
                "cursor" => asked.page.after = Some(given),
                "limit" => {
                    let limit = given.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    asked.page.limit = limit
                        .ok_or_else(|| Refusal::bad(format!("limit: expected a number from 1 to {MOST}")))?;
                }
                _ if known.contains(&name.as_str()) => asked.filters.push((name, given)),
                _ => {
                    let known = known.join(", ");
                    let detail = format!("{name:?} is not known here; there are {known}, cursor, limit");
                    return Err(Refusal::bad(detail));
                }
            }
        }
        Ok(asked)
    }

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

    pub(super) fn page(self) -> Page {
        self.page
    }
}

/// An answer of a list.
pub(super) fn items(items: impl Iterator<Item = Value>, next: Option<String>) -> Result<Response, Refusal> {
    answer::json(&json!({ "items": items.collect::<Vec<_>>(), "next": Value::from(next) }))
}

/// An id of the kind that is meant.
pub(super) fn id_of<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| Refusal::bad(format!("{text:?}: {error}")))
}
