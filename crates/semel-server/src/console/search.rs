//! The search box: any id leads to its page, any other text to the keys that begin with it.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use semel::key::{Hint, KeyId};
use semel_pipeline::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use serde::Deserialize;

use super::actions;
use super::html;
use super::key_search::{self, SearchProgress};
use super::keys::KeyRow;
use super::page::{Next, Page, Section, answer, show};
use super::visitor::Visitor;
use crate::admin::Admin;
use crate::admin::story::Story;
use crate::gateway::is_request_id;

/// The most keys that are shown.
const MOST: usize = 20;
/// How long the search for a request may take. No index holds their ids; the story of a request searches longer.
const PATIENCE: Duration = Duration::from_millis(150);

#[derive(Deserialize)]
pub(super) struct SearchQuery {
    #[serde(default)]
    q: String,
    #[serde(flatten)]
    progress: SearchProgress,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    page: Page,
    asked: String,
    keys: Vec<KeyRow>,
    /// How far the search for keys has come, if it did not read all records.
    searched: Option<String>,
    /// The address of its next part.
    next_part: Option<String>,
    /// The rest of the keys.
    next: Next,
    story: StorySearch,
    /// True if more was typed than is stored of a key.
    is_long: bool,
    may_find: bool,
}

/// What is known of a request with the id, with the address of its story.
enum StorySearch {
    /// Nothing has this id.
    Nothing,
    /// The search was stopped.
    Stopped(String),
    /// The story has not been searched for.
    NotAsked(String),
    /// There is a story.
    Found(String),
}

impl SearchPage {
    /// True if nothing is known to have this id although not all was searched.
    fn is_unfinished(&self) -> bool {
        self.searched.is_some() || matches!(self.story, StorySearch::Stopped(_))
    }

    /// True if there is something to say before the keys.
    fn has_notes(&self) -> bool {
        self.searched.is_some() || !matches!(self.story, StorySearch::Nothing)
    }
}

/// The page of an id; `None` if its form names no kind.
pub(super) fn page_of(id: &str) -> Option<String> {
    if let Ok(event) = id.parse::<EventId>() {
        let kind = if event.kind() == EventKind::Run { "runs" } else { "events" };
        return Some(format!("/{kind}/{id}"));
    }
    let is = |known: bool, folder: &str| known.then(|| format!("/{folder}/{id}"));
    is(id.parse::<LetterId>().is_ok(), "dead-letters")
        .or_else(|| is(id.parse::<JobId>().is_ok(), "replays"))
        .or_else(|| is(id.parse::<DeliveryId>().is_ok(), "deliveries"))
        .or_else(|| is(id.parse::<KeyId>().is_ok(), "keys"))
}

pub(super) async fn search(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(SearchQuery { q, progress }): Query<SearchQuery>,
) -> Response {
    let asked = q.trim().to_owned();
    answer(&admin, &visitor, async {
        if asked.is_empty() {
            return Ok(Redirect::to("/story").into_response());
        }
        let is_key = asked.parse::<KeyId>().is_ok();
        if let Some(path) = page_of(&asked).filter(|_| !is_key) {
            return Ok(Redirect::to(&path).into_response());
        }
        // 32 hexadecimal characters can be a key or a request.
        if let Ok(key) = asked.parse::<KeyId>()
            && admin.engine.store().get(key).await?.is_some()
        {
            return Ok(Redirect::to(&format!("/keys/{key}")).into_response());
        }
        // The beginning of a key first: it is cheaper than the search for a request.
        let found = key_search::search(&admin, None, &asked, MOST, &progress).await?;
        let path = format!("/story/{}", html::encode(&asked));
        let is_request = is_request_id(asked.as_bytes());
        let mut story = if is_request { StorySearch::NotAsked(path.clone()) } else { StorySearch::Nothing };
        if progress.is_first() && is_request {
            story = match tokio::time::timeout(PATIENCE, Story::tell(&admin, asked.clone())).await {
                Ok(Ok(_)) if found.items.is_empty() => return Ok(Redirect::to(&path).into_response()),
                Ok(Ok(_)) => StorySearch::Found(path),
                Ok(Err(_)) => StorySearch::Nothing,
                Err(_) => StorySearch::Stopped(path),
            };
        }
        // More characters than are stored can be those of another key, or of a request.
        let is_long = asked.chars().count() > Hint::LENGTH;
        if let ([only], None, true) = (found.items.as_slice(), found.next, progress.is_first())
            && !is_long
            && matches!(story, StorySearch::Nothing)
        {
            return Ok(Redirect::to(&format!("/keys/{}", only.id)).into_response());
        }
        let next_part = found.next_part("/search", &[("q", asked.as_str())]);
        let searched = next_part.as_ref().map(|_| found.progress());
        let cursor = found.next.map(|next| next.to_string());
        let next = Next::new("/keys", &[("hint", asked.as_str())], cursor.as_deref());
        let mut page = Page::new(&admin, &visitor, Section::None, "Search").await;
        page.search.clone_from(&asked);
        let keys = found.items.iter().map(KeyRow::new);
        let may_find = visitor.may(&actions::FIND_KEY);
        Ok(show(&SearchPage {
            page,
            keys: keys.collect(),
            asked,
            searched,
            next_part,
            next,
            story,
            is_long,
            may_find,
        }))
    })
    .await
}
