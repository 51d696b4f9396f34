//! The address of an upstream.

use std::fmt;
use std::str::FromStr;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};

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
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// The authority as a `Host` value.
    pub(super) host_value: HeaderValue,
    /// Prefix of every path; empty, or with a leading and without a trailing slash.
    prefix: Box<str>,
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
        // The parser drops fragments silently.
        if url.contains(['#', '?']) {
            return Err(UpstreamError::Query);
        }
        let uri: Uri = url.parse().map_err(|_| UpstreamError::NotAUrl)?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::HTTP,
            Some("https") => Scheme::HTTPS,
            Some(_) => return Err(UpstreamError::Scheme),
            None => return Err(UpstreamError::NotAUrl),
        };
        let authority = uri.authority().cloned().ok_or(UpstreamError::NotAUrl)?;
        if authority.as_str().contains('@') {
            return Err(UpstreamError::UserInfo);
        }
        let default = if scheme == Scheme::HTTP { 80 } else { 443 };
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            // The parser accepts "host:" and invalid ports as no port.
            None if authority.host().len() < authority.as_str().len() => return Err(UpstreamError::NotAUrl),
            None => default,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || port == 0 {
            return Err(UpstreamError::NotAUrl);
        }
        let prefix = uri.path().trim_end_matches('/');
        if prefix.split('/').skip(1).any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(UpstreamError::Path);
        }
        Ok(Self {
            host: host.into(),
            port,
            host_value: HeaderValue::from_str(authority.as_str()).map_err(|_| UpstreamError::NotAUrl)?,
            prefix: prefix.into(),
            scheme,
            authority,
        })
    }
}

impl Upstream {
    /// True for TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The target of a request at this upstream: prefix, path and query.
    pub(super) fn target(&self, uri: Uri) -> Option<PathAndQuery> {
        let target = uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if self.prefix.is_empty() || target.as_str() == "*" {
            return Some(target);
        }
        // However a server reads the path, it stays below the prefix.
        if path::ambiguity(target.path()).is_some() && path::most_lenient(target.path()).is_none() {
            return None;
        }
        PathAndQuery::try_from(format!("{}{target}", self.prefix)).ok()
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
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
        for good in [
            "http://127.0.0.1:3000",
            "https://api.example.com",
            "http://[::1]:8080",
            "http://host/base/path/",
            "HTTP://host",
        ] {
            assert!(good.parse::<Upstream>().is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", UpstreamError::NotAUrl),
            ("127.0.0.1:3000", UpstreamError::NotAUrl),
            ("/path", UpstreamError::NotAUrl),
            ("http://", UpstreamError::NotAUrl),
            ("http://:80", UpstreamError::NotAUrl),
            ("http://host:0", UpstreamError::NotAUrl),
            ("http://host:99999", UpstreamError::NotAUrl),
            ("http://host name", UpstreamError::NotAUrl),
            ("ftp://host", UpstreamError::Scheme),
            ("file:///etc/passwd", UpstreamError::NotAUrl),
            ("gopher://host", UpstreamError::Scheme),
            ("unix://host", UpstreamError::Scheme),
            ("http://user@host", UpstreamError::UserInfo),
            ("http://user:pass@host", UpstreamError::UserInfo),
            ("http://good.example@evil.example", UpstreamError::UserInfo),
            ("http://host/?q=1", UpstreamError::Query),
            ("http://host/#x", UpstreamError::Query),
            ("http://host/a/../b", UpstreamError::Path),
            ("http://host//b", UpstreamError::Path),
        ] {
            assert_eq!(bad.parse::<Upstream>(), Err(why), "{bad}");
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
