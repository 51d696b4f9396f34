//! Fills values into requests and checks: `$context.NAME`, `$generate:uuid_v4#alias`, `{{prior_step.ID.FIELD}}`,
//! `$test_kit.PATH`.

use std::collections::HashMap;

use parking_lot::Mutex;
use rand::RngExt as _;
use serde_json::{Map, Value};

use crate::path::Path;

/// A token that cannot be filled. It is never sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unresolved(pub(crate) String);

/// The values for tokens.
#[derive(Debug)]
pub(crate) struct Variables<'a> {
    pub(crate) context: &'a Map<String, Value>,
    pub(crate) aliases: &'a Mutex<HashMap<String, String>>,
    /// The payloads of answered steps.
    pub(crate) steps: &'a HashMap<String, Value>,
    pub(crate) test_kit: &'a Value,
}

/// A random UUID, version 4.
pub(crate) fn uuid_v4() -> String {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Calls `tell` with the content of every `{{…}}`.
pub(crate) fn each_reference(value: &Value, tell: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, after)) = rest.split_once("{{") {
                let Some((inside, after)) = after.split_once("}}") else { return };
                tell(inside.trim());
                rest = after;
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, tell)),
        // Descriptions may quote a token.
        Value::Object(members) => members
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "narrative" | "expected" | "description" | "title"))
            .for_each(|(_, member)| each_reference(member, tell)),
        _ => {}
    }
}

