//! Where the key of a request comes from.

mod header;
mod member;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use semel::canonical::{Exclusions, to_canonical};
use semel::key::ContentHash;

pub(crate) use self::header::{Malformed, check, one_line, parse};
use crate::policy::{PatternMatch, PolicyError, Template};
use crate::profile::KeyLength;

/// Where the key of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// In a header, bare or as a quoted string (structured field): both forms are the same key.
    Header(HeaderName),
    /// In a JSON body, at this pointer.
    Json(Pointer),
    /// The hash of the JSON body without the excluded members: for clients that send no key.
    Content(Exclusions),
    /// Built from named segments of the path, as in `order-{id}`.
    Route(Template),
}

impl KeySource {
    /// The header of this name.
    ///
    /// # Errors
    /// An invalid header name.
    pub fn header(name: &str) -> Result<Self, PolicyError> {
        let header = HeaderName::from_bytes(name.as_bytes());
        header.map(Self::Header).map_err(|_| PolicyError::HeaderName { name: name.to_owned() })
    }

    /// The member at a JSON pointer, such as `/params/idempotency_key`.
    ///
    /// # Errors
    /// An invalid JSON pointer.
    pub fn json(pointer: &str) -> Result<Self, PolicyError> {
        Pointer::parse(pointer).map(Self::Json)
    }

    /// The hash of the body without these members.
    ///
    /// # Errors
    /// An invalid JSON pointer.
    pub fn content<P: AsRef<str>>(exclude: impl IntoIterator<Item = P>) -> Result<Self, PolicyError> {
        Ok(Self::Content(Exclusions::new(exclude)?))
    }

    /// A template with named segments of the route, such as `order-{id}`.
    pub fn route(template: &str) -> Self {
        Self::Route(Template::parse(template))
    }

    /// True if the headers alone show that there is no key.
    pub(crate) fn is_plainly_absent(&self, headers: &HeaderMap) -> bool {
        matches!(self, Self::Header(name) if !headers.contains_key(name))
    }

    /// True if the body must be read to find the key.
    pub(crate) fn is_in_body(&self) -> bool {
        matches!(self, Self::Json(_) | Self::Content(_))
    }
}

/// The result of looking for a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    Key(String),
    Absent,
    Malformed(Malformed),
    /// The body cannot be parsed. The text gives the reason and quotes nothing.
    BodyMalformed(String),
}

impl KeySource {
    /// Looks for the key in the head of a request.
    pub(crate) fn in_head(&self, parts: &Parts, found: &PatternMatch<'_>, length: KeyLength) -> Sought {
        match self {
            Self::Header(name) => match one_line(&parts.headers, name) {
                Ok(None) => Sought::Absent,
                Ok(Some(value)) => {
                    parse(value.as_bytes(), length).map_or_else(Sought::Malformed, Sought::Key)
                }
                Err(malformed) => Sought::Malformed(malformed),
            },
            Self::Route(template) => match template.fill(found) {
                Some(key) if key.len() <= semel::key::MAX_VALUE => Sought::Key(key),
                Some(_) => Sought::Malformed(Malformed::Length { min: 1, max: semel::key::MAX_VALUE }),
                None => Sought::Absent,
            },
            Self::Json(_) | Self::Content(_) => Sought::Absent,
        }
    }

    /// Looks for the key in the body.
    pub(crate) fn in_body(&self, body: &Bytes, length: KeyLength) -> Sought {
        match self {
            Self::Json(pointer) => {
                // Refuses JSON that two parsers could understand differently, such as a member that occurs twice.
                if let Err(error) = to_canonical(body) {
                    return Sought::BodyMalformed(error.to_string());
                }
                match member::locate(body, &pointer.0).map(|place| &body[place]) {
                    None | Some(b"null") => Sought::Absent,
                    Some(value) => match serde_json::from_slice::<String>(value) {
                        Ok(key) => match check(key.as_bytes(), length) {
                            Ok(()) => Sought::Key(key),
                            Err(malformed) => Sought::Malformed(malformed),
                        },
                        Err(_) => Sought::Malformed(Malformed::NotAString),
                    },
                }
            }
            Self::Content(exclusions) => match ContentHash::of_json(body, exclusions) {
                Ok(hash) => Sought::Key(hash.as_str().to_owned()),
                Err(error) => Sought::BodyMalformed(error.to_string()),
            },
            Self::Header(_) | Self::Route(_) => Sought::Absent,
        }
    }

    /// Position of the key in the body. `None` for a content hash, which is computed from the body and not part of it.
    pub(crate) fn place_in_body(&self, body: &[u8]) -> Option<Range<usize>> {
        match self {
            Self::Json(pointer) => member::locate(body, &pointer.0),
            Self::Header(_) | Self::Content(_) | Self::Route(_) => None,
        }
    }
}

/// A JSON pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    /// Parses a pointer.
    ///
    /// # Errors
    /// An invalid pointer, or one to the whole document.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        // Exclusions have the same grammar, and also refuse the whole document.
        match Exclusions::new([text]) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(_) => Err(PolicyError::Pointer { pointer: text.to_owned() }),
        }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
