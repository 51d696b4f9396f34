//! A connection to Redis for components that are not stores: sources, buffers, gates.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, TlsCertificates, Value};

use super::address::{RedisAddress, Timeouts, shown};
use super::error::CallReach;
use super::link::Link;
use super::replicas::Replicas;
use super::script::{Dialect, Script};
use crate::outage::{Availability, Server};
use crate::store::Error;

/// A connection that many calls share, opened on first use and reopened when it breaks. It accepts the same URLs as
/// the store: one server, Sentinel, Cluster, with or without TLS.
///
/// A blocking command needs its own client, with a response timeout longer than its block.
///
/// While the server does not answer, calls fail at once. The outage and its end are logged once.
#[derive(Debug)]
pub struct RedisClient {
    link: Arc<Link>,
    availability: Arc<Availability>,
    name: String,
    replicas: Replicas,
}

/// Settings of a [`RedisClient`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RedisClientBuilder {
    url: String,
    timeouts: Timeouts,
    root_certificate: Option<Vec<u8>>,
    require_replicas: usize,
    used_for: &'static str,
}

/// Whether a command changes data, which determines the meaning of a lost answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only reads: a lost answer is [`Unavailable`](crate::store::ErrorKind::Unavailable).
    Reads,
    /// It writes: a lost answer is [`Ambiguous`](crate::store::ErrorKind::Ambiguous).
    Writes,
    /// As `Writes`, but it counts only once the required number of replicas have it. Otherwise the answer is
    /// [`Ambiguous`](crate::store::ErrorKind::Ambiguous): the server has executed it, and may lose it in a failover.
    WritesDurably,
}

impl From<Effect> for CallReach {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Reads => Self::Read,
            Effect::Writes | Effect::WritesDurably => Self::Write,
        }
    }
}

/// A Lua script and its SHA-1 at the server.
#[derive(Clone, Debug)]
pub struct RedisScript(Script);

impl RedisScript {
    /// The script with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Script::new(text.into()))
    }
}

impl RedisClientBuilder {
    /// How long to wait for a connection (2 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long to wait for an answer (2 s). Must be longer than the block of a blocking command.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.response = timeout;
        self
    }

    /// A certificate authority in PEM to trust instead of the machine's, for `rediss://`.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// How many replicas must have a write of [`Effect::WritesDurably`] before it counts (0).
    pub fn require_replicas(mut self, count: usize) -> Self {
        self.require_replicas = count;
        self
    }

    /// What the server is used for, in the log lines about an outage (`client`).
    pub fn used_for(mut self, purpose: &'static str) -> Self {
        self.used_for = purpose;
        self
    }

    /// Parses the URL. Nothing is sent yet.
    ///
    /// # Errors
    /// The URL is wrong; the error never contains its password.
    pub fn build(self) -> Result<RedisClient, Error> {
        let certificates =
            self.root_certificate.map(|pem| TlsCertificates { client_tls: None, root_cert: Some(pem) });
        let address = RedisAddress::parse(&self.url, certificates)?;
        // Within the response timeout.
        let replicas = Replicas::new(self.require_replicas, self.timeouts.response / 2);
        let (name, link) = (shown(&self.url), Arc::new(Link::new(address, self.timeouts)));
        let probed = Arc::clone(&link);
        let server = Server::of(name.clone(), self.used_for);
        let availability = Availability::new(server, link.timing(), None, move || {
            let link = Arc::clone(&probed);
            Box::pin(async move { link.ping().await.map_err(|error| link.probe_failure(&error)) })
        });
        Ok(RedisClient { link, availability, name, replicas })
    }
}

impl RedisClient {
    /// Settings for a client. The URL is `redis://`, `rediss://`, `redis-cluster://` or `redis-sentinel://`.
    pub fn builder(url: impl Into<String>) -> RedisClientBuilder {
        let timeouts = Timeouts { connect: Duration::from_secs(2), response: Duration::from_secs(2) };
        RedisClientBuilder {
            url: url.into(),
            timeouts,
            root_certificate: None,
            require_replicas: 0,
            used_for: "client",
        }
    }

    /// The URL without user and password.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for a cluster: the keys of one call must share a slot.
    pub fn is_cluster(&self) -> bool {
        self.link.address.dialect() == Dialect::Cluster
    }

    /// Sends one command.
    ///
    /// # Errors
    /// The server refused the command or did not answer.
    pub async fn query(&self, command: &Cmd, effect: Effect) -> Result<Value, Error> {
        self.availability.guard(self.link.query(command, effect.into())).await
    }

    /// Calls a script: by its SHA-1, or by its text if the server does not have it.
    ///
    /// # Errors
    /// The server refused the command or did not answer.
    pub async fn call(
        &self,
        script: &RedisScript,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        effect: Effect,
    ) -> Result<Value, Error> {
        self.availability.guard(self.call_link(script, keys, arguments, effect)).await
    }

    async fn call_link(
        &self,
        script: &RedisScript,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        effect: Effect,
    ) -> Result<Value, Error> {
        let mut numbered = self.link.connection().await?;
        let arguments = || arguments.iter().copied();
        let answer = match numbered.wire.query(&script.0.by_sha(keys, arguments())).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                numbered.wire.query(&script.0.by_text(keys, arguments())).await
            }
            answer => answer,
        };
        let value = answer.map_err(|error| self.link.failed(error, numbered.number, effect.into()))?;
        if effect == Effect::WritesDurably {
            let key = keys.first().copied().unwrap_or_default();
            self.replicas.wait_for_replicas(&self.link, &mut numbered, key).await?;
        }
        Ok(value)
    }
}
