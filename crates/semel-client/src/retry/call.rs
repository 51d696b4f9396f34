//! What is called, and whose doing it is.

use super::destination::Destination;
use super::table::Repeat;
use semel::key::Hint;

/// Describes a retried call: for the decision whether to repeat it, and for logs.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until a policy runs it"]
pub struct Call {
    pub(super) operation: String,
    pub(super) repeat: Repeat,
    pub(super) destination: Option<Destination>,
    pub(super) key: Option<Hint>,
    pub(super) story: StoryIds,
}

/// The known ids of one action, for logs and traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the log field of its name")]
pub struct StoryIds {
    pub request_id: Option<String>,
    pub trace_id: Option<String>,
    pub user: Option<String>,
    pub org: Option<String>,
    pub run_id: Option<String>,
    pub event_id: Option<String>,
    pub delivery_id: Option<String>,
    pub dlq_id: Option<String>,
    pub target: Option<String>,
    pub source: Option<String>,
    pub event_type: Option<String>,
}

impl Call {
    /// A call of this operation, which may not be repeated unless [`repeat`](Self::repeat) says so.
    pub fn new(operation: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            repeat: Repeat::Unsafe,
            destination: None,
            key: None,
            story: StoryIds::default(),
        }
    }

    /// Whether it may be repeated.
    pub fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    /// It carries this key, which its receiver honours: it may be repeated. Only the first eight characters are kept.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(Hint::new(key));
        self.repeat(Repeat::Safe)
    }

    /// Where it goes: asks the destination's budget and breaker.
    pub fn to(mut self, destination: &Destination) -> Self {
        self.destination = Some(destination.clone());
        self
    }

    /// Whose doing it is.
    pub fn story(mut self, story: StoryIds) -> Self {
        self.story = story;
        self
    }
}
