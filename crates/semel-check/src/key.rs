//! The form in which an API accepts keys. It is found out by the first request.

use serde_json::{Value, json};

/// How keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// A structured-field string, as the draft asks: `"8e03978e-…"` with its quotes.
    Quoted,
    /// A UUID without quotes.
    Bare,
    /// 32 digits, for APIs that refuse 36 characters.
    Digits32,
    /// 16 digits.
    Digits16,
}

impl KeyForm {
    /// The forms, in the order in which they are tried.
    pub(crate) const ALL: [Self; 4] = [Self::Quoted, Self::Bare, Self::Digits32, Self::Digits16];

    /// The key for a UUID.
    pub(crate) fn key(self, uuid: &str) -> String {
        let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
        match self {
            Self::Quoted | Self::Bare => self.text(uuid),
            Self::Digits32 => digits,
            Self::Digits16 => digits.chars().take(16).collect(),
        }
    }

    /// A key with this text.
    pub(crate) fn text(self, text: &str) -> String {
        if self == Self::Quoted { format!("\"{text}\"") } else { text.to_owned() }
    }

    /// What the report says about it.
    pub(crate) fn notice(self) -> Option<&'static str> {
        match self {
            Self::Quoted => None,
            Self::Bare => {
                Some("the API refuses keys in quotes, which the draft asks for: all cases use bare keys")
            }
            Self::Digits32 => {
                Some("the API refuses quotes and keys of 36 characters: all cases use keys of 32 digits")
            }
            Self::Digits16 => {
                Some("the API refuses quotes and keys of 32 characters: all cases use keys of 16 digits")
            }
        }
    }
}

/// Replaces `key` and `key_text` of a request by the header. `uuid` is the UUID of a name.
pub(crate) fn set_key(request: &mut Value, form: KeyForm, header: &str, uuid: impl FnOnce(&str) -> String) {
    let Some(members) = request.as_object_mut() else { return };
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let name = members.shift_remove("key").map(text);
    let literal = members.shift_remove("key_text").map(text);
    let key = match (name, literal) {
        (_, Some(literal)) => form.text(&literal),
        (Some(name), None) => form.key(&uuid(&name)),
        (None, None) => return,
    };
    if let Some(headers) = members.entry("headers").or_insert_with(|| json!({})).as_object_mut() {
        headers.insert(header.to_owned(), json!(key));
    }
}
