//! Turns the fields of a message into an event, or the reason why not.

use std::fmt::Write as _;

use bytes::Bytes;
use semel::secret::Secret;
use semel::time::Timestamp;

use super::Message;
use crate::envelope::{ENVELOPE_JSON, Envelope, SPEC_HEADER};
use crate::event::{NewEvent, Origin, Trace};
use crate::id::{EventId, EventKind};
use crate::publish::Publication;

/// The longest type, tenant, order key or dedupe key.
const LONGEST: usize = 1024;

/// Decodes a message. `stream` is its source; `targets` finds the targets of an event type.
///
/// # Errors
/// Why it cannot be decoded, for people.
pub(super) fn decode(
    message: &Message,
    stream: &str,
    secret: &Secret,
    now: Timestamp,
    targets: impl FnOnce(&str) -> Vec<String>,
) -> Result<NewEvent, String> {
    let origin = Origin::Stream { stream: stream.to_owned(), message: message.id.clone() };
    let publication = match envelope(message)? {
        Some(envelope) => envelope.into_publication(origin).map_err(|error| error.to_string())?,
        None => publication(message, origin)?,
    };
    let targets = targets(&publication.event_type);
    publication
        .place(EventId::new(EventKind::Event, now), secret, targets)
        .map_err(|error| format!("the field `dedupe_key` cannot be used: {error}"))
}

/// The envelope of a message: its payload is one in JSON, or its fields are the headers of one.
fn envelope(message: &Message) -> Result<Option<Envelope>, String> {
    let is = |wanted: &'static str| move |(name, _): &&(Bytes, Bytes)| &name[..] == wanted.as_bytes();
    let field = |name: &'static str| message.fields.iter().find(is(name)).map(|(_, value)| value);
    let is_json = field("content_type").is_some_and(|value| value.starts_with(ENVELOPE_JSON.as_bytes()));
    // A message with a type of its own is an event, whatever its other fields are named.
    if field("type").is_some() || !(is_json || field(SPEC_HEADER).is_some()) {
        return Ok(None);
    }
    let (mut headers, mut payload) = (Vec::new(), None);
    for (name, value) in &message.fields {
        let name = text("the name of a field", name)?;
        match name.as_str() {
            "payload" => once(&mut payload, &name, value.clone())?,
            "content_type" => headers.push(("content-type".to_owned(), text(&name, value)?)),
            _ if name.starts_with("ce-") && !is_json => headers.push((name.clone(), text(&name, value)?)),
            _ => return Err(format!("the field `{}` has no place beside an envelope", shorten(&name))),
        }
    }
    let payload = payload.unwrap_or_default();
    let envelope = if is_json {
        Envelope::from_json(&payload)
    } else {
        Envelope::from_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())), payload)
    };
    envelope.map(Some).map_err(|error| error.to_string())
}

/// What the fields of a message publish.
fn publication(message: &Message, origin: Origin) -> Result<Publication, String> {
    let mut payload = None;
    let (mut event_type, mut dedupe_key, mut content_type) = (None, None, None);
    let (mut tenant, mut order_key) = (None, None);
    let mut headers = Vec::new();
    for (name, value) in &message.fields {
        let name = text("the name of a field", name)?;
        let place = match name.as_str() {
            "payload" => {
                once(&mut payload, &name, value.clone())?;
                continue;
            }
            "type" => &mut event_type,
            "dedupe_key" => &mut dedupe_key,
            "tenant" => &mut tenant,
            "order_key" => &mut order_key,
            "content_type" => &mut content_type,
            _ => {
                headers.push((name.clone(), text(&name, value)?));
                continue;
            }
        };
        once(place, &name, text(&name, value)?)?;
    }
    let event_type = required("type", event_type)?;
    let dedupe_key = required("dedupe_key", dedupe_key)?;
    let payload = payload.ok_or("the field `payload` is missing")?;
    let header = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let trace = Trace { request_id: header("request_id"), traceparent: header("traceparent") };
    let mut publication = Publication::new(event_type, dedupe_key, payload);
    publication.content_type = content_type.unwrap_or(publication.content_type);
    publication.tenant = tenant.unwrap_or_default();
    publication.order_key = order_key.filter(|key| !key.is_empty());
    publication.origin = origin;
    (publication.headers, publication.trace) = (headers, trace);
    Ok(publication)
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("the field `{name}` occurs twice")),
    }
}

fn required(name: &str, value: Option<String>) -> Result<String, String> {
    match value {
        Some(value) if !value.is_empty() => Ok(value),
        Some(_) => Err(format!("the field `{name}` is empty")),
        None => Err(format!("the field `{name}` is missing")),
    }
}

