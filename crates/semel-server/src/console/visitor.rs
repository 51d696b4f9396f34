//! Who looks at the console, and what may come in. Every request passes [`enter`].

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use semel_http::edge::Peer;
use subtle::ConstantTimeEq as _;

use super::actions::ConsoleAction;
use super::html::encode;
use super::page::{ErrorPage, RefusedWith, Shortcuts, Theme, respond};
use super::session::{RequestedBy, SessionHash};
use super::{assets, login};
use crate::admin::{Admin, Caller, Refusal, Right};

/// What browsers may load and do on a page of the console: only what this server gives them.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// The cookie of a session. With TLS its name makes browsers refuse it from anywhere else.
const COOKIE: &str = "semel_session";
const SECURE_COOKIE: &str = "__Host-semel_session";
/// Maximum size of a form: an edited payload is the largest.
const MAX_FORM: usize = 8 << 20;

/// The person behind a request.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) caller: Caller,
    /// Must come back with every form.
    pub(super) form_token: String,
    pub(super) theme: Theme,
    pub(super) shortcuts: Shortcuts,
    /// The session to log out from, if there is one.
    pub(super) session: Option<SessionHash>,
}

impl Visitor {
    pub(super) fn is_logged_in(&self) -> bool {
        self.session.is_some()
    }

    /// True if this visitor may do it: buttons of other actions are not shown.
    pub(super) fn may(&self, action: &ConsoleAction) -> bool {
        action.is_allowed(&self.caller)
    }

    /// True if payloads and outcomes may be shown.
    pub(super) fn sees_payloads(&self) -> bool {
        self.caller.may(Right::Operate).is_ok()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

/// A submitted form whose token is the visitor's.
pub(super) struct Submission {
    pub(super) visitor: Visitor,
    fields: Vec<(String, String)>,
}

impl Submission {
    /// The first field of this name; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.fields.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    }

    /// The field of this name, if it has content.
    pub(super) fn some(&self, name: &str) -> Option<String> {
        Some(self.get(name).trim()).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// All fields of this name.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }
}

impl FromRequest<Arc<Admin>> for Submission {
    type Rejection = Response;

    async fn from_request(request: Request, admin: &Arc<Admin>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, admin).await?;
        let refuse = |status, code, detail: &str| {
            ErrorPage::response(admin, Some(&visitor), &Refusal::new(status, code, detail))
        };
        let Ok(body) = axum::body::to_bytes(body, MAX_FORM).await else {
            return Err(refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload_too_large",
                "the form is larger than 8 MiB",
            ));
        };
        let fields = read_form(&body);
        let given =
            fields.iter().find(|(name, _)| name == "form_token").map_or("", |(_, value)| value.as_str());
        if !bool::from(given.as_bytes().ct_eq(visitor.form_token.as_bytes())) {
            let detail = "the form does not belong to this session: go back, reload the page and try again";
            return Err(refuse(StatusCode::FORBIDDEN, "foreign_form", detail));
        }
        Ok(Self { visitor, fields })
    }
}

/// Reads `a=b&c=d` as browsers write it.
fn read_form(body: &[u8]) -> Vec<(String, String)> {
    let decode = |text: &[u8]| {
        let mut bytes = Vec::with_capacity(text.len());
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let hex = text.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
            match (byte, hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
                (b'%', Some(byte)) => {
                    bytes.push(byte);
                    at += 2;
                }
                (b'+', _) => bytes.push(b' '),
                (byte, _) => bytes.push(*byte),
            }
            at += 1;
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pairs = body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            (decode(&pair[..at]), decode(pair.get(at + 1..).unwrap_or_default()))
        })
        .collect()
}

/// The value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The value of the session's cookie. With TLS only the cookie that browsers take from this server alone counts.
fn session_cookie<'a>(admin: &Admin, headers: &'a HeaderMap) -> Option<&'a str> {
    cookie(headers, cookie_name(admin.console.has_tls))
}

const fn cookie_name(has_tls: bool) -> &'static str {
    if has_tls { SECURE_COOKIE } else { COOKIE }
}

/// Pages that refresh themselves say so.
pub(super) fn is_refresh(headers: &HeaderMap) -> bool {
    headers.contains_key("x-semel-refresh")
}

fn requested_by(request: &Request) -> RequestedBy {
    let is_script = is_refresh(request.headers())
        || matches!(request.uri().path(), super::live::PATH | super::live::SESSION);
    if is_script { RequestedBy::Script } else { RequestedBy::Person }
}

/// The header that sets the session's cookie, or with an empty value removes it.
pub(super) fn set_session(admin: &Admin, value: &str) -> HeaderValue {
    let has_tls = admin.console.has_tls;
    let (name, secure) = (cookie_name(has_tls), if has_tls { "; Secure" } else { "" });
    let age = if value.is_empty() { 0 } else { super::session::LONGEST.as_secs() };
    let text = format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
}

