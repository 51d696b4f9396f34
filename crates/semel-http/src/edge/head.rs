//! A strict reader of HTTP/1 request heads.
//!
//! It accepts less than the standard permits: it refuses bytes that two servers are known to understand differently. Accepted heads are
//! passed on unchanged, so the reader only reports how the body is framed.

use super::refusal::Refusal;
use super::rules::{Keys, ListenerRules, host_is_sound};
use super::shortcut::Seen;

/// The framing of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// No body.
    None,
    /// A body of this length.
    Length(u64),
    /// A chunked body.
    Chunked,
}

/// The properties of an accepted head that the connection needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) framing: Framing,
    /// True if it asks to switch protocols.
    pub(super) upgrade: bool,
}

/// The end of the first head in `bytes`, searched from `from` on. A bare line feed counts as a line end, so that a head with bare line
/// feeds is found and refused instead of waited for.
pub(super) fn end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| at + from).find_map(|at| match &bytes[..at] {
        [.., b'\n', b'\r'] | [.., b'\n'] => Some(at + 1),
        _ => None,
    })
}

/// Reads one whole head, including its closing empty line. Fills `seen` with its content.
pub(super) fn read<'a>(
    bytes: &'a [u8],
    rules: &ListenerRules,
    mut seen: Option<&mut Seen<'a>>,
) -> Result<Head, Refusal> {
    if bytes.len() > rules.limits.head_bytes {
        return Err(too_large(bytes, rules));
    }
    // The standard tolerates one empty line before a request, for old clients that sent it after a body.
    let bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let mut lines = Lines(bytes);
    let line = lines.next_line()?.ok_or(Refusal::Malformed("the request line is empty"))?;
    let request = RequestLine::read(line, rules)?;
    if let Some(seen) = &mut seen {
        seen.line = Some(request.line);
    }
    let mut fields = HeaderFields { keys: Keys::of(request.line.method), ..HeaderFields::default() };
    while let Some(line) = lines.next_line()? {
        let (name, value) = fields.add(line, rules)?;
        if let Some(seen) = &mut seen {
            seen.note(name, value);
        }
    }
    fields.judge(&request, rules)
}

/// The refusal for a head that is too large, from the part that was received.
pub(super) fn too_large(bytes: &[u8], rules: &ListenerRules) -> Refusal {
    if memchr::memchr(b'\n', &bytes[..bytes.len().min(rules.limits.target_bytes)]).is_none() {
        return Refusal::TargetTooLong;
    }
    let names_key = |line: &[u8]| {
        line.len() > rules.limits.head_bytes / 2
            && memchr::memchr(b':', line).is_some_and(|colon| rules.key_header(&line[..colon]).is_some())
    };
    if bytes.split(|byte| *byte == b'\n').any(names_key) {
        return Refusal::Key("the key is too long");
    }
    Refusal::HeadTooLarge
}

// === lines ===

struct Lines<'a>(&'a [u8]);

impl<'a> Lines<'a> {
    /// The next line without its end; `None` at the empty line that closes the head.
    fn next_line(&mut self) -> Result<Option<&'a [u8]>, Refusal> {
        let at = memchr::memchr(b'\n', self.0).ok_or(Refusal::Malformed("the head ends early"))?;
        let (line, rest) = (&self.0[..at], &self.0[at + 1..]);
        self.0 = rest;
        match line {
            [b'\r'] => Ok(None),
            [line @ .., b'\r'] => Ok(Some(line)),
            _ => Err(Refusal::Malformed("a line ends without a carriage return")),
        }
    }
}

// === the request line ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

/// The parts of a request line.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestWords<'a> {
    pub(super) method: &'a [u8],
    pub(super) target: &'a [u8],
    version: Version,
}

impl RequestWords<'_> {
    /// True for HTTP/1.1 with a path as target.
    pub(super) fn is_plain(&self) -> bool {
        self.version == Version::Http11 && self.target.starts_with(b"/")
    }
}

struct RequestLine<'a> {
    line: RequestWords<'a>,
    version: Version,
    get: bool,
    /// The host of an absolute target.
    authority: Option<&'a [u8]>,
}

impl<'a> RequestLine<'a> {
    fn read(line: &'a [u8], rules: &ListenerRules) -> Result<Self, Refusal> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Refusal::Malformed("the request line is not method, target and version"));
        };
        if method.is_empty() || method.len() > 32 || !method.iter().all(|byte| METHOD[usize::from(*byte)]) {
            return Err(Refusal::Malformed("the method is not written in capital letters"));
        }
        let version = match version {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                return Err(Refusal::Version);
            }
            _ => return Err(Refusal::Malformed("the request line does not end with a version")),
        };
        if method == b"CONNECT" {
            return Err(Refusal::Method);
        }
        if target.len() > rules.limits.target_bytes {
            return Err(Refusal::TargetTooLong);
        }
        if !target.iter().all(|byte| TARGET[usize::from(*byte)]) {
            return Err(Refusal::Malformed("the target holds a character that must be escaped"));
        }
        let authority = match target {
            [b'/', ..] => None,
            b"*" if method == b"OPTIONS" => None,
            _ => Some(authority(target)?),
        };
        let line = RequestWords { method, target, version };
        Ok(Self { line, version, get: method == b"GET", authority })
    }
}

fn authority(target: &[u8]) -> Result<&[u8], Refusal> {
    let scheme = |name: &[u8]| target.len() > name.len() && target[..name.len()].eq_ignore_ascii_case(name);
    let rest = if scheme(b"http://") {
        &target[7..]
    } else if scheme(b"https://") {
        &target[8..]
    } else {
        return Err(Refusal::Malformed("the target is neither a path nor an address"));
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Ok(&rest[..end])
}

// === the header lines ===

#[derive(Default)]
struct HeaderFields<'a> {
    count: usize,
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    keys: Keys,
    connection_upgrade: bool,
    upgrade: Option<&'a [u8]>,
}

