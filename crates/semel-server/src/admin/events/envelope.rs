//! Messages in envelopes: how they are published, shown and found.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use schemars::JsonSchema;
use semel_pipeline::envelope::{ENVELOPE_JSON, Envelope, EnvelopeId, SPEC_HEADER};
use semel_pipeline::event::{Origin, Trace};
use semel_pipeline::publish::Publication;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ENVELOPE, PublishRequest};
use crate::admin::access::Caller;
use crate::admin::answer::{PayloadBody, Refusal};
use crate::admin::listing::ListRequest;

/// The schema of an envelope in JSON.
pub(super) fn schema() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "type": "object",
        "description": "A message between services, as a CloudEvent. Other attributes are delivered too.",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": { "const": "1.0" },
            "id": text("ID of the message within its source."),
            "source": text("Sender, as a URI or path."),
            "type": text("Type, such as order.pay. Targets choose events by type."),
            "idempotencykey": text("Deduplication key; without it, source and id."),
            "user": text("Person or account on whose behalf it was sent."),
            "tenant": text("Tenant."),
            "correlationid": text("ID that all messages of one process share."),
            "causationid": text("ID of the message that caused this one."),
            "traceparent": text("W3C trace context."),
            "dataversion": text("Version of the type."),
            "partitionkey": text("Order key."),
            "time": text("RFC 3339."),
            "datacontenttype": text("Content type of the data; application/json without it."),
            "data": { "description": "Any JSON, or a string where datacontenttype is not JSON." },
            "data_base64": text("The data in base64, instead of `data`."),
        },
    })
}

/// The publication of a message in an envelope.
pub(super) fn publication(envelope: Envelope, caller: &Caller, trace: Trace) -> Result<Publication, Refusal> {
    let tenant = caller.tenant_for(envelope.tenant.clone())?;
    let origin = Origin::Api { principal: caller.name.clone() };
    let mut publication =
        envelope.into_publication(origin).map_err(|error| Refusal::bad(error.to_string()))?;
    publication.tenant = tenant;
    // The request that published a message may be part of another trace than the message.
    let traceparent = publication.trace.traceparent.or(trace.traceparent);
    publication.trace = Trace { request_id: trace.request_id, traceparent };
    Ok(publication)
}

/// How a request carries an envelope.
#[derive(Clone, Copy)]
pub(super) enum EnvelopeMode {
    Json,
    Headers,
}

impl EnvelopeMode {
    /// `None`: the body is a [`PublishRequest`].
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if media == ENVELOPE_JSON {
            Ok(Some(Self::Json))
        } else if media.starts_with("application/cloudevents") {
            Err(Refusal::bad(format!(
                "content-type: expected one envelope as {ENVELOPE_JSON}, or as ce-* headers"
            )))
        } else {
            Ok(headers.contains_key(SPEC_HEADER).then_some(Self::Headers))
        }
    }

    pub(super) async fn read(
        self,
        body: PayloadBody<PublishRequest>,
        most: usize,
    ) -> Result<Envelope, Refusal> {
        let read = match self {
            // Base64 makes four characters of three bytes.
            Self::Json => Envelope::from_json(&body.read_bytes(most, most / 2 + ENVELOPE).await?),
            Self::Headers => {
                let headers = body.headers.clone();
                let data = body.read_bytes(most, 0).await?;
                let mut pairs = Vec::new();
                for (name, value) in &headers {
                    let value = std::str::from_utf8(value.as_bytes());
                    pairs.push((
                        name.as_str(),
                        value.map_err(|_| Refusal::bad(format!("{name}: expected UTF-8")))?,
                    ));
                }
                Envelope::from_headers(pairs, data)
            }
        };
        read.map_err(|error| Refusal::bad(error.to_string()))
    }
}

/// The filters by an id of an envelope.
const ENVELOPE_IDS: [(&str, EnvelopeId); 5] = [
    ("message_id", EnvelopeId::Message),
    ("correlation_id", EnvelopeId::Correlation),
    ("causation_id", EnvelopeId::Causation),
    ("trace_id", EnvelopeId::Trace),
    ("user", EnvelopeId::User),
];

/// The tag that a list of events is asked for, by its name or by an id of an envelope.
pub(super) fn take_tag(asked: &mut ListRequest) -> Result<Option<String>, Refusal> {
    let envelope = ENVELOPE_IDS.into_iter().filter_map(|(name, id)| Some(id.tag(&asked.take(name)?)));
    let mut tags: Vec<String> = envelope.collect();
    tags.extend(asked.take("tag"));
    if tags.len() > 1 {
        let names: Vec<&str> = ENVELOPE_IDS.into_iter().map(|(name, _)| name).collect();
        return Err(Refusal::bad(format!("give only one of tag, {}", names.join(", "))));
    }
    Ok(tags.pop())
}

/// The ids of a message that was published in an envelope.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
pub(in crate::admin) struct EnvelopeDetails {
    /// ID of the message in its envelope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::admin) message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::admin) correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::admin) causation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::admin) user: Option<String>,
}

impl EnvelopeDetails {
    pub(super) fn new(tags: &[String]) -> Self {
        let find = |id: EnvelopeId| id.find(tags).map(str::to_owned);
        Self {
            message_id: find(EnvelopeId::Message),
            correlation_id: find(EnvelopeId::Correlation),
            causation_id: find(EnvelopeId::Causation),
            user: find(EnvelopeId::User),
        }
    }
}