fn shorten(name: &str) -> &str {
    name.get(..64).unwrap_or(name)
}

/// Text that every ledger and every header can contain.
fn text(name: &str, value: &Bytes) -> Result<String, String> {
    let short = shorten(name);
    if value.len() > LONGEST {
        return Err(format!("`{short}` is longer than {LONGEST} bytes"));
    }
    let text = std::str::from_utf8(value).map_err(|_| format!("`{short}` is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(format!("`{short}` contains a control character"));
    }
    Ok(text.to_owned())
}

/// All fields of a message as JSON, for a dead letter: text unchanged, other bytes in hex. Nothing is lost.
pub(super) fn raw(message: &Message) -> Bytes {
    let fields: Vec<[serde_json::Value; 2]> =
        message.fields.iter().map(|(name, value)| [shown(name), shown(value)]).collect();
    let raw = Raw { id: &message.id, fields };
    Bytes::from(serde_json::to_vec(&raw).expect("text and lists are JSON"))
}

/// A struct, so that the order of its members does not depend on a feature of a dependency.
#[derive(serde::Serialize)]
struct Raw<'a> {
    id: &'a str,
    fields: Vec<[serde_json::Value; 2]>,
}

fn shown(bytes: &Bytes) -> serde_json::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::Value::from(text),
        Err(_) => {
            let mut hex = String::with_capacity(bytes.len() * 2);
            for byte in bytes {
                write!(hex, "{byte:02x}").expect("a string takes everything");
            }
            serde_json::json!({ "hex": hex })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given<'a> = &'a [(&'a str, &'a [u8])];

    fn message(fields: Given<'_>) -> Message {
        let fields = fields
            .iter()
            .map(|(name, value)| (Bytes::copy_from_slice(name.as_bytes()), Bytes::copy_from_slice(value)));
        Message { id: "1-1".to_owned(), fields: fields.collect(), given_out: 1 }
    }

    fn read(fields: Given<'_>) -> Result<NewEvent, String> {
        let secret = Secret::from_bytes([7; 32]);
        let now = Timestamp::from_micros(1_000_000);
        decode(&message(fields), "orders", &secret, now, |_| vec!["crm".to_owned()])
    }

    /// Fields are separated by NUL: a name, its value, the next name.
    #[test]
    fn fuzz_stream_entry() {
        let fuzz =
            semel_testbed::fuzz::Fuzz::new("stream_entry", include_str!("../../fuzz/stream_entry.seeds"));
        fuzz.tokens(&[
            "\0",
            "type\0",
            "payload\0",
            "dedupe_key\0",
            "tenant\0",
            "order_key\0",
            "content_type\0",
            "ce-specversion\x001.0\0",
            "ce-id\0",
            "ce-source\0",
            "ce-type\0",
            "application/cloudevents+json",
        ])
        .run(|input| {
            let parts: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
            let fields = parts.chunks_exact(2);
            let fields: Vec<(Bytes, Bytes)> = fields
                .map(|pair| (Bytes::copy_from_slice(pair[0]), Bytes::copy_from_slice(pair[1])))
                .collect();
            let message = Message { id: "1-1".to_owned(), fields, given_out: 1 };
            assert!(
                serde_json::from_slice::<serde_json::Value>(&raw(&message)).is_ok(),
                "a dead letter can be read"
            );
            let secret = Secret::from_bytes([7; 32]);
            let event = decode(&message, "orders", &secret, Timestamp::from_micros(1), |_| Vec::new())
                // Names from a producer say nothing about behaviour.
                .map_err(|why| why.split('`').step_by(2).collect::<String>())?;
            assert!(event.dedupe.is_some() && !event.event_type.is_empty());
            Ok::<_, String>((event.order_key.is_some(), event.tenant.is_empty(), event.headers.len().min(3)))
        });
    }

    #[test]
    fn a_message_with_its_three_fields_is_an_event() {
        let payload = br#"{"n":9007199254740993,"a":[]}"#;
        let event = read(&[
            ("type", b"order.paid"),
            ("dedupe_key", b"o-1"),
            ("payload", payload),
            ("tenant", b"acme"),
            ("order_key", b"o"),
            ("source", b"shop"),
        ])
        .expect("it is whole");
        assert_eq!((event.event_type.as_str(), event.tenant.as_str()), ("order.paid", "acme"));
        assert_eq!(&event.payload[..], payload);
        assert_eq!(event.headers, [("source".to_owned(), "shop".to_owned())]);
        assert_eq!(
            (event.order_key.as_deref(), event.targets.as_slice()),
            (Some("o"), &["crm".to_owned()][..])
        );
    }

    // As headers and as JSON; both find the same ids.
    #[test]
    fn an_envelope_is_an_event() {
        let fields = read(&[
            ("ce-specversion", b"1.0"),
            ("ce-id", b"m-1"),
            ("ce-source", b"/shop"),
            ("ce-type", b"order.pay"),
            ("ce-tenant", b"acme"),
            ("ce-idempotencykey", b"o-1:pay"),
            ("ce-correlationid", b"c%201"),
            ("ce-partitionkey", b"o-1"),
            ("content_type", b"text/plain"),
            ("payload", b"pay"),
        ])
        .expect("it is whole");
        let json = br#"{"specversion":"1.0","id":"m-1","source":"/shop","type":"order.pay","tenant":"acme",
            "idempotencykey":"o-1:pay","correlationid":"c 1","partitionkey":"o-1","datacontenttype":"text/plain",
            "data":"pay"}"#;
        let json =
            read(&[("content_type", b"application/cloudevents+json"), ("payload", json)]).expect("whole");
        assert_eq!(NewEvent { id: json.id, ..fields.clone() }, json);
        let named = read(&[
            ("type", b"order.pay"),
            ("dedupe_key", b"o-1:pay"),
            ("payload", b"pay"),
            ("tenant", b"acme"),
        ]);
        assert_eq!(fields.dedupe, named.expect("it is whole").dedupe, "one fact, however it was written");
        assert_eq!(fields.notes.tags, ["ce-id:m-1", "ce-correlationid:c 1"]);
        assert_eq!((fields.order_key.as_deref(), &fields.payload[..]), (Some("o-1"), &b"pay"[..]));
        assert!(fields.headers.iter().all(|(name, _)| name != "ce-idempotencykey"), "only its hash is kept");
        let wrong = read(&[("ce-specversion", b"1.0"), ("ce-id", b"1"), ("dedupe_key", b"k")]).unwrap_err();
        assert!(wrong.contains("`dedupe_key` has no place"), "{wrong}");
        let wrong = read(&[("ce-specversion", b"1.0"), ("ce-id", b"1"), ("payload", b"")]).unwrap_err();
        assert_eq!(wrong, "source: required in an envelope");
    }

    // Such messages were events before there were envelopes.
    #[test]
    fn a_message_with_its_own_type_is_no_envelope() {
        let event = read(&[
            ("type", b"t"),
            ("dedupe_key", b"k"),
            ("payload", b"{}"),
            ("ce-specversion", b"0.3"),
            ("content_type", b"application/cloudevents+json"),
        ]);
        let event = event.expect("it is whole");
        assert_eq!((event.event_type.as_str(), &event.payload[..]), ("t", &b"{}"[..]));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let whole: Given<'_> = &[("type", b"t"), ("dedupe_key", b"k"), ("payload", b"{}")];
        for missing in 0..3 {
            let rest: Vec<_> =
                whole.iter().enumerate().filter(|(n, _)| *n != missing).map(|(_, field)| *field).collect();
            let why = read(&rest).expect_err("one is missing");
            assert!(why.contains(whole[missing].0) && why.contains("missing"), "{why}");
        }
        let long = [b'x'; LONGEST + 1];
        let wrong: [(Given<'_>, &str); 6] = [
            (&[("type", b"t"), ("type", b"u"), ("dedupe_key", b"k"), ("payload", b"")], "twice"),
            (&[("type", b"\xff"), ("dedupe_key", b"k"), ("payload", b"")], "UTF-8"),
            (&[("type", b"t\0"), ("dedupe_key", b"k"), ("payload", b"")], "control"),
            (&[("type", b""), ("dedupe_key", b"k"), ("payload", b"")], "empty"),
            (&[("type", b"t"), ("dedupe_key", b""), ("payload", b"")], "empty"),
            (&[("type", b"t"), ("dedupe_key", &long), ("payload", b"")], "longer"),
        ];
        for (fields, expected) in wrong {
            let why = read(fields).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_raw_message_keeps_every_byte() {
        let raw = raw(&message(&[("type", b"t"), ("payload", b"\xff\x00")]));
        let expected = r#"{"id":"1-1","fields":[["type","t"],["payload",{"hex":"ff00"}]]}"#;
        assert_eq!(std::str::from_utf8(&raw), Ok(expected));
    }
}
