//! What an effect left behind, and what every later caller is given.

use std::fmt;

/// The outcome of an effect: a kind, metadata, and the body that is replayed byte for byte.
///
/// Shared as `Arc<Outcome>` once it is made. `Debug` shows sizes only: bodies hold what callers sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    kind: String,
    metadata: Vec<u8>,
    body: Body,
}

/// The body of an [`Outcome`].
#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes to replay.
    Kept(Vec<u8>),
    /// The effect happened, but its body was not kept (too large, streamed, not serialisable). The text says why.
    Tombstone(String),
}

impl Outcome {
    /// An outcome whose body is kept. `kind` says how to read it, e.g. `json` or `http`.
    pub fn new(kind: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { kind: kind.into(), metadata: Vec::new(), body: Body::Kept(body.into()) }
    }

    /// An outcome that says only that the effect happened, and why its body is not here.
    pub fn tombstone(kind: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind: kind.into(), metadata: Vec::new(), body: Body::Tombstone(reason.into()) }
    }

    /// The same outcome with metadata beside its body (a surface's own: status line, headers).
    #[must_use]
    pub fn with_metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// How the body is to be read.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// What the surface keeps beside the body.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// The body, or the reason why it was not kept.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The bytes this outcome occupies, for caches and limits.
    pub fn size(&self) -> usize {
        let body = match &self.body {
            Body::Kept(bytes) => bytes.len(),
            Body::Tombstone(reason) => reason.len(),
        };
        self.kind.len() + self.metadata.len() + body
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("kind", &self.kind)
            .field("metadata", &self.metadata.len())
            .field("body", &self.body)
            .finish()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(bytes) => write!(f, "Kept({} bytes)", bytes.len()),
            Self::Tombstone(reason) => write!(f, "Tombstone({reason:?})"),
        }
    }
}
