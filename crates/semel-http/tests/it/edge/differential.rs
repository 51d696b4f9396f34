//! Random damage to valid requests, judged by a second reader.
//!
//! The reader here is written for clarity and knows nothing of the gateway's. What reaches the upstream must be exactly
//! what it reads from the same bytes: never more, never something else.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};

use crate::edge_kit::{Gateway, Seen, Upstream, ok};

/// A request as the reference reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    method: String,
    path: String,
    key: Vec<String>,
    body: Vec<u8>,
}

impl From<&Seen> for Read {
    fn from(seen: &Seen) -> Self {
        let mut line = seen.request_line().split(' ');
        Self {
            method: line.next().unwrap().to_owned(),
            path: line.next().unwrap().to_owned(),
            key: seen.values("idempotency-key").into_iter().map(str::to_owned).collect(),
            body: seen.body.clone(),
        }
    }
}

// === the reference ===

/// Every request up to the first that is not beyond doubt.
fn read_all(mut bytes: &[u8]) -> Vec<Read> {
    let mut all = Vec::new();
    while let Some((read, rest, last)) = read_one(bytes) {
        all.push(read);
        bytes = rest;
        if last {
            break;
        }
    }
    all
}

fn read_one(bytes: &[u8]) -> Option<(Read, &[u8], bool)> {
    let bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, rest) = (&bytes[..end], &bytes[end + 4..]);
    let lines: Vec<&[u8]> = split(head, b"\r\n");
    if lines.iter().any(|line| line.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127))) {
        return None;
    }
    let request: Vec<&[u8]> = lines[0].split(|byte| *byte == b' ').collect();
    let [method, target, version] = request[..] else { return None };
    let method = String::from_utf8(method.to_vec()).ok()?;
    let target = String::from_utf8(target.to_vec()).ok()?;
    let symbols =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
    if method.is_empty() || !symbols(&method) || method != method.to_uppercase() || method == "CONNECT" {
        return None;
    }
    if !target.chars().all(|c| c.is_ascii_graphic() && !"\"#<>\\^`".contains(c)) {
        return None;
    }
    if version != b"HTTP/1.1" && version != b"HTTP/1.0" {
        return None;
    }
    let old = version == b"HTTP/1.0";
    let mut headers = Vec::new();
    for line in &lines[1..] {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = String::from_utf8(line[..colon].to_vec()).ok()?.to_lowercase();
        if name.is_empty() || !symbols(&name) {
            return None;
        }
        headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
    }
    let of = |wanted: &str| -> Vec<&Vec<u8>> {
        headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value).collect()
    };
    let folds = ["idempotency-key", "content-length", "transfer-encoding", "host", "connection"];
    if headers.iter().any(|(name, _)| name.contains('_') && folds.contains(&&*name.replace('_', "-"))) {
        return None;
    }
    let host = match of("host")[..] {
        [host] => Some(String::from_utf8(host.clone()).ok()?),
        [] if old => None,
        _ => return None,
    };
    // A port is part of a host; one that is made of another header's name is still one.
    let name = host.as_ref().map(|host| match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    });
    if let Some(host) = name
        && (host.is_empty() || !host.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c)))
    {
        return None;
    }
    let path = if target.starts_with('/') || target == "*" && method == "OPTIONS" {
        target
    } else {
        let (scheme, rest) = target.split_once("://")?;
        if !["http", "https"].contains(&&*scheme.to_lowercase()) {
            return None;
        }
        let cut = rest.find(['/', '?']).unwrap_or(rest.len());
        if Some(rest[..cut].to_lowercase()) != host.map(|host| host.to_lowercase()) {
            return None;
        }
        if rest[cut..].starts_with('/') { rest[cut..].to_owned() } else { format!("/{}", &rest[cut..]) }
    };
    let key = match of("idempotency-key")[..] {
        [] => vec![],
        // Passed over, whatever it is.
        ref keys if ["GET", "HEAD", "OPTIONS", "TRACE"].contains(&&*method) => {
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
        }
        [key] if !key.is_empty() && key.iter().all(|byte| matches!(byte, b' '..=b'~')) => {
            vec![String::from_utf8(key.clone()).ok()?]
        }
        _ => return None,
    };
    let options: Vec<String> = of("connection")
        .iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|token| String::from_utf8_lossy(token.trim_ascii()).to_lowercase())
        .collect();
    if options.iter().any(|option| folds.contains(&&**option)) {
        return None;
    }
    let is_protocol = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).into_owned();
        text.splitn(2, '/').all(|part| !part.is_empty() && symbols(part))
    };
    match of("upgrade")[..] {
        [] => {}
        [protocol] if is_protocol(protocol) => {}
        _ => return None,
    }
    if of("expect").iter().any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
        return None;
    }
    let (body, rest) = match (&of("content-length")[..], &of("transfer-encoding")[..]) {
        ([], []) => (vec![], rest),
        ([length], []) => {
            if length.is_empty() || length.len() > 18 || !length.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let length: usize = String::from_utf8((*length).clone()).ok()?.parse().ok()?;
            if rest.len() < length || length > 256 * 1024 {
                return None;
            }
            (rest[..length].to_vec(), &rest[length..])
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !old => read_chunks(rest)?,
        _ => return None,
    };
    let last = options.contains(&"close".to_owned()) || old && !options.contains(&"keep-alive".to_owned());
    Some((Read { method, path, key, body }, rest, last))
}

