//! The fingerprint of a request: how two requests are compared.
//!
//! Covers method, path, query, the headers that change an answer, the body, and trailers if there are any. Each part is prefixed with
//! its length, so that no byte can move from one part to the next.

use bytes::Bytes;
use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;
use semel::canonical::{CanonicalLimits, canonicalize};
use semel::fingerprint::{Payload, PayloadHasher};

use crate::edge::PlainRequest;
use crate::policy::{Fingerprinting, RoutePolicy};
use crate::present::Present;

/// Method, path and query.
pub(crate) struct RequestTarget<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
}

impl RequestTarget<'_> {
    fn hasher(&self) -> PayloadHasher {
        let hasher = PayloadHasher::new().part(self.method).part(self.path);
        // No query and an empty query are different requests.
        match self.query {
            Some(query) => hasher.part("?").part(query),
            None => hasher.part(""),
        }
    }
}

/// The fingerprint of an unparsed request, with exact bytes and without trailers. Equal to the result of [`payload`] for the parsed
/// request.
pub(crate) fn of_bytes(
    target: &RequestTarget<'_>,
    request: &PlainRequest<'_>,
    policy: &RoutePolicy,
) -> Payload {
    let mut hasher = target.hasher();
    for name in &policy.headers.fingerprint {
        for value in request.values(name.as_str()) {
            hasher = hasher.part(name).part(value);
        }
    }
    hasher.part("exact").part(request.body).finish()
}

/// The fingerprint of a request whose body was read.
///
/// # Errors
/// A body that is not valid JSON. The text gives the reason and quotes nothing.
pub(crate) fn payload(
    parts: &Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
    policy: &RoutePolicy,
) -> Result<Payload, String> {
    let target =
        RequestTarget { method: parts.method.as_str(), path: parts.uri.path(), query: parts.uri.query() };
    let mut hasher = target.hasher();
    let present = Present::of(&parts.headers);
    for name in &policy.headers.fingerprint {
        if !present.may_hold(name) && *name != HOST {
            continue;
        }
        let mut values = parts.headers.get_all(name).iter();
        let Some(first) = values.next() else {
            // Over HTTP/2 the host is in the URI.
            if *name == HOST
                && let Some(authority) = parts.uri.authority()
            {
                hasher = hasher.part(name).part(authority.as_str());
            }
            continue;
        };
        hasher = hasher.part(name).part(first);
        for value in values {
            hasher = hasher.part(name).part(value);
        }
    }
    hasher = match &policy.fingerprint {
        Fingerprinting::Exact => hasher.part("exact").part(body),
        // An empty body is not JSON, but all empty bodies are equal.
        Fingerprinting::Json(_) if body.is_empty() => hasher.part("exact").part(body),
        Fingerprinting::Json(exclusions) => {
            let mut canonical = Vec::with_capacity(body.len());
            canonicalize(body, CanonicalLimits::DEFAULT, exclusions, &mut canonical)
                .map_err(|error| error.to_string())?;
            hasher.part("json").part(&canonical)
        }
    };
    for (name, value) in trailers.into_iter().flatten() {
        hasher = hasher.part(name).part(value);
    }
    Ok(hasher.finish())
}
