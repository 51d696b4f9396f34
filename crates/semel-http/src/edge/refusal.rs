//! Answers to requests that the listener refuses.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use semel::record::Owner;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of a client's request id. A longer one is replaced, as by the gateway.
const MOST_REQUEST_ID: usize = 128;

/// Why the listener refused a request. The service does not see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is not valid HTTP, or two servers could understand it differently.
    #[error("{0}")]
    Malformed(&'static str),
    /// The header that carries the key is ambiguous.
    #[error("{0}")]
    Key(&'static str),
    /// The head, or the trailers, are too large.
    #[error("the header section is larger than this gateway accepts")]
    HeadTooLarge,
    /// The target is too long.
    #[error("the request target is longer than this gateway accepts")]
    TargetTooLong,
    /// The body is too large.
    #[error("the body is larger than this gateway accepts")]
    BodyTooLarge,
    /// The request did not arrive in time.
    #[error("the request did not arrive in time")]
    TooSlow,
    /// A method that only a forward proxy supports.
    #[error("this gateway does not open tunnels to other hosts")]
    Method,
    /// An expectation other than `100-continue`.
    #[error("the only supported expectation is 100-continue")]
    Expectation,
    /// A host that is not served here.
    #[error("this gateway does not serve the host that the request is for")]
    Host,
    /// An unsupported version of HTTP.
    #[error("the supported versions are HTTP/1.0, HTTP/1.1 and HTTP/2")]
    Version,
}

impl Refusal {
    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Malformed(_) | Self::Key(_) => StatusCode::BAD_REQUEST,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        }
    }

    /// The `code` member of the problem document.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed_request",
            Self::Key(_) => "key_malformed",
            Self::HeadTooLarge => "head_too_large",
            Self::TargetTooLong => "target_too_long",
            Self::BodyTooLarge => "body_too_large",
            Self::TooSlow => "request_timeout",
            Self::Host => "misdirected_request",
            Self::Method => "method_not_allowed",
            Self::Expectation => "expectation_failed",
            Self::Version => "version_not_supported",
        }
    }

    /// The whole answer: a problem document, with a new `X-Request-Id` to quote.
    #[must_use]
    pub fn response(self) -> Response<Full<Bytes>> {
        self.response_to(new_request_id())
    }

    /// The whole answer to the request with this id.
    pub(super) fn response_to(self, request_id: HeaderValue) -> Response<Full<Bytes>> {
        problem(self.status(), self.code(), &self.to_string(), matches!(self, Self::TooSlow), request_id)
    }
}

/// The id of a request, for its answer: the given one if it can be used, otherwise a new one.
pub(super) fn request_id_or_new(given: Option<HeaderValue>) -> HeaderValue {
    let is_usable = |id: &HeaderValue| {
        (1..=MOST_REQUEST_ID).contains(&id.len())
            && id.as_bytes().iter().all(|byte| matches!(byte, b' '..=b'~'))
    };
    given.filter(is_usable).unwrap_or_else(new_request_id)
}

/// An id of 32 hexadecimal digits, for a request without one.
pub(super) fn new_request_id() -> HeaderValue {
    let random = u128::from_be_bytes(*Owner::random().as_bytes());
    HeaderValue::from_str(&format!("{random:032x}")).unwrap_or(HeaderValue::from_static("unknown"))
}

/// An answer with a problem document.
pub(super) fn problem(
    status: StatusCode,
    code: &str,
    detail: &str,
    retryable: bool,
    request_id: HeaderValue,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(document(status, code, detail, retryable)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(REQUEST_ID, request_id);
    response
}

/// A problem document (RFC 9457). `detail` must not need escaping in JSON.
pub(super) fn document(status: StatusCode, code: &str, detail: &str, retryable: bool) -> String {
    let title = status.canonical_reason().unwrap_or("Error");
    format!(
        r#"{{"type":"urn:semel:problem:{code}","title":"{title}","status":{},"detail":"{detail}","message":"{detail}","code":"{code}","retryable":{retryable}}}"#,
        status.as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // Customers quote it, so it is theirs where it can be read.
    #[test]
    fn an_answer_has_the_id_of_its_request_or_a_new_one() {
        let given = |id: &[u8]| request_id_or_new(HeaderValue::from_bytes(id).ok());
        assert_eq!(given(b"order 20410"), "order 20410");
        for unusable in [&b""[..], &[b'x'; 129], b"\xff", b"a\tb"] {
            let id = given(unusable);
            assert!(id.len() == 32 && id.as_bytes().iter().all(u8::is_ascii_hexdigit), "{id:?}");
        }
        assert_ne!(request_id_or_new(None), request_id_or_new(None));
        assert!(Refusal::Host.response().headers().contains_key(REQUEST_ID));
    }
}
