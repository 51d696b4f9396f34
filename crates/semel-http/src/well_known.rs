//! The published policy: what a client may rely on, machine-readable.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Response};
use serde_json::{Map, Value, json};

use crate::body::Body;
use crate::codec::Codec;
use crate::key_source::KeySource;
use crate::policy::{Guarding, InFlight, KeyRequired, Pin, RoutePolicy};
use crate::problem::Situation;
use crate::profile::Profile;

/// Where the policy is published.
pub const PATH: &str = "/.well-known/idempotency";

/// The document: the profile's defaults, then the differences of routes.
pub(crate) fn document(profile: &Profile, fallback: &RoutePolicy, routes: &[RoutePolicy]) -> Bytes {
    let mut document = describe(fallback, profile);
    document.insert("version".to_owned(), json!(1));
    document.insert("profile".to_owned(), json!(profile.name));
    let routes: Vec<Value> = routes
        .iter()
        .map(|route| {
            let mut described = describe(route, profile);
            described.insert("match".to_owned(), json!(route.pattern().to_string()));
            Value::Object(described)
        })
        .collect();
    document.insert("routes".to_owned(), Value::Array(routes));
    serde_json::to_vec(&Value::Object(document)).expect("names and numbers always have a JSON form").into()
}

fn describe(policy: &RoutePolicy, profile: &Profile) -> Map<String, Value> {
    let mut described = Map::new();
    let supported = policy.guarding == Guarding::Guarded && !policy.methods.is_empty();
    described.insert("supported".to_owned(), json!(supported));
    if !supported {
        // A policy that stores no answers publishes no durations.
        return described;
    }
    let format = match profile.codec {
        Codec::Http => "visible-ascii",
        #[cfg(feature = "mcp")]
        Codec::Mcp { .. } => "letters, digits and _ . : -",
    };
    let methods: Vec<&str> = policy.methods.iter().map(Method::as_str).collect();
    let (min, max) = (policy.key_length.min, policy.key_length.max);
    let key = match &policy.key {
        KeySource::Header(name) => {
            json!({"header": name.as_str(), "format": format, "min_length": min, "max_length": max})
        }
        KeySource::Json(pointer) => {
            json!({"json": pointer.to_string(), "format": format, "min_length": min, "max_length": max})
        }
        KeySource::Content(_) => json!({"content": "sha-256"}),
        KeySource::Route(template) => json!({"route": template.to_string()}),
    };
    let expired = policy.expired.unwrap_or(profile.text(Situation::Expired).status).as_u16();
    let expired = if policy.terms.memory.is_zero() { json!("runs_again") } else { json!(expired) };
    for (name, value) in [
        ("methods", json!(methods)),
        ("key", key),
        ("required", json!(policy.required == KeyRequired::Required)),
        ("replay_ttl_seconds", json!(policy.terms.retention.as_secs())),
        ("in_flight_max_seconds", json!(policy.longest_in_flight().as_secs().max(1))),
        (
            "in_flight",
            json!(match policy.in_flight {
                InFlight::Wait => "wait",
                InFlight::Reject => "reject",
            }),
        ),
        (
            "pinned",
            json!(match policy.pin {
                Pin::Success => "success",
                Pin::Deterministic => "deterministic",
                Pin::All => "all",
            }),
        ),
        ("conflict_status", json!(profile.text(Situation::Conflict).status.as_u16())),
        ("expired", expired),
    ] {
        described.insert(name.to_owned(), value);
    }
    #[cfg(feature = "mcp")]
    if let Codec::Mcp { .. } = profile.codec {
        // Whether a key is required depends on the tool; and problems are tool results, not statuses.
        described.insert("required".to_owned(), json!("by tool"));
        for name in ["conflict_status", "expired"] {
            described.remove(name);
        }
    }
    described
}

/// The document as an answer.
pub(crate) fn answer(document: &Bytes) -> Response<Body> {
    let mut answer = Response::new(Body::from(document.clone()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=300"));
    answer
}
