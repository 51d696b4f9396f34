//! Finding a key of the gateway by the key that a client sent. Neither the key nor the credential is in an address or a log.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::html;
use super::keys::KeyRow;
use super::page::{Page, Section, answer, show};
use super::visitor::{Submission, Visitor};
use crate::admin::keys::{FindRequest, find_by_sent_key};
use crate::admin::{Admin, Refusal};

#[derive(Template)]
#[template(path = "key_find.html")]
struct FindPage {
    page: Page,
    key: String,
    problem: Option<String>,
    /// `None` before something was asked.
    found: Option<Vec<KeyRow>>,
}

pub(super) async fn form(State(admin): State<Arc<Admin>>, visitor: Visitor) -> Response {
    answer(&admin, &visitor, async { page(&admin, &visitor, String::new(), None).await }).await
}

pub(super) async fn find(State(admin): State<Arc<Admin>>, form: Submission) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let key = form.get("key").trim().to_owned();
        let found = match request(&key, form.get("headers")) {
            Ok(asked) => find_by_sent_key(&admin, asked).await.map_err(|refusal| refusal.detail().to_owned()),
            Err(problem) => Err(problem),
        };
        let found = found.map(|found| found.iter().map(KeyRow::new).collect());
        page(&admin, &visitor, key, Some(found)).await
    })
    .await
}

async fn page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    key: String,
    asked: Option<Result<Vec<KeyRow>, String>>,
) -> Result<Response, Refusal> {
    let page = Page::new(admin, visitor, Section::Keys, "Find a whole key").await;
    let (found, problem) = match asked.transpose() {
        Ok(found) => (found, None),
        Err(problem) => (None, Some(problem)),
    };
    Ok(show(&FindPage { page, key, problem, found }))
}

/// The request that the API takes, from the lines of the form.
fn request(key: &str, lines: &str) -> Result<FindRequest, String> {
    let mut headers = BTreeMap::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // The line may be a credential: it is not repeated.
        let (name, value) = line.split_once(':').ok_or("Headers: expected Name: value in each line.")?;
        headers.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    Ok(FindRequest { key: key.to_owned(), headers })
}
