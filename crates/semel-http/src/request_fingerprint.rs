//! What counts as the same request.
//!
//! Method, path, query, the headers that change an answer, the body, and trailers where there are some. Each part
//! stands behind its length, so that nothing can move from one to the next.

use bytes::Bytes;
use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;
use semel::canonical::{Limits, canonicalize};
use semel::fingerprint::{Payload, PayloadHasher};

use crate::edge::Plain;
use crate::policy::{Fingerprinting, RoutePolicy};
use crate::present::Present;

/// What is asked before the headers.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
}

impl Asked<'_> {
    fn hasher(&self) -> PayloadHasher {
        let hasher = PayloadHasher::new().part(self.method).part(self.path);
        // No query and an empty one are two requests.
        match self.query {
            Some(query) => hasher.part("?").part(query),
            None => hasher.part(""),
        }
    }
}

/// The fingerprint of a request that is still bytes, by the exact rule and without trailers. The same as
/// [`payload`] finds once it is taken apart.
pub(crate) fn of_bytes(asked: &Asked<'_>, request: &Plain<'_>, policy: &RoutePolicy) -> Payload {
    let mut hasher = asked.hasher();
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
/// A body that cannot be compared as JSON; the text says why and quotes nothing.
pub(crate) fn payload(
    parts: &Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
    policy: &RoutePolicy,
) -> Result<Payload, String> {
    let asked = Asked { method: parts.method.as_str(), path: parts.uri.path(), query: parts.uri.query() };
    let mut hasher = asked.hasher();
    let present = Present::of(&parts.headers);
    for name in &policy.headers.fingerprint {
        if !present.may_hold(name) && *name != HOST {
            continue;
        }
        let mut values = parts.headers.get_all(name).iter();
        let Some(first) = values.next() else {
            // Over HTTP/2 the host stands in the address.
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
        // No body is no JSON, and the same for everybody.
        Fingerprinting::Json(_) if body.is_empty() => hasher.part("exact").part(body),
        Fingerprinting::Json(exclusions) => {
            let mut canonical = Vec::with_capacity(body.len());
            canonicalize(body, Limits::DEFAULT, exclusions, &mut canonical)
                .map_err(|error| error.to_string())?;
            hasher.part("json").part(&canonical)
        }
    };
    for (name, value) in trailers.into_iter().flatten() {
        hasher = hasher.part(name).part(value);
    }
    Ok(hasher.finish())
}