fn read_chunks(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let (line, rest) = cut(bytes)?;
        let size = line.split(|byte| *byte == b';').next()?;
        let text = std::str::from_utf8(size).ok()?;
        let printable = line.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
        if text.is_empty() || text.len() > 15 || !text.chars().all(|c| c.is_ascii_hexdigit()) || !printable {
            return None;
        }
        let size = usize::from_str_radix(text, 16).ok()?;
        bytes = rest;
        if size == 0 {
            break;
        }
        if bytes.len() < size.checked_add(2)? || bytes[size..size + 2] != *b"\r\n" {
            return None;
        }
        body.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
    loop {
        let (line, rest) = cut(bytes)?;
        bytes = rest;
        if line.is_empty() {
            return Some((body, bytes));
        }
        // Bytes beyond ASCII may stand in a value; read this way they are letters.
        let text: String = line.iter().copied().map(char::from).collect();
        let (name, value) = text.split_once(':')?;
        let named = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
        let banned = [
            "idempotency-key",
            "content-length",
            "transfer-encoding",
            "host",
            "connection",
            "te",
            "trailer",
            "expect",
            "upgrade",
        ];
        let banned = banned.contains(&&*name.to_lowercase().replace('_', "-"));
        if !named || banned || value.chars().any(|c| c.is_ascii_control() && c != '\t') {
            return None;
        }
    }
}

fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    Some((&bytes[..end], &bytes[end + 2..]))
}

fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some((line, after)) = rest
        .windows(separator.len())
        .position(|window| window == separator)
        .map(|at| (&rest[..at], &rest[at + separator.len()..]))
    {
        parts.push(line);
        rest = after;
    }
    parts.push(rest);
    parts
}

// === damage ===

const SOUND: [&str; 7] = [
    "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /b HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 5\r\n\r\nhello",
    "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    "PUT /d?q=1 HTTP/1.1\r\nhost: a\r\nIdempotency-Key: \"k 2\"\r\nContent-Length: 0\r\n\r\n",
    "POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n1\r\na\r\n0\r\nX-T: v\r\n\r\n",
    "GET http://a/f HTTP/1.1\r\nHost: a\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n",
    "POST /g HTTP/1.1\r\nHost: a\r\nContent-Length: 42\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\nX-Y: zz\r\n\r\n",
];

