//! The address of the server: the four kinds of URL, and how a connection is opened to each.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisResult, TlsCertificates, TlsMode, Value,
};
use tokio::sync::mpsc::UnboundedSender;

use super::script::Dialect;
use crate::store::{Error, ErrorKind};

/// How many commands the connection queues before it writes them. It limits the number of commands in a packet.
pub(super) const QUEUED: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    pub(super) response: Duration,
}

/// A checked URL.
pub(super) enum RedisAddress {
    One(Box<Client>),
    /// The client asks the sentinels again for every connection.
    Sentinel(Box<tokio::sync::Mutex<SentinelClient>>),
    Cluster {
        nodes: Vec<ConnectionInfo>,
        certificates: Option<TlsCertificates>,
    },
}

/// An open connection that many calls share.
#[derive(Clone)]
pub(super) enum SharedConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A node of a cluster, by the address it announces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The raw parts of a URL.
struct UrlParts<'a> {
    scheme: &'a str,
    user: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
}

impl<'a> UrlParts<'a> {
    fn read(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        Some(Self { scheme, user, hosts: hosts.split(',').collect(), path })
    }

    /// The URL of one node for the client library.
    fn node(&self, host: &str, secure: bool) -> String {
        let scheme = if secure { "rediss" } else { "redis" };
        let at = if self.user.is_empty() { "" } else { "@" };
        format!("{scheme}://{}{at}{host}", self.user)
    }
}

impl RedisAddress {
    /// Parses a URL. Errors never contain a password.
    pub(super) fn parse(url: &str, certificates: Option<TlsCertificates>) -> Result<Self, Error> {
        let parts = UrlParts::read(url).ok_or_else(|| {
            setup("a Redis URL looks like redis://user:password@host:6379/0".to_owned(), None)
        })?;
        let bad = |error| {
            setup(
                format!(
                    "the Redis URL ({}) cannot be read: it looks like redis://user:password@host:6379/0",
                    shown(url)
                ),
                Some(error),
            )
        };
        let resp3 = |info: ConnectionInfo| {
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            info.set_tcp_settings(TcpSettings::default().set_nodelay(true)).set_redis_settings(redis)
        };
        let node =
            |host: &str, secure| parts.node(host, secure).into_connection_info().map(resp3).map_err(bad);
        if matches!(parts.scheme, "rediss" | "rediss-cluster" | "rediss-sentinel") {
            // If another component has installed one already, that one is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let secure = parts.scheme.starts_with("rediss");
        match parts.scheme {
            "redis" | "rediss" | "redis+unix" | "unix" => {
                let info = resp3(url.into_connection_info().map_err(bad)?);
                let client = match certificates {
                    Some(certificates) if secure => Client::build_with_tls(info, certificates),
                    _ => Client::open(info),
                };
                Ok(Self::One(Box::new(client.map_err(bad)?)))
            }
            "redis-cluster" | "rediss-cluster" => {
                let nodes = parts.hosts.iter().map(|host| node(host, secure)).collect::<Result<_, _>>()?;
                Ok(Self::Cluster { nodes, certificates })
            }
            "redis-sentinel" | "rediss-sentinel" => {
                sentinel(&parts, secure, certificates, node).map_err(|error| match error {
                    SentinelUrl::Node(error) => error,
                    SentinelUrl::Client(error) => bad(error),
                    SentinelUrl::NoName => setup(
                        "a Sentinel URL names the service: redis-sentinel://host:26379,host:26379/mymaster"
                            .to_owned(),
                        None,
                    ),
                })
            }
            other => Err(setup(
                format!(
                    "{other}:// is not a Redis URL: use redis://, rediss://, redis-cluster:// or redis-sentinel://"
                ),
                None,
            )),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::One(_) | Self::Sentinel(_) => Dialect::One,
            Self::Cluster { .. } => Dialect::Cluster,
        }
    }

    /// Opens a connection. Messages of its subscriptions go to `pushes`.
    pub(super) async fn open(
        &self,
        timeouts: Timeouts,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> RedisResult<SharedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeouts.connect))
            .set_response_timeout(Some(timeouts.response))
            .set_pipeline_buffer_size(QUEUED);
        let config = match &pushes {
            Some(pushes) => config.set_push_sender(pushes.clone()),
            None => config,
        };
        match self {
            Self::One(client) => {
                client.get_multiplexed_async_connection_with_config(&config).await.map(SharedConnection::One)
            }
            Self::Sentinel(sentinel) => {
                let client = sentinel.lock().await.async_get_client().await?;
                client.get_multiplexed_async_connection_with_config(&config).await.map(SharedConnection::One)
            }
            Self::Cluster { nodes, certificates } => {
                let mut builder = ClusterClientBuilder::new(nodes.iter().cloned())
                    .connection_timeout(timeouts.connect)
                    .response_timeout(timeouts.response)
                    .overall_response_timeout(Some(timeouts.response * 4))
                    .tcp_settings(TcpSettings::default().set_nodelay(true))
                    .use_protocol(ProtocolVersion::RESP3);
                if let Some(certificates) = certificates {
                    builder = builder.certs(certificates.clone());
                }
                if let Some(pushes) = pushes {
                    builder = builder.push_sender(pushes);
                }
                builder.build()?.get_async_connection().await.map(SharedConnection::Cluster)
            }
        }
    }
}

