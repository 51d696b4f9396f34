//! Error messages for requests without an answer, with a hint how to fix the cause.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use http::Uri;
use rustls::{CertificateError, Error as TlsError, InvalidMessage};
use semel_client::client::Lost;

use super::{ANSWER, CONNECT, PeerKind};

/// The server of a client. Displayed as host and port.
#[derive(Debug)]
pub(super) struct ServerName {
    authority: String,
    host: String,
    peer: PeerKind,
    ca: Option<PathBuf>,
    scheme: Scheme,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl ServerName {
    /// From a URL that the client has accepted.
    pub(super) fn new(url: &str, peer: PeerKind, ca: Option<&Path>) -> Self {
        let uri: Uri = url.parse().unwrap_or_default();
        let scheme = if uri.scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let host = uri.host().unwrap_or_default().to_owned();
        Self { authority, host, peer, ca: ca.map(Path::to_owned), scheme }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The message for a request that was not sent.
    pub(super) fn not_sent(&self, lost: &Lost) -> String {
        match lost {
            Lost::Connect(error) => {
                format!("nothing answers at {self}; is {} running there?: {error}", self.peer.name())
            }
            Lost::Tls(error) => self.no_tls(error),
            Lost::Timeout if self.is_tls() => {
                format!("{self} did not accept a connection over TLS within {CONNECT:?}; does it speak TLS?")
            }
            Lost::Timeout => format!("{self} did not accept within {CONNECT:?}"),
            other => format!("{self}: {other}"),
        }
    }

    /// The message for a request that was sent and not answered.
    pub(super) fn unanswered(&self, lost: &Lost) -> String {
        match lost {
            Lost::Timeout => format!("{self} did not answer within {ANSWER:?}"),
            Lost::Cut(error) if error.is_parse() && !self.is_tls() => {
                format!("{self} does not answer in HTTP; if it speaks TLS, write https://{self}")
            }
            Lost::Cut(error) => {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                format!("{self} did not answer: {error}{cause}")
            }
            other => format!("{self} did not answer: {other}"),
        }
    }

    fn no_tls(&self, error: &io::Error) -> String {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<TlsError>());
        match cause {
            Some(TlsError::InvalidCertificate(why)) => self.not_trusted(why),
            // The answer of a plain HTTP server begins with a letter.
            Some(TlsError::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                format!("{self} does not speak TLS; write http://{self}")
            }
            Some(other) => format!("TLS with {self} failed: {other}"),
            None if error.kind() == io::ErrorKind::UnexpectedEof => format!(
                "{self} closed the connection in the middle of the TLS handshake; if it speaks plain HTTP, write \
                 http://{self}"
            ),
            None => format!("TLS with {self} failed: {error}"),
        }
    }

    fn not_trusted(&self, why: &CertificateError) -> String {
        let certificate = format!("the certificate of {self}");
        match why {
            // A bad signature means another authority with the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                let setting = self.peer.ca_setting();
                match &self.ca {
                    None => format!(
                        "{certificate} is signed by an authority that this machine does not trust; name a file with the \
                         authority's certificate: {setting}"
                    ),
                    Some(ca) => format!(
                        "{certificate} is not signed by any authority in {}; give the right one with {setting}",
                        ca.display()
                    ),
                }
            }
            CertificateError::NotValidForName => format!("{certificate} is not for {}", self.host),
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                format!("{certificate} names no host (subjectAltName), so it is not for {}", self.host)
            }
            CertificateError::NotValidForNameContext { presented, .. } => format!(
                "{certificate} is not for {}, but for {}; use a name that it holds, or a certificate that holds this one",
                self.host,
                presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("{certificate} has expired")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!("{certificate} is not valid yet; are both clocks right?")
            }
            CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity" => format!(
                "{certificate} is an authority's (CA:TRUE) and cannot be a server's; make one with \
                 basicConstraints=CA:FALSE"
            ),
            other => format!("{certificate} cannot be trusted: {other}"),
        }
    }
}

/// A name as users write it; TLS calls it `DnsName("localhost")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_are_not_trusted_are_explained() {
        let server = ServerName::new("https://db.example:8081", PeerKind::Server, None);
        let presented = vec!["DnsName(\"localhost\")".to_owned(), "IpAddress(127.0.0.1)".to_owned()];
        let expected = "db.example".try_into().unwrap();
        for (why, said) in [
            (CertificateError::UnknownIssuer, "does not trust; name a file"),
            (CertificateError::BadSignature, "does not trust; name a file"),
            (CertificateError::Expired, "db.example:8081 has expired"),
            (CertificateError::NotValidYet, "are both clocks right?"),
            (
                CertificateError::NotValidForNameContext { expected, presented },
                "is not for db.example, but for localhost, 127.0.0.1;",
            ),
            (CertificateError::NotValidForName, "is not for db.example"),
            (CertificateError::BadEncoding, "cannot be trusted"),
        ] {
            let told = server.not_trusted(&why);
            assert!(told.starts_with("the certificate of db.example:8081 ") && told.contains(said), "{told}");
        }
    }
}
