//! Answers to requests that the listener refuses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;

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

    /// The whole answer: a problem document.
    #[must_use]
    pub fn response(self) -> Response<Full<Bytes>> {
        problem(self.status(), self.code(), &self.to_string(), matches!(self, Self::TooSlow))
    }
}

/// An answer with a problem document.
pub(super) fn problem(
    status: StatusCode,
    code: &str,
    detail: &str,
    retryable: bool,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(document(status, code, detail, retryable)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
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
