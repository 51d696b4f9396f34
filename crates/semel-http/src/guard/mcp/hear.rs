//! Finds the answer to a message in an upstream's response: the whole body, or one event of a stream.

use std::ops::Range;

use bytes::Bytes;
use http::header::HeaderMap;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::read::{Read, ReadDecision, ReadStop, Resumed, read, read_until};
use crate::body::{Body, BoxError};
use crate::mcp::call::{is_events, judge};
use crate::mcp::sse::{self, SseEvent, SseReader};

/// When to stop reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) enum Until {
    /// When the answer was read.
    Answer,
    /// When the answer or any other event was read.
    AnyEvent,
}

/// The result of looking for the answer to a message.
pub(in crate::guard) enum Hearing {
    Heard(Box<Heard>),
    /// The answer was not found. Carries everything that was read.
    Not(Body, NoAnswer),
    Cut(BoxError),
}

/// Why no answer was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) enum NoAnswer {
    TooLarge,
    Late,
    /// The body ended, or is not an answer.
    Missing,
    /// Other events came before the answer.
    Others,
}

/// An answer that was found.
pub(in crate::guard) struct Heard {
    pub(in crate::guard) message: Bytes,
    spoken: AnswerPlace,
}

/// Where the answer was found.
enum AnswerPlace {
    Alone(Option<HeaderMap>),
    /// In a stream: the bytes that were read, the position of the answer in them, and the rest.
    Among {
        read: Bytes,
        place: Range<usize>,
        rest: Resumed,
    },
}

impl Heard {
    /// The body, unchanged.
    pub(in crate::guard) fn into_body(self) -> Body {
        match self.spoken {
            AnswerPlace::Alone(trailers) => Body::with_trailers(self.message, trailers),
            AnswerPlace::Among { read, mut rest, .. } => {
                rest.put_back(read);
                rest.into_body()
            }
        }
    }

    /// The body with this message replaced by another.
    pub(in crate::guard) fn with(self, message: &RawValue) -> Body {
        let message = message.get().as_bytes();
        match self.spoken {
            AnswerPlace::Alone(trailers) => Body::with_trailers(Bytes::copy_from_slice(message), trailers),
            AnswerPlace::Among { read, place, mut rest } => {
                let mut whole = read[..place.start].to_vec();
                whole.extend_from_slice(&sse::with_data(&read[place.clone()], message));
                whole.extend_from_slice(&read[place.end..]);
                rest.put_back(whole.into());
                rest.into_body()
            }
        }
    }
}

/// Reads a body until the answer to `id` is found in it.
pub(in crate::guard) async fn read_answer(
    headers: &HeaderMap,
    body: Body,
    id: &RawValue,
    until: Until,
    limit: usize,
    deadline: Instant,
) -> Hearing {
    if !is_events(headers) {
        return match read(body, limit, deadline).await {
            Read::Whole(whole) => {
                let (message, trailers) = whole.join();
                if judge(&message, id).is_some() {
                    Hearing::Heard(Box::new(Heard { message, spoken: AnswerPlace::Alone(trailers) }))
                } else {
                    Hearing::Not(Body::with_trailers(message, trailers), NoAnswer::Missing)
                }
            }
            Read::Partly(rest, stopped) => Hearing::Not(rest.into_body(), silence(stopped)),
            Read::Cut(error) => Hearing::Cut(error),
        };
    }
    let (mut events, mut found, mut others) = (SseReader::default(), None::<SseEvent>, 0);
    let look = |piece: &[u8]| {
        events.feed(piece, |event| {
            if found.is_none() && judge(&event.data, id).is_some() {
                found = Some(event);
            } else {
                others += 1;
            }
        });
        let is_enough = found.is_some() || (until == Until::AnyEvent && others > 0);
        if is_enough { ReadDecision::Found } else { ReadDecision::On }
    };
    match read_until(body, limit, deadline, None, look).await {
        Read::Partly(mut rest, stopped) => match found {
            Some(SseEvent { data, place }) => {
                let spoken = AnswerPlace::Among { read: rest.take_read(), place, rest };
                Hearing::Heard(Box::new(Heard { message: data.into(), spoken }))
            }
            None => Hearing::Not(rest.into_body(), silence(stopped)),
        },
        // An event that the end of the body cut off is ignored.
        Read::Whole(whole) => {
            let (data, trailers) = whole.join();
            Hearing::Not(Body::with_trailers(data, trailers), NoAnswer::Missing)
        }
        Read::Cut(error) => Hearing::Cut(error),
    }
}

fn silence(stopped: ReadStop) -> NoAnswer {
    match stopped {
        ReadStop::TooLarge => NoAnswer::TooLarge,
        // Answers are not counted against the memory limit.
        ReadStop::Streaming | ReadStop::NoRoom => NoAnswer::Late,
        ReadStop::Found => NoAnswer::Others,
    }
}
