//! Texts with names in braces: the key of a route template, and the path of a probe.

use std::fmt;

use http::{HeaderMap, Method, Request, Uri};

use super::{PatternMatch, PolicyError};
use crate::body::Body;

/// A text with placeholders `{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<TemplatePiece>,
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|piece| match piece {
            TemplatePiece::Text(text) => f.write_str(text),
            TemplatePiece::Name(name) => write!(f, "{{{name}}}"),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(String),
    Name(String),
}

impl Template {
    /// Parses a template. A brace that is not closed is text.
    pub fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else { break };
            if !before.is_empty() {
                pieces.push(TemplatePiece::Text(before.to_owned()));
            }
            pieces.push(TemplatePiece::Name(name.to_owned()));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(TemplatePiece::Text(rest.to_owned()));
        }
        Self { pieces }
    }

    /// The names of its placeholders.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Name(name) => Some(name.as_str()),
            TemplatePiece::Text(_) => None,
        })
    }

    /// The text with the values of path segments. Two paths that give the same text cause a conflict, not a wrong answer, because the
    /// path is part of the fingerprint.
    pub(crate) fn fill(&self, found: &PatternMatch<'_>) -> Option<String> {
        let mut filled = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => filled.push_str(text),
                TemplatePiece::Name(name) => filled.push_str(&found.segment(name)?),
            }
        }
        Some(filled)
    }

    /// The text with `key` for its placeholders, escaped for a path.
    fn fill_key(&self, key: &str) -> String {
        let mut filled = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => filled.push_str(text),
                TemplatePiece::Name(_) => percent_encode(key, &mut filled),
            }
        }
        filled
    }
}

/// Leaves only characters unescaped that have no meaning in any part of a URL.
fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// A request that the guard makes itself: `GET /v1/payments/by-key/{key}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTemplate {
    text: String,
    method: Method,
    path: Template,
}

impl CallTemplate {
    /// Parses a call.
    ///
    /// # Errors
    /// A text that is not a GET or HEAD with a path.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let wrong = || PolicyError::Call { call: text.to_owned() };
        let (method, path) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let method = match method {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            _ => return Err(PolicyError::CallMethod { call: text.to_owned() }),
        };
        let path = Template::parse(path.trim_start());
        if path.names().any(|name| name != "key") || path.fill_key("k").parse::<Uri>().is_err() {
            return Err(wrong());
        }
        if !path.fill_key("k").starts_with('/') {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), method, path })
    }

    /// True if its path contains the key.
    pub(crate) fn names_key(&self) -> bool {
        self.path.names().next().is_some()
    }

    /// The text that it was parsed from.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The request, with the client's headers that identify the caller.
    pub(crate) fn request(&self, key: &str, headers: HeaderMap) -> Option<Request<Body>> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.fill_key(key).parse().ok()?;
        *request.headers_mut() = headers;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A key stays one segment of the probe's path.
    #[test]
    fn a_key_cannot_leave_its_segment() {
        let call = CallTemplate::parse("GET /v1/by-key/{key}?full=1").unwrap();
        let request = call.request("../../admin?x=#%2e", HeaderMap::new()).unwrap();
        assert_eq!(request.uri(), "/v1/by-key/..%2F..%2Fadmin%3Fx%3D%23%252e?full=1");
    }

    #[test]
    fn what_is_no_call() {
        for text in ["", "GET", "GET v1", "GET http://elsewhere/", "GET /v1/{id}", "GET /a b"] {
            assert!(matches!(CallTemplate::parse(text), Err(PolicyError::Call { .. })), "{text:?}");
        }
        assert!(matches!(CallTemplate::parse("POST /v1/{key}"), Err(PolicyError::CallMethod { .. })));
    }
}
