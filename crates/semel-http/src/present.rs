//! A quick test for the headers of a message.
//!
//! A policy names about twenty headers, and a request has two or three of them. One pass over the headers of the request is cheaper
//! than a lookup of each name.

use http::header::{HeaderMap, HeaderName};

/// A hint with false positives: a header that it does not report is absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present(u64);

impl Present {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |bits, name| bits | bit(name)))
    }

    /// False if the header is absent for sure.
    pub(crate) fn may_hold(self, name: &HeaderName) -> bool {
        self.0 & bit(name) != 0
    }
}

/// Hashes by length and outer letters, which distinguish the usual names well enough.
fn bit(name: &HeaderName) -> u64 {
    let name = name.as_str().as_bytes();
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    1 << ((name.len() + 5 * usize::from(first) + 3 * usize::from(last)) % 64)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::policy::HeaderRules;

    #[test]
    fn what_is_there_is_never_missed_and_most_of_the_rest_is() {
        let HeaderRules { fingerprint, strip } = HeaderRules::default();
        let names: Vec<HeaderName> = fingerprint.into_iter().chain(strip).collect();
        for name in &names {
            let headers: HeaderMap = [(name.clone(), HeaderValue::from_static("x"))].into_iter().collect();
            let present = Present::of(&headers);
            assert!(present.may_hold(name), "{name}");
            let taken_for = names.iter().filter(|other| present.may_hold(other)).count();
            assert!(taken_for <= 4, "{name} is taken for {taken_for}");
        }
        assert!(!names.iter().any(|name| Present::of(&HeaderMap::new()).may_hold(name)));
    }
}
