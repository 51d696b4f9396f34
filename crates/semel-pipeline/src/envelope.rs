//! The command envelope: a message between services with the ids that connect it to other messages. It is a
//! [CloudEvent](https://cloudevents.io) of version 1.0, as JSON or as headers.
//!
//! ```
//! use semel_pipeline::envelope::Envelope;
//!
//! # fn main() -> Result<(), semel_pipeline::envelope::EnvelopeError> {
//! let mut pay = Envelope::new("msg-1", "/shop", "order.pay", r#"{"cents":1200}"#);
//! pay.idempotency_key = Some("order-17:pay".to_owned());
//! pay.correlation_id = Some("checkout-9".to_owned());
//! pay.causation_id = Some("msg-0".to_owned());
//!
//! // One service sends it as JSON, the next one as headers and a body.
//! let received = Envelope::from_json(pay.to_json().as_bytes())?;
//! let headers = received.to_headers();
//! let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
//! assert_eq!(Envelope::from_headers(headers, received.data.clone())?, pay);
//! # Ok(())
//! # }
//! ```

mod encoding;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::event::{Origin, Trace};
use crate::names::names;
use crate::publish::{MAX_ORDER_KEY, MAX_TENANT, Publication};
use crate::target::is_event_type;

/// The content type of an envelope as JSON.
pub const ENVELOPE_JSON: &str = "application/cloudevents+json";
/// The header that marks an envelope in headers.
pub const SPEC_HEADER: &str = "ce-specversion";
/// The prefix of all headers of an envelope.
pub(crate) const PREFIX: &str = "ce-";
/// The longest value of an attribute, in bytes. Some attributes have smaller limits.
pub const MAX_ATTRIBUTE: usize = 1024;

const VERSION: &str = "1.0";
const MAX_NAME: usize = 64;
/// Targets limit the size of a request's headers.
const MAX_EXTENSIONS: usize = 32;
const JSON: &str = "application/json";

/// A message between services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// `id`: names the message within its source.
    pub id: String,
    /// `source`: the sender, as a URI or path.
    pub source: String,
    /// `type`, e.g. `order.pay`.
    pub message_type: String,
    /// The exact bytes of the message.
    pub data: Bytes,
    /// `datacontenttype`: their content type.
    pub content_type: String,
    /// `idempotencykey`: names the effect. `None`: source and id name it.
    pub idempotency_key: Option<String>,
    /// `user`: the person or account on whose behalf it was sent.
    pub user: Option<String>,
    /// `tenant`.
    pub tenant: Option<String>,
    /// `correlationid`: shared by all messages of one process, such as a checkout.
    pub correlation_id: Option<String>,
    /// `causationid`: the id of the message that caused this one.
    pub causation_id: Option<String>,
    /// `traceparent`: the W3C trace context.
    pub traceparent: Option<String>,
    /// `dataversion`: the version of the type.
    pub version: Option<String>,
    /// `partitionkey`: deliveries to one target with the same key are made one after the other.
    pub order_key: Option<String>,
    /// `time`: when it happened, as RFC 3339.
    pub time: Option<String>,
    /// All other attributes, e.g. `subject`. A name has lower-case letters and digits.
    pub extensions: BTreeMap<String, String>,
}

