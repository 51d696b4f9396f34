//! What ties together everything that is said about one request: its ids, in logs and traces (P12).

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use semel::time::{Clock as _, SystemClock};
use semel_http::stored::{REPLAYED, STORED};

use crate::otlp::{Exporter, Kind, Span};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// The ids of one request.
pub(super) struct Story {
    request_id: String,
    parent: Option<Parent>,
    traced: Option<Traced>,
}

/// A `traceparent` of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// A request whose span goes to a collector.
struct Traced {
    exporter: Arc<Exporter>,
    trace: u128,
    id: u64,
    start: u64,
}

impl Story {
    /// Reads the ids of a request. Without a request id it gets one, which the upstream sees too; with a collector, the
    /// upstream sees the gateway's span as its parent.
    pub(super) fn begin(headers: &mut HeaderMap, exporter: Option<&Arc<Exporter>>) -> Self {
        let given = headers.get(&REQUEST_ID).filter(|id| id.len() <= 128).and_then(|id| id.to_str().ok());
        let request_id = match given {
            Some(id) => id.to_owned(),
            None => {
                let id = format!("{:032x}", rand::random::<u128>());
                put(headers, REQUEST_ID, &id);
                id
            }
        };
        let parent = headers.get(&TRACE_PARENT).and_then(|value| Parent::read(value.to_str().ok()?));
        let traced = exporter.filter(|_| parent.is_none_or(|parent| parent.sampled)).map(|exporter| {
            // Zero is no id.
            let trace = parent.map_or_else(|| rand::random::<u128>().max(1), |parent| parent.trace);
            let id = rand::random::<u64>().max(1);
            put(headers, TRACE_PARENT, &format!("00-{trace:032x}-{id:016x}-01"));
            Traced { exporter: Arc::clone(exporter), trace, id, start: SystemClock.now().as_micros() }
        });
        Self { request_id, parent, traced }
    }

    /// The caller's id, or the one it was given.
    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The span that log lines stand in.
    pub(super) fn span(&self) -> tracing::Span {
        let trace =
            self.traced.as_ref().map(|traced| traced.trace).or(self.parent.map(|parent| parent.trace));
        let trace_id = trace.map(|trace| format!("{trace:032x}"));
        tracing::info_span!(target: "semel", "request", request_id = self.request_id, trace_id)
    }

    /// Whether a collector wants to know of it.
    pub(super) fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// The request was answered. `name` is its method and route: the operator's words, not a caller's.
    pub(super) fn end<B>(self, name: String, answer: &Response<B>) {
        let Some(Traced { exporter, trace, id, start }) = self.traced else { return };
        exporter.take(Span {
            trace,
            id,
            parent: self.parent.map(|parent| parent.span),
            name,
            kind: Kind::Server,
            start,
            end: SystemClock.now().as_micros(),
            request_id: self.request_id,
            status: answer.status().as_u16(),
            outcome: outcome(answer),
            more: Vec::new(),
        });
    }
}

/// What an answer says of itself.
fn outcome<B>(answer: &Response<B>) -> &'static str {
    if answer.headers().contains_key(REPLAYED) {
        "replayed"
    } else if answer.headers().contains_key(STORED) {
        "not_stored"
    } else {
        "answered"
    }
}

impl Parent {
    /// Reads `00-TRACE-SPAN-FLAGS`. What is malformed is no parent.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, length: usize| {
            (text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
                .then_some(())
        };
        hex(version, 2)?;
        hex(trace, 32)?;
        hex(span, 16)?;
        hex(flags, 2)?;
        let parent = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (version != "ff" && parent.trace != 0 && parent.span != 0).then_some(parent)
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_strictly() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = Parent::read(text).unwrap();
        assert_eq!((parent.span, parent.sampled), (0xb7ad_6b71_6920_3331, true));
        assert!(!Parent::read(&text.replace("-01", "-00")).unwrap().sampled);
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7-b7ad6b7169203331-01",
        ] {
            assert_eq!(Parent::read(wrong), None, "{wrong}");
        }
    }
}
