//! The console: pages for people at `/` of the admin address, rendered here from templates that are checked at build time.
//!
//! # Layout
//!
//! - [`visitor`]: every request passes it: Host, Origin, session, role, form token.
//! - [`session`], [`login`]: from a token to a cookie.
//! - [`actions`]: every action, with its command and its path in the API.
//! - [`page`], [`strip`]: the frame of every page. [`html`], [`chart`], [`assets`]: what pages are made of.
//! - [`sample`], [`live`]: samples of the counters, and live updates from one task.
//! - one module for each page; its template is in `templates/`.
//!
//! Pages read and change through the functions below the handlers of the admin API, so both follow the same rules.

mod actions;
mod assets;
mod audit;
mod chart;
mod configuration;
mod dead_letters;
mod diff;
mod doubt_queue;
mod events;
mod html;
mod key_find;
mod key_search;
mod keys;
mod letter_actions;
pub(crate) mod live;
mod login;
mod overview;
mod page;
mod replay_form;
mod replays;
mod runbook;
mod runs;
mod sample;
mod search;
mod session;
mod settle;
mod story;
mod strip;
mod targets;
mod visitor;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use tower_service::Service as _;

use self::doubt_queue::DoubtQueue;
use self::live::Streams;
use self::sample::Samples;
use self::session::ConsoleSessions;
use self::strip::LastStrip;
use crate::admin::Admin;
use crate::config::EffectiveConfig;

/// What the pages share.
pub(crate) struct Console {
    pub(crate) sessions: ConsoleSessions,
    pub(crate) samples: Samples,
    pub(crate) streams: Streams,
    pub(crate) strip: LastStrip,
    pub(crate) doubt_queue: DoubtQueue,
    /// Replaced when the configuration is reloaded.
    pub(crate) config: parking_lot::RwLock<Arc<EffectiveConfig>>,
    /// True if the listener has a certificate: cookies are then for TLS only.
    pub(crate) has_tls: bool,
}

impl Console {
    pub(crate) fn new(config: EffectiveConfig, has_tls: bool) -> Self {
        Self {
            sessions: ConsoleSessions::default(),
            samples: Samples::default(),
            streams: Streams::default(),
            strip: LastStrip::default(),
            doubt_queue: DoubtQueue::default(),
            config: parking_lot::RwLock::new(Arc::new(config)),
            has_tls,
        }
    }
}

/// Adds the page that a browser gets at an unknown address. Programs get the answer of the API.
pub(crate) fn with_not_found(router: Router, admin: &Arc<Admin>) -> Router {
    let page = Router::new()
        .fallback(page::not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(admin), visitor::enter))
        .with_state(Arc::clone(admin));
    router.layer(middleware::from_fn_with_state(page, show_not_found))
}

async fn show_not_found(State(mut page): State<Router>, request: Request, next: Next) -> Response {
    let accepts = request.headers().get_all(header::ACCEPT).iter();
    let is_browser =
        accepts.filter_map(|value| HeaderValue::to_str(value).ok()).any(|value| value.contains("text/html"));
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_browser || !is_read || request.extensions().get::<MatchedPath>().is_some() {
        return next.run(request).await;
    }
    match page.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The action that the page before did.
#[derive(Deserialize)]
struct Did {
    did: Option<String>,
}

impl Did {
    fn code(&self) -> Option<&str> {
        self.did.as_deref()
    }
}

/// The pages.
pub(crate) fn router(admin: &Arc<Admin>) -> Router<Arc<Admin>> {
    Router::new()
        .route("/", get(overview::overview))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/theme", post(login::set_theme))
        .route("/shortcuts", post(login::set_shortcuts))
        .route("/search", get(search::search))
        .route("/keys", get(keys::list))
        .route("/keys/find", get(key_find::form).post(key_find::find))
        .route("/keys/{id}", get(keys::show))
        .route(actions::SETTLE_KEY.path, get(settle::form).post(settle::settle))
        .route(actions::FORGET_KEY.path, get(keys::forget_form).post(keys::forget))
        .route("/story", get(story::ask))
        .route("/story/{id}", get(story::show))
        .route("/dead-letters", get(dead_letters::groups))
        .route("/dead-letters/list", get(dead_letters::list))
        .route("/dead-letters/{id}", get(dead_letters::show))
        .route(
            actions::DISCARD_MATCHING.path,
            get(letter_actions::discard_matching_form).post(letter_actions::discard_matching),
        )
        .route(actions::DISCARD.path, get(letter_actions::discard_form).post(letter_actions::discard))
        .route(actions::RESTORE.path, get(letter_actions::restore_form).post(letter_actions::restore))
        .route(actions::EDIT.path, get(letter_actions::edit_form).post(letter_actions::edit))
        .route(actions::START_REPLAY.path, get(replays::list).post(replay_form::start))
        .route("/replays/new", get(replay_form::form))
        .route("/replays/{id}", get(replays::show))
        .route(actions::PAUSE_REPLAY.path, get(replays::order_form).post(replays::pause))
        .route(actions::RESUME_REPLAY.path, get(replays::order_form).post(replays::resume))
        .route(actions::CANCEL_REPLAY.path, get(replays::order_form).post(replays::cancel))
        .route(actions::PACE_REPLAY.path, get(replays::order_form).post(replays::pace))
        .route("/targets", get(targets::list))
        .route("/targets/{name}", get(targets::show))
        .route(actions::PAUSE_TARGET.path, get(targets::change_form).post(targets::change))
        .route(actions::RESUME_TARGET.path, get(targets::change_form).post(targets::change))
        .route(actions::RETRY_TARGET.path, get(targets::change_form).post(targets::change))
        .route("/deliveries/{id}", get(targets::delivery))
        .route("/runs", get(runs::list))
        .route("/runs/{id}", get(runs::show))
        .route(actions::CANCEL_RUNS.path, get(runs::cancel_form).post(runs::cancel))
        .route("/events", get(events::list))
        .route("/events/{id}", get(events::show))
        .route("/audit", get(audit::list))
        .route("/runbook", get(runbook::show))
        .route("/configuration", get(configuration::show))
        .route(live::PATH, get(live::open))
        .route(live::SESSION, get(live::session))
        .route("/console/assets/{name}", get(assets::serve))
        .layer(middleware::from_fn_with_state(Arc::clone(admin), visitor::enter))
}