/// Why something is not an envelope. The text names the attribute, and never contains its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// A required attribute is missing.
    #[error("{0}: required in an envelope")]
    Missing(&'static str),
    /// An attribute is given twice.
    #[error("{0}: given twice")]
    Repeated(String),
    /// The value of an attribute is invalid.
    #[error("{name}: expected {expected}")]
    Invalid {
        /// The attribute.
        name: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The value of an attribute is too long.
    #[error("{name}: expected at most {limit} bytes")]
    TooLong {
        /// The attribute.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// The name of an attribute is invalid.
    #[error("attribute {0:?}: expected a name of 1 to {MAX_NAME} lower-case letters and digits")]
    Name(String),
    /// There are too many other attributes.
    #[error("expected at most {MAX_EXTENSIONS} attributes beside those of the envelope itself")]
    TooMany,
    /// The text is not a JSON object.
    #[error("expected an envelope as a JSON object: {0}")]
    Json(String),
}

impl EnvelopeError {
    fn invalid(name: &str, expected: &'static str) -> Self {
        Self::Invalid { name: name.to_owned(), expected }
    }
}

impl Envelope {
    /// A JSON message with the attributes that every envelope has.
    pub fn new(
        id: impl Into<String>,
        source: impl Into<String>,
        message_type: impl Into<String>,
        data: impl Into<Bytes>,
    ) -> Self {
        Self {
            id: id.into(),
            source: source.into(),
            message_type: message_type.into(),
            data: data.into(),
            content_type: JSON.to_owned(),
            idempotency_key: None,
            user: None,
            tenant: None,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            version: None,
            order_key: None,
            time: None,
            extensions: BTreeMap::new(),
        }
    }

    /// The attributes by name, except `specversion` and `datacontenttype`.
    fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let required = [("id", &self.id), ("source", &self.source), ("type", &self.message_type)];
        let optional = [
            ("idempotencykey", &self.idempotency_key),
            ("user", &self.user),
            ("tenant", &self.tenant),
            ("correlationid", &self.correlation_id),
            ("causationid", &self.causation_id),
            ("traceparent", &self.traceparent),
            ("dataversion", &self.version),
            ("partitionkey", &self.order_key),
            ("time", &self.time),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let extensions = self.extensions.iter().map(|(name, value)| (name.as_str(), value));
        required.into_iter().chain(optional).chain(extensions).map(|(name, value)| (name, value.as_str()))
    }

    /// The envelope with these attributes, if it is valid.
    fn from_attributes(
        mut attributes: BTreeMap<String, String>,
        content_type: Option<String>,
        data: Bytes,
    ) -> Result<Self, EnvelopeError> {
        if attributes.remove("specversion").ok_or(EnvelopeError::Missing("specversion"))? != VERSION {
            return Err(EnvelopeError::invalid("specversion", "\"1.0\""));
        }
        let mut take = |name: &str| attributes.remove(name);
        let envelope = Self {
            id: take("id").ok_or(EnvelopeError::Missing("id"))?,
            source: take("source").ok_or(EnvelopeError::Missing("source"))?,
            message_type: take("type").ok_or(EnvelopeError::Missing("type"))?,
            data,
            content_type: content_type.unwrap_or_else(|| JSON.to_owned()),
            idempotency_key: take("idempotencykey"),
            user: take("user"),
            tenant: take("tenant"),
            correlation_id: take("correlationid"),
            causation_id: take("causationid"),
            traceparent: take("traceparent"),
            version: take("dataversion"),
            order_key: take("partitionkey"),
            time: take("time"),
            extensions: attributes,
        };
        envelope.check()?;
        Ok(envelope)
    }

    /// Checks every attribute. Envelopes that were read are valid.
    ///
    /// # Errors
    /// The first invalid attribute.
    pub fn check(&self) -> Result<(), EnvelopeError> {
        for (name, value) in self.attributes() {
            check_name(name)?;
            let limit = match name {
                "id" | "correlationid" | "causationid" | "user" => 255,
                "tenant" => MAX_TENANT,
                "partitionkey" => MAX_ORDER_KEY,
                "source" => 512,
                _ => MAX_ATTRIBUTE,
            };
            if value.len() > limit {
                return Err(EnvelopeError::TooLong { name: name.to_owned(), limit });
            }
            let (valid, expected) = match name {
                "source" => (!value.contains(char::is_whitespace), "a URI or a path, as in \"/shop\""),
                "type" => (
                    is_event_type(value),
                    "letters, digits, `.`, `_`, `-`, `:` or `/`, at most 200, as in \"order.pay\"",
                ),
                "time" => (is_time(value), "a time as in \"2024-05-17T09:30:00Z\""),
                "traceparent" => {
                    let trace = Trace { request_id: None, traceparent: Some(value.to_owned()) };
                    (trace.trace_id().is_some(), "a W3C trace context")
                }
                _ => (true, ""),
            };
            if value.is_empty() || value.contains(char::is_control) {
                return Err(EnvelopeError::invalid(name, "a text without control characters, not empty"));
            }
            if !valid {
                return Err(EnvelopeError::invalid(name, expected));
            }
        }
        if self.extensions.len() > MAX_EXTENSIONS {
            return Err(EnvelopeError::TooMany);
        }
        // The names of the members of the envelope itself.
        let own = ["specversion", "datacontenttype", "data"];
        if let Some(name) = own.into_iter().find(|name| self.extensions.contains_key(*name)) {
            return Err(EnvelopeError::Repeated(name.to_owned()));
        }
        let content_type = self.content_type.as_bytes();
        if !(1..=255).contains(&content_type.len())
            || !content_type.iter().all(|byte| matches!(byte, b' '..=b'~'))
        {
            return Err(EnvelopeError::invalid(
                "datacontenttype",
                "a content type, as in \"application/json\"",
            ));
        }
        Ok(())
    }

    /// The event to be published. Its attributes are delivered as headers, except the idempotency key: a ledger keeps
    /// only the hash of a key.
    ///
    /// # Errors
    /// The first invalid attribute.
    pub fn into_publication(self, origin: Origin) -> Result<Publication, EnvelopeError> {
        self.check()?;
        let mut headers = self.to_headers();
        headers.retain(|(name, _)| name.starts_with(PREFIX) && name != "ce-idempotencykey");
        // A source has no space, so that no two messages have the same key.
        let own_key = || format!("{} {}", self.source, self.id);
        Ok(Publication {
            dedupe_key: self.idempotency_key.unwrap_or_else(own_key),
            tenant: self.tenant.unwrap_or_default(),
            event_type: self.message_type,
            payload: self.data,
            content_type: self.content_type,
            headers,
            order_key: self.order_key,
            origin,
            trace: Trace { request_id: None, traceparent: self.traceparent },
            delay: Duration::ZERO,
            deliver_within: None,
        })
    }
}

/// An id by which the event of an envelope is found: see [`tag`](Self::tag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeId {
    /// The id of the message.
    Message,
    /// The correlation id.
    Correlation,
    /// The causation id.
    Causation,
    /// The trace id of the trace context.
    Trace,
    /// The user.
    User,
}

names!(EnvelopeId {
    Message = "id",
    Correlation = "correlationid",
    Causation = "causationid",
    Trace = "traceparent",
    User = "user",
});

impl EnvelopeId {
    /// The tag of an event whose envelope has this id. Ledgers find events by tag.
    #[must_use]
    pub fn tag(self, id: &str) -> String {
        format!("{PREFIX}{}:{id}", self.as_str())
    }

    /// This id of an event with these tags.
    #[must_use]
    pub fn find(self, tags: &[String]) -> Option<&str> {
        let prefix = self.tag("");
        tags.iter().find_map(|tag| tag.strip_prefix(&prefix))
    }
}

/// The tags by which an event with these headers is found.
pub(crate) fn tags(headers: &[(String, String)], trace: &Trace) -> Vec<String> {
    if !headers.iter().any(|(name, _)| name == SPEC_HEADER) {
        return Vec::new();
    }
    let tag = |id: EnvelopeId| match id {
        EnvelopeId::Trace => trace.trace_id().map(|trace| id.tag(trace)),
        _ => {
            let (_, value) =
                headers.iter().find(|(name, _)| name.strip_prefix(PREFIX) == Some(id.as_str()))?;
            encoding::decode_value(value).map(|value| id.tag(&value))
        }
    };
    EnvelopeId::ALL.into_iter().filter_map(tag).collect()
}

fn check_name(name: &str) -> Result<(), EnvelopeError> {
    let valid = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if valid && (1..=MAX_NAME).contains(&name.len()) {
        return Ok(());
    }
    Err(EnvelopeError::Name(name.chars().take(MAX_NAME).collect()))
}

/// True for a time as RFC 3339 writes it.
fn is_time(text: &str) -> bool {
    let number = |at: usize, length: usize, valid: std::ops::RangeInclusive<u32>| {
        let digits =
            text.get(at..at + length).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok()).is_some_and(|number| valid.contains(&number))
    };
    let letter = |at: usize, valid: &[u8]| text.as_bytes().get(at).is_some_and(|byte| valid.contains(byte));
    let moment = number(0, 4, 0..=9999)
        && number(5, 2, 1..=12)
        && number(8, 2, 1..=31)
        && number(11, 2, 0..=23)
        && number(14, 2, 0..=59)
        && number(17, 2, 0..=60)
        && [4, 7].into_iter().all(|at| letter(at, b"-"))
        && letter(10, b"Tt")
        && [13, 16].into_iter().all(|at| letter(at, b":"));
    if !moment {
        return false;
    }
    let fraction = match text[19..].strip_prefix('.') {
        Some(rest) => 1 + rest.bytes().take_while(u8::is_ascii_digit).count(),
        None => 0,
    };
    let zone = 19 + fraction;
    let offset = letter(zone, b"+-")
        && number(zone + 1, 2, 0..=23)
        && letter(zone + 3, b":")
        && number(zone + 4, 2, 0..=59)
        && text.len() == zone + 6;
    fraction != 1 && (offset || (letter(zone, b"Zz") && text.len() == zone + 1))
}
