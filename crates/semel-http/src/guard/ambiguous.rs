//! Detects requests that two servers may read differently. Such a request could bypass the route that is meant for it.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::{GuardedRoute, Inner, Unmatched};
use crate::policy::{Ambiguous, METHOD_OVERRIDES, path};
use crate::problem::{Problem, Situation};

/// Headers in which a proxy gives some frameworks another path than that of the request.
static PATH_OVERRIDES: [HeaderName; 2] =
    [HeaderName::from_static("x-original-url"), HeaderName::from_static("x-rewrite-url")];

/// All headers that override the method or the path of a request.
pub(super) fn overrides() -> impl Iterator<Item = &'static str> {
    METHOD_OVERRIDES.iter().chain(&PATH_OVERRIDES).map(HeaderName::as_str)
}

impl Inner {
    /// The reason why a request of this route must not be passed on, if there is one.
    pub(super) fn ambiguity(
        &self,
        route: &GuardedRoute,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<Problem> {
        let path = uri.path();
        let refused = |reason: String| Some(Problem::new(Situation::Ambiguous, reason));
        if let Some(found) = path::ambiguity(path) {
            // A path that no route matches has no policy to bypass, unless only routes are allowed.
            let is_sound = |read: String| match self.find(method, &read).number {
                None if self.unmatched == Unmatched::Fallback => true,
                number => number == route.number,
            };
            match route.policy.ambiguous {
                Ambiguous::Refuse => {
                    return refused(format!(
                        "the path holds {found}, which servers read differently; write the path plainly"
                    ));
                }
                Ambiguous::Allow if !path::most_lenient(path).is_some_and(is_sound) => {
                    return refused(format!(
                        "the path holds {found}, by which it can lead upwards, or be read as one of another route"
                    ));
                }
                Ambiguous::Allow => {}
            }
        }
        if route.policy.ambiguous == Ambiguous::Allow {
            return None;
        }
        for (name, value) in headers {
            if METHOD_OVERRIDES.contains(name) && !self.is_same_method(route, method, path, value) {
                return refused(format!(
                    "the header {name} names another method, and with it another policy; send the method itself"
                ));
            }
            if PATH_OVERRIDES.contains(name) && !is_same_target(uri, value) {
                return refused(format!(
                    "the header {name} names another path; send the request to that path"
                ));
            }
        }
        None
    }

    /// True if the policy stays the same when the upstream uses the method that a header names.
    fn is_same_method(&self, route: &GuardedRoute, method: &Method, path: &str, named: &HeaderValue) -> bool {
        let Ok(named) = Method::from_bytes(&named.as_bytes().trim_ascii().to_ascii_uppercase()) else {
            return false;
        };
        if named == *method {
            return true;
        }
        let of_named = self.find(&named, path);
        let guards = |method: &Method| route.policy.guards(method);
        !method.is_safe() && of_named.number == route.number && (guards(method) || !guards(&named))
    }
}

/// True if a header names the request's own path, with or without a host.
fn is_same_target(uri: &Uri, named: &HeaderValue) -> bool {
    let own = uri.path_and_query().map_or("/", |target| target.as_str());
    let named = named.as_bytes();
    let Some(before) = named.strip_suffix(own.as_bytes()) else { return false };
    let Some(host) = before.strip_prefix(b"https://").or(before.strip_prefix(b"http://")) else {
        return before.is_empty();
    };
    !host.iter().any(|byte| matches!(byte, b'/' | b'?' | b'#' | b'\\'))
}
