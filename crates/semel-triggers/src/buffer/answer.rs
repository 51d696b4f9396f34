//! Reads the answers of the buffer's scripts.

use bytes::Bytes;
use semel::store::redis_driver::Value;
use semel::store::{Error, ErrorKind};
use semel::time::Timestamp;

/// The error for an answer that is not the script's.
pub(super) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the Redis server answered in a way that the burst buffer does not know: does another version of Semel share its keys?",
    )
}

/// A word and what it is about.
pub(super) fn read_word(answer: &Value) -> Result<(String, String), Error> {
    let Value::Array(parts) = answer else { return Err(unexpected_answer()) };
    let text = |at: usize| match parts.get(at) {
        Some(Value::BulkString(text)) => String::from_utf8(text.clone()).map_err(|_| unexpected_answer()),
        Some(Value::SimpleString(text)) => Ok(text.clone()),
        _ => Err(unexpected_answer()),
    };
    Ok((text(0)?, text(1)?))
}

/// Exactly `N` byte strings.
pub(super) fn read_bytes<const N: usize>(parts: Vec<Value>) -> Result<[Bytes; N], Error> {
    let read = |part| match part {
        Value::BulkString(bytes) => Ok(Bytes::from(bytes)),
        Value::SimpleString(text) => Ok(Bytes::from(text)),
        Value::Int(number) => Ok(Bytes::from(number.to_string())),
        _ => Err(unexpected_answer()),
    };
    let parts: Vec<Bytes> = parts.into_iter().map(read).collect::<Result<_, _>>()?;
    parts.try_into().map_err(|_| unexpected_answer())
}

pub(super) fn read_number(text: &Bytes) -> Result<u64, Error> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(unexpected_answer)
}

pub(super) fn read_int(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

/// When a key expires, from milliseconds; -1 is never.
pub(super) fn read_expiry(text: &Bytes) -> Result<Option<Timestamp>, Error> {
    if &text[..] == b"-1" {
        return Ok(None);
    }
    Ok(Some(Timestamp::from_micros(read_number(text)?.saturating_mul(1000))))
}
