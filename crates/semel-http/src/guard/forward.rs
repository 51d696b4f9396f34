//! The request to the upstream, and the key that it carries.

use std::ops::Range;

use http::Request;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use semel::secret::DerivedKey;

use crate::body::{Body, remove_digests};
use crate::key_source::KeySource;
use crate::policy::RoutePolicy;

/// A call that is ready to be sent.
pub(super) struct ForwardedCall<S> {
    pub(super) service: S,
    pub(super) request: Request<Body>,
    /// Position of the client's key in the body, if the upstream gets a derived key instead.
    key_at: Option<Range<usize>>,
    carries: Carries,
}

/// The key that a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// The client's own key.
    ClientKey,
    /// A derived key.
    DerivedKey,
}

impl<S> ForwardedCall<S> {
    pub(super) fn new(service: S, request: Request<Body>, key_at: Option<Range<usize>>) -> Self {
        Self { service, request, key_at, carries: Carries::ClientKey }
    }

    pub(super) fn carries(&self) -> Carries {
        self.carries
    }

    /// Replaces the client's key with a derived one, because the client's key must not cross a trust boundary. Removes it from its
    /// header or body member, and from `usual`, the profile's own header, which an upstream may honour as well. The derived key goes
    /// into the route's header, and into the body if the client's key was there.
    pub(super) fn put_derived_key(&mut self, policy: &RoutePolicy, usual: &HeaderName, key: &DerivedKey) {
        let key = key.to_string();
        if let Some(place) = &mut self.key_at {
            let quoted = format!("\"{key}\"");
            self.request.body_mut().splice(place.clone(), quoted.as_bytes());
            *place = place.start..place.start + quoted.len();
            let length = http_body::Body::size_hint(self.request.body()).exact();
            let headers = self.request.headers_mut();
            remove_digests(headers);
            if let (Some(length), true) = (length, headers.contains_key(CONTENT_LENGTH)) {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
        }
        let headers = self.request.headers_mut();
        if let KeySource::Header(name) = &policy.key {
            headers.remove(name);
        }
        headers.remove(usual);
        let key = HeaderValue::try_from(key).expect("hex is a header value");
        headers.insert(policy.derived.header.clone(), key);
        self.carries = Carries::DerivedKey;
    }
}
