//! A gate that calls wait at until a test opens it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Calls that reach a closed gate wait until it is opened. Clones are the same gate.
///
/// Dropping all of a test's clones does not open it: a partition lasts until it is healed.
#[derive(Clone)]
pub struct FaultGate {
    state: Arc<watch::Sender<FaultGateState>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FaultGateState {
    open: bool,
    waiting: usize,
}

impl FaultGate {
    /// A closed gate.
    pub fn closed() -> Self {
        Self { state: Arc::new(watch::Sender::new(FaultGateState::default())) }
    }

    /// Lets all waiting and later calls through.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    /// Number of waiting calls, without those that were dropped.
    pub fn waiting(&self) -> usize {
        self.state.borrow().waiting
    }

    /// Returns once at least `count` calls wait.
    ///
    /// Cancel-safe. Set a deadline around it: it waits until enough calls arrive.
    pub async fn reached_by(&self, count: usize) {
        let mut state = self.state.subscribe();
        // Cannot fail: `self` keeps the sender.
        let _ = state.wait_for(|state| state.waiting >= count).await;
    }

    pub(super) async fn pass(&self) {
        let mut state = self.state.subscribe();
        self.state.send_modify(|state| state.waiting += 1);
        let _waiting = Waiting(self);
        let _ = state.wait_for(|state| state.open).await;
    }
}

/// Decrements the count, also for a dropped call.
struct Waiting<'a>(&'a FaultGate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.waiting -= 1);
    }
}

impl fmt::Debug for FaultGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("state", &*self.state.borrow()).finish()
    }
}
