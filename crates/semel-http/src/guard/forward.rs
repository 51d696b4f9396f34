//! The request on its way to the upstream, and which key it carries there.

use std::ops::Range;

use http::Request;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use semel::secret::DerivedKey;

use crate::body::{Body, remove_digests};
use crate::key_source::KeySource;
use crate::policy::RoutePolicy;

/// A call that is about to be made.
pub(super) struct Call<S> {
    pub(super) service: S,
    pub(super) request: Request<Body>,
    /// Where the client's key stands in the body, if the upstream gets a derived one in its place.
    key_at: Option<Range<usize>>,
    carries: Carries,
}

/// Whose key a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// The client's own.
    ClientKey,
    /// A derived one.
    DerivedKey,
}

impl<S> Call<S> {
    pub(super) fn new(service: S, request: Request<Body>, key_at: Option<Range<usize>>) -> Self {
        Self { service, request, key_at, carries: Carries::ClientKey }
    }

    pub(super) fn carries(&self) -> Carries {
        self.carries
    }

    /// Puts a derived key in the place of the client's own, which does not cross a trust boundary: out of the header or
    /// the body it stands in, and out of `usual`, the profile's own header, which an upstream may honour as well. The
    /// derived key goes into the route's header, and into the body where the client's stood.
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
