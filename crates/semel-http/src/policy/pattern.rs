//! Which requests a route matches: a method and a path template.
//!
//! Paths are compared segment by segment: percent-decoded, without empty and `.` segments, and with `..` resolved. Upstreams treat such
//! spellings differently, and none of them may bypass a route that requires a key.

use std::borrow::Cow;
use std::fmt;

use http::Method;

use super::PolicyError;
use super::path::hex;

/// A method and a path template, as in `POST /v1/payments/{id}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    method: Option<Method>,
    segments: Vec<Segment>,
    rest: Rest,
    case: LetterCase,
}

/// How letters are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetterCase {
    Exact,
    Ignored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Exact(String),
    Any,
    Named(String),
}

/// What may follow the last segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    Anything,
}

/// The segments of a path.
pub(crate) type PathSegments<'a> = Vec<Cow<'a, str>>;

/// A match, with the values of its named segments.
pub(crate) struct PatternMatch<'a> {
    pattern: &'a Pattern,
    path: &'a str,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A pattern that is not a method and a path.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let wrong = || PolicyError::Pattern { pattern: text.to_owned() };
        let (method, path) = match text.trim().split_once(' ') {
            Some((method, path)) => (method, path.trim_start()),
            None => ("*", text.trim()),
        };
        let method = match method {
            "*" => None,
            // Methods are case-sensitive, so a lower-case method is a mistake.
            name if name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => {
                Some(Method::from_bytes(name.as_bytes()).map_err(|_| wrong())?)
            }
            _ => return Err(wrong()),
        };
        let path = path.strip_prefix('/').ok_or_else(wrong)?;
        let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let rest = match segments.last() {
            Some(&"**") => {
                segments.pop();
                Rest::Anything
            }
            _ => Rest::Nothing,
        };
        let segments = segments
            .into_iter()
            .map(|segment| {
                Segment::parse(segment).ok_or_else(|| PolicyError::Segment {
                    pattern: text.to_owned(),
                    segment: segment.to_owned(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), method, segments, rest, case: LetterCase::Exact })
    }

    /// The same pattern, ignoring the case of ASCII letters in the path.
    #[must_use]
    pub fn ignoring_case(mut self) -> Self {
        self.case = LetterCase::Ignored;
        self
    }

    /// The method; `None` for all guarded methods.
    pub fn method(&self) -> Option<&Method> {
        self.method.as_ref()
    }

    /// True if it has a segment with this name.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.segments.iter().any(|segment| matches!(segment, Segment::Named(known) if known == name))
    }

    /// True if it matches this request.
    pub fn matches(&self, method: &Method, path: &str) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method) && self.matches_path(path)
    }

    fn matches_path(&self, path: &str) -> bool {
        if self.segments.is_empty() && self.rest == Rest::Anything {
            return true;
        }
        if is_plain(path) {
            let segments = path.split('/').filter(|segment| !segment.is_empty());
            self.matches_segments(segments)
        } else {
            self.matches_segments(segments(path).iter().map(AsRef::as_ref))
        }
    }

    fn matches_segments<'a>(&self, mut path: impl Iterator<Item = &'a str>) -> bool {
        for wanted in &self.segments {
            let Some(segment) = path.next() else { return false };
            let Segment::Exact(exact) = wanted else { continue };
            let is_same = match self.case {
                LetterCase::Exact => exact == segment,
                LetterCase::Ignored => exact.eq_ignore_ascii_case(segment),
            };
            if !is_same {
                return false;
            }
        }
        self.rest == Rest::Anything || path.next().is_none()
    }

    /// A match, for reading named segments.
    pub(crate) fn found<'a>(&'a self, path: &'a str) -> PatternMatch<'a> {
        PatternMatch { pattern: self, path }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Segment {
    fn parse(segment: &str) -> Option<Self> {
        if segment == "*" {
            return Some(Self::Any);
        }
        if let Some(name) = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            let is_name = !name.is_empty() && !name.contains(['{', '}', '*']);
            return is_name.then(|| Self::Named(name.to_owned()));
        }
        let odd = segment.contains(['*', '{', '}', '%', '?', '#']) || segment == "." || segment == "..";
        (!odd).then(|| Self::Exact(segment.to_owned()))
    }
}

