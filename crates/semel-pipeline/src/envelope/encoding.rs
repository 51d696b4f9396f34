//! An envelope as JSON (CloudEvents' structured mode) and as headers (its binary mode).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Envelope, EnvelopeError, PREFIX, SPEC_HEADER, VERSION};

const CONTENT_TYPE: &str = "content-type";

impl Envelope {
    /// Reads an envelope in JSON. The bytes of JSON data stay as they are.
    ///
    /// # Errors
    /// The first attribute that is missing or invalid.
    pub fn from_json(json: &[u8]) -> Result<Self, EnvelopeError> {
        let members: Members =
            serde_json::from_slice(json).map_err(|error| EnvelopeError::Json(error.to_string()))?;
        let (mut data, mut base64) = (None, None);
        let mut attributes = BTreeMap::new();
        for (name, value) in members.0 {
            if value.get() == "null" {
                continue;
            }
            let before = match name.as_str() {
                "data" => data.replace(value).is_some(),
                "data_base64" => base64.replace(value).is_some(),
                _ => {
                    super::check_name(&name)?;
                    let value = attribute(&name, &value)?;
                    attributes.insert(name.clone(), value).is_some()
                }
            };
            if before {
                return Err(EnvelopeError::Repeated(name));
            }
        }
        let content_type = attributes.remove("datacontenttype");
        let data = match (data, base64) {
            (Some(_), Some(_)) => {
                return Err(EnvelopeError::invalid("data", "either `data` or `data_base64`, not both"));
            }
            (Some(data), None) if content_type.as_deref().is_none_or(is_json) => {
                Bytes::copy_from_slice(data.get().as_bytes())
            }
            (Some(data), None) => {
                serde_json::from_str::<String>(data.get()).map(Bytes::from).map_err(|_| {
                    EnvelopeError::invalid("data", "a string, because `datacontenttype` is not JSON")
                })?
            }
            (None, Some(text)) => {
                let text: Option<String> = serde_json::from_str(text.get()).ok();
                let bytes = text.and_then(|text| BASE64.decode(text).ok());
                bytes.map(Bytes::from).ok_or_else(|| EnvelopeError::invalid("data_base64", "base64"))?
            }
            (None, None) => Bytes::new(),
        };
        Self::from_attributes(attributes, content_type, data)
    }

    /// The envelope in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let data = self.data_member();
        let encoded = data.is_none() && !self.data.is_empty();
        let json = Structured {
            specversion: VERSION,
            attributes: self.attributes().collect(),
            datacontenttype: &self.content_type,
            data,
            data_base64: encoded.then(|| BASE64.encode(&self.data)),
        };
        serde_json::to_string(&json).expect("texts are JSON")
    }

    /// The data as the member `data`, if that holds the exact bytes.
    fn data_member(&self) -> Option<DataMember<'_>> {
        if !is_json(&self.content_type) {
            return std::str::from_utf8(&self.data)
                .ok()
                .filter(|text| !text.is_empty())
                .map(DataMember::Text);
        }
        let value: &RawValue = serde_json::from_slice(&self.data).ok()?;
        // Spaces around the value would be lost, and `null` means no data.
        (value.get().len() == self.data.len() && value.get() != "null").then_some(DataMember::Json(value))
    }

    /// Reads an envelope from headers and the body that came with them. Names are compared regardless of case; headers
    /// that do not belong to an envelope are ignored.
    ///
    /// # Errors
    /// The first attribute that is missing or invalid.
    pub fn from_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        data: Bytes,
    ) -> Result<Self, EnvelopeError> {
        let (mut attributes, mut content_type) = (BTreeMap::new(), None);
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            let before = match name.strip_prefix(PREFIX) {
                Some(attribute) => {
                    super::check_name(attribute)?;
                    let expected =
                        "text whose special characters are encoded as % and two hexadecimal digits";
                    let value = decode_value(value).ok_or_else(|| EnvelopeError::invalid(&name, expected))?;
                    attributes.insert(attribute.to_owned(), value).is_some()
                }
                None if name == CONTENT_TYPE => content_type.replace(value.to_owned()).is_some(),
                None => false,
            };
            if before {
                return Err(EnvelopeError::Repeated(name));
            }
        }
        Self::from_attributes(attributes, content_type, data)
    }

    /// The envelope as headers, with the content type. The body is [`data`](Self::data).
    #[must_use]
    pub fn to_headers(&self) -> Vec<(String, String)> {
        let own = [
            (SPEC_HEADER.to_owned(), VERSION.to_owned()),
            (CONTENT_TYPE.to_owned(), self.content_type.clone()),
        ];
        let attributes =
            self.attributes().map(|(name, value)| (format!("{PREFIX}{name}"), encode_value(value)));
        own.into_iter().chain(attributes).collect()
    }
}

#[derive(serde::Serialize)]
struct Structured<'a> {
    specversion: &'static str,
    #[serde(flatten)]
    attributes: BTreeMap<&'a str, &'a str>,
    datacontenttype: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<DataMember<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum DataMember<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

/// The members of an object, in order: a map would hide one that is given twice.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// The text of an attribute. CloudEvents writes numbers and flags in headers as JSON does.
fn attribute(name: &str, value: &RawValue) -> Result<String, EnvelopeError> {
    let text = value.get();
    let read = match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).ok(),
        Some(b't' | b'f') => Some(text.to_owned()),
        _ => text.parse::<i64>().ok().map(|number| number.to_string()),
    };
    read.ok_or_else(|| EnvelopeError::invalid(name, "a string, an integer or a boolean"))
}

/// True for the content types of JSON.
fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.ends_with("/json") || media.ends_with("+json")
}

/// A value as CloudEvents writes it in a header: only visible ASCII, everything else as % and two digits for each byte.
fn encode_value(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => encoded.push_str(&format!("%{byte:02X}")),
            b'!'..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The text of such a value, also of a quoted one.
pub(super) fn decode_value(value: &str) -> Option<String> {
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut bytes = quoted.unwrap_or(value).bytes();
    let mut decoded = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'\\' if quoted.is_some() => bytes.next()?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}
