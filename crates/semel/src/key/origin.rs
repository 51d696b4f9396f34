//! The request that a claim was made for, as a record shows it to people.

use std::fmt;
use std::sync::Arc;

/// The longest origin, in bytes. With a [`Hint`](super::Hint) it fits the one byte that counts both in a record.
const LONGEST: usize = 220;
/// The longest method, request id and caller; the path gets the rest.
const METHOD: usize = 16;
const REQUEST_ID: usize = 64;
const CALLER: usize = 16;
/// Stands for a part that is not known.
const UNKNOWN: &str = "-";

/// The request that a claim was made for: enough for a person to ask the service behind it what happened.
///
/// Every part is cut to a maximum length, and holds printable ASCII without spaces. It never contains the key: see that the
/// path does not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(Arc<str>);

impl Origin {
    /// The origin of a request. `caller` is a short name of the caller, never a credential.
    #[must_use]
    pub fn new(method: &str, path: &str, request_id: Option<&str>, caller: Option<&str>) -> Self {
        let mut text = String::with_capacity(LONGEST);
        push(&mut text, method, METHOD);
        text.push(' ');
        let others = 2 + METHOD + REQUEST_ID + CALLER + 1;
        push(&mut text, path, LONGEST - others);
        for (part, longest) in [(request_id, REQUEST_ID), (caller, CALLER)] {
            text.push(' ');
            push(&mut text, part.unwrap_or_default(), longest);
        }
        Self(text.into())
    }

    /// Reads a stored origin. Accepts any text, so that no damage to it hides a record.
    pub(crate) fn stored(text: &str) -> Self {
        Self(text[..text.floor_char_boundary(LONGEST)].into())
    }

    /// As it is stored.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The method of the request.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.part(0)
    }

    /// The path of the request, or the pattern of its route.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.part(1)
    }

    /// The id of the request.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.part(2)
    }

    /// A short name of the caller: the same for all requests of one caller.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        self.part(3)
    }

    fn part(&self, number: usize) -> Option<&str> {
        self.0.split(' ').nth(number).filter(|part| !part.is_empty() && *part != UNKNOWN)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Origin").field(&self.as_str()).finish()
    }
}

/// Adds a part, cut to `longest` bytes.
fn push(text: &mut String, part: &str, longest: usize) {
    if part.is_empty() {
        return text.push_str(UNKNOWN);
    }
    let printable = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    text.extend(part.chars().take(longest).map(printable));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_parts_and_a_maximum_length() {
        let origin = Origin::new("POST", "/v1/payments", Some("req-1"), None);
        let parts = [origin.method(), origin.path(), origin.request_id(), origin.caller()];
        assert_eq!(parts, [Some("POST"), Some("/v1/payments"), Some("req-1"), None]);
        let long = "ä b".repeat(200);
        let origin = Origin::new(&long, &long, Some(&long), Some(&long));
        assert!(origin.as_str().len() <= LONGEST && origin.as_str().is_ascii(), "{origin:?}");
        assert_eq!(origin.as_str().split(' ').count(), 4, "no part brings its own spaces");
        assert_eq!(Origin::stored("").method(), None);
    }
}