impl<'a> HeaderFields<'a> {
    /// Reads a header line and returns its name and value.
    fn add(&mut self, line: &'a [u8], rules: &ListenerRules) -> Result<(&'a [u8], &'a [u8]), Refusal> {
        self.count += 1;
        if self.count > rules.limits.headers {
            return Err(Refusal::HeadTooLarge);
        }
        if matches!(line, [b' ' | b'\t', ..]) {
            return Err(Refusal::Malformed("a header is folded over several lines"));
        }
        let colon = memchr::memchr(b':', line).ok_or(Refusal::Malformed("a header line has no colon"))?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        if name.is_empty() || !name.iter().all(|byte| TOKEN[usize::from(*byte)]) {
            return Err(Refusal::Malformed("a header name has an invalid character"));
        }
        if !is_value(value) {
            return Err(Refusal::Malformed("a header value holds a control character"));
        }
        rules.name(name)?;
        self.note(name, value, rules)?;
        Ok((name, value))
    }

    fn note(&mut self, name: &[u8], value: &'a [u8], rules: &ListenerRules) -> Result<(), Refusal> {
        match name.len() {
            4 if is(name, b"host") => set_once(&mut self.host, value, "there is more than one Host")?,
            6 if is(name, b"expect") && !is(value, b"100-continue") => return Err(Refusal::Expectation),
            7 if is(name, b"upgrade") => {
                if !is_protocol(value) {
                    return Err(Refusal::Malformed("the Upgrade is not the name of one protocol"));
                }
                set_once(&mut self.upgrade, value, "there is more than one Upgrade")?;
            }
            10 if is(name, b"connection") => {
                rules.connection_value(value)?;
                self.connection_upgrade |=
                    value.split(|byte| *byte == b',').any(|token| is(trim(token), b"upgrade"));
            }
            14 if is(name, b"content-length") => {
                set_once(&mut self.length, length(value)?, "there is more than one Content-Length")?;
            }
            17 if is(name, b"transfer-encoding") => {
                if self.chunked || !is(value, b"chunked") {
                    return Err(Refusal::Malformed("the only supported transfer coding is chunked, once"));
                }
                self.chunked = true;
            }
            _ => {}
        }
        match rules.key_header(name) {
            Some(index) => self.keys.take(index, value),
            None => Ok(()),
        }
    }

    fn judge(&self, request: &RequestLine<'_>, rules: &ListenerRules) -> Result<Head, Refusal> {
        match (self.host, request.authority) {
            (None, _) if request.version == Version::Http11 => {
                return Err(Refusal::Malformed("there is no Host"));
            }
            (Some(host), _) if !host_is_sound(host) => {
                return Err(Refusal::Malformed("the Host is not a host"));
            }
            (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
                return Err(Refusal::Malformed("the target names another host than Host"));
            }
            (None, Some(_)) => return Err(Refusal::Malformed("the target names a host and Host does not")),
            _ => {}
        }
        rules.host(self.host)?;
        let framing = match (self.length, self.chunked) {
            (Some(_), true) => {
                return Err(Refusal::Malformed("Content-Length and Transfer-Encoding exclude each other"));
            }
            (None, true) if request.version == Version::Http10 => {
                return Err(Refusal::Malformed("HTTP/1.0 knows no Transfer-Encoding"));
            }
            (None, true) => Framing::Chunked,
            (None | Some(0), false) => Framing::None,
            (Some(length), false) => Framing::Length(length),
        };
        let upgrade = self.upgrade.is_some_and(|protocol| rules.allows_upgrade(protocol))
            && self.connection_upgrade
            && request.get
            && request.version == Version::Http11
            && framing == Framing::None;
        Ok(Head { framing, upgrade })
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T, twice: &'static str) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::Malformed(twice)),
    }
}

/// True if a value names one protocol, with an optional version: `websocket`, `TLS/1.0`.
fn is_protocol(value: &[u8]) -> bool {
    let mut parts = value.splitn(2, |byte| *byte == b'/');
    parts.all(|part| !part.is_empty() && part.iter().all(|byte| TOKEN[usize::from(*byte)]))
}

fn length(value: &[u8]) -> Result<u64, Refusal> {
    // 18 digits never overflow, and no body is that long.
    if !matches!(value.len(), 1..=18) || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::Malformed("the Content-Length is not a number"));
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

fn is(name: &[u8], lower: &[u8]) -> bool {
    name.eq_ignore_ascii_case(lower)
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

// === which byte may stand where ===

const TOKEN: [bool; 256] = table(Class::Token);
const METHOD: [bool; 256] = table(Class::Method);
const TARGET: [bool; 256] = table(Class::Target);

#[derive(Clone, Copy)]
enum Class {
    Token,
    Method,
    Target,
}

const fn table(class: Class) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    loop {
        table[byte as usize] = match class {
            Class::Token => is_token(byte),
            Class::Method => is_token(byte) && !byte.is_ascii_lowercase(),
            Class::Target => {
                matches!(byte, b'!'..=b'~')
                    && !matches!(byte, b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`')
            }
        };
        if byte == u8::MAX {
            return table;
        }
        byte += 1;
    }
}

/// Checks every byte without an early exit, so that the compiler can vectorise the loop.
fn is_value(value: &[u8]) -> bool {
    value.iter().fold(true, |sound, byte| sound & ((*byte >= b' ') | (*byte == b'\t')) & (*byte != 0x7F))
}

pub(super) const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}
