//! The part of JSON Schema (draft-07) that describes answers: types, members, items, numbers, strings, and their combinations, with
//! references inside the same schema. An unsupported keyword makes the check not applicable; it is never ignored.

use serde_json::{Map, Value, json};

use super::{CheckVerdict, matches};
use crate::path::same;

/// Keywords that do not affect validity.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "definitions",
    "$defs",
    "format",
    "readOnly",
    "writeOnly",
    "deprecated",
    "contentMediaType",
    "contentEncoding",
];
/// Maximum depth, because references can be circular.
const DEEPEST: usize = 64;

enum SchemaFailure {
    /// Position, expected value, actual value.
    Broken(Box<(String, Value, Value)>),
    Unknown(String),
}

/// Validates a value.
pub(super) fn validate(schema: &Value, value: &Value) -> CheckVerdict {
    match (Validator { root: schema }).value(schema, value, "", 0) {
        Ok(()) => CheckVerdict::Pass,
        Err(SchemaFailure::Broken(broken)) => {
            let (at, expected, actual) = *broken;
            CheckVerdict::Fail { expected: json!({"at": at, "schema": expected}), actual }
        }
        Err(SchemaFailure::Unknown(word)) => CheckVerdict::NotApplicable(format!("the schema uses {word}")),
    }
}

struct Validator<'a> {
    root: &'a Value,
}

impl Validator<'_> {
    fn value(&self, schema: &Value, value: &Value, at: &str, depth: usize) -> Result<(), SchemaFailure> {
        if depth > DEEPEST {
            return Err(SchemaFailure::Unknown("references without an end".to_owned()));
        }
        let schema = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(schema) => schema,
            other => return Err(broken(at, other, value)),
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            let Some(target) = pointer else {
                return Err(SchemaFailure::Unknown(format!("the reference {reference}")));
            };
            return self.value(target, value, at, depth + 1);
        }
        for (word, wanted) in schema {
            if !self.word(word, wanted, schema, value, at, depth)? {
                return Err(broken(at, &json!({word: wanted}), value));
            }
        }
        Ok(())
    }

    /// Checks one keyword of a schema. A violation deeper down is reported there.
    fn word(
        &self,
        word: &str,
        wanted: &Value,
        schema: &Map<String, Value>,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<bool, SchemaFailure> {
        let number = value.as_f64();
        let limit = wanted.as_f64();
        let compare =
            |holds: fn(f64, f64) -> bool| number.zip(limit).is_none_or(|(one, other)| holds(one, other));
        let size = |count: Option<usize>, holds: fn(u64, u64) -> bool| {
            let count = count.and_then(|count| u64::try_from(count).ok());
            count.zip(wanted.as_u64()).is_none_or(|(one, other)| holds(one, other))
        };
        let characters = value.as_str().map(|text| text.chars().count());
        let (items, members) = (value.as_array().map(Vec::len), value.as_object().map(Map::len));
        Ok(match word {
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|one| is(one, value)),
                one => is(one, value),
            },
            "const" => same(wanted, value),
            "enum" => wanted.as_array().is_some_and(|known| known.iter().any(|one| same(one, value))),
            "minimum" => compare(|one, other| one >= other),
            "maximum" => compare(|one, other| one <= other),
            "exclusiveMinimum" => compare(|one, other| one > other),
            "exclusiveMaximum" => compare(|one, other| one < other),
            "minLength" => size(characters, |one, other| one >= other),
            "maxLength" => size(characters, |one, other| one <= other),
            "minItems" => size(items, |one, other| one >= other),
            "maxItems" => size(items, |one, other| one <= other),
            "minProperties" => size(members, |one, other| one >= other),
            "maxProperties" => size(members, |one, other| one <= other),
            "pattern" => match (wanted.as_str(), value.as_str()) {
                (Some(pattern), Some(text)) => matches(pattern, text).map_err(SchemaFailure::Unknown)?,
                _ => true,
            },
            "required" => {
                let names = wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
                value
                    .as_object()
                    .is_none_or(|members| names.into_iter().all(|name| members.contains_key(name)))
            }
            "properties" => {
                for (name, inner) in wanted.as_object().into_iter().flatten() {
                    if let Some(member) = value.as_object().and_then(|members| members.get(name)) {
                        self.value(inner, member, &format!("{at}/{name}"), depth + 1)?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                if schema.contains_key("patternProperties") {
                    return Err(SchemaFailure::Unknown("patternProperties".to_owned()));
                }
                for (name, member) in value.as_object().into_iter().flatten() {
                    if known.is_none_or(|known| !known.contains_key(name)) {
                        self.value(wanted, member, &format!("{at}/{name}"), depth + 1)?;
                    }
                }
                true
            }
            "items" if !wanted.is_array() => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(wanted, item, &format!("{at}/{index}"), depth + 1)?;
                }
                true
            }
            "uniqueItems" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let twice = |at: usize| items[..at].iter().any(|known| same(known, &items[at]));
                wanted != &Value::Bool(true) || !(0..items.len()).any(twice)
            }
            "allOf" => {
                for inner in wanted.as_array().into_iter().flatten() {
                    self.value(inner, value, at, depth + 1)?;
                }
                true
            }
            "anyOf" => self.count(wanted, value, at, depth)? >= 1,
            "oneOf" => self.count(wanted, value, at, depth)? == 1,
            "not" => match self.value(wanted, value, at, depth + 1) {
                Ok(()) => false,
                Err(SchemaFailure::Broken(_)) => true,
                Err(unknown @ SchemaFailure::Unknown(_)) => return Err(unknown),
            },
            word if ANNOTATIONS.contains(&word) || word.starts_with("x-") => true,
            word => return Err(SchemaFailure::Unknown(format!("`{word}`, which is not supported"))),
        })
    }

    fn count(&self, schemas: &Value, value: &Value, at: &str, depth: usize) -> Result<usize, SchemaFailure> {
        let mut fitting = 0;
        for schema in schemas.as_array().into_iter().flatten() {
            match self.value(schema, value, at, depth + 1) {
                Ok(()) => fitting += 1,
                Err(SchemaFailure::Broken(_)) => {}
                Err(unknown @ SchemaFailure::Unknown(_)) => return Err(unknown),
            }
        }
        Ok(fitting)
    }
}

fn broken(at: &str, expected: &Value, actual: &Value) -> SchemaFailure {
    SchemaFailure::Broken(Box::new((at.to_owned(), expected.clone(), actual.clone())))
}

fn is(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}
