//! The outcome of an effect, which every later caller gets.

use std::fmt;

/// The outcome of an effect: a kind, metadata, and the body, which every caller gets byte for byte.
///
/// Shared as `Arc<Outcome>`. `Debug` shows sizes only: bodies can contain the callers' data.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    kind: String,
    metadata: Vec<u8>,
    body: OutcomeBody,
}

/// The body of an [`Outcome`].
#[derive(Clone, PartialEq, Eq)]
pub enum OutcomeBody {
    /// The stored bytes.
    Kept(Vec<u8>),
    /// The effect happened, but its body was not stored (too large, streamed, not serialisable). The text gives the
    /// reason.
    Tombstone(String),
}

impl Outcome {
    /// An outcome with a body. `kind` says how to read it, e.g. `json` or `http`.
    pub fn new(kind: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { kind: kind.into(), metadata: Vec::new(), body: OutcomeBody::Kept(body.into()) }
    }

    /// An outcome without its body. It says that the effect happened and why the body is missing.
    pub fn tombstone(kind: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind: kind.into(), metadata: Vec::new(), body: OutcomeBody::Tombstone(reason.into()) }
    }

    /// Adds metadata of the surface: for HTTP the status line and headers.
    #[must_use]
    pub fn with_metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// How to read the body.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The metadata of the surface.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// The body, or the reason why it was not stored.
    pub fn body(&self) -> &OutcomeBody {
        &self.body
    }

    /// The bytes this outcome occupies, for caches and limits.
    pub fn size(&self) -> usize {
        let body = match &self.body {
            OutcomeBody::Kept(bytes) => bytes.len(),
            OutcomeBody::Tombstone(reason) => reason.len(),
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

impl fmt::Debug for OutcomeBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(bytes) => write!(f, "Kept({} bytes)", bytes.len()),
            Self::Tombstone(reason) => write!(f, "Tombstone({reason:?})"),
        }
    }
}
