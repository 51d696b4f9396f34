//! Rules for the few headers that every server must understand in the same way. They apply to the raw bytes of HTTP/1 and to the
//! decoded headers of HTTP/2.

use http::HeaderName;

use super::options::{EdgeLimits, EdgeOptions};
use super::refusal::Refusal;

/// A key has at most 255 characters; quotes and escapes may double that.
const KEY_BYTES: usize = 512;

/// Headers that decide framing, routing, identity or trust. None of them may arrive under a name that some servers normalise to it
/// (`Content_Length`), be named in `Connection`, or arrive as a trailer.
const DECIDING: [&str; 20] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "max-forwards",
    "proxy-authorization",
    "set-cookie",
    "transfer-encoding",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

/// The rules of one listener.
#[derive(Debug)]
pub(super) struct ListenerRules {
    pub(super) limits: EdgeLimits,
    keys: Vec<HeaderName>,
    trusted: Vec<HeaderName>,
    hosts: Vec<String>,
    upgrades: Vec<String>,
}

impl ListenerRules {
    pub(super) fn new(options: &EdgeOptions) -> Self {
        let EdgeOptions { limits, key_headers, trusted_headers, hosts, upgrades, .. } = options;
        Self {
            limits: *limits,
            keys: key_headers.clone(),
            trusted: trusted_headers.clone(),
            hosts: hosts.clone(),
            upgrades: upgrades.clone(),
        }
    }

    /// Whether a connection may be upgraded to this protocol.
    pub(super) fn allows_upgrade(&self, protocol: &[u8]) -> bool {
        self.upgrades.iter().any(|allowed| is(protocol, allowed))
    }

    /// Checks the host of a request. Its syntax was checked before.
    pub(super) fn host(&self, host: Option<&[u8]>) -> Result<(), Refusal> {
        if self.hosts.is_empty() {
            return Ok(());
        }
        let host = host.unwrap_or_default();
        let name = match memchr::memrchr(b':', host) {
            // An IPv6 address has its colons in brackets.
            Some(colon) if memchr::memchr(b']', &host[colon..]).is_none() => &host[..colon],
            _ => host,
        };
        match self.hosts.iter().any(|allowed| is(host, allowed) || is(name, allowed)) {
            true => Ok(()),
            false => Err(Refusal::Host),
        }
    }

    /// The names of all deciding headers, except key headers.
    fn deciding(&self) -> impl Iterator<Item = &str> {
        DECIDING.into_iter().chain(self.trusted.iter().map(HeaderName::as_str))
    }

    /// The index of the key header with this name, ignoring case.
    pub(super) fn key_header(&self, name: &[u8]) -> Option<usize> {
        self.keys.iter().position(|key| key.as_str().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Checks a header name that other servers might normalise to another name.
    pub(super) fn name(&self, name: &[u8]) -> Result<(), Refusal> {
        if memchr::memchr(b'_', name).is_none() {
            return Ok(());
        }
        if self.keys.iter().any(|key| folds_into(name, key.as_str())) {
            return Err(Refusal::Key("the key header is written with an underscore"));
        }
        if self.deciding().any(|deciding| folds_into(name, deciding)) {
            return Err(Refusal::Malformed(
                "a header name with an underscore that some servers read as another",
            ));
        }
        Ok(())
    }

    /// Checks one value of a key header. The guard checks the syntax; these rules hold for every syntax.
    fn key_value(value: &[u8]) -> Result<(), Refusal> {
        if value.is_empty() {
            return Err(Refusal::Key("the key is empty"));
        }
        if value.len() > KEY_BYTES {
            return Err(Refusal::Key("the key is too long"));
        }
        if !value.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Refusal::Key("the key holds bytes other than visible ASCII"));
        }
        Ok(())
    }

    /// Checks a `Connection` value: it must not remove a header that the next server decides by.
    pub(super) fn connection_value(&self, value: &[u8]) -> Result<(), Refusal> {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            // Nearly all values are one of these two.
            if is(token, "close") || is(token, "keep-alive") {
                continue;
            }
            if self.key_header(token).is_some() || self.deciding().any(|name| is(token, name)) {
                return Err(Refusal::Malformed("Connection names a header that must reach the server"));
            }
        }
        Ok(())
    }

    /// Checks the name of a trailer: a deciding header must come before the body.
    pub(super) fn trailer_name(&self, name: &[u8]) -> Result<(), Refusal> {
        self.name(name)?;
        if self.key_header(name).is_some() {
            return Err(Refusal::Key("the key comes in a trailer"));
        }
        if self.deciding().any(|deciding| is(name, deciding))
            || is(name, "te")
            || is(name, "trailer")
            || is(name, "upgrade")
        {
            return Err(Refusal::Malformed("a trailer that must be a header"));
        }
        Ok(())
    }
}

/// The keys of one request.
#[derive(Debug, Default)]
pub(super) enum Keys {
    /// The method is safe: its keys are ignored, whatever their form.
    #[default]
    Ignored,
    /// A bit set of the key headers that occurred.
    Came(u64),
}

impl Keys {
    pub(super) fn of(method: &[u8]) -> Self {
        if matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE") { Self::Ignored } else { Self::Came(0) }
    }

    /// Adds the value of one key header.
    pub(super) fn take(&mut self, index: usize, value: &[u8]) -> Result<(), Refusal> {
        let Self::Came(keys) = self else { return Ok(()) };
        let bit = 1_u64 << (index % 64);
        if *keys & bit != 0 {
            return Err(Refusal::Key("there is more than one key"));
        }
        *keys |= bit;
        ListenerRules::key_value(value)
    }
}

/// True if `host` is a valid `Host`: a name or an address, with an optional port.
pub(super) fn host_is_sound(host: &[u8]) -> bool {
    let (name, port) = match host {
        [b'[', ..] => match memchr::memchr(b']', host) {
            Some(end) => (&host[..=end], &host[end + 1..]),
            None => return false,
        },
        _ => host.split_at(memchr::memchr(b':', host).unwrap_or(host.len())),
    };
    let address = matches!(name, [b'[', inner @ .., b']'] if !inner.is_empty()
        && inner.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')));
    let name_is_sound = !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'));
    let port_is_sound = match port {
        [] => true,
        [b':', digits @ ..] => {
            matches!(digits.len(), 1..=5)
                && digits.iter().all(u8::is_ascii_digit)
                && digits.iter().fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0')) <= 65_535
        }
        _ => false,
    };
    (address || name_is_sound) && port_is_sound
}

fn is(name: &[u8], other: &str) -> bool {
    name.eq_ignore_ascii_case(other.as_bytes())
}

fn folds_into(name: &[u8], other: &str) -> bool {
    name.len() == other.len()
        && name.iter().zip(other.bytes()).all(|(ours, theirs)| {
            let ours = if *ours == b'_' { b'-' } else { ours.to_ascii_lowercase() };
            ours == theirs
        })
}
