//! Which headers a message may have.
//!
//! A policy names a score of headers of which a request has two or three. To look each of them up costs more than one
//! walk over those that are there.

use http::header::{HeaderMap, HeaderName};

/// A hint: what it does not know of is surely not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present(u64);

impl Present {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |bits, name| bits | bit(name)))
    }

    /// Whether it is worth a look.
    pub(crate) fn may_hold(self, name: &HeaderName) -> bool {
        self.0 & bit(name) != 0
    }
}

/// By length and the outer letters, which tell the usual names apart well enough.
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
