//! A small HTTP client: for commands that talk to a running server, for the demo's traffic, and for spans.
//!
//! It wraps [`semel_client::client`] with one attempt per request, and with errors that say what to do.

mod trouble;

use std::path::Path;
use std::time::Duration;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use http::{HeaderValue, header};
use semel_client::client::{ClientBuildError, Sent};
use semel_client::retry::Repeat;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use semel_client::client::{Request, Response};

use self::trouble::ServerName;
use crate::admin::ADDRESS_KIND;
use crate::cli::Remote;
use crate::interrupted::Interrupted;
use crate::misused::Misused;

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(120);
const MOST: usize = 64 << 20;

/// A server that does not say what it is within this time is stopped or overloaded.
const RECOGNISED_WITHIN: Duration = Duration::from_secs(10);

/// Sends requests to one server.
#[derive(Debug)]
pub(crate) struct AdminClient {
    inner: semel_client::client::Client,
    /// The value of `Authorization`.
    token: Option<HeaderValue>,
    server: ServerName,
    origin: AddressOrigin,
}

/// Where the address of the server comes from.
#[derive(Debug)]
enum AddressOrigin {
    /// From a user, who may have named a gateway, and may press Ctrl-C.
    User { is_checked: AtomicBool },
    /// From this process or its configuration.
    Known,
}

/// The kind of server, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerKind {
    /// A `semel serve`.
    Server,
    /// A collector of spans.
    Collector,
}

/// The trusted authorities and the client certificate.
#[derive(Clone, Copy, Debug, Default)]
struct TrustSettings<'a> {
    ca: Option<&'a Path>,
    /// Certificate and key.
    identity: Option<(&'a Path, &'a Path)>,
}

impl AdminClient {
    /// A client for the server that the flags name.
    ///
    /// # Errors
    /// An invalid URL, or certificates that cannot be read.
    pub(crate) fn of(remote: &Remote) -> anyhow::Result<Self> {
        let trust = TrustSettings {
            ca: remote.admin_ca.as_deref(),
            identity: remote.admin_cert.as_deref().zip(remote.admin_key.as_deref()),
        };
        let client = Self::build(&remote.admin, PeerKind::Server, remote.token.as_deref(), trust)?;
        Ok(Self { origin: AddressOrigin::User { is_checked: AtomicBool::new(false) }, ..client })
    }

    /// The server, for messages.
    pub(crate) fn address(&self) -> &impl std::fmt::Display {
        &self.server
    }

    /// A client for a server that this process started.
    ///
    /// # Errors
    /// An invalid URL.
    pub(crate) fn own(url: &str) -> anyhow::Result<Self> {
        Self::build(url, PeerKind::Server, None, TrustSettings::default())
    }

    /// A client for a collector of spans. With `ca`, it trusts that file instead of the system's authorities.
    ///
    /// # Errors
    /// An invalid URL, or certificates that cannot be read.
    pub(crate) fn collector(url: &str, ca: Option<&Path>) -> anyhow::Result<Self> {
        Self::build(url, PeerKind::Collector, None, TrustSettings { ca, identity: None })
    }

    fn build(
        url: &str,
        peer: PeerKind,
        token: Option<&str>,
        trust: TrustSettings<'_>,
    ) -> anyhow::Result<Self> {
        let TrustSettings { ca, identity } = trust;
        // A URL that may contain a password is not shown.
        let shown = if url.contains('@') { "the URL".to_owned() } else { format!("{url:?}") };
        let mut builder = semel_client::client::Client::builder(url).context(Misused::new(shown))?;
        builder = builder.timeout(ANSWER).connect_timeout(CONNECT).body_limit(MOST);
        if let Some((cert, key)) = identity {
            builder = builder.identity(cert, key);
        }
        let server = ServerName::new(url, peer, ca);
        let mut unread = Vec::new();
        if server.is_tls() {
            builder = match ca {
                Some(ca) => builder.ca(ca),
                None => {
                    let found = rustls_native_certs::load_native_certs();
                    unread = found.errors;
                    builder.roots(found.certs)
                }
            };
        }
        let inner = builder.build().map_err(|error| -> anyhow::Error {
            match error {
                ClientBuildError::NoRoots => {
                    let why = unread.first().map(|error| format!(" ({error})")).unwrap_or_default();
                    let setting = peer.ca_setting();
                    Misused::new(format!(
                        "this machine trusts no authority at all{why}; name one with {setting}"
                    ))
                    .into()
                }
                ClientBuildError::Identity { .. } => {
                    Misused::new(format!("--admin-cert, --admin-key: {error}")).into()
                }
                ClientBuildError::Ca { .. } => Misused::new(format!("{}: {error}", peer.ca_setting())).into(),
                other => other.into(),
            }
        })?;
        Ok(Self { inner, token: token.map(bearer).transpose()?, server, origin: AddressOrigin::Known })
    }