impl Variables<'_> {
    /// Fills every token in a value. A string that is exactly one token takes the type of its value.
    pub(crate) fn fill(&self, value: &Value) -> Result<Value, Unresolved> {
        Ok(match value {
            Value::String(text) => self.fill_string(text)?,
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.fill(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let filled = members.iter().map(|(name, member)| Ok((name.clone(), self.fill(member)?)));
                Value::Object(filled.collect::<Result<Map<_, _>, _>>()?)
            }
            other => other.clone(),
        })
    }

    /// Fills every token in a string that must stay a string.
    pub(crate) fn fill_text(&self, text: &str) -> Result<String, Unresolved> {
        Ok(match self.fill_string(text)? {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    fn fill_string(&self, text: &str) -> Result<Value, Unresolved> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(token) = Placeholder::first(rest) {
            let value = self.resolve(&token).ok_or_else(|| Unresolved(token.text(rest).to_owned()))?;
            if token.start == 0 && token.end == rest.len() && filled.is_empty() {
                return Ok(value);
            }
            filled.push_str(&rest[..token.start]);
            match value {
                Value::String(value) => filled.push_str(&value),
                other => filled.push_str(&other.to_string()),
            }
            rest = &rest[token.end..];
        }
        filled.push_str(rest);
        Ok(Value::String(filled))
    }

    fn resolve(&self, token: &Placeholder) -> Option<Value> {
        let found = match &token.kind {
            TokenKind::Context(name) => match self.context.get(name) {
                Some(value) => Some(value.clone()),
                // A dotted name reaches into a captured value; text after a plain name may be prose.
                None => {
                    let (first, rest) = name.split_once('.')?;
                    Path::parse(rest).get(self.context.get(first)?)
                }
            },
            TokenKind::Generate(None) => Some(Value::String(uuid_v4())),
            TokenKind::Generate(Some(alias)) => {
                let mut aliases = self.aliases.lock();
                Some(Value::String(aliases.entry(alias.clone()).or_insert_with(uuid_v4).clone()))
            }
            TokenKind::PriorStep(step, path) => Path::parse(path).get(self.steps.get(step)?),
            TokenKind::TestKit(path) => Path::parse(path).get(self.test_kit),
            TokenKind::Unknown => None,
        };
        found.filter(|value| !value.is_null())
    }
}

struct Placeholder {
    start: usize,
    end: usize,
    kind: TokenKind,
}

enum TokenKind {
    Context(String),
    Generate(Option<String>),
    PriorStep(String, String),
    TestKit(String),
    Unknown,
}

impl Placeholder {
    fn text<'a>(&self, whole: &'a str) -> &'a str {
        &whole[self.start..self.end]
    }

    /// The first token in a string.
    fn first(text: &str) -> Option<Self> {
        let dollar =
            ["$context.", "$generate:", "$test_kit."].iter().filter_map(|start| text.find(start)).min();
        let braces = text.find("{{");
        match (dollar, braces) {
            (Some(dollar), Some(braces)) if braces < dollar => Some(Self::braces(text, braces)),
            (Some(dollar), _) => Some(Self::dollar(text, dollar)),
            (None, Some(braces)) => Some(Self::braces(text, braces)),
            (None, None) => None,
        }
    }

    fn braces(text: &str, start: usize) -> Self {
        let Some(length) = text[start..].find("}}") else {
            return Self { start, end: text.len(), kind: TokenKind::Unknown };
        };
        let inside = text[start + 2..start + length].trim();
        let parts = inside.strip_prefix("prior_step.").and_then(|rest| rest.split_once('.'));
        let kind = match parts {
            Some((step, path)) => TokenKind::PriorStep(step.to_owned(), path.to_owned()),
            None => TokenKind::Unknown,
        };
        Self { start, end: start + length + 2, kind }
    }

    fn dollar(text: &str, start: usize) -> Self {
        let rest = &text[start..];
        let word = |from: usize, dots: bool| {
            let fits = |character: char| {
                character.is_ascii_alphanumeric()
                    || character == '_'
                    || (dots && matches!(character, '.' | '[' | ']'))
            };
            let length = rest[from..].find(|character| !fits(character)).unwrap_or(rest.len() - from);
            // A dot at the end is punctuation.
            rest[from..from + length].trim_end_matches('.')
        };
        if rest.starts_with("$context.") {
            let name = word(9, true);
            return Self { start, end: start + 9 + name.len(), kind: TokenKind::Context(name.to_owned()) };
        }
        if rest.starts_with("$test_kit.") {
            let path = word(10, true);
            return Self { start, end: start + 10 + path.len(), kind: TokenKind::TestKit(path.to_owned()) };
        }
        let generator = word(10, false);
        let mut end = 10 + generator.len();
        if !matches!(generator, "uuid_v4" | "opaque_id") {
            return Self { start, end: start + end, kind: TokenKind::Unknown };
        }
        let mut alias = None;
        if rest[end..].starts_with('#') {
            let name = word(end + 1, false);
            end += 1 + name.len();
            alias = Some(name.to_owned());
        }
        Self { start, end: start + end, kind: TokenKind::Generate(alias) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use parking_lot::Mutex;
    use serde_json::{Map, Value, json};

    use super::{Unresolved, Variables, uuid_v4};

    fn with(check: impl FnOnce(&Variables<'_>)) {
        let Value::Object(context) = json!({"n": 7, "id": "x", "account": {"a": [1, 2]}, "none": null})
        else {
            panic!("a mapping")
        };
        let steps = HashMap::from([("made".to_owned(), json!({"id": "m-1"}))]);
        let (aliases, kit) = (Mutex::default(), json!({"auth": {"api_key": "k"}}));
        check(&Variables { context: &context, aliases: &aliases, steps: &steps, test_kit: &kit });
    }

    #[test]
    fn tokens_are_filled_with_their_type() {
        with(|scope| {
            for (text, expected) in [
                ("$context.n", json!(7)),
                ("/o/$context.n/$context.id.", json!("/o/7/x.")),
                ("$context.account.a[1]", json!(2)),
                ("$context.account", json!({"a": [1, 2]})),
                ("{{prior_step.made.id}}", json!("m-1")),
                ("x-{{ prior_step.made.id }}", json!("x-m-1")),
                ("$test_kit.auth.api_key", json!("k")),
                ("costs $5", json!("costs $5")),
            ] {
                assert_eq!(scope.fill(&json!(text)), Ok(json!(expected)), "{text}");
            }
            let same = scope
                .fill(&json!(["$generate:uuid_v4#a", "$generate:opaque_id#a", "$generate:uuid_v4"]))
                .unwrap();
            assert_eq!(same[0], same[1]);
            assert_ne!(same[0], same[2]);
        });
    }

    #[test]
    fn what_nothing_fills_is_named() {
        with(|scope| {
            for text in [
                "$context.nobody",
                "$context.none",
                "{{prior_step.other.id}}",
                "{{runner.x}}",
                "$generate:dice",
                "{{open",
            ] {
                assert!(scope.fill(&json!({"a": [text]})).is_err(), "{text}");
            }
            assert_eq!(scope.fill(&json!("a $context.q b")), Err(Unresolved("$context.q".to_owned())));
        });
    }

    #[test]
    fn uuids_are_version_four() {
        let uuid = uuid_v4();
        assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'4'), "{uuid}");
        assert!(matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{uuid}");
        let _: Map<String, Value> = Map::new();
    }
}
