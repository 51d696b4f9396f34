//! Finds connections to stores and services that others on the network could read.

use std::net::IpAddr;

use super::{Config, LedgerPlace, StoreUrl};

/// A connection to a PostgreSQL or Redis server.
struct StoreServer<'a> {
    /// Its name in the file: `[store] url`.
    setting: String,
    /// It may contain a password, and is not repeated.
    url: &'a str,
}

/// The protection of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    /// It does not leave the machine.
    Local,
    /// It may be in plain text.
    None,
    /// It is encrypted, but the server's name is not verified: another machine can pose as the server.
    Unverified,
    Verified,
}

/// Warnings at start: connections beyond loopback without TLS.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    unprotected(config, |protection| protection == Protection::None)
}

/// The same, and connections to unverified servers.
pub(super) fn gaps(config: &Config) -> Vec<String> {
    unprotected(config, |protection| matches!(protection, Protection::None | Protection::Unverified))
}

fn unprotected(config: &Config, is_gap: impl Fn(Protection) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for StoreServer { setting, url } in servers(config) {
        let protection = protection(url);
        if !is_gap(protection) {
            continue;
        }
        let hosts = hosts(url).join(", ");
        let why = match protection {
            Protection::Unverified => {
                "is encrypted, but the server's certificate is not checked against its name"
            }
            _ => "is not encrypted: keys, outcomes and passwords can be read and changed on the way",
        };
        let way_out = if is_postgres(url) {
            "add sslmode=verify-full and sslrootcert=FILE to the URL"
        } else {
            "use the scheme rediss, rediss-cluster or rediss-sentinel"
        };
        found.push(format!("{setting}: the connection to {hosts} {why}; {way_out}"));
    }
    found
}

fn servers(config: &Config) -> Vec<StoreServer<'_>> {
    let mut servers = Vec::new();
    let mut add = |setting: &str, url| servers.push(StoreServer { setting: setting.to_owned(), url });
    match &config.records.place {
        StoreUrl::Memory | StoreUrl::Embedded { .. } => {}
        StoreUrl::Redis { url, .. } => add("[store] url", url.as_str()),
        StoreUrl::Postgres { url, coordinate, .. } => {
            add("[store] url", url);
            if let Some(coordinate) = coordinate {
                add("[store] coordinate", &coordinate.url);
            }
        }
    }
    if let Some(LedgerPlace::Postgres { url, .. }) = &config.pipeline.ledger {
        add("[ledger] url", url);
    }
    if let Some(url) = &config.intake.gate.buffer {
        add("[gate] buffer", url);
    }
    for source in &config.intake.sources {
        add(&format!("[[source]] url of the stream {:?}", source.stream), &source.url);
    }
    servers
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn is_postgres(url: &str) -> bool {
    matches!(scheme(url), "postgres" | "postgresql")
}

fn protection(url: &str) -> Protection {
    if hosts(url).iter().all(|host| is_local(host)) {
        return Protection::Local;
    }
    if !is_postgres(url) {
        return if scheme(url).starts_with("rediss") { Protection::Verified } else { Protection::None };
    }
    // The last parameter counts, as in the driver. Without one the driver tries TLS and falls back to plain text.
    match parameters(url).filter(|(name, _)| matches!(*name, "sslmode" | "ssl-mode")).last() {
        Some((_, "verify-full")) => Protection::Verified,
        Some((_, "require" | "verify-ca")) => Protection::Unverified,
        _ => Protection::None,
    }
}

/// The hosts of a URL, without ports. A socket is a path.
pub(super) fn hosts(url: &str) -> Vec<String> {
    let after = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = after.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let mut hosts: Vec<String> = authority.split(',').map(|host| without_port(host).to_owned()).collect();
    if is_postgres(url) {
        hosts.extend(
            parameters(url)
                .filter(|(name, _)| matches!(*name, "host" | "hostaddr"))
                .map(|(_, host)| host.to_owned()),
        );
    }
    if hosts.len() > 1 {
        hosts.retain(|host| !host.is_empty());
    }
    hosts
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split(['&', '#']).filter_map(|pair| pair.split_once('='))
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// True if a host is this machine: loopback, a socket, or no host.
pub(super) fn is_local(host: &str) -> bool {
    let name = host.to_ascii_lowercase();
    name.is_empty()
        || name.starts_with(['/', '@'])
        || name.starts_with("%2f")
        || name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_others_could_read_are_known() {
        let table = [
            ("redis://127.0.0.1:6379", Protection::Local),
            ("redis://localhost", Protection::Local),
            ("redis+unix:///run/redis.sock", Protection::Local),
            ("redis://:password@10.0.0.1:6379/0", Protection::None),
            ("redis://user:p@ss@cache.internal", Protection::None),
            ("redis-cluster://127.0.0.1:1,10.0.0.2:2", Protection::None),
            ("redis-sentinel://a,b/main", Protection::None),
            ("rediss://cache.internal:6380", Protection::Verified),
            ("rediss-cluster://a,b", Protection::Verified),
            ("postgres://u:p@db.internal/semel", Protection::None),
            ("postgres://u:p@db.internal/semel?sslmode=prefer", Protection::None),
            ("postgres://db.internal/semel?sslmode=require", Protection::Unverified),
            ("postgres://db.internal/semel?sslmode=verify-full&sslrootcert=ca.pem", Protection::Verified),
            ("postgres://db.internal/semel?sslmode=verify-full&sslmode=disable", Protection::None),
            ("postgres://[::1]:5432/semel", Protection::Local),
            ("postgres://localhost/semel", Protection::Local),
            ("postgres:///semel?host=/run/postgresql", Protection::Local),
            ("postgres://localhost/semel?host=db.internal", Protection::None),
            ("postgres://%2Frun%2Fpostgresql/semel", Protection::Local),
        ];
        for (url, expected) in table {
            assert_eq!(protection(url), expected, "{url}");
        }
        assert_eq!(hosts("redis-cluster://u:p@a:1,[fd00::1]:2/0"), ["a", "fd00::1"]);
    }
}
