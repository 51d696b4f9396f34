//! Replays without taking the request apart: the guard as a [`Shortcut`] of the listener.
//!
//! Only what the usual way would answer from the process's own memory, by the plainest of policies: a key in a header,
//! a principal by a header or none, exact bytes, nothing to verify, within its budget of replays. Everything else, and every
//! doubt, goes the usual way.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, Method};
use semel::key::KeyId;
use semel::time::{Clock as _, SystemClock};
use tokio::time::Instant;

use super::{Guard, Inner, Route};
use crate::codec::Codec;
use crate::edge::{Plain, Shortcut, Taken};
use crate::key_source::{KeySource, parse};
use crate::limits::Budget;
use crate::observe::Outcome;
use crate::policy::{Fingerprinting, RoutePolicy, path};
use crate::request_fingerprint::{self, Asked};
use crate::scope::{Principal, Scope};
use crate::stored;

/// How a route's requests are told by their headers alone.
pub(super) struct Plainly {
    key: HeaderName,
    /// The first is in every request.
    scope: Vec<HeaderName>,
}

impl Plainly {
    /// `None` where a route asks for more than headers and exact bytes.
    pub(super) fn of(policy: &RoutePolicy, scope: &Scope, codec: &Codec) -> Option<Self> {
        let (KeySource::Header(key), Codec::Http) = (&policy.key, codec) else { return None };
        if scope.parts().iter().any(|part| matches!(part, Scope::Jwt(_))) {
            return None;
        }
        let scope = scope.headers().cloned().collect();
        let plain = policy.verify.is_none() && matches!(policy.fingerprint, Fingerprinting::Exact);
        plain.then(|| Self { key: key.clone(), scope })
    }

    /// Who asks.
    fn principal(&self, request: &Plain<'_>) -> Result<Option<Principal>, SentTwice> {
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

    /// What a request is recalled by.
    pub(super) fn trace(&self, headers: &HeaderMap, recent: &Recent) -> Option<Trace> {
        let scope = match self.scope.first() {
            Some(name) => headers.get(name)?.as_bytes(),
            None => &[],
        };
        Some(recent.trace(headers.get(&self.key)?.as_bytes(), scope))
    }
}

/// A header that says who asks came twice.
struct SentTwice;

/// Which keys have been answered of late: a hint, kept so that a request which is new costs no second hashing of
/// itself. Wrong either way it changes no answer.
pub(super) struct Recent {
    tags: Box<[AtomicU16]>,
    hasher: RandomState,
}

/// Where a key would be recalled.
#[derive(Clone, Copy)]
pub(super) struct Trace {
    place: usize,
    tag: u16,
}

const PLACES: usize = 1 << 16;

impl Recent {
    pub(super) fn new() -> Self {
        Self { tags: (0..PLACES).map(|_| AtomicU16::new(0)).collect(), hasher: RandomState::new() }
    }

    fn trace(&self, key: &[u8], scope: &[u8]) -> Trace {
        let hash = self.hasher.hash_one((key, scope)).to_le_bytes();
        let [a, b, c, d, ..] = hash;
        // Never zero, which is nobody's.
        Trace { place: usize::from(u16::from_le_bytes([a, b])), tag: u16::from_le_bytes([c, d]) | 1 }
    }

    pub(super) fn note(&self, trace: Trace) {
        self.tags[trace.place].store(trace.tag, Ordering::Relaxed);
    }

    fn recalls(&self, trace: Trace) -> bool {
        self.tags[trace.place].load(Ordering::Relaxed) == trace.tag
    }
}

impl Shortcut for Guard {
    fn answer(&self, request: &Plain<'_>, answer: &mut Vec<u8>) -> Taken {
        match self.replay_at_hand(request, answer) {
            Some(_) => Taken::Yes,
            None => Taken::No,
        }
    }
}

impl Guard {
    /// As its [`Shortcut`], and says under which key the request was answered. `None` where it goes the usual way.
    pub fn replay_at_hand(&self, request: &Plain<'_>, answer: &mut Vec<u8>) -> Option<KeyId> {
        self.inner.replay_at_hand(request, answer)
    }
}

impl Inner {
    fn replay_at_hand(&self, request: &Plain<'_>, answer: &mut Vec<u8>) -> Option<KeyId> {
        let (path, query) = match request.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (request.target, None),
        };
        let method = Method::from_bytes(request.method.as_bytes()).ok()?;
        let Route { policy, plainly, number, limiter, .. } = self.find(&method, path);
        let plainly = plainly.as_ref()?;
        let key = request.value(plainly.key.as_str())?;
        let scope: &[u8] = match plainly.scope.first() {
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
        let principal = plainly.principal(request).ok()?;
        let asked = Asked { method: method.as_str(), path, query };
        let payload = request_fingerprint::of_bytes(&asked, request, policy);
        let named = Principal::key(principal.as_ref(), None, &self.namespace, &key);
        let (id, outcome) = self.engine.at_hand(&named, payload)?;
        let written = answer.len();
        let status = with_date(|date| stored::write(&outcome, date, answer))?;
        if let Some(limiter) = limiter
            && limiter.take(principal.as_ref(), Budget::Reads).is_err()
        {
            // The usual way says so.
            answer.truncate(written);
            return None;
        }
        self.note(*number, Some(&key), arrived, status, Outcome::Replayed);
        Some(id)
    }
}

/// The present as a `Date`, written once a second and thread.
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
