//! The stored answer: converts a response to an outcome and back.
//!
//! Status, headers and trailers are the outcome's metadata; the body is its body, byte for byte. An answer from the record copies
//! nothing: every header value and the body are slices of the outcome.
//!
//! ```text
//!   1        version, 1
//!   2        status, little endian
//!   2, 2     how many headers, how many trailers
//!   …        each: length of name (2), length of value (4), name, value
//! ```

use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use semel::outcome::{Outcome, OutcomeBody};

use crate::body::Body;
use crate::policy::StoredHeaders;

/// The kind of outcomes that contain an answer.
pub(crate) const KIND: &str = "http";
/// The kind of outcomes that contain a value without a head, as an operator settles them.
const JSON: &str = "json";
const VERSION: u8 = 1;
/// Bodies up to this size are copied into one write; larger ones are sent from the outcome.
const WRITTEN_WHOLE: usize = 16 * 1024;

/// Marks an answer from the record. Added when it is given, never stored.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// `false` on every answer that a later call with the same key will not get.
pub const STORED: HeaderName = HeaderName::from_static("idempotency-stored");
/// With the value `no`, the upstream asks not to store an answer.
pub const STORE: HeaderName = HeaderName::from_static("idempotency-store");
/// The upstream asks to store an answer for this number of seconds.
pub const RETENTION: HeaderName = HeaderName::from_static("idempotency-retention");

/// True if a header is never stored, because it belongs to the connection, to one moment or to one client.
pub(crate) fn is_never_kept(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::DATE
        | header::SET_COOKIE
        | header::AUTHORIZATION
        | header::WWW_AUTHENTICATE
        | header::PROXY_AUTHENTICATE
        | header::PROXY_AUTHORIZATION
        | header::TE
        | header::TRAILER
        | header::TRANSFER_ENCODING
        | header::UPGRADE => true,
        _ => {
            let name = name.as_str();
            matches!(
                name,
                "keep-alive"
                    | "proxy-connection"
                    | "proxy-authentication-info"
                    | "authentication-info"
                    | "set-cookie2"
                    | "idempotent-replayed"
                    | "idempotency-stored"
                    | "idempotency-store"
                    | "idempotency-retention"
            ) || name.starts_with("ratelimit")
                || name.starts_with("x-ratelimit")
                || name.starts_with("x-rate-limit")
        }
    }
}

/// The headers that the `Connection` header lists.
fn listed(headers: &HeaderMap) -> Vec<&str> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect()
}

/// Converts an answer to an outcome. `body` is copied once, to its exact size.
pub(crate) fn keep(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[Bytes],
    trailers: Option<&HeaderMap>,
    rule: &StoredHeaders,
) -> Outcome {
    let metadata = encode(status, headers, trailers, rule);
    let mut whole = Vec::with_capacity(body.iter().map(Bytes::len).sum());
    for piece in body {
        whole.extend_from_slice(piece);
    }
    Outcome::new(KIND, whole).with_metadata(metadata)
}

