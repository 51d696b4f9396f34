//! Answers from the record without parsing the request: the guard as a [`Shortcut`] of the listener.
//!
//! Covers only requests that the regular path would answer from memory under a simple policy: key in a header, principal from headers
//! or none, exact bytes as fingerprint, no credential check, within the replay budget. All other requests take the regular path.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, Method};
use semel::key::KeyId;
use semel::time::{Clock as _, SystemClock};
use tokio::time::Instant;

use super::{Guard, GuardedRoute, Inner};
use crate::codec::Codec;
use crate::edge::{PlainRequest, Shortcut, Taken};
use crate::key_source::{KeySource, parse};
use crate::limits::BudgetKind;
use crate::observe::AnswerOutcome;
use crate::policy::{Fingerprinting, RoutePolicy, path};
use crate::request_fingerprint::{self, RequestTarget};
use crate::scope::{Principal, Scope};
use crate::stored;

/// How the shortcut identifies the requests of a route by their headers.
pub(super) struct ShortcutRule {
    key: HeaderName,
    /// Every request has the first of these headers.
    scope: Vec<HeaderName>,
}

impl ShortcutRule {
    /// `None` if a route needs more than headers and exact bytes.
    pub(super) fn of(policy: &RoutePolicy, scope: &Scope, codec: &Codec) -> Option<Self> {
        let (KeySource::Header(key), Codec::Http) = (&policy.key, codec) else { return None };
        if scope.parts().iter().any(|part| matches!(part, Scope::Jwt(_))) {
            return None;
        }
        let scope = scope.headers().cloned().collect();
        let plain = policy.verify.is_none() && matches!(policy.fingerprint, Fingerprinting::Exact);
        plain.then(|| Self { key: key.clone(), scope })
    }

    /// The principal of a request.
    fn principal(&self, request: &PlainRequest<'_>) -> Result<Option<Principal>, SentTwice> {
        let mut parts = Vec::with_capacity(self.scope.len());
        for name in &self.scope {
            let mut values = request.values(name.as_str());
            match (values.next(), values.next()) {
                (Some(value), None) => parts.push(Principal::of_header(name, value)),
                (None, _) => {}
                _ => return Err(SentTwice),
            }
        }
        Ok(Principal::of_parts(&parts))
    }

    /// The position of a request's key in `recent`.
    pub(super) fn trace(&self, headers: &HeaderMap, recent: &Recent) -> Option<RecallKey> {
        let scope = match self.scope.first() {
            Some(name) => headers.get(name)?.as_bytes(),
            None => &[],
        };
        Some(recent.trace(headers.get(&self.key)?.as_bytes(), scope))
    }
}

/// A header that identifies the principal occurs twice.
struct SentTwice;

/// Keys that were answered recently. It is only a hint that spares new requests a second hash; a wrong entry changes no answer.
pub(super) struct Recent {
    tags: Box<[AtomicU16]>,
    hasher: RandomState,
}

/// The position of a key in [`Recent`].
#[derive(Clone, Copy)]
pub(super) struct RecallKey {
    place: usize,
    tag: u16,
}

const PLACES: usize = 1 << 16;

impl Recent {
    pub(super) fn new() -> Self {
        Self { tags: (0..PLACES).map(|_| AtomicU16::new(0)).collect(), hasher: RandomState::new() }
    }

    fn trace(&self, key: &[u8], scope: &[u8]) -> RecallKey {
        let hash = self.hasher.hash_one((key, scope)).to_le_bytes();
        let [a, b, c, d, ..] = hash;
        // Never zero: zero marks an empty position.
        RecallKey { place: usize::from(u16::from_le_bytes([a, b])), tag: u16::from_le_bytes([c, d]) | 1 }
    }

    pub(super) fn note(&self, trace: RecallKey) {
        self.tags[trace.place].store(trace.tag, Ordering::Relaxed);
    }

    fn recalls(&self, trace: RecallKey) -> bool {
        self.tags[trace.place].load(Ordering::Relaxed) == trace.tag
    }
}

impl Shortcut for Guard {
    fn answer(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Taken {
        match self.replay_at_hand(request, answer) {
            Some(_) => Taken::Yes,
            None => Taken::No,
        }
    }
}

impl Guard {
    /// Like [`Shortcut::answer`], and returns the key under which the request was answered. `None`: it takes the regular path.
    pub fn replay_at_hand(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Option<KeyId> {
        self.inner.replay_at_hand(request, answer)
    }
}

impl Inner {
    fn replay_at_hand(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Option<KeyId> {
        let (path, query) = match request.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (request.target, None),
        };
        let method = Method::from_bytes(request.method.as_bytes()).ok()?;
        let GuardedRoute { policy, shortcut_rule, number, limiter, .. } = self.find(&method, path);
        let shortcut_rule = shortcut_rule.as_ref()?;
        let key = request.value(shortcut_rule.key.as_str())?;
        let scope: &[u8] = match shortcut_rule.scope.first() {
            Some(name) => request.value(name.as_str()).filter(|value| !value.is_empty())?,
            None => &[],
        };
        let known = self.recent.recalls(self.recent.trace(key, scope));
        let is_plain = path::ambiguity(path).is_none()
            && super::ambiguous::overrides().all(|name| request.values(name).next().is_none());
        if !known || !is_plain || !policy.guards(&method) || request.body.len() > policy.request_limit {
            return None;
        }
        let arrived = Instant::now();
        let key = parse(key, policy.key_length).ok()?;
        let principal = shortcut_rule.principal(request).ok()?;
        let target = RequestTarget { method: method.as_str(), path, query };
        let payload = request_fingerprint::of_bytes(&target, request, policy);
        let named = Principal::key(principal.as_ref(), None, &self.namespace, &key);
        let (id, outcome) = self.engine.at_hand(&named, payload)?;
        let written = answer.len();
        let status = with_date(|date| stored::write(&outcome, date, answer))?;
        if let Some(limiter) = limiter
            && limiter.take(principal.as_ref(), BudgetKind::Reads).is_err()
        {
            // The regular path refuses it.
            answer.truncate(written);
            return None;
        }
        self.note(*number, Some(&key), arrived, status, AnswerOutcome::Replayed);
        Some(id)
    }
}

/// The current time as a `Date` header, formatted once per second and thread.
fn with_date<T>(use_it: impl FnOnce(&str) -> T) -> T {
    thread_local! {
        static WRITTEN: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = SystemClock.now().as_micros() / 1_000_000;
    WRITTEN.with_borrow_mut(|(written, date)| {
        if *written != second {
            *date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            *written = second;
        }
        use_it(date)
    })
}
