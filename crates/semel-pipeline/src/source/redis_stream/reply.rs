//! Parses the server's answers.

use std::collections::HashMap;

use bytes::Bytes;
use semel::store::redis_driver::Value;
use semel::store::{Error, ErrorKind};

use super::bytes;

/// A message of a stream; without fields if only its id is left.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) id: String,
    pub(super) fields: Option<Vec<(Bytes, Bytes)>>,
}

/// An answer that differs from the server's manual.
pub(super) fn strange(command: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("the Redis server answered {command} in a way that this version of Semel does not know"),
    )
}

/// The messages of the one stream; none if the wait ended without any. Protocol 3 answers with a map, protocol 2 with
/// a list of pairs.
pub(super) fn streams(value: Value) -> Result<Vec<StreamEntry>, Error> {
    let list = match value {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(pairs) => pairs.into_iter().map(|(_, list)| list).next(),
        Value::Array(pairs) => match pairs.into_iter().next() {
            Some(Value::Array(pair)) => pair.into_iter().nth(1),
            None => return Ok(Vec::new()),
            Some(_) => None,
        },
        _ => None,
    };
    entries(list.ok_or_else(|| strange("XREADGROUP"))?)
}

pub(super) fn entries(value: Value) -> Result<Vec<StreamEntry>, Error> {
    let Value::Array(list) = value else { return Err(strange("a stream command")) };
    // Before 7.0 a deleted message was a bare nil without its id.
    list.into_iter().filter(|entry| !matches!(entry, Value::Nil)).map(entry).collect()
}

fn entry(value: Value) -> Result<StreamEntry, Error> {
    let Value::Array(pair) = value else { return Err(strange("a stream command")) };
    let mut pair = pair.into_iter();
    let id = text(pair.next().unwrap_or(Value::Nil))?;
    let fields = match pair.next().unwrap_or(Value::Nil) {
        Value::Nil => None,
        Value::Array(flat) => {
            let mut fields = Vec::with_capacity(flat.len() / 2);
            let mut flat = flat.into_iter();
            while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
                fields.push((blob(name)?, blob(value)?));
            }
            Some(fields)
        }
        Value::Map(pairs) => {
            let fields = pairs.into_iter().map(|(name, value)| Ok((blob(name)?, blob(value)?)));
            Some(fields.collect::<Result<_, Error>>()?)
        }
        _ => return Err(strange("a stream command")),
    };
    Ok(StreamEntry { id, fields })
}

/// How often each message was given out.
pub(super) fn pending(value: Value) -> Result<HashMap<String, u32>, Error> {
    let Value::Array(list) = value else { return Err(strange("XPENDING")) };
    let mut counts = HashMap::with_capacity(list.len());
    for entry in list {
        let Value::Array(parts) = entry else { return Err(strange("XPENDING")) };
        let mut parts = parts.into_iter();
        let id = text(parts.next().unwrap_or(Value::Nil))?;
        // its id, its consumer, how long it lies there, how often it was given out
        let Some(Value::Int(count)) = parts.nth(2) else { return Err(strange("XPENDING")) };
        counts.insert(id, u32::try_from(count).unwrap_or(u32::MAX));
    }
    Ok(counts)
}

pub(super) fn text(value: Value) -> Result<String, Error> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| strange("a stream command")),
        Value::SimpleString(text) => Ok(text),
        _ => Err(strange("a stream command")),
    }
}

fn blob(value: Value) -> Result<Bytes, Error> {
    match value {
        Value::BulkString(value) => Ok(bytes(value)),
        Value::SimpleString(text) => Ok(bytes(text.into_bytes())),
        Value::Int(number) => Ok(bytes(number.to_string().into_bytes())),
        _ => Err(strange("a stream command")),
    }
}