/// The outcome of an answer, for settling a key by hand.
#[must_use]
pub fn outcome(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Outcome {
    keep(status, headers, &[body], None, &StoredHeaders::All)
}

/// The answer in an outcome, as a client gets it.
///
/// # Errors
/// The effect happened, and its answer is not stored; the text says why.
pub fn answer(outcome: &Arc<Outcome>) -> Result<Response<Bytes>, String> {
    match replay(outcome) {
        Replay::Answer(answer) => Ok(answer.map(|_| data_of(outcome))),
        Replay::NotKept(reason) => Err(reason),
    }
}

/// An outcome without an answer: it only says that the effect happened.
pub(crate) fn tombstone(reason: &str) -> Outcome {
    Outcome::tombstone(KIND, reason)
}

/// The tombstone of a refusal that is too large to be stored. It has the status, so that a retry learns how the call ended.
pub(crate) fn large_refusal(status: StatusCode, bytes: usize) -> Outcome {
    tombstone(&format!("it was a {} of {bytes} bytes, more than is kept of a refusal", status.as_u16()))
}

fn encode(
    status: StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    rule: &StoredHeaders,
) -> Vec<u8> {
    let listed = listed(headers);
    let kept = |name: &HeaderName| {
        !is_never_kept(name)
            && !listed.iter().any(|listed| listed.eq_ignore_ascii_case(name.as_str()))
            && match rule {
                StoredHeaders::All => true,
                StoredHeaders::Only(names) => names.contains(name),
            }
    };
    let both = || [Some(headers), trailers].into_iter().flatten().flatten();
    let length = |(name, value): (&HeaderName, &HeaderValue)| 6 + name.as_str().len() + value.len();
    // With its exact size, because it is stored: shrinking it later would cost more than measuring it first.
    let mut metadata =
        Vec::with_capacity(7 + both().filter(|(name, _)| kept(name)).map(length).sum::<usize>());
    metadata.push(VERSION);
    metadata.extend_from_slice(&status.as_u16().to_le_bytes());
    metadata.extend_from_slice(&[0; 4]);
    let mut counts = [0_u16; 2];
    for (fields, count) in [Some(headers), trailers].into_iter().zip(&mut counts) {
        for (name, value) in fields.into_iter().flatten().filter(|(name, _)| kept(name)) {
            // No server accepts longer ones, and their length would not fit here.
            let (Ok(name_length), Ok(value_length)) =
                (u16::try_from(name.as_str().len()), u32::try_from(value.len()))
            else {
                continue;
            };
            let Some(next) = count.checked_add(1) else { break };
            *count = next;
            metadata.extend_from_slice(&name_length.to_le_bytes());
            metadata.extend_from_slice(&value_length.to_le_bytes());
            metadata.extend_from_slice(name.as_str().as_bytes());
            metadata.extend_from_slice(value.as_bytes());
        }
    }
    let [headers, trailers] = counts;
    metadata[3..5].copy_from_slice(&headers.to_le_bytes());
    metadata[5..7].copy_from_slice(&trailers.to_le_bytes());
    metadata
}

/// The content of an outcome for a later caller.
#[derive(Debug)]
pub(crate) enum Replay {
    Answer(Response<Body>),
    /// The effect happened; the text says why its answer is not stored.
    NotKept(String),
}

/// The answer in an outcome, without copying.
pub(crate) fn replay(outcome: &Arc<Outcome>) -> Replay {
    if let OutcomeBody::Tombstone(reason) = outcome.body() {
        return Replay::NotKept(reason.clone());
    }
    match outcome.kind() {
        KIND => decode(outcome).map_or_else(unreadable, Replay::Answer),
        JSON => {
            let mut answer = Response::new(body_of(outcome, None));
            let json = HeaderValue::from_static("application/json");
            answer.headers_mut().insert(header::CONTENT_TYPE, json);
            Replay::Answer(answer)
        }
        _ => unreadable(),
    }
}

fn unreadable() -> Replay {
    Replay::NotKept("the stored outcome is not an HTTP answer".to_owned())
}

fn decode(outcome: &Arc<Outcome>) -> Option<Response<Body>> {
    let mut metadata = Bytes::from_owner(Metadata(Arc::clone(outcome)));
    if metadata.try_get_u8().ok()? != VERSION {
        return None;
    }
    let status = StatusCode::from_u16(metadata.try_get_u16_le().ok()?).ok()?;
    let counts = [metadata.try_get_u16_le().ok()?, metadata.try_get_u16_le().ok()?];
    let headers = fields(&mut metadata, counts[0])?;
    let trailers = if counts[1] == 0 { None } else { Some(fields(&mut metadata, counts[1])?) };
    let mut answer = Response::new(body_of(outcome, trailers));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    Some(answer)
}

/// Writes an answer from the record as HTTP/1.1 bytes, head and body, equal to [`replay`] on the wire. `None`, with nothing written, if
/// it takes the regular path: it is large or empty, has trailers, or is not a plain answer.
pub(crate) fn write(outcome: &Outcome, date: &str, to: &mut Vec<u8>) -> Option<StatusCode> {
    let OutcomeBody::Kept(body) = outcome.body() else { return None };
    if outcome.kind() != KIND || body.is_empty() || body.len() > WRITTEN_WHOLE {
        return None;
    }
    let mut metadata = outcome.metadata();
    let (version, status) = (metadata.try_get_u8().ok()?, metadata.try_get_u16_le().ok()?);
    let (headers, trailers) = (metadata.try_get_u16_le().ok()?, metadata.try_get_u16_le().ok()?);
    let status = StatusCode::from_u16(status).ok()?;
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT, StatusCode::NOT_MODIFIED];
    if version != VERSION || trailers != 0 || status.is_informational() || bodiless.contains(&status) {
        return None;
    }
    let start = to.len();
    to.reserve(metadata.len() + body.len() + 160);
    let reason = status.canonical_reason()?;
    let mut digits = [0; 20];
    for piece in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
        to.extend_from_slice(piece.as_bytes());
    }
    let length = decimal(body.len(), &mut digits);
    let mut says_length = false;
    for _ in 0..headers {
        let Some((name, value)) = next_field(&mut metadata) else {
            to.truncate(start);
            return None;
        };
        if name == b"content-length" {
            if value != length {
                to.truncate(start);
                return None;
            }
            says_length = true;
        }
        for piece in [name, b": ", value, b"\r\n"] {
            to.extend_from_slice(piece);
        }
    }
    to.extend_from_slice(b"idempotent-replayed: true\r\n");
    if !says_length {
        for piece in [b"content-length: ", length, b"\r\n"] {
            to.extend_from_slice(piece);
        }
    }
    for piece in [b"date: ", date.as_bytes(), b"\r\n\r\n", body] {
        to.extend_from_slice(piece);
    }
    Some(status)
}

