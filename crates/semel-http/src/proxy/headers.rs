//! Headers on their way through.

use std::fmt::Write as _;

use http::header::{self, Entry, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::options::Forwarded;
use crate::edge::Peer;

/// Meant for one hop only, whatever `Connection` says. `TE` and `Trailer` are handled apart.
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

/// Drops what is meant for this hop.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        for name in named_in_connection(headers) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
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
        // The common ones are dropped anyway.
        .filter(|token| !token.eq_ignore_ascii_case(b"close") && !token.eq_ignore_ascii_case(b"keep-alive"))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect()
}

/// Whether the sender takes trailers.
pub(super) fn takes_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

/// Tells the upstream who asked, as far as it shall know.
pub(super) fn forward(
    headers: &mut HeaderMap,
    policy: Forwarded,
    peer: Option<Peer>,
    host: Option<&HeaderValue>,
) {
    if policy != Forwarded::Append {
        headers.remove(X_FORWARDED_FOR);
        headers.remove(X_FORWARDED_HOST);
        headers.remove(X_FORWARDED_PROTO);
        headers.remove(header::FORWARDED);
    }
    let Some(peer) = peer.filter(|_| policy != Forwarded::Remove) else {
        return;
    };
    let mut address = String::with_capacity(40);
    // Writing to a string does not fail.
    let _ = write!(address, "{}", peer.address.ip());
    append(headers, X_FORWARDED_FOR, &address);
    let scheme = if peer.tls { "https" } else { "http" };
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

/// Adds to a list header, on one line.
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
