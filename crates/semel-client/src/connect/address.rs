//! The address of a server.

use std::fmt;

#[cfg(feature = "client")]
use http::uri::PathAndQuery;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};

/// The base URL of a server, checked: `http://HOST[:PORT][/PREFIX]` or `https://…`.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// Its scheme.
    pub scheme: Scheme,
    /// Host and port as written.
    pub authority: Authority,
    /// The host, without the brackets of an IPv6 address.
    pub host: Box<str>,
    /// The port, also where the URL has none.
    pub port: u16,
    /// The authority as a `Host` value.
    pub host_value: HeaderValue,
    /// Prefix of every path; empty, or with a leading and without a trailing slash.
    pub prefix: Box<str>,
}

/// Why a URL cannot be a service's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Not a URL.
    #[error("this is not a URL: write http://HOST:PORT or https://HOST:PORT")]
    NotAUrl,
    /// Another scheme.
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    /// A user or a password in the URL.
    #[error("the URL must not hold a user or a password")]
    UserInfo,
    /// A query or a fragment.
    #[error("the base URL must not hold a query or a fragment")]
    Query,
}

impl BaseUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// It cannot be the base URL of a server.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        // The parser drops fragments without a word.
        if url.contains(['#', '?']) {
            return Err(AddressError::Query);
        }
        let uri: Uri = url.parse().map_err(|_| AddressError::NotAUrl)?;
        let (scheme, default) = match uri.scheme_str() {
            Some("http") => (Scheme::HTTP, 80),
            Some("https") => (Scheme::HTTPS, 443),
            Some(_) => return Err(AddressError::Scheme),
            None => return Err(AddressError::NotAUrl),
        };
        let authority = uri.authority().cloned().ok_or(AddressError::NotAUrl)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::UserInfo);
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            // "host:" and ports that are no port parse as none.
            None if authority.host().len() < authority.as_str().len() => return Err(AddressError::NotAUrl),
            None => default,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || port == 0 {
            return Err(AddressError::NotAUrl);
        }
        Ok(Self {
            host: host.into(),
            port,
            host_value: HeaderValue::from_str(authority.as_str()).map_err(|_| AddressError::NotAUrl)?,
            prefix: uri.path().trim_end_matches('/').into(),
            scheme,
            authority,
        })
    }

    /// True for https.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The target of a request: path and query behind the prefix, as HTTP/1 writes it.
    #[cfg(feature = "client")]
    pub(crate) fn target(&self, path: &str) -> Option<Uri> {
        let slash = if path.starts_with('/') || path.is_empty() { "" } else { "/" };
        let whole = format!("{}{slash}{path}", self.prefix);
        let whole = if whole.is_empty() || whole.starts_with('?') { format!("/{whole}") } else { whole };
        Some(Uri::from(PathAndQuery::try_from(whole).ok()?))
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // ssrf
    #[test]
    fn only_plain_http_urls_are_services() {
        let good = [
            "http://127.0.0.1:3000",
            "https://api.example.com",
            "http://[::1]:8080",
            "http://host/base/path/",
            "HTTP://host",
        ];
        for good in good {
            assert!(BaseUrl::parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", AddressError::NotAUrl),
            ("127.0.0.1:3000", AddressError::NotAUrl),
            ("/path", AddressError::NotAUrl),
            ("http://", AddressError::NotAUrl),
            ("http://:80", AddressError::NotAUrl),
            ("http://host:0", AddressError::NotAUrl),
            ("http://host:99999", AddressError::NotAUrl),
            ("http://host name", AddressError::NotAUrl),
            ("ftp://host", AddressError::Scheme),
            ("file:///etc/passwd", AddressError::NotAUrl),
            ("gopher://host", AddressError::Scheme),
            ("unix://host", AddressError::Scheme),
            ("http://user@host", AddressError::UserInfo),
            ("http://user:pass@host", AddressError::UserInfo),
            ("http://good.example@evil.example", AddressError::UserInfo),
            ("http://host/?q=1", AddressError::Query),
            ("http://host/#x", AddressError::Query),
        ] {
            assert_eq!(BaseUrl::parse(bad).err(), Some(why), "{bad}");
        }
    }

    #[cfg(feature = "client")]
    #[test]
    fn the_prefix_stands_before_every_path() {
        let target = |base: &str, path: &str| {
            BaseUrl::parse(base).unwrap().target(path).map(|target| target.to_string())
        };
        assert_eq!(target("http://host/base/", "/x?y=1").as_deref(), Some("/base/x?y=1"));
        assert_eq!(target("http://host/hook", "").as_deref(), Some("/hook"));
        assert_eq!(target("http://host", "").as_deref(), Some("/"));
        assert_eq!(target("http://host", "x").as_deref(), Some("/x"));
        assert_eq!(target("http://host", "/a b"), None);
    }
}
