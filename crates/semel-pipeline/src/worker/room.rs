//! How many deliveries a worker has in progress for each target, and for which targets it should ask the ledger.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel_client::retry::{Circuit, Destination};

use crate::target::{Registered, Targets};

/// Limits the deliveries in progress.
pub(super) struct WorkerCapacity {
    in_all: u32,
    kept: Mutex<ReservedRoom>,
}

#[derive(Default)]
struct ReservedRoom {
    /// Attempts in progress, by target.
    running: HashMap<Arc<str>, u32>,
    /// Deliveries that were taken and whose result is not written yet.
    held: u32,
    /// Targets without due deliveries at the last take, and without a change since.
    clean: HashSet<Arc<str>>,
}

/// The next request to the ledger.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TakeRequest {
    pub(super) targets: Vec<(String, u32)>,
    pub(super) limit: u32,
    /// When an open breaker next allows a call.
    pub(super) reopens: Option<Duration>,
}

impl WorkerCapacity {
    pub(super) fn new(in_all: u32) -> Self {
        Self { in_all: in_all.max(1), kept: Mutex::default() }
    }

    /// Number of deliveries that were taken and whose result is not written yet.
    pub(super) fn held(&self) -> u32 {
        self.kept.lock().held
    }

    /// The targets that may have due deliveries, and have capacity for them. They count as clean from now on; a
    /// change during the request marks them dirty again.
    pub(super) fn wanted(&self, targets: &Targets) -> TakeRequest {
        let mut kept = self.kept.lock();
        let mut wanted =
            TakeRequest { limit: self.in_all.saturating_sub(kept.held), ..TakeRequest::default() };
        for (name, registered) in targets.iter() {
            if kept.clean.contains(name) {
                continue;
            }
            let running = kept.running.get(name).copied().unwrap_or(0);
            let free = match passable(&registered.destination) {
                Passable::Freely => registered.policy.concurrency.saturating_sub(running),
                // One at a time, as a test.
                Passable::Probing => 1u32.saturating_sub(running),
                Passable::In(left) => {
                    wanted.reopens = Some(wanted.reopens.map_or(left, |known| known.min(left)));
                    0
                }
            };
            if free > 0 && wanted.limit > 0 {
                wanted.targets.push((name.as_ref().to_owned(), free));
                kept.clean.insert(Arc::clone(name));
            }
        }
        if wanted.targets.is_empty() {
            wanted.limit = 0;
        }
        wanted
    }

    pub(super) fn take(&self) {
        self.kept.lock().held += 1;
    }

    pub(super) fn start(&self, target: &Arc<str>) {
        *self.kept.lock().running.entry(Arc::clone(target)).or_default() += 1;
    }

    /// An attempt ended: its target has capacity again.
    pub(super) fn end(&self, target: &Arc<str>) {
        let mut kept = self.kept.lock();
        if let Some(running) = kept.running.get_mut(target) {
            *running = running.saturating_sub(1);
        }
    }

    /// The results of these deliveries are written. Deliveries that waited for them may be due now. Returns how many
    /// are left.
    pub(super) fn settled<'a>(&self, targets: impl Iterator<Item = &'a str>) -> u32 {
        let mut kept = self.kept.lock();
        for target in targets {
            kept.held = kept.held.saturating_sub(1);
            kept.clean.remove(target);
        }
        kept.held
    }

    /// This target may have due deliveries.
    pub(super) fn mark_dirty(&self, target: &str) {
        self.kept.lock().clean.remove(target);
    }

    /// Any target may have due deliveries.
    pub(super) fn mark_all_dirty(&self) {
        self.kept.lock().clean.clear();
    }
}

enum Passable {
    Freely,
    Probing,
    In(Duration),
}

fn passable(destination: &Destination) -> Passable {
    match destination.state().circuit {
        Circuit::Closed => Passable::Freely,
        Circuit::HalfOpen => Passable::Probing,
        Circuit::Open { until } => match destination.left(until) {
            Duration::ZERO => Passable::Probing,
            left => Passable::In(left),
        },
    }
}

/// True if a target's breaker is currently open.
pub(super) fn is_open(registered: &Registered) -> bool {
    matches!(passable(&registered.destination), Passable::In(_))
}
