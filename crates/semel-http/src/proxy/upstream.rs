//! The address of an upstream.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::PathAndQuery;
use semel_client::connect::{AddressError, BaseUrl};

use crate::policy::path;

/// A server behind the gateway, validated: `http://HOST[:PORT][/PREFIX]` or `https://…`.
///
/// ```
/// use semel_http::proxy::Upstream;
/// let upstream: Upstream = "http://127.0.0.1:3000".parse()?;
/// assert!("ftp://127.0.0.1".parse::<Upstream>().is_err());
/// assert!("http://user:secret@127.0.0.1".parse::<Upstream>().is_err());
/// # Ok::<(), semel_http::proxy::UpstreamError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    pub(super) url: BaseUrl,
}

/// Why a URL cannot be an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// Not a URL.
    #[error("the upstream is not a URL: write http://HOST:PORT or https://HOST:PORT")]
    NotAUrl,
    /// Another scheme.
    #[error("the upstream must begin with http:// or https://")]
    Scheme,
    /// A user or a password in the URL.
    #[error("the upstream must not contain a user or a password")]
    UserInfo,
    /// A query or a fragment.
    #[error("the upstream must not contain a query or a fragment")]
    Query,
    /// A prefix with empty, `.` or `..` segments.
    #[error("the path of the upstream must not contain empty, . or .. segments")]
    Path,
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(url: &str) -> Result<Self, UpstreamError> {
        let url = BaseUrl::parse(url).map_err(|error| match error {
            AddressError::Scheme => UpstreamError::Scheme,
            AddressError::UserInfo => UpstreamError::UserInfo,
            AddressError::Query => UpstreamError::Query,
            _ => UpstreamError::NotAUrl,
        })?;
        if url.prefix.split('/').skip(1).any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(UpstreamError::Path);
        }
        Ok(Self { url })
    }
}

impl Upstream {
    /// True for TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.url.is_tls()
    }

    /// The target of a request at this upstream: prefix, path and query.
    pub(super) fn target(&self, uri: Uri) -> Option<PathAndQuery> {
        let target = uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if self.url.prefix.is_empty() || target.as_str() == "*" {
            return Some(target);
        }
        // However a server reads the path, it stays below the prefix.
        if path::ambiguity(target.path()).is_some() && path::most_lenient(target.path()).is_none() {
            return None;
        }
        PathAndQuery::try_from(format!("{}{target}", self.url.prefix)).ok()
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_urls_are_upstreams() {
        for (url, expected) in [
            ("http://host/base/path/", None),
            ("127.0.0.1:3000", Some(UpstreamError::NotAUrl)),
            ("ftp://host", Some(UpstreamError::Scheme)),
            ("http://user@host", Some(UpstreamError::UserInfo)),
            ("http://host/?q=1", Some(UpstreamError::Query)),
            ("http://host/a/../b", Some(UpstreamError::Path)),
            ("http://host//b", Some(UpstreamError::Path)),
        ] {
            assert_eq!(url.parse::<Upstream>().err(), expected, "{url}");
        }
    }

    #[test]
    fn the_prefix_stands_before_every_path() {
        let upstream: Upstream = "http://host/base/".parse().unwrap();
        let target = |uri: &str| upstream.target(uri.parse().unwrap()).unwrap().to_string();
        assert_eq!(target("/x?y=1"), "/base/x?y=1");
        assert_eq!(target("http://other/x"), "/base/x");
        assert_eq!(target("*"), "*");
        for path in ["/x/../y", "/../y", "/x/../../y", "/%2e%2e/y", "/..%2fy", "/..;/y"] {
            assert_eq!(upstream.target(path.parse().unwrap()), None, "{path}");
        }
    }
}
