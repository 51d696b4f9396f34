//! W3C trace context: every attempt is a span of its event's trace.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::delivery::Work;
use crate::event::Trace;

/// The position of an attempt in its trace. Displays as the `traceparent` for the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptSpan {
    /// The trace that the event came with, or the event's own.
    pub trace: u128,
    /// The attempt.
    pub id: u64,
    /// The parent span of the event.
    pub parent: Option<u64>,
    /// Whether it is to be recorded.
    pub sampled: Sampled,
}

/// Whether a trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// It is.
    Yes,
    /// Its publisher disabled it.
    No,
}

impl Trace {
    /// The id of the trace, if the event came with a valid one.
    pub fn trace_id(&self) -> Option<&str> {
        self.read()?;
        self.traceparent.as_deref()?.get(3..35)
    }

    /// Trace, parent and flags.
    fn read(&self) -> Option<(u128, u64, u8)> {
        let mut parts = self.traceparent.as_deref()?.split('-');
        let mut part = |length: usize| {
            let part = parts.next()?;
            let fits = part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then_some(part)
        };
        let (_, trace, parent, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
        Some((trace, parent, u8::from_str_radix(flags, 16).ok()?))
    }
}

impl Work {
    /// The span of this attempt. It is deterministic: the span's id is derived from the request id.
    pub fn span(&self) -> AttemptSpan {
        let digest = Sha256::digest(self.request_id.as_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        // Zero is not a valid id.
        let id = u64::from_be_bytes(id).max(1);
        match self.trace.read() {
            Some((trace, parent, flags)) => {
                let sampled = if flags & 1 == 1 { Sampled::Yes } else { Sampled::No };
                AttemptSpan { trace, id, parent: Some(parent), sampled }
            }
            None => {
                let trace = u128::from_be_bytes(self.event.to_bytes());
                AttemptSpan { trace, id, parent: None, sampled: Sampled::Yes }
            }
        }
    }
}

impl fmt::Display for AttemptSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled == Sampled::Yes);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.id)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use semel::time::Timestamp;

    use super::*;
    use crate::delivery::Holding;
    use crate::id::{DeliveryId, EventId, EventKind};

    fn work(traceparent: Option<&str>, request_id: &str) -> Work {
        let now = Timestamp::from_micros(5_000_000);
        Work {
            holding: Holding { delivery: DeliveryId::new(now), token: 1 },
            event: EventId::from_bytes(EventKind::Event, [7; 16]),
            target: "t".into(),
            tenant: String::new(),
            event_type: "a".into(),
            payload: Bytes::new(),
            content_type: String::new(),
            headers: Vec::new(),
            attempt: 1,
            crashes: 0,
            epoch: 0,
            request_id: request_id.into(),
            trace: Trace { request_id: None, traceparent: traceparent.map(str::to_owned) },
            accepted_at: now,
            expired: false,
            job: None,
        }
    }

    #[test]
    fn attempts_are_spans_of_one_trace() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let (one, two) = (work(Some(parent), "d-1").span(), work(Some(parent), "d-2").span());
        assert!(one.to_string().starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert!(one.to_string().ends_with("-00") && one.sampled == Sampled::No);
        assert_eq!((one.trace, one.parent), (two.trace, Some(0x00f0_67aa_0ba9_02b7)));
        assert_ne!(one.id, two.id);
        assert_eq!(work(Some(parent), "d-1").span(), one, "deterministic");
        assert_eq!(work(Some(parent), "x").trace.trace_id(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
    }

    #[test]
    fn an_event_without_a_trace_has_one_of_its_own() {
        for wrong in [
            None,
            Some(""),
            Some("nonsense"),
            Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
            Some("00-4bf92f3577b34da6a3ce929d0e0e473ä-00f067aa0ba902b7-01"),
        ] {
            let span = work(wrong, "d-1").span();
            assert_eq!((span.trace, span.parent), (u128::from_be_bytes([7; 16]), None), "{wrong:?}");
            assert_eq!(span.to_string().len(), 55);
            assert_eq!(work(wrong, "d-1").trace.trace_id(), None);
        }
    }
}
