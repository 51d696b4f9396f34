//! Detects credentials that rotate.
//!
//! The default scope is the credential. A client that gets a new access token between two tries is another principal, and its
//! retry runs again. Two clients do not choose the same long key for the same request by chance, so the guard takes that as a
//! sign, logs it and counts it. It cannot know, so it refuses nothing.

use std::time::Duration;

use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use semel::fingerprint::Payload;
use semel::secret::Secret;
use tokio::time::Instant;

use crate::scope::{Principal, Scope};

/// Number of remembered requests. The newest one of each slot is kept.
const SLOTS: usize = 8192;
/// Shorter keys, such as `order-1`, can be equal by chance.
const SHORTEST_KEY: usize = 16;
/// Pause between two log lines.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Remembers which principal sent a key and payload, in bounded memory.
pub(super) struct RotationWatch {
    /// Makes the hashes unpredictable: a client cannot choose keys that fill one slot.
    secret: Secret,
    slots: Mutex<Vec<Slot>>,
    logged: Mutex<Option<Instant>>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    request: u64,
    principal: u64,
}

impl RotationWatch {
    pub(super) fn new() -> Self {
        Self {
            secret: Secret::random(),
            slots: Mutex::new(vec![Slot::default(); SLOTS]),
            logged: Mutex::new(None),
        }
    }

    /// A request is about to run for the first time. Returns true if another credential sent the same key and payload before.
    pub(super) fn first_run(
        &self,
        scope: &Scope,
        principal: Option<&Principal>,
        (key, payload): (&str, Payload),
    ) -> bool {
        let by_credential = scope.headers().any(|name| *name == AUTHORIZATION);
        let Some(principal) = principal.filter(|_| by_credential && key.len() >= SHORTEST_KEY) else {
            return false;
        };
        if !self.is_other_principal(principal, key, payload) {
            return false;
        }
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                target: "semel",
                %scope,
                "the same key and payload arrived under two credentials and ran twice: if credentials rotate, set scope = \"jwt:sub\", or header:NAME for a header that names the client"
            );
        }
        true
    }

    /// True if another principal sent this key and payload before.
    fn is_other_principal(&self, principal: &Principal, key: &str, payload: Payload) -> bool {
        let mut text = payload.fingerprint(&self.secret).as_bytes().to_vec();
        text.extend_from_slice(key.as_bytes());
        let request = number(blake3::hash(&text).as_bytes());
        let entry = Slot { request, principal: number(principal.as_bytes()) };
        let mut slots = self.slots.lock();
        let slot = &mut slots[request as usize % SLOTS];
        let other = slot.request == entry.request && slot.principal != entry.principal;
        *slot = entry;
        other
    }
}

fn number(hash: &[u8; 32]) -> u64 {
    hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    const KEY: &str = "3f7a1c2e-0000-4000-8000-000000000001";

    fn run(watch: &RotationWatch, scope: &Scope, credential: &'static str, key: &str, body: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(credential));
        headers.insert("x-client", HeaderValue::from_static(credential));
        let principal = scope.principal(&headers).unwrap();
        watch.first_run(scope, principal.as_ref(), (key, Payload::exact(&[body.as_bytes()])))
    }

    #[test]
    fn the_same_request_under_two_credentials_is_detected() {
        let (watch, scope) = (RotationWatch::new(), Scope::default());
        assert!(!run(&watch, &scope, "Bearer a", KEY, "x"));
        assert!(!run(&watch, &scope, "Bearer a", KEY, "x"), "the same principal");
        assert!(!run(&watch, &scope, "Bearer b", KEY, "y"), "another payload");
        assert!(!run(&watch, &scope, "Bearer a", "order-1", "x"));
        assert!(!run(&watch, &scope, "Bearer b", "order-1", "x"), "a short key can be equal by chance");
        assert!(run(&watch, &scope, "Bearer b", KEY, "x"));
        assert!(run(&watch, &scope, "Bearer c", KEY, "x"));
    }

    #[test]
    fn a_scope_that_is_no_credential_is_not_watched() {
        let (watch, scope) = (RotationWatch::new(), Scope::parse("header:x-client", None).unwrap());
        assert!(!run(&watch, &scope, "a", KEY, "x") && !run(&watch, &scope, "b", KEY, "x"));
    }

    #[test]
    fn memory_is_bounded() {
        let (watch, scope) = (RotationWatch::new(), Scope::default());
        for number in 0..3 * SLOTS {
            assert!(!run(&watch, &scope, "Bearer a", &format!("key-{number:020}"), "x"));
        }
        assert_eq!(watch.slots.lock().len(), SLOTS);
    }
}
