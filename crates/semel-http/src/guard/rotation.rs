//! Detects credentials that rotate.
//!
//! The default scope is the credential. A client that gets a new access token between two tries is another principal, and its
//! retry runs again. Two clients do not choose the same long key for the same request by chance, so the guard takes that as a
//! sign, logs it and counts it. It cannot know, so it refuses nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderMap};
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
    detected: AtomicU64,
    logged: Mutex<Option<Instant>>,
    told_of_jwt: AtomicBool,
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
            detected: AtomicU64::new(0),
            logged: Mutex::new(None),
            told_of_jwt: AtomicBool::new(false),
        }
    }

    /// How many first runs had a key and payload that another principal had sent before.
    pub(super) fn detected(&self) -> u64 {
        self.detected.load(Ordering::Relaxed)
    }

    /// A request is about to run for the first time.
    pub(super) fn first_run(
        &self,
        scope: &Scope,
        headers: &HeaderMap,
        principal: Option<&Principal>,
        (key, payload): (&str, Payload),
    ) {
        let by_credential = scope.headers().any(|name| *name == AUTHORIZATION);
        let Some(principal) = principal.filter(|_| by_credential) else { return };
        if !self.told_of_jwt.load(Ordering::Relaxed)
            && looks_like_jwt(headers)
            && !self.told_of_jwt.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                target: "semel",
                %scope,
                "bearer tokens look like JWTs: a retry with a renewed token runs again; set scope = \"jwt:sub\", or header:NAME for a header that names the client"
            );
        }
        if key.len() < SHORTEST_KEY || !self.is_other_principal(principal, key, payload) {
            return;
        }
        self.detected.fetch_add(1, Ordering::Relaxed);
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                target: "semel",
                %scope,
                detected = self.detected(),
                "the same key and payload arrived under two credentials and ran twice: if credentials rotate, set scope = \"jwt:sub\", or header:NAME for a header that names the client"
            );
        }
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

/// A bearer token of three parts, of which the first is base64 of a JSON object.
fn looks_like_jwt(headers: &HeaderMap) -> bool {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        token.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    token.is_some_and(|(_, token)| token.starts_with("eyJ") && token.split('.').count() == 3)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const KEY: &str = "3f7a1c2e-0000-4000-8000-000000000001";

    fn run(watch: &RotationWatch, scope: &Scope, credential: &'static str, key: &str, body: &str) -> u64 {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(credential));
        let principal = scope.principal(&headers).unwrap();
        watch.first_run(scope, &headers, principal.as_ref(), (key, Payload::exact(&[body.as_bytes()])));
        watch.detected()
    }

    #[test]
    fn the_same_request_under_two_credentials_is_counted() {
        let (watch, scope) = (RotationWatch::new(), Scope::default());
        assert_eq!(run(&watch, &scope, "Bearer a", KEY, "x"), 0);
        assert_eq!(run(&watch, &scope, "Bearer a", KEY, "x"), 0, "the same principal");
        assert_eq!(run(&watch, &scope, "Bearer b", KEY, "y"), 0, "another payload");
        assert_eq!(run(&watch, &scope, "Bearer a", "order-1", "x"), 0);
        assert_eq!(run(&watch, &scope, "Bearer b", "order-1", "x"), 0, "a short key can be equal by chance");
        assert_eq!(run(&watch, &scope, "Bearer b", KEY, "x"), 1);
        assert_eq!(run(&watch, &scope, "Bearer c", KEY, "x"), 2);
    }

    #[test]
    fn a_scope_that_is_no_credential_is_not_watched() {
        let watch = RotationWatch::new();
        let scope = Scope::parse("header:x-client", None).unwrap();
        for client in ["a", "b"] {
            let mut headers = HeaderMap::new();
            headers.insert("x-client", HeaderValue::from_static(client));
            let principal = scope.principal(&headers).unwrap();
            watch.first_run(&scope, &headers, principal.as_ref(), (KEY, Payload::none()));
        }
        assert_eq!(watch.detected(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let (watch, scope) = (RotationWatch::new(), Scope::default());
        for number in 0..3 * SLOTS {
            run(&watch, &scope, "Bearer a", &format!("key-{number:020}"), "x");
        }
        assert_eq!((watch.slots.lock().len(), watch.detected()), (SLOTS, 0));
    }

    #[test]
    fn tokens_that_look_like_jwts() {
        for (credential, jwt) in [
            ("Bearer eyJh.eyJz.sig", true),
            ("bearer eyJh.eyJz.sig", true),
            ("Bearer abc", false),
            ("Basic eyJ.a.b", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(credential));
            assert_eq!(looks_like_jwt(&headers), jwt, "{credential}");
        }
    }
}