/// What attackers like to put in.
const SPLICES: [&[u8]; 30] = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b"\x0B",
    b"\xFF",
    b":",
    b",",
    b"_",
    b";",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length : 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\x0Bchunked\r\n",
    b"Host: b\r\n",
    b"Idempotency-Key: k9\r\n",
    b"Idempotency_Key: k9\r\n",
    b"Connection: close\r\n",
    b"0\r\n\r\n",
    b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n",
    b"0",
    b"f",
    b" HTTP/1.1",
    b"Expect: 100-continue\r\n",
];

#[derive(Debug, Clone)]
enum Damage {
    Insert(Index, &'static [u8]),
    Remove(Index, usize),
    Replace(Index, u8),
    Case(Index),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<Index>(), select(SPLICES.to_vec())).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (any::<Index>(), 1..6_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        1 => any::<Index>().prop_map(Damage::Case),
        1 => (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
    ]
}

fn requests() -> impl Strategy<Value = (Vec<u8>, Vec<Index>)> {
    let sound = prop::collection::vec(select(SOUND.to_vec()), 1..4);
    let cuts = prop::collection::vec(any::<Index>(), 0..3);
    (sound, prop::collection::vec(damage(), 0..3), cuts).prop_map(|(sound, damages, cuts)| {
        let mut bytes = sound.concat().into_bytes();
        for damage in damages {
            let length = bytes.len();
            match damage {
                Damage::Insert(at, splice) => {
                    // Mostly where a line begins, where it hurts most.
                    let at = at.index(2 * length);
                    let at = if at < length { at } else { line_start(&bytes, at - length) };
                    bytes.splice(at..at, splice.iter().copied());
                }
                Damage::Remove(at, count) => {
                    let at = at.index(length);
                    bytes.drain(at..(at + count).min(length));
                }
                Damage::Replace(at, byte) => bytes[at.index(length)] = byte,
                Damage::Case(at) => bytes[at.index(length)] ^= 0x20,
                Damage::Repeat(at, count) => {
                    let at = at.index(length);
                    let piece = bytes[at..(at + count).min(length)].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.is_empty() {
                bytes.push(b'\n');
            }
        }
        (bytes, cuts)
    })
}

fn line_start(bytes: &[u8], at: usize) -> usize {
    bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |feed| feed + 1)
}

// smuggling_set
#[test]
fn nothing_reaches_the_upstream_that_the_reference_does_not_read() {
    let rounds = std::env::var("SEMEL_PROVE").map_or(3_000, |_| 100_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (upstream, gateway) = runtime.block_on(async {
        let upstream = Upstream::start(|_| ok()).await;
        let gateway = Gateway::before(&upstream).await;
        (upstream, gateway)
    });
    let mut runner =
        TestRunner::new(Config { cases: rounds, failure_persistence: None, ..Config::default() });
    let tally = std::cell::Cell::new((0, 0));
    let outcome = runner.run(&requests(), |(bytes, cuts)| {
        let before = upstream.count();
        runtime.block_on(send_in_pieces(&gateway, &bytes, &cuts));
        let seen: Vec<Read> = upstream.since(before).iter().map(Read::from).collect();
        let expected = read_all(&bytes);
        let (all, some) = tally.get();
        tally.set((all + 1, some + usize::from(!expected.is_empty() && seen == expected)));
        prop_assert_eq!(seen, expected, "{:?}", String::from_utf8_lossy(&bytes));
        Ok(())
    });
    outcome.unwrap();
    let (all, some) = tally.get();
    assert!(some * 4 > all, "only {some} of {all} got anything through: nothing is shown");
}

async fn send_in_pieces(gateway: &Gateway, bytes: &[u8], cuts: &[Index]) {
    use tokio::io::AsyncWriteExt as _;
    let mut client = gateway.connect().await;
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
    cuts.sort_unstable();
    let mut at = 0;
    for cut in cuts {
        client.send(&bytes[at..cut]).await;
        tokio::task::yield_now().await;
        at = cut;
    }
    client.send(&bytes[at..]).await;
    let _ = client.stream.shutdown().await;
    client.rest().await;
}
