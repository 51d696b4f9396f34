//! The runbook: how duplicates are kept from every downstream service.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::html;
use super::page::{Page, Section, show as show_page};
use super::visitor::Visitor;
use crate::admin::Admin;
use crate::config::EffectiveConfig;

#[derive(Template)]
#[template(path = "runbook.html")]
struct RunbookPage {
    page: Page,
    config: Arc<EffectiveConfig>,
}

pub(super) async fn show(State(admin): State<Arc<Admin>>, visitor: Visitor) -> Response {
    let page = Page::new(&admin, &visitor, Section::Runbook, "Runbook").await;
    let config = Arc::clone(&admin.console.config.read());
    show_page(&RunbookPage { page, config })
}
