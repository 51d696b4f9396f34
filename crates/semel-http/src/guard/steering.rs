//! Headers in which the upstream tells the guard what to do with its answer.

use std::time::Duration;

use http::HeaderMap;

use crate::stored::{RETENTION, STORE};

/// The maximum for durations: a hundred years.
const LONGEST: u64 = 100 * 365 * 24 * 60 * 60;

/// The upstream's instructions for its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steering {
    /// Do not store the answer.
    pub(super) discard: bool,
    /// Store the answer for this time.
    pub(super) retention: Option<Duration>,
}

impl Steering {
    /// Reads the headers and removes them, so that no client sees them.
    pub(super) fn take(headers: &mut HeaderMap) -> Self {
        let Some(store) = headers.remove(STORE) else {
            return Self { discard: false, retention: retention(headers) };
        };
        let discard = ["no", "false"].iter().any(|no| store.as_bytes().eq_ignore_ascii_case(no.as_bytes()));
        Self { discard, retention: retention(headers) }
    }
}

fn retention(headers: &mut HeaderMap) -> Option<Duration> {
    let value = headers.remove(RETENTION)?;
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    if seconds.is_none() {
        tracing::warn!(target: "semel", "invalid Idempotency-Retention from the upstream; using the route's retention");
    }
    seconds.map(|seconds| Duration::from_secs(seconds.min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn read_and_taken_away() {
        for (store, kept_for, expected) in [
            (None, None, Steering::default()),
            (Some("no"), None, Steering { discard: true, retention: None }),
            (Some("No"), None, Steering { discard: true, retention: None }),
            (Some("yes"), None, Steering::default()),
            (None, Some("3600"), Steering { discard: false, retention: Some(Duration::from_secs(3600)) }),
            (None, Some("soon"), Steering::default()),
            (None, Some("-1"), Steering::default()),
            (
                None,
                Some("18446744073709551615"),
                Steering { discard: false, retention: Some(Duration::from_secs(LONGEST)) },
            ),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(store) = store {
                headers.append(STORE, HeaderValue::from_static(store));
            }
            if let Some(kept_for) = kept_for {
                headers.append(RETENTION, HeaderValue::from_static(kept_for));
            }
            assert_eq!(Steering::take(&mut headers), expected, "{store:?} {kept_for:?}");
            assert!(headers.is_empty());
        }
    }
}
