//! Logging in with a token, logging out, the theme, and the switch of the shortcuts.

use std::sync::Arc;

use askama::Template;
use axum::extract::{FromRequestParts as _, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;

use super::assets::CSS;
use super::page::{Shortcuts, Theme, respond};
use super::visitor::{Submission, Visitor, peer, set_session};
use crate::admin::{Admin, Right};

#[derive(Template)]
#[template(path = "login.html")]
pub(super) struct LoginPage {
    theme: Theme,
    css: &'static str,
    form_token: String,
    next: String,
    problem: Option<String>,
}

/// Asks the browser for the same page again: a cookie with SameSite=Strict does not come with a link of another site.
#[derive(Template)]
#[template(path = "reload.html")]
pub(super) struct Reload {
    next: String,
    css: &'static str,
}

impl Reload {
    pub(super) fn new(next: &str) -> Self {
        Self { next: own_path(next), css: &CSS.path }
    }
}

impl LoginPage {
    fn new(admin: &Admin, theme: Theme, next: &str, problem: Option<String>) -> Self {
        let form_token = admin.console.sessions.form_token.clone();
        Self { theme, css: &CSS.path, form_token, next: own_path(next), problem }
    }

    /// For a request whose session has ended.
    pub(super) fn ended(admin: &Admin, theme: Theme) -> Self {
        Self::new(
            admin,
            theme,
            "/",
            Some("Your session has ended. Log in again; nothing was changed.".to_owned()),
        )
    }
}

/// A path of this server: what comes from an address must not lead to another site.
fn own_path(next: &str) -> String {
    let is_own = next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\n', '\r', '\t']);
    if is_own && !next.starts_with("/login") { next.to_owned() } else { "/".to_owned() }
}

#[derive(Deserialize)]
pub(super) struct LoginQuery {
    #[serde(default)]
    next: String,
}

pub(super) async fn form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(LoginQuery { next }): Query<LoginQuery>,
) -> Response {
    if visitor.is_logged_in() || admin.access().local_caller().is_some() {
        return Redirect::to(&own_path(&next)).into_response();
    }
    respond(StatusCode::OK, &LoginPage::new(&admin, visitor.theme, &next, None))
}

pub(super) async fn log_in(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let address = peer(&parts);
    let Ok(visitor) = Visitor::from_request_parts(&mut parts, &()).await else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let request = Request::from_parts(parts, body);
    let form = match <Submission as axum::extract::FromRequest<_>>::from_request(request, &admin).await {
        Ok(form) => form,
        Err(response) => return response,
    };
    let (token, next) = (form.get("token").trim(), form.get("next"));
    let refuse = |status, problem: String| {
        respond(status, &LoginPage::new(&admin, visitor.theme, next, Some(problem)))
    };
    match admin.log_in_with(token, address) {
        Ok((caller, hash)) => {
            if caller.may(Right::Look).is_err() {
                tracing::warn!(
                    target: "semel::audit", audit = true,
                    user = caller.name, operation = "login", address = address.map(tracing::field::display), outcome = "refused",
                    "login refused: the role sees nothing in the console"
                );
                let problem =
                    format!("The token {:?} has the role producer, which sees nothing here.", caller.name);
                return refuse(StatusCode::FORBIDDEN, problem);
            }
            tracing::info!(
                target: "semel::audit", audit = true,
                user = caller.name, operation = "login", address = address.map(tracing::field::display), outcome = "done",
                "logged in to the console"
            );
            let cookie = set_session(&admin, &admin.console.sessions.open(hash));
            let mut response = Redirect::to(&own_path(next)).into_response();
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response
        }
        Err(refusal) => refuse(refusal.status(), format!("Not logged in: {}.", refusal.detail())),
    }
}

pub(super) async fn log_out(State(admin): State<Arc<Admin>>, form: Submission) -> Response {
    if let Some(session) = form.visitor.session {
        admin.console.sessions.close(session);
        admin.console.streams.end_closed(&admin);
        tracing::info!(
            target: "semel::audit", audit = true,
            user = form.visitor.caller.name, operation = "logout", outcome = "done",
            "logged out of the console"
        );
    }
    let mut response = Redirect::to("/login").into_response();
    response.headers_mut().insert(header::SET_COOKIE, set_session(&admin, ""));
    response
}

pub(super) async fn set_theme(headers: HeaderMap, form: Submission) -> Response {
    let theme = Theme::of(Some(form.get("theme"))).name();
    remember(&headers, Theme::COOKIE, theme)
}

pub(super) async fn set_shortcuts(headers: HeaderMap, form: Submission) -> Response {
    let shortcuts = Shortcuts::of(Some(form.get("shortcuts"))).name();
    remember(&headers, Shortcuts::COOKIE, shortcuts)
}

/// Keeps a choice in the browser, and leads back to the page with the switch.
fn remember(headers: &HeaderMap, name: &str, value: &str) -> Response {
    // Back to the page with the switch; the policy of this server sends no Referer to anybody else.
    let back = headers.get(header::REFERER).and_then(|from| from.to_str().ok());
    let back =
        back.and_then(|from| from.split_once("://")?.1.split_once('/').map(|(_, path)| format!("/{path}")));
    let mut response = Redirect::to(&own_path(&back.unwrap_or_default())).into_response();
    let cookie = format!("{name}={value}; Path=/; Max-Age=31536000; SameSite=Strict");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::own_path;

    #[test]
    fn a_login_leads_to_no_other_site() {
        for foreign in
            ["//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:1", "/\t/x"]
        {
            assert_eq!(own_path(foreign), "/", "{foreign}");
        }
        assert_eq!(own_path("/keys?phase=done"), "/keys?phase=done");
    }
}
