//! Builds a receiver.

use std::sync::Arc;

use super::Receiver;
use super::session::Sessions;
use crate::marks::{DEFAULT_FIRST, Gaps};
use crate::{DEFAULT_CAPACITY, Window, WindowError};
use semel::store::MarkStore;

/// The default number of idle sessions in memory.
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

    /// Sessions start with `first` instead of 1. Only [`Gaps::Strict`] uses it.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = first;
        self
    }

    /// Names the receiver. Receivers over one store with the same name, or without one, share their marks. The name
    /// must not change while the data exists.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Number of keys in the window. Default: [`DEFAULT_CAPACITY`].
    pub fn window(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// About how many idle sessions stay in memory (10,000 by default). Others are read from the store when they
    /// return.
    pub fn idle_sessions(mut self, idle: usize) -> Self {
        self.idle = idle;
        self
    }

    /// Builds the receiver. Reads nothing yet.
    ///
    /// # Errors
    /// The capacity of the window is zero, or there is not enough memory.
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
