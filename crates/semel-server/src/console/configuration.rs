//! The configuration that is in force, without secrets.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::html;
use super::page::{Page, Section, show as show_page};
use super::visitor::Visitor;
use crate::admin::Admin;
use crate::config::{EffectiveConfig, EffectiveSetting};

#[derive(Template)]
#[template(path = "configuration.html")]
struct ConfigurationPage {
    page: Page,
    config: Arc<EffectiveConfig>,
}

impl ConfigurationPage {
    /// The settings by table.
    fn tables(&self) -> Vec<(&str, &[EffectiveSetting])> {
        let tables = self.config.settings.chunk_by(|one, other| one.table == other.table);
        tables.map(|settings| (settings[0].table.as_str(), settings)).collect()
    }
}

pub(super) async fn show(State(admin): State<Arc<Admin>>, visitor: Visitor) -> Response {
    let page = Page::new(&admin, &visitor, Section::Configuration, "Configuration").await;
    let config = Arc::clone(&admin.console.config.read());
    show_page(&ConfigurationPage { page, config })
}
