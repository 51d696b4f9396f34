//! The frame of every page: navigation, the status strip, messages, errors.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use semel::time::{Clock as _, SystemClock};

use super::assets::{CSS, SCRIPT};
use super::html::{self, Html, encode};
use super::strip::Strip;
use super::visitor::Visitor;
use crate::admin::audit::AuditPlace;
use crate::admin::keys::KeyChange;
use crate::admin::{Admin, Refusal};

/// Light, dark, or as the system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Auto,
    Light,
    Dark,
}

impl Theme {
    pub(super) const COOKIE: &str = "semel_theme";

    /// The theme of this name.
    pub(super) fn of(name: Option<&str>) -> Self {
        match name {
            Some("light") => Self::Light,
            Some("dark") => Self::Dark,
            _ => Self::Auto,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// The theme that the switch selects next.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Auto => Self::Light,
            Self::Light => Self::Dark,
            Self::Dark => Self::Auto,
        }
    }
}

/// Whether single keys are shortcuts. Voice control and a slipped finger press them by accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortcuts {
    On,
    Off,
}

impl Shortcuts {
    pub(super) const COOKIE: &str = "semel_shortcuts";

    /// The setting of this name.
    pub(super) fn of(name: Option<&str>) -> Self {
        if name == Some("off") { Self::Off } else { Self::On }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }

    /// The setting that the switch selects next.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::On => Self::Off,
            Self::Off => Self::On,
        }
    }

    pub(super) fn are_on(self) -> bool {
        self == Self::On
    }
}

/// A part of the console in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Keys,
    Story,
    DeadLetters,
    Replays,
    Runs,
    Targets,
    Events,
    Audit,
    Runbook,
    Configuration,
    None,
}

/// A link of the navigation.
pub(super) struct NavLink {
    pub(super) path: &'static str,
    pub(super) label: &'static str,
    pub(super) is_current: bool,
    pub(super) count: Option<u64>,
    /// The links before it end with this one's group.
    pub(super) group: Option<&'static str>,
}

/// What the frame shows.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) section: Section,
    pub(super) strip: Strip,
    pub(super) who: String,
    pub(super) role: String,
    pub(super) form_token: String,
    pub(super) theme: Theme,
    pub(super) shortcuts: Shortcuts,
    pub(super) is_logged_in: bool,
    /// The result of the action before, as a code from the address.
    pub(super) message: Option<String>,
    /// The page's own address, if it follows something that changes.
    pub(super) refresh: Option<String>,
    pub(super) search: String,
}

impl Page {
    /// The frame for a visitor.
    pub(super) async fn new(
        admin: &Arc<Admin>,
        visitor: &Visitor,
        section: Section,
        title: impl Into<String>,
    ) -> Self {
        Self::with(Strip::read(admin).await, visitor, section, title)
    }

    fn with(strip: Strip, visitor: &Visitor, section: Section, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            section,
            strip,
            who: visitor.caller.name.clone(),
            role: visitor.caller.role().to_string(),
            form_token: visitor.form_token.clone(),
            theme: visitor.theme,
            shortcuts: visitor.shortcuts,
            is_logged_in: visitor.is_logged_in(),
            message: None,
            refresh: None,
            search: String::new(),
        }
    }

    /// Shows the message of a finished action.
    pub(super) fn with_message(mut self, code: Option<&str>) -> Self {
        self.message = code.and_then(message);
        self
    }

    /// Follows this address while the page is open.
    pub(super) fn refreshed_from(mut self, address: String) -> Self {
        self.refresh = Some(address);
        self
    }

    pub(super) fn css() -> &'static str {
        &CSS.path
    }

    pub(super) fn script() -> &'static str {
        &SCRIPT.path
    }

    /// The server's time in seconds, so that ages are right where the browser's clock is not.
    pub(super) fn now() -> u64 {
        SystemClock.now().as_micros() / 1_000_000
    }

    pub(super) fn links(&self) -> Vec<NavLink> {
        let link = |section, path, label, count: Option<u64>, group| NavLink {
            path,
            label,
            is_current: self.section == section,
            count,
            group,
        };
        let (in_doubt, letters) = (self.strip.in_doubt, self.strip.pending_letters);
        vec![
            link(Section::Overview, "/", "Overview", None, None),
            link(Section::Keys, "/keys", "Keys", Some(in_doubt), Some("Requests")),
            link(Section::Story, "/story", "Story", None, None),
            link(Section::Targets, "/targets", "Targets", None, Some("Deliveries")),
            link(Section::DeadLetters, "/dead-letters", "Dead letters", letters, None),
            link(Section::Replays, "/replays", "Replays", None, None),
            link(Section::Events, "/events", "Events", None, None),
            link(Section::Runs, "/runs", "Runs", None, None),
            link(Section::Audit, "/audit", "Audit log", None, Some("Server")),
            link(Section::Runbook, "/runbook", "Runbook", None, None),
            link(Section::Configuration, "/configuration", "Configuration", None, None),
        ]
    }
}

