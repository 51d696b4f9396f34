//! One body type for requests and answers: bytes in memory, or a stream.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::capacity::CallPlace;

/// Any error.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A body: bytes in memory, or a stream.
///
/// Stored answers, and requests that were read before their claim, are bytes. Everything else is streamed unchanged. Streams are boxed
/// once, bytes never.
pub struct Body(BodyKind);

enum BodyKind {
    Empty,
    Full {
        data: Bytes,
        trailers: Option<Box<HeaderMap>>,
    },
    Trailers(Box<HeaderMap>),
    /// The stream of a call holds the slot of that call.
    Stream(UnsyncBoxBody<Bytes, BoxError>, Option<CallPlace>),
}

impl Body {
    /// An empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// These bytes, followed by these trailers.
    #[must_use]
    pub fn with_trailers(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self(match (data.is_empty(), trailers.map(Box::new)) {
            (true, None) => BodyKind::Empty,
            (true, Some(trailers)) => BodyKind::Trailers(trailers),
            (false, trailers) => BodyKind::Full { data, trailers },
        })
    }

    /// The bytes, if they are in memory; trailers are dropped.
    #[cfg(feature = "mcp")]
    pub(crate) fn into_bytes(self) -> Option<Bytes> {
        match self.0 {
            BodyKind::Empty | BodyKind::Trailers(_) => Some(Bytes::new()),
            BodyKind::Full { data, .. } => Some(data),
            BodyKind::Stream(..) => None,
        }
    }

    /// Replaces some of the bytes, which must be in memory. Trailers stay, except digests of the old bytes.
    pub(crate) fn splice(&mut self, place: Range<usize>, with: &[u8]) {
        let BodyKind::Full { data, trailers } = &mut self.0 else { return };
        let (Some(before), Some(after)) = (data.get(..place.start), data.get(place.end..)) else { return };
        *data = [before, with, after].concat().into();
        if let Some(trailers) = trailers {
            remove_digests(trailers);
        }
    }

    /// A body that fails immediately, for an answer whose own body failed.
    #[cfg(feature = "mcp")]
    pub(crate) fn broken(error: BoxError) -> Self {
        struct Broken(Option<BoxError>);
        impl http_body::Body for Broken {
            type Data = Bytes;
            type Error = BoxError;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
                Poll::Ready(self.0.take().map(Err))
            }
        }
        Self(BodyKind::Stream(Broken(Some(error)).boxed_unsync(), None))
    }

    /// The same body, which holds a call slot while it streams.
    pub(crate) fn holding(mut self, place: CallPlace) -> Self {
        if let BodyKind::Stream(_, held) = &mut self.0 {
            *held = Some(place);
        }
        self
    }

    /// Passes a stream on.
    pub fn stream<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // A body of this type is used as it is, without another box.
        let mut body = Some(body);
        if let Some(own) = (&mut body as &mut dyn Any).downcast_mut::<Option<Self>>() {
            return own.take().unwrap_or_default();
        }
        match body {
            Some(body) if !http_body::Body::is_end_stream(&body) => {
                Self(BodyKind::Stream(body.map_err(Into::into).boxed_unsync(), None))
            }
            _ => Self::empty(),
        }
    }
}

/// Removes the digests of a body whose bytes were changed.
pub(crate) fn remove_digests(headers: &mut HeaderMap) {
    for name in ["content-digest", "repr-digest", "digest", "content-md5"] {
        headers.remove(name);
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::with_trailers(data, None)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<Vec<u8>> for Body {
    fn from(data: Vec<u8>) -> Self {
        Bytes::from(data).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let BodyKind::Stream(stream, _) = &mut self.0 {
            return Pin::new(stream).poll_frame(context);
        }
        Poll::Ready(match std::mem::replace(&mut self.0, BodyKind::Empty) {
            BodyKind::Full { data, trailers } => {
                if let Some(trailers) = trailers {
                    self.0 = BodyKind::Trailers(trailers);
                }
                Some(Ok(Frame::data(data)))
            }
            BodyKind::Trailers(trailers) => Some(Ok(Frame::trailers(*trailers))),
            BodyKind::Empty | BodyKind::Stream(..) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Empty => true,
            BodyKind::Full { .. } | BodyKind::Trailers(_) => false,
            BodyKind::Stream(stream, _) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Empty | BodyKind::Trailers(_) => SizeHint::with_exact(0),
            BodyKind::Full { data, .. } => SizeHint::with_exact(data.len() as u64),
            BodyKind::Stream(stream, _) => stream.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    /// Shows sizes only, because bodies contain the data of callers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            BodyKind::Empty | BodyKind::Trailers(_) => f.write_str("Body(empty)"),
            BodyKind::Full { data, .. } => write!(f, "Body({} bytes)", data.len()),
            BodyKind::Stream(..) => f.write_str("Body(stream)"),
        }
    }
}
