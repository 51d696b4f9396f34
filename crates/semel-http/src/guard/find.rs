//! Finds the keys that a client may have used, for operators.

use http::HeaderMap;
use semel::key::Key;

use super::{Guard, GuardedRoute};
use crate::key_source::{KeySource, parse};
use crate::problem::Problem;
use crate::scope::Principal;

impl Guard {
    /// The keys that a request with this idempotency key and these headers can have, one for each scope of the routes. No
    /// headers are needed where all callers are one principal.
    ///
    /// A key that an MCP call used for an account of its own is not among them.
    ///
    /// # Errors
    /// No route finds a principal in these headers; the text says why.
    pub fn possible_keys(&self, key: &str, headers: &HeaderMap) -> Result<Vec<Key>, String> {
        let inner = &self.inner;
        let mut keys: Vec<Key> = Vec::new();
        let mut refused: Option<Problem> = None;
        for GuardedRoute { policy, .. } in inner.routes.iter().chain([&inner.fallback]) {
            let scope = policy.scope.as_ref().unwrap_or(&inner.scope);
            let principal = match scope.principal(headers) {
                Ok(principal) => principal,
                Err(problem) => {
                    refused = Some(problem);
                    continue;
                }
            };
            let parsed = match &policy.key {
                KeySource::Header(_) => parse(key.as_bytes(), policy.key_length).ok(),
                _ => None,
            };
            let value = parsed.as_deref().unwrap_or(key);
            let key = Principal::key(principal.as_ref(), None, &inner.namespace, value);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        match refused {
            Some(problem) if keys.is_empty() => {
                Err(problem.detail.unwrap_or_else(|| problem.situation.detail().to_owned()))
            }
            _ => Ok(keys),
        }
    }
}
