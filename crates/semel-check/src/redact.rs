//! Removes secrets from reports.

use std::collections::HashSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use http::HeaderMap;
use serde_json::{Map, Value};

/// The replacement for a secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// A shorter secret would match by chance.
pub(crate) const SHORTEST_SECRET: usize = 6;

/// Parts of names whose values are secret, without `-` and `_`.
const SECRET_NAMES: &[&str] = &[
    "authorization",
    "credential",
    "token",
    "apikey",
    "password",
    "passwd",
    "secret",
    "cookie",
    "privatekey",
];

/// Names that only sound secret.
const HARMLESS: &[&str] = &["tokencount", "maxtokens", "tokentype", "nextpagetoken"];

/// Headers of an answer that may be shown.
const SHOWN_HEADERS: &[&str] = &[
    "content-type",
    "content-length",
    "content-encoding",
    "cache-control",
    "date",
    "etag",
    "idempotency-replayed",
    "idempotency-stored",
    "idempotent-replayed",
    "location",
    "original-request",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "request-id",
    "retry-after",
    "stripe-should-retry",
    "x-request-id",
];

/// True if a member or header of this name is secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret)) && !HARMLESS.contains(&name.as_str())
}

/// Removes secrets at any depth: by member name, and every occurrence of a known secret, even encoded or truncated.
pub(crate) fn redact(value: &mut Value, known: &[String]) {
    Redactor::new(known).scrub_value(value);
}

/// A setting as reports may show it: `NAME=VALUE`, without the secrets in a JSON value or under a secret name.
#[must_use]
pub fn shown_setting(setting: &str) -> String {
    let Some((name, text)) = setting.split_once('=') else { return setting.to_owned() };
    if is_secret(name) {
        return format!("{name}={REDACTED}");
    }
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            let before = value.clone();
            redact(&mut value, &[]);
            if value == before { setting.to_owned() } else { format!("{name}={value}") }
        }
        Err(_) => setting.to_owned(),
    }
}

/// An address as reports may show it: without a user and a password.
#[must_use]
pub fn shown_address(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{REDACTED}@{host}"),
        _ => url.to_owned(),
    }
}

/// Finds known secrets in strings.
///
/// It looks for pieces instead of whole secrets: a target may truncate a token, or quote it in the middle of encoded text, and then a
/// piece of one of its forms remains.
pub(crate) struct Redactor {
    /// Every piece of every form, in lower case.
    pieces: HashSet<[u8; PIECE]>,
    /// Forms that are shorter than a piece.
    short: Vec<Vec<u8>>,
}

/// Length of a piece. Shorter ones would match by chance.
const PIECE: usize = 8;

impl Redactor {
    pub(crate) fn new(known: &[String]) -> Self {
        let mut scrubber = Self { pieces: HashSet::new(), short: Vec::new() };
        for secret in known {
            for form in forms(secret) {
                scrubber.add(form.to_ascii_lowercase().as_bytes());
            }
        }
        scrubber
    }

    fn add(&mut self, form: &[u8]) {
        if (SHORTEST_SECRET..PIECE).contains(&form.len()) {
            self.short.push(form.to_owned());
        }
        self.pieces.extend(form.windows(PIECE).filter_map(|piece| <[u8; PIECE]>::try_from(piece).ok()));
    }

    /// The text without any piece of a secret.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let lower = text.to_ascii_lowercase();
        let lower = lower.as_bytes();
        let mut secret = vec![false; lower.len()];
        for (at, piece) in lower.windows(PIECE).enumerate() {
            if <[u8; PIECE]>::try_from(piece).is_ok_and(|piece| self.pieces.contains(&piece)) {
                secret[at..at + PIECE].fill(true);
            }
        }
        for form in &self.short {
            for (at, _) in lower.windows(form.len()).enumerate().filter(|(_, window)| window == form) {
                secret[at..at + form.len()].fill(true);
            }
        }
        let mut scrubbed = String::with_capacity(text.len());
        let mut within = false;
        for (at, character) in text.char_indices() {
            let is_secret = secret[at..at + character.len_utf8()].contains(&true);
            match (is_secret, within) {
                (false, _) => scrubbed.push(character),
                (true, false) => scrubbed.push_str(REDACTED),
                (true, true) => {}
            }
            within = is_secret;
        }
        scrubbed
    }

    fn scrub_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                *text = self.scrub(text);
                if let Some(mut inner) = inner_json(text) {
                    self.scrub_value(&mut inner);
                    *text = inner.to_string();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.scrub_value(item)),
            Value::Object(members) => {
                let scrubbed = std::mem::take(members).into_iter().map(|(name, mut member)| {
                    if is_secret(&name) && !member.is_null() {
                        member = Value::String(REDACTED.to_owned());
                    } else {
                        self.scrub_value(&mut member);
                    }
                    (self.scrub(&name), member)
                });
                *members = scrubbed.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The encodings of a secret.
fn forms(secret: &str) -> Vec<String> {
    let bytes = secret.as_bytes();
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let percent = |always: bool| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            if !always && (byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
                text.push(char::from(*byte));
            } else {
                let _ = write!(text, "%{byte:02x}");
            }
            text
        })
    };
    let mut forms = vec![secret.to_owned(), hex, percent(false), percent(true)];
    // Preceding bytes shift a secret within the groups of three bytes that base64 encodes.
    for before in 0..3_usize {
        let moved = [&vec![0; before][..], bytes].concat();
        // The first and the last group also contain other bytes.
        let whole = moved.len() / 3 * 4;
        let from = if before == 0 { 0 } else { 4 };
        for encoded in [STANDARD_NO_PAD.encode(&moved), URL_SAFE_NO_PAD.encode(&moved)] {
            forms.extend(encoded.get(from..whole).filter(|form| !form.is_empty()).map(str::to_owned));
        }
    }
    // A Basic credential is encoded itself: user and password are secret as well.
    let decoded = STANDARD.decode(bytes).ok().and_then(|decoded| String::from_utf8(decoded).ok());
    if let Some(decoded) = decoded.filter(|decoded| decoded.contains(':')) {
        forms.extend(decoded.split_once(':').map(|(_, password)| password.to_owned()));
        forms.push(decoded);
    }
    forms
}