/// The code of a change of a key, with the place of its audit line.
pub(super) fn message_of(code: &str, change: &KeyChange) -> String {
    let place = match change.audit() {
        AuditPlace::Ledger => IN_LEDGER,
        AuditPlace::Log => IN_LOG,
    };
    format!("{code}{place}")
}

const IN_LEDGER: &str = ":ledger";
const IN_LOG: &str = ":log";

/// What an action did, by the code in the address of the page after it. The address must not choose the words.
fn message(code: &str) -> Option<String> {
    if let Some(number) = code.strip_prefix("discarded:").and_then(|number| number.parse::<u64>().ok()) {
        let (noun, verb) = if number == 1 { ("dead letter", "is") } else { ("dead letters", "are") };
        let number = html::count(number);
        return Some(format!("{number} {noun} {verb} discarded. Each can be restored until it is swept."));
    }
    for (place, where_it_is) in [
        (IN_LEDGER, "The audit log has an entry."),
        (IN_LOG, "This server has no ledger: the audit line is in its own log."),
    ] {
        if let Some(code) = code.strip_suffix(place) {
            return message(code).map(|text| format!("{text} {where_it_is}"));
        }
    }
    let text = match code {
        "settled" => "Settled. Requests with this key get the answer below.",
        "settled-run" => "Settled: the effect did not happen. The next request with this key runs it.",
        "forgotten" => "Forgotten. The next request with this key runs the effect again.",
        "discarded" => "Discarded. It can be restored until it is swept.",
        "restored" => "Restored: the dead letter is pending again.",
        "edited" => "Copied with the new payload. Nothing is sent until the copy is replayed.",
        "started" => "The replay has started.",
        "pause" => "The replay is paused.",
        "resume" => "The replay goes on.",
        "cancel" => "The replay is cancelled. Items that had not started stay dead letters.",
        "pace" => "The replay has its new limits.",
        "cancelled" => "Cancelled.",
        "target-pause" => "The target is paused. Its deliveries wait.",
        "target-resume" => {
            "The target is resumed. Its circuit breaker decides when waiting deliveries are sent."
        }
        "target-removed" => {
            "The target is no longer paused. It is not in the configuration, so nothing is sent to it."
        }
        "target-retry" => "Deliveries that waited for their next attempt are due now.",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Renders a page.
pub(super) fn respond(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => {
            let media = HeaderValue::from_static("text/html; charset=utf-8");
            (status, [(header::CONTENT_TYPE, media)], html).into_response()
        }
        Err(error) => {
            tracing::error!(target: "semel", %error, "cannot render a page of the console");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Renders a page with status 200.
pub(super) fn show(page: &impl Template) -> Response {
    respond(StatusCode::OK, page)
}

/// Sends the browser to the page after an action.
pub(super) fn go(path: &str, message: &str) -> Response {
    let separator = if path.contains('?') { '&' } else { '?' };
    Redirect::to(&format!("{path}{separator}did={}", encode(message))).into_response()
}

/// The code of a refusal, on the answer: the log has who was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedWith(pub(super) &'static str);

/// Why a page is not shown, or an action not done.
#[derive(Template)]
#[template(path = "error.html")]
pub(super) struct ErrorPage {
    page: Page,
    status: u16,
    heading: &'static str,
    detail: String,
}

impl ErrorPage {
    /// The page of a refusal. A stranger sees nothing of the server's state.
    pub(super) fn response(admin: &Arc<Admin>, visitor: Option<&Visitor>, refusal: &Refusal) -> Response {
        let mut response = Self::render_refusal(admin, visitor, refusal);
        response.extensions_mut().insert(RefusedWith(refusal.code()));
        response
    }

    fn render_refusal(admin: &Arc<Admin>, visitor: Option<&Visitor>, refusal: &Refusal) -> Response {
        let status = refusal.status();
        let heading = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::CONFLICT => "Not possible now",
            StatusCode::BAD_REQUEST => "Not understood",
            StatusCode::NOT_IMPLEMENTED => "Not configured",
            StatusCode::SERVICE_UNAVAILABLE => "Unavailable",
            _ => "Failed",
        };
        let Some(visitor) = visitor else {
            let text = format!("{heading}: {}\n", refusal.detail());
            return (status, text).into_response();
        };
        let page = Page::with(Strip::last(admin), visitor, Section::None, heading);
        let detail = refusal.detail().to_owned();
        respond(status, &Self { page, status: status.as_u16(), heading, detail })
    }
}

/// The page of an unknown address.
pub(super) async fn not_found(State(admin): State<Arc<Admin>>, visitor: Visitor) -> Response {
    let detail = "there is no page at this address; the navigation and the search box lead to all of them";
    ErrorPage::response(&admin, Some(&visitor), &Refusal::not_found(detail))
}

/// The answer of a handler: a page, or the page of a refusal.
pub(super) async fn answer(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    work: impl Future<Output = Result<Response, Refusal>>,
) -> Response {
    match work.await {
        Ok(response) => response,
        Err(refusal) => ErrorPage::response(admin, Some(visitor), &refusal),
    }
}

/// A question before an action: what it does, to how many, and why.
#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct Confirm {
    pub(super) page: Page,
    pub(super) heading: String,
    /// The effect, in sentences.
    pub(super) effects: Vec<String>,
    pub(super) facts: Vec<(&'static str, Html)>,
    /// Fields besides the reason.
    pub(super) fields: Html,
    /// The form's address.
    pub(super) path: String,
    pub(super) button: String,
    pub(super) is_dangerous: bool,
    /// The page to go back to.
    pub(super) back: String,
    pub(super) command: String,
    /// What was wrong with the last try.
    pub(super) problem: Option<String>,
    pub(super) reason: String,
}

/// Why there is nothing to do, or what was done: sentences and the way on, without a form.
#[derive(Template)]
#[template(path = "notice.html")]
pub(super) struct Notice {
    pub(super) page: Page,
    pub(super) heading: String,
    pub(super) sentences: Vec<String>,
    pub(super) facts: Vec<(&'static str, Html)>,
    /// Words and address of each link.
    pub(super) links: Vec<(&'static str, String)>,
}

/// A hidden field of a form.
pub(super) fn hidden(name: &str, value: &str) -> String {
    format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", html::escape(name), html::escape(value))
}

/// A page of a list: the link to the next one.
pub(super) struct Next(pub(super) Option<String>);

impl Next {
    /// The link from these filters and the cursor.
    pub(super) fn new(path: &str, filters: &[(&str, &str)], cursor: Option<&str>) -> Self {
        Self(cursor.map(|cursor| {
            let pairs: Vec<(&str, &str)> = filters.iter().copied().chain([("cursor", cursor)]).collect();
            format!("{path}{}", html::query(&pairs))
        }))
    }
}
