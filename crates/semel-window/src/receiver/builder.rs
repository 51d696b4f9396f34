//! Builds a receiver.

use std::sync::Arc;

use super::Receiver;
use super::session::Sessions;
use crate::marks::{DEFAULT_FIRST, Gaps};
use crate::{DEFAULT_CAPACITY, Window, WindowError};
use semel::store::MarkStore;

/// How many idle sessions stay in memory, unless told otherwise.
const DEFAULT_IDLE: usize = 10_000;

/// Settings of a [`Receiver`].
#[derive(Debug)]
#[must_use = "nothing is built until build is called"]
pub struct ReceiverBuilder {
    store: Arc<dyn MarkStore>,
    gaps: Gaps,
    first: u64,
    name: Option<Box<str>>,
    capacity: usize,
    idle: usize,
}

impl ReceiverBuilder {
    pub(super) fn new(store: Arc<dyn MarkStore>, gaps: Gaps) -> Self {
        Self { store, gaps, first: DEFAULT_FIRST, name: None, capacity: DEFAULT_CAPACITY, idle: DEFAULT_IDLE }
    }

    /// Lets sessions start with `first` instead of 1. Only [`Gaps::Strict`] looks at it.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = first;
        self
    }

    /// Names the receiver. Receivers over one store that have the same name, or none, share their marks; give
    /// each its name if they serve different things. Must not change over the life of the data.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many keys the window holds. Default: [`DEFAULT_CAPACITY`].
    pub fn window(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// About how many idle sessions stay in memory (10,000 by default). Others are read from the store when they
    /// come back; none is forgotten.
    pub fn idle_sessions(mut self, idle: usize) -> Self {
        self.idle = idle;
        self
    }

    /// Builds the receiver. Reads nothing yet.
    ///
    /// # Errors
    /// If the window cannot be made: a capacity of zero, or more than memory holds.
    pub fn build(self) -> Result<Receiver, WindowError> {
        let Self { store, gaps, first, name, capacity, idle } = self;
        Ok(Receiver {
            store,
            gaps,
            first,
            name,
            window: Window::new(capacity)?,
            sessions: Sessions::new(idle),
        })
    }
}