impl PatternMatch<'_> {
    /// The decoded value of the segment with this name.
    pub(crate) fn segment(&self, name: &str) -> Option<String> {
        let at = self
            .pattern
            .segments
            .iter()
            .position(|segment| matches!(segment, Segment::Named(known) if known == name))?;
        segments(self.path).get(at).map(|segment| segment.clone().into_owned())
    }
}

/// True if a path can be compared without decoding.
fn is_plain(path: &str) -> bool {
    !path.contains('%') && !path.contains("/.")
}

/// The segments of a path, as any upstream might read them.
fn segments(path: &str) -> PathSegments<'_> {
    let mut segments: PathSegments<'_> = Vec::new();
    for raw in path.split('/') {
        let segment = decode(raw);
        match segment.as_ref() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            // Some upstreams treat an encoded slash as a separator; here it matches nothing.
            _ => segments.push(segment),
        }
    }
    segments
}

fn decode(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let mut decoded = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%'
            && let [high, low, tail @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            decoded.push(high << 4 | low);
            rest = tail;
        } else {
            decoded.push(*first);
        }
    }
    String::from_utf8_lossy(&decoded).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, method: &Method, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(method, path)
    }

    #[test]
    fn one_segment_each() {
        for pattern in ["POST /v1/*/refunds", "POST /v1/{payment}/refunds"] {
            assert!(matches(pattern, &Method::POST, "/v1/p_1/refunds"));
            assert!(!matches(pattern, &Method::PUT, "/v1/p_1/refunds"));
            assert!(!matches(pattern, &Method::POST, "/v1/p_1"));
            assert!(!matches(pattern, &Method::POST, "/v1/p_1/x/refunds"));
            assert!(!matches(pattern, &Method::POST, "/v1/p_1/refunds/x"));
        }
        assert!(matches("* /**", &Method::DELETE, "/"));
        assert!(matches("/v1/**", &Method::PUT, "/v1/a/b/c"));
        assert!(matches("/v1/**", &Method::PUT, "/v1"));
        assert!(!matches("/v1/**", &Method::PUT, "/v2/a"));
    }

    // A spelling that the upstream normalises must not bypass a route that requires a key.
    #[test]
    fn other_spellings_of_a_path_match() {
        for path in [
            "/v1/payments",
            "/v1/payments/",
            "//v1//payments",
            "/v1/%70ayments",
            "/v1/./payments",
            "/v1/x/../payments",
            "/v1/%2e/payments",
            "/v1/x/%2E%2e/payments",
        ] {
            assert!(matches("POST /v1/payments", &Method::POST, path), "{path}");
        }
        assert!(!matches("POST /v1/payments", &Method::POST, "/v1/Payments"));
        assert!(!matches("POST /v1/payments", &Method::POST, "/v1/payments%"));
    }

    #[test]
    fn names_are_read_decoded() {
        let pattern = Pattern::parse("PUT /orders/{id}/lines/{line}").unwrap();
        let found = pattern.found("/orders/a%20b/lines/7");
        assert_eq!(found.segment("id").as_deref(), Some("a b"));
        assert_eq!(found.segment("line").as_deref(), Some("7"));
        assert_eq!(found.segment("other"), None);
    }

    #[test]
    fn what_is_no_pattern() {
        for text in [
            "",
            "POST",
            "POST v1",
            "post /v1",
            "PO ST /v1",
            "POST /v1/{",
            "POST /v1/{}",
            "POST /a*b",
            "POST /**/b",
            "POST /a%20b",
        ] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
        let sentence = Pattern::parse("POST /v1/{a").unwrap_err().to_string();
        assert!(
            sentence.starts_with("the segment \"{a\" of the route \"POST /v1/{a\" cannot be"),
            "{sentence}"
        );
    }
}