/// Checks every request of the console, and protects every answer.
pub(super) async fn enter(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let since = tokio::time::Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (user, mut response) = admit(&admin, request, next).await;
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    let status = response.status().as_u16();
    admin.metrics.admin(status);
    let latency_ms = since.elapsed().as_secs_f64() * 1e3;
    let refused_with = response.extensions().get::<RefusedWith>().map(|refused| refused.0);
    // Of pages, only those that somebody with a token asked for: strangers could fill the log.
    if let Some(code) = refused_with.filter(|_| status == 403 && (method != Method::GET || !user.is_empty()))
    {
        tracing::warn!(
            target: "semel::audit", audit = true,
            user, operation = path, code, outcome = "refused",
            "request to the console refused"
        );
    } else if method == Method::GET {
        tracing::debug!(target: "semel::admin", %method, operation = path, user, http_status = status, latency_ms);
    } else {
        tracing::info!(target: "semel::admin", %method, operation = path, user, http_status = status, latency_ms);
    }
    response
}

async fn admit(admin: &Arc<Admin>, mut request: Request, next: Next) -> (String, Response) {
    let nobody = String::new();
    let access = admin.access();
    // First of all: is the request meant for this server, and from a page of it?
    if let Err(refusal) = access.admit(&request).and_then(|()| is_own_page(&request)) {
        return (nobody, ErrorPage::response(admin, None, &refusal));
    }
    let path = request.uri().path();
    if path.starts_with(assets::FOLDER) {
        return (nobody, next.run(request).await);
    }
    let theme = Theme::of(cookie(request.headers(), Theme::COOKIE));
    let shortcuts = Shortcuts::of(cookie(request.headers(), Shortcuts::COOKIE));
    let stranger = |caller| Visitor {
        caller,
        form_token: admin.console.sessions.form_token.clone(),
        theme,
        shortcuts,
        session: None,
    };
    let visitor = if let Some(caller) = access.local_caller() {
        stranger(caller)
    } else {
        let session = session_cookie(admin, request.headers()).map(SessionHash::new);
        let found = session.and_then(|session| admin.console.sessions.find(session, requested_by(&request)));
        let known = found.and_then(|(token, form_token)| Some((access.caller_of(&token)?, form_token)));
        match known {
            Some((caller, form_token)) => Visitor { caller, form_token, theme, shortcuts, session },
            None if path == "/login" => stranger(Caller::nobody()),
            None => return (nobody, ask_to_log_in(admin, &request, theme)),
        }
    };
    let needed = if path == "/login" {
        None
    } else {
        let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        ConsoleAction::right_at(request.method(), matched.unwrap_or_default())
    };
    if let Some(Err(refusal)) = needed.map(|right| visitor.caller.may(right)) {
        return (visitor.caller.name.clone(), ErrorPage::response(admin, Some(&visitor), &refusal));
    }
    let user = visitor.caller.name.clone();
    request.extensions_mut().insert(visitor);
    (user, next.run(request).await)
}

/// Browsers say which page a request comes from. A form of another site is refused even where it sends no Origin.
fn is_own_page(request: &Request) -> Result<(), Refusal> {
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read || matches!(site, None | Some(b"same-origin" | b"none")) {
        return Ok(());
    }
    let detail = "the request comes from a page of another origin";
    Err(Refusal::new(StatusCode::FORBIDDEN, "foreign_origin", detail))
}

/// The login form, or for a script a plain refusal.
fn ask_to_log_in(admin: &Arc<Admin>, request: &Request, theme: Theme) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_script = request.headers().get("sec-fetch-dest").is_some_and(|dest| dest == "empty")
        || matches!(request.uri().path(), super::live::PATH | super::live::SESSION);
    if !is_read || is_script {
        return respond(StatusCode::UNAUTHORIZED, &login::LoginPage::ended(admin, theme));
    }
    // The cookie is not sent with a link from another site. The same request from a page of this server has it.
    let is_foreign = request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let target = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if is_foreign {
        return respond(StatusCode::OK, &login::Reload::new(target));
    }
    Redirect::to(&format!("/login?next={}", encode(target))).into_response()
}

/// The address of the client, to slow down guesses.
pub(super) fn peer(parts: &Parts) -> Option<std::net::IpAddr> {
    parts.extensions.get::<Peer>().map(|peer| peer.address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_browsers_write_them() {
        let read = read_form(b"a=b+c&d=%C3%A9%3Cx%3E&e&=f&g=1%2&h=%");
        let expected = [("a", "b c"), ("d", "é<x>"), ("e", ""), ("", "f"), ("g", "1%2"), ("h", "%")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn cookies_are_found_by_their_whole_name() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("xsemel_session=1; semel_session=2; a=3"));
        assert_eq!(cookie(&headers, cookie_name(false)), Some("2"));
        assert_eq!(
            cookie(&headers, cookie_name(true)),
            None,
            "with TLS only the name that is bound to this host"
        );
        headers.insert(header::COOKIE, HeaderValue::from_static("a=3"));
        assert_eq!(cookie(&headers, cookie_name(false)), None);
    }
}
