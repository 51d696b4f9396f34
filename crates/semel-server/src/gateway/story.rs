//! The ids that connect all log lines and spans of one request.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use semel::time::{Clock as _, SystemClock};
use semel_http::stored::{REPLAYED, STORED};

use crate::telemetry::otlp::{Exporter, Span, SpanKind};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// The ids of one request.
pub(super) struct RequestIds {
    request_id: String,
    parent: Option<Parent>,
    traced: Option<Traced>,
}

/// The client's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// A request with a span for a collector.
struct Traced {
    exporter: Arc<Exporter>,
    trace: u128,
    id: u64,
    start: u64,
}

impl RequestIds {
    /// Reads the ids of a request. A request without an id gets one, which the upstream sees too. With a collector, the upstream sees
    /// the gateway's span as its parent.
    pub(super) fn begin(headers: &mut HeaderMap, exporter: Option<&Arc<Exporter>>) -> Self {
        let given = headers.get(&REQUEST_ID).filter(|id| is_request_id(id.as_bytes()));
        let request_id = match given.and_then(|id| id.to_str().ok()) {
            Some(id) => id.to_owned(),
            None => {
                let id = new_request_id();
                put(headers, REQUEST_ID, &id);
                id
            }
        };
        let parent = headers.get(&TRACE_PARENT).and_then(|value| Parent::read(value.to_str().ok()?));
        let traced = exporter.filter(|_| parent.is_none_or(|parent| parent.sampled)).map(|exporter| {
            // Zero is not a valid id.
            let trace = parent.map_or_else(|| rand::random::<u128>().max(1), |parent| parent.trace);
            let id = rand::random::<u64>().max(1);
            put(headers, TRACE_PARENT, &format!("00-{trace:032x}-{id:016x}-01"));
            Traced { exporter: Arc::clone(exporter), trace, id, start: SystemClock.now().as_micros() }
        });
        Self { request_id, parent, traced }
    }

    /// The caller's request id, or the generated one.
    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Gives the client the id to quote. An upstream that answers with an id of its own keeps it; that one is returned.
    pub(super) fn name(&self, answer: &mut HeaderMap) -> Option<HeaderValue> {
        let own = answer.get(&REQUEST_ID).filter(|own| own.as_bytes() != self.request_id.as_bytes());
        let own = own.cloned();
        if own.is_none() {
            put(answer, REQUEST_ID, &self.request_id);
        }
        own
    }

    /// The span of its log lines.
    pub(super) fn span(&self) -> tracing::Span {
        let trace =
            self.traced.as_ref().map(|traced| traced.trace).or(self.parent.map(|parent| parent.trace));
        let trace_id = trace.map(|trace| format!("{trace:032x}"));
        tracing::info_span!(target: "semel", "request", request_id = self.request_id, trace_id)
    }

    /// True if a collector gets its span.
    pub(super) fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// Ends the span. `name` is the method and the route pattern, which the operator chooses.
    pub(super) fn end<B>(self, name: String, answer: &Response<B>) {
        let Some(Traced { exporter, trace, id, start }) = self.traced else { return };
        exporter.take(Span {
            trace,
            id,
            parent: self.parent.map(|parent| parent.span),
            name,
            kind: SpanKind::Server,
            start,
            end: SystemClock.now().as_micros(),
            request_id: self.request_id,
            status: answer.status().as_u16(),
            outcome: outcome(answer),
            more: Vec::new(),
        });
    }
}

/// The outcome, read from the answer.
pub(super) fn outcome<B>(answer: &Response<B>) -> &'static str {
    if answer.headers().contains_key(REPLAYED) {
        "replayed"
    } else if answer.headers().contains_key(STORED) {
        "not_stored"
    } else {
        "answered"
    }
}

impl Parent {
    /// Parses `00-TRACE-SPAN-FLAGS`. A malformed one is ignored.
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

/// A fresh id for a request that has none.
pub(crate) fn new_request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// True if a client's id can be used. A longer or unprintable one is replaced.
pub(crate) fn is_request_id(id: &[u8]) -> bool {
    (1..=128).contains(&id.len()) && id.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The request id in an answer of HTTP/1.1, whose names are in lower case.
pub(super) fn request_id_of(answer: &[u8]) -> Option<&[u8]> {
    let mut lines = answer.split(|byte| *byte == b'\n').take_while(|line| *line != b"\r");
    lines.find_map(|line| line.strip_prefix(b"x-request-id: ")?.strip_suffix(b"\r"))
}

/// The status in an answer of HTTP/1.1; 0 if it cannot be read.
pub(super) fn status_of(answer: &[u8]) -> u16 {
    let digits = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Adds the request id to the answer of HTTP/1.1 that begins at `start`.
pub(super) fn put_request_id(answer: &mut Vec<u8>, start: usize, id: &[u8]) {
    let Some(line) = answer[start..].iter().position(|byte| *byte == b'\n') else { return };
    let at = start + line + 1;
    let header = [b"x-request-id: ", id, b"\r\n"].concat();
    answer.splice(at..at, header);
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
    fn an_answer_as_bytes_gets_a_request_id() {
        let mut answer = b"beforeHTTP/1.1 201 Created\r\ndate: now\r\n\r\nx-request-id: body\r\n".to_vec();
        assert_eq!(request_id_of(&answer[6..]), None);
        assert_eq!((status_of(&answer[6..]), status_of(b"HTTP")), (201, 0));
        put_request_id(&mut answer, 6, b"r-1");
        assert_eq!(request_id_of(&answer[6..]), Some(&b"r-1"[..]));
        let expected =
            b"beforeHTTP/1.1 201 Created\r\nx-request-id: r-1\r\ndate: now\r\n\r\nx-request-id: body\r\n";
        assert_eq!(answer, expected);
        for wrong in [&b""[..], b"a\r\nb", &[b'x'; 129], b"\xff"] {
            assert!(!is_request_id(wrong), "{wrong:?}");
        }
    }

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
