//! How a service is spoken to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use rustls::pki_types::CertificateDer;

use super::pool::{PoolLimits, ServicePool};
use super::request::RequestError;
use super::stream::{Dialing, Identity, LinkLocal, ServerTrust};
use super::{Client, ClientInner, Refine, Response};
use crate::connect::{AddressError, BaseUrl};
use crate::retry::{Destination, Judged, LONGEST, Retry};
use semel::time::{Clock, SystemClock};

/// Builds a [`Client`].
#[must_use = "nothing is built until build is called"]
pub struct ClientBuilder {
    address: BaseUrl,
    dialing: Dialing,
    headers: HeaderMap,
    user_header: HeaderName,
    retry: Retry,
    timeout: Duration,
    destination: Option<Destination>,
    clock: Arc<dyn Clock>,
    refine: Option<Arc<Refine>>,
    limits: PoolLimits,
}

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientBuildError {
    /// The file of certificates to trust cannot be used.
    #[error("cannot read certificates from {path}: {reason}")]
    Ca {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate of our own, or its key, cannot be used.
    #[error("cannot read our own certificate from {path}: {reason}")]
    Identity {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A host that [`ClientBuilder::refuse_link_local`] refuses.
    #[error("the host is a link-local address or a cloud's metadata service, which is refused")]
    LinkLocal,
    /// None of the given certificates can be used.
    #[error("there is no certificate to trust")]
    NoRoots,
    /// A host that no certificate can name.
    #[error("the host is no name that a certificate can hold")]
    Host,
    /// TLS refuses what it was given.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl ClientBuilder {
    pub(super) fn new(url: &str) -> Result<Self, AddressError> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("semel/", env!("CARGO_PKG_VERSION"))),
        );
        Ok(Self {
            address: BaseUrl::parse(url)?,
            dialing: Dialing { trust: ServerTrust::Web, identity: None, link_local: LinkLocal::Allow },
            headers,
            user_header: HeaderName::from_static("x-user-id"),
            retry: Retry::default(),
            timeout: Duration::from_secs(10),
            destination: None,
            clock: Arc::new(SystemClock),
            refine: None,
            limits: PoolLimits {
                connect: Duration::from_secs(5),
                idle: Duration::from_secs(30),
                idle_connections: 32,
                connections: 256,
                body: 1 << 20,
            },
        })
    }

    /// A bearer token, sent with every request.
    ///
    /// # Errors
    /// A token that cannot stand in a header.
    pub fn bearer(mut self, token: &str) -> Result<Self, RequestError> {
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut value = value.map_err(|_| RequestError::Header("bearer token"))?;
        value.set_sensitive(true);
        self.headers.insert(header::AUTHORIZATION, value);
        Ok(self)
    }

    /// A header that every request has unless it has its own.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The header that names the user; `x-user-id` by default.
    pub fn user_header(mut self, name: HeaderName) -> Self {
        self.user_header = name;
        self
    }

    /// Certificates to trust instead of the web's, as a PEM file.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.dialing.trust = ServerTrust::File(path.into());
        self
    }

    /// Certificates to trust instead of the web's: those of the machine, for instance. What cannot be read of them is
    /// passed over.
    pub fn roots(mut self, roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        self.dialing.trust = ServerTrust::These(roots.into_iter().collect());
        self
    }

    /// A certificate of our own for servers that ask for one, and its key, as PEM files.
    pub fn identity(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.dialing.identity = Some(Identity { chain: chain.into(), key: key.into() });
        self
    }

    /// Refuses link-local addresses and those of metadata services, where machines of a cloud get credentials: as the host, and
    /// whenever the host's name leads to one.
    pub fn refuse_link_local(mut self) -> Self {
        self.dialing.link_local = LinkLocal::Refuse;
        self
    }

    /// How [`Client::send`] retries.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// How long [`Client::send_once`] may take in all, connecting included. Retried calls take theirs from the policy.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(LONGEST);
        self
    }

    /// How long connecting may take, TLS included.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.limits.connect = timeout.min(LONGEST);
        self
    }

    /// The destination whose budget and breaker retried calls ask.
    pub fn destination(mut self, destination: &Destination) -> Self {
        self.destination = Some(destination.clone());
        self
    }

    /// The clock against which dates of answers are read.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Looks at every answer after the table did: for services that say 200 and mean an error, or 400 and mean later.
    pub fn refine(mut self, refine: impl Fn(&Response, Judged) -> Judged + Send + Sync + 'static) -> Self {
        self.refine = Some(Arc::new(refine));
        self
    }

    /// How many connections may be open, and how many unused ones are kept. By default 256 and 32.
    pub fn connections(mut self, most: usize, idle: usize) -> Self {
        (self.limits.connections, self.limits.idle_connections) = (most.max(1), idle);
        self
    }

    /// How long an unused connection is kept.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.limits.idle = timeout;
        self
    }

    /// How many bytes of an answer are kept; 1 MiB by default.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.limits.body = bytes;
        self
    }

    /// Builds the client. Nothing is connected yet.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub fn build(self) -> Result<Client, ClientBuildError> {
        let pool = ServicePool::new(self.address, &self.dialing, self.limits)?;
        Ok(Client {
            inner: Arc::new(ClientInner {
                pool,
                retry: self.retry,
                destination: self.destination,
                clock: self.clock,
                headers: self.headers,
                user_header: self.user_header,
                timeout: self.timeout,
                refine: self.refine,
            }),
        })
    }
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("address", &self.address).finish_non_exhaustive()
    }
}