/// JSON in a string, such as MCP's text content.
fn inner_json(text: &str) -> Option<Value> {
    let looks = text.trim_start().starts_with(['{', '[']);
    serde_json::from_str(text).ok().filter(|_| looks)
}

/// The values of a request that must not be in an answer: those with secret names.
pub(crate) fn secrets_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if is_secret(name) {
                    every_text(member, found);
                } else {
                    secrets_in(member, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| secrets_in(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn every_text(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.len() >= SHORTEST_SECRET => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| every_text(item, found)),
        Value::Object(members) => members.values().for_each(|member| every_text(member, found)),
        _ => {}
    }
}

/// The headers of an answer that may be shown.
pub(crate) fn response_headers(headers: &HeaderMap) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, value) in headers {
        let text = if SHOWN_HEADERS.contains(&name.as_str()) {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        } else {
            continue;
        };
        shown.insert(name.as_str().to_owned(), Value::String(text));
    }
    shown
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use serde_json::json;

    use super::{redact, response_headers, secrets_in};

    #[test]
    fn secrets_go_at_any_depth() {
        let mut value = json!({
            "a": [{"push": {"authentication": {"credentials": "c-12345"}}, "Api-Key": "x", "text": "Bearer tok-123456 here"}],
            "headers": {"Authorization": "Bearer q", "Set-Cookie": "s=1", "x-client-secret": ["a", "b"]},
            "content": [{"text": "{\"password\": \"hunter2\", \"id\": 1}"}],
            "id": "stays"
        });
        redact(&mut value, &["tok-123456".to_owned()]);
        let text = value.to_string();
        for gone in ["c-12345", "\"x\"", "tok-123456", "Bearer q", "s=1", "hunter2", "\"a\",\"b\""] {
            assert!(!text.contains(gone), "{gone} in {text}");
        }
        assert!(text.contains("stays") && text.contains("\\\"id\\\":1"), "{text}");
    }

    #[test]
    fn no_encoded_or_cut_form_of_a_token_is_left() {
        use base64::Engine as _;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE};

        let token = "tok/Live+9fK2mQ7xR4vB1nZ8";
        let percent = "tok%2FLive%2B9fK2mQ7xR4vB1nZ8";
        let hex: String = token.bytes().map(|byte| format!("{byte:02X}")).collect();
        let mut echoes =
            vec![token.to_owned(), percent.to_owned(), percent.to_lowercase(), hex, token.to_uppercase()];
        for around in ["", "a", "ab", "abc", "user:"] {
            echoes.push(STANDARD.encode(format!("{around}{token}")));
            echoes.push(URL_SAFE.encode(format!("{around}{token}{around}")));
        }
        echoes.extend([token[..12].to_owned(), format!("{}…", &token[..10]), token[9..].to_owned()]);
        for echo in echoes {
            let mut value = json!({ "debug": [format!("got {echo} here")], echo.as_str(): 1 });
            redact(&mut value, &[token.to_owned()]);
            let text = value.to_string();
            // Three bytes at each end may be encoded together with their neighbours.
            let inner: String = echo.chars().skip(4).take(echo.len().saturating_sub(10).max(5)).collect();
            assert!(!text.contains(&inner), "{inner} of {echo} in {text}");
            assert!(text.contains("got ") && text.contains(" here"), "{text}");
        }
        let basic = STANDARD.encode("shop:pass-word-1");
        let mut value = json!({ "debug": "the password pass-word-1 of shop is wrong" });
        redact(&mut value, &[basic]);
        assert_eq!(value, json!({ "debug": "the password [redacted] of shop is wrong" }));
    }

    #[test]
    fn response_headers_are_an_allow_list() {
        let mut headers = HeaderMap::new();
        headers.insert("set-cookie", HeaderValue::from_static("s=1"));
        headers.insert("x-internal", HeaderValue::from_static("1"));
        headers.insert("retry-after", HeaderValue::from_static("2"));
        let shown = response_headers(&headers);
        assert_eq!(json!(shown), json!({"retry-after": "2"}));
    }

    #[test]
    fn secrets_of_a_request_are_found() {
        let mut found = Vec::new();
        secrets_in(
            &json!({"a": {"credentials": {"user": "me-and-i", "short": "x"}}, "b": "open text"}),
            &mut found,
        );
        assert_eq!(found, ["me-and-i"]);
    }
}
