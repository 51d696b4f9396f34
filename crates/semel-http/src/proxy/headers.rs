//! Headers of forwarded requests and answers.

use http::header::{self, Entry, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::options::Forwarded;
use crate::edge::Peer;

/// Hop-by-hop headers, whatever `Connection` says. `TE` and `Trailer` are handled separately.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Headers in which a client or a proxy names the origin of a request.
static CLAIMS: [HeaderName; 12] = [
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    header::FORWARDED,
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("fastly-client-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-real-ip"),
];

/// Drops hop-by-hop headers.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have at most one of them: one pass over the headers is cheaper than nine lookups.
    let found: Vec<HeaderName> = headers.keys().filter(|name| HOP_BY_HOP.contains(name)).cloned().collect();
    if found.contains(&header::CONNECTION) {
        for name in named_in_connection(headers) {
            headers.remove(name);
        }
    }
    for name in &found {
        headers.remove(name);
    }
}

fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let tokens = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens
        .map(<[u8]>::trim_ascii)
        // These two are dropped anyway.
        .filter(|token| !token.eq_ignore_ascii_case(b"close") && !token.eq_ignore_ascii_case(b"keep-alive"))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect()
}

/// True if the sender accepts trailers.
pub(super) fn takes_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

/// Sets the headers that tell the upstream about the client.
pub(super) fn forward(
    headers: &mut HeaderMap,
    policy: Forwarded,
    peer: Option<&Peer>,
    host: Option<&HeaderValue>,
) {
    let claimed = headers.keys().any(|name| CLAIMS.contains(name));
    if claimed && policy != Forwarded::Append {
        for name in &CLAIMS {
            headers.remove(name);
        }
    }
    let Some(peer) = peer.filter(|_| policy != Forwarded::Remove) else {
        return;
    };
    let scheme = if peer.tls { "https" } else { "http" };
    if claimed && policy == Forwarded::Append {
        return extend(headers, peer, scheme, host);
    }
    headers.insert(X_FORWARDED_FOR, peer.address_value().clone());
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    if let Some(host) = host {
        headers.insert(X_FORWARDED_HOST, host.clone());
    }
}

/// Extends the headers of a trusted proxy.
fn extend(headers: &mut HeaderMap, peer: &Peer, scheme: &'static str, host: Option<&HeaderValue>) {
    let address = peer.address.ip().to_string();
    append(headers, X_FORWARDED_FOR, &address);
    if let Entry::Vacant(entry) = headers.entry(X_FORWARDED_PROTO) {
        entry.insert(HeaderValue::from_static(scheme));
    }
    if let (Some(host), Entry::Vacant(entry)) = (host, headers.entry(X_FORWARDED_HOST)) {
        entry.insert(host.clone());
    }
    if headers.contains_key(header::FORWARDED) {
        let node = if peer.address.is_ipv6() { format!("\"[{address}]\"") } else { address };
        append(headers, header::FORWARDED, &format!("for={node};proto={scheme}"));
    }
}

/// Appends to a list header, on one line.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, item: &str) {
    let mut list = String::new();
    for value in headers.get_all(&name) {
        if let Ok(value) = value.to_str() {
            list.push_str(value);
            list.push_str(", ");
        }
    }
    list.push_str(item);
    if let Ok(value) = HeaderValue::try_from(list) {
        headers.insert(name, value);
    }
}