fn next_field<'a>(metadata: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let name_length = usize::from(metadata.try_get_u16_le().ok()?);
    let value_length = usize::try_from(metadata.try_get_u32_le().ok()?).ok()?;
    let (name, rest) = metadata.split_at_checked(name_length)?;
    let (value, rest) = rest.split_at_checked(value_length)?;
    *metadata = rest;
    Some((name, value))
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

fn fields(metadata: &mut Bytes, count: u16) -> Option<HeaderMap> {
    // One more for the header that marks an answer from the record.
    let mut fields = HeaderMap::with_capacity(usize::from(count).min(1024) + 1);
    for _ in 0..count {
        let name_length = usize::from(metadata.try_get_u16_le().ok()?);
        let value_length = usize::try_from(metadata.try_get_u32_le().ok()?).ok()?;
        if metadata.len() < name_length.checked_add(value_length)? {
            return None;
        }
        let name = HeaderName::from_bytes(&metadata.split_to(name_length)).ok()?;
        let value = HeaderValue::from_maybe_shared(metadata.split_to(value_length)).ok()?;
        fields.try_append(name, value).ok()?;
    }
    Some(fields)
}

fn body_of(outcome: &Arc<Outcome>, trailers: Option<HeaderMap>) -> Body {
    Body::with_trailers(data_of(outcome), trailers)
}

fn data_of(outcome: &Arc<Outcome>) -> Bytes {
    let empty = match outcome.body() {
        OutcomeBody::Kept(bytes) => bytes.is_empty(),
        OutcomeBody::Tombstone(_) => true,
    };
    if empty { Bytes::new() } else { Bytes::from_owner(Data(Arc::clone(outcome))) }
}

struct Metadata(Arc<Outcome>);

impl AsRef<[u8]> for Metadata {
    fn as_ref(&self) -> &[u8] {
        self.0.metadata()
    }
}

struct Data(Arc<Outcome>);

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        match self.0.body() {
            OutcomeBody::Kept(bytes) => bytes,
            OutcomeBody::Tombstone(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests;