enum SentinelUrl {
    Node(Error),
    Client(redis::RedisError),
    NoName,
}

fn sentinel(
    parts: &UrlParts<'_>,
    secure: bool,
    certificates: Option<TlsCertificates>,
    node: impl Fn(&str, bool) -> Result<ConnectionInfo, Error>,
) -> Result<RedisAddress, SentinelUrl> {
    let (service, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if service.is_empty() {
        return Err(SentinelUrl::NoName);
    }
    let nodes: Vec<ConnectionInfo> = parts
        .hosts
        .iter()
        .map(|host| node(host, secure))
        .collect::<Result<_, _>>()
        .map_err(SentinelUrl::Node)?;
    let user = nodes.first().map(|node| node.redis_settings().clone()).unwrap_or_default();
    let addresses = nodes.iter().map(|node| node.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)
        .map_err(SentinelUrl::Client)?
        .set_client_to_redis_protocol(ProtocolVersion::RESP3)
        .set_client_to_redis_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_client_to_redis_db(db.parse().unwrap_or(0));
    if let Some(name) = user.username() {
        builder = builder.set_client_to_redis_username(name);
    }
    if let Some(password) = user.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if secure {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
    }
    let client = builder.build().map_err(SentinelUrl::Client)?;
    Ok(RedisAddress::Sentinel(Box::new(tokio::sync::Mutex::new(client))))
}

impl SharedConnection {
    /// Sends a command, in a cluster to the node of its key.
    pub(super) async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Sends a command to one node of a cluster, or to the only server.
    pub(super) async fn query_node(&mut self, command: Cmd, node: &Node) -> RedisResult<Value> {
        match self {
            Self::One(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => {
                let Node { host, port } = node.clone();
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
                connection.route_command(command, routing).await?.extract_error()
            }
        }
    }

    /// The primaries, in a fixed order. A placeholder if there is only one server.
    pub(super) async fn primaries(&mut self) -> RedisResult<Vec<Node>> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![Node { host: String::new(), port: 0 }]);
        };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let slots = connection.route_command(command, routing).await?.extract_error()?;
        let ranges: Vec<Vec<Value>> = redis::from_redis_value(slots)?;
        let mut nodes = Vec::new();
        for range in ranges {
            // first slot, last slot, the primary, its replicas
            if let Some(primary) = range.into_iter().nth(2) {
                let (host, port, _): (String, u16, Value) = match primary {
                    Value::Array(mut parts) => {
                        parts.truncate(3);
                        redis::from_redis_value(Value::Array(parts))?
                    }
                    other => redis::from_redis_value(other)?,
                };
                nodes.push(Node { host, port });
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }
}

/// A URL without its user and password.
pub(super) fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => url.to_owned(),
    }
}

fn setup(message: String, source: Option<redis::RedisError>) -> Error {
    let error = Error::new(ErrorKind::Setup, message);
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}