    /// Sends a request and reads the whole answer. Never sends it twice.
    ///
    /// # Errors
    /// The server does not answer, or a user named a gateway or pressed Ctrl-C.
    pub(crate) async fn send(&self, request: &Request) -> anyhow::Result<Response> {
        let AddressOrigin::User { is_checked } = &self.origin else { return self.send_once(request).await };
        if !is_checked.load(Ordering::Relaxed) {
            self.check_address().await?;
            is_checked.store(true, Ordering::Relaxed);
        }
        let with_token = self.token.clone().map(|token| request.clone().header(header::AUTHORIZATION, token));
        let request = with_token.as_ref().unwrap_or(request);
        if request.repeat() == Repeat::Safe {
            return self.send_once(request).await;
        }
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            answer = self.send_once(request) => answer,
            _ = interrupt.recv() => {
                Err(Interrupted::new("the server had not answered yet; it may still do what it was asked").into())
            }
        }
    }

    /// An error unless the address is an admin address. Asked first and without the token: a gateway would send every other request
    /// to its upstream, and another server could take a change for one of its own.
    async fn check_address(&self) -> anyhow::Result<()> {
        let request = Request::get("/.well-known/idempotency");
        let asked = tokio::time::timeout(RECOGNISED_WITHIN, self.send_once(&request)).await;
        let answer = asked.map_err(|_| {
            anyhow::anyhow!("{} did not answer within {} s", self.server, RECOGNISED_WITHIN.as_secs())
        })??;
        let (name, admin) = ADDRESS_KIND;
        if answer.headers.get(name).is_some_and(|kind| kind == admin) {
            return Ok(());
        }
        let policy: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status.is_success() && policy.get("profile").is_some() && policy.get("supported").is_some()
        {
            bail!(
                "{} is a gateway, not an admin address: `semel serve` prints the admin address when it starts; use it with --admin",
                self.server
            );
        }
        // A listener of Semel that speaks another scheme says so itself.
        if let (Some(detail), Some(_)) = (policy["detail"].as_str(), policy["code"].as_str()) {
            bail!("{detail} ({})", answer.status.as_u16());
        }
        bail!(
            "{} is not the admin address of a `semel serve`, which prints that address when it starts: check --admin (or \
             SEMEL_ADMIN). Nothing was sent but GET /.well-known/idempotency, without a token",
            self.server
        )
    }

    async fn send_once(&self, request: &Request) -> anyhow::Result<Response> {
        match self.inner.send_once(request).await {
            Sent::Answered(response) if response.truncated => {
                bail!("the answer of {} is larger than {MOST} bytes", self.server)
            }
            Sent::Answered(response) => Ok(response),
            Sent::NotSent(lost) => Err(anyhow::Error::msg(self.server.not_sent(&lost))),
            Sent::Unknown(lost) => Err(anyhow::Error::msg(self.server.unanswered(&lost))),
        }
    }
}

/// The value of `Authorization` for a token.
fn bearer(token: &str) -> anyhow::Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| Misused::new("--token: a character that cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

impl PeerKind {
    /// The flag or setting for trusted certificates.
    fn ca_setting(self) -> &'static str {
        match self {
            Self::Server => "--admin-ca FILE (or SEMEL_ADMIN_CA)",
            Self::Collector => "OTEL_EXPORTER_OTLP_CERTIFICATE",
        }
    }

    /// The program that should be running.
    fn name(self) -> &'static str {
        match self {
            Self::Server => "`semel serve`",
            Self::Collector => "the collector",
        }
    }
}
