//! The audit log: who changed what, when and why, and the state before and after.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use semel_pipeline::ledger;
use serde::Deserialize;

use super::html::{self, Html};
use super::page::{Next, Notice, Page, Section, answer, show};
use super::search::page_of;
use super::visitor::Visitor;
use crate::admin::Admin;
use crate::admin::audit::read;

const PAGE: u32 = 100;
const NO_LEDGER: &str = "This server has no ledger, so it keeps no list of changes: the audit lines are in the log of the server, with audit=true. \
                         Set url in [ledger] to embedded:PATH or postgres://… to keep them here.";

#[derive(Deserialize)]
pub(super) struct AuditQuery {
    #[serde(default)]
    subject: String,
    #[serde(default)]
    cursor: String,
}

struct AuditRow {
    at: Html,
    who: String,
    action: String,
    subject: Html,
    before: String,
    after: String,
    reason: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    page: Page,
    subject: String,
    rows: Vec<AuditRow>,
    next: Next,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(filters): Query<AuditQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let Ok(pipeline) = admin.pipeline() else {
            let page = Page::new(&admin, &visitor, Section::Audit, "Audit log").await;
            return Ok(show(&Notice {
                page,
                heading: "Audit log".to_owned(),
                sentences: vec![NO_LEDGER.to_owned()],
                facts: Vec::new(),
                links: vec![("Configuration", "/configuration".to_owned())],
            }));
        };
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let page = ledger::Page { after: some(&filters.cursor), limit: PAGE };
        let found = pipeline.ledger.audit_log(some(&filters.subject), page).await?;
        let rows = found.items.iter().map(|audited| {
            let line = &audited.line;
            let (reason, states) = read(line);
            let (before, after) = states.map(|states| (states.before, states.after)).unzip();
            let subject = match page_of(&line.subject) {
                Some(path) => Html::trusted(format!(
                    "<a class=\"id\" href=\"{}\">{}</a>",
                    html::escape(&path),
                    html::escape(&html::short_id(&line.subject))
                )),
                None => Html::text(&line.subject),
            };
            AuditRow {
                at: html::when(audited.at),
                who: line.who.clone(),
                action: html::word(&line.action),
                subject,
                before: html::word(&before.unwrap_or_default()),
                after: html::word(&after.unwrap_or_default()),
                reason: reason.to_owned(),
            }
        });
        Ok(show(&AuditPage {
            page: Page::new(&admin, &visitor, Section::Audit, "Audit log").await,
            rows: rows.collect(),
            next: Next::new("/audit", &[("subject", &filters.subject)], found.next.as_deref()),
            subject: filters.subject,
        }))
    })
    .await
}
