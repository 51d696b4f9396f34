//! W3C trace context: every attempt is a span of its event's trace.

use crate::event::Trace;
use crate::id::EventId;

impl Trace {
    /// The id of the trace, where the event came with one that can be read.
    pub fn trace_id(&self) -> Option<&str> {
        let mut parts = self.traceparent.as_deref()?.split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let is_id = trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit());
        (version.len() == 2 && is_id && trace.bytes().any(|byte| byte != b'0')).then_some(trace)
    }
}

/// The `traceparent` of an attempt: a new span in the event's trace. An event that came without one has a trace of its
/// own, the same for all its attempts.
pub(crate) fn child(trace: &Trace, event: EventId) -> String {
    let span = rand::random::<u64>().max(1);
    let flags = trace.traceparent.as_deref().and_then(|parent| parent.get(53..55)).unwrap_or("01");
    match trace.trace_id() {
        Some(id) => format!("00-{}-{span:016x}-{flags}", id.to_ascii_lowercase()),
        None => format!("00-{:032x}-{span:016x}-01", u128::from_be_bytes(event.to_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::*;
    use crate::id::EventKind;

    // P12
    #[test]
    fn attempts_are_spans_of_one_trace() {
        let event = EventId::new(EventKind::Event, Timestamp::from_micros(5_000_000));
        let given = Trace {
            request_id: None,
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00".into()),
        };
        let (one, two) = (child(&given, event), child(&given, event));
        assert!(one.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && one.ends_with("-00"));
        assert_ne!(one, two);
        let without = Trace::default();
        assert_eq!(child(&without, event)[..36], child(&without, event)[..36]);
        for wrong in ["", "nonsense", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
            let trace = Trace { request_id: None, traceparent: Some(wrong.into()) };
            assert_eq!(trace.trace_id(), None, "{wrong}");
            assert_eq!(child(&trace, event).len(), 55);
        }
    }
}
