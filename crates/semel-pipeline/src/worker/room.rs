//! How much a worker has in hand, for whom, and whom it should ask the ledger about.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel_client::retry::{Circuit, Destination};

use crate::target::{Registered, Targets};

/// Bounds what is in hand.
pub(super) struct Room {
    in_all: u32,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Attempts under way, by target.
    running: HashMap<Arc<str>, u32>,
    /// Taken, and not yet written how it ended.
    held: u32,
    /// Targets for which the ledger said that nothing is due, and nothing has happened since.
    clean: HashSet<Arc<str>>,
}

/// What to ask the ledger for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) targets: Vec<(String, u32)>,
    pub(super) limit: u32,
    /// When a breaker that is open now lets somebody pass again.
    pub(super) reopens: Option<Duration>,
}

impl Room {
    pub(super) fn new(in_all: u32) -> Self {
        Self { in_all: in_all.max(1), kept: Mutex::default() }
    }

    /// Taken, and not yet written how it ended.
    pub(super) fn held(&self) -> u32 {
        self.kept.lock().held
    }

    /// The targets that may have something due, and have room for it. They count as clean from now on; whatever
    /// happens while the ledger is being asked soils them again.
    pub(super) fn wanted(&self, targets: &Targets) -> Wanted {
        let mut kept = self.kept.lock();
        let mut wanted = Wanted { limit: self.in_all.saturating_sub(kept.held), ..Wanted::default() };
        for (name, registered) in targets.iter() {
            if kept.clean.contains(name) {
                continue;
            }
            let running = kept.running.get(name).copied().unwrap_or(0);
            let free = match passable(&registered.destination) {
                Passable::Freely => registered.policy.concurrency.saturating_sub(running),
                // One after the other, to see.
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

    /// Work for this target was taken.
    pub(super) fn take(&self) {
        self.kept.lock().held += 1;
    }

    /// An attempt starts.
    pub(super) fn start(&self, target: &Arc<str>) {
        *self.kept.lock().running.entry(Arc::clone(target)).or_default() += 1;
    }

    /// An attempt ended: its target has room again.
    pub(super) fn end(&self, target: &Arc<str>) {
        let mut kept = self.kept.lock();
        if let Some(running) = kept.running.get_mut(target) {
            *running = running.saturating_sub(1);
        }
    }

    /// It is written how these ended. Whatever waited for them may be due now. Answers how many are left in hand.
    pub(super) fn settled<'a>(&self, targets: impl Iterator<Item = &'a str>) -> u32 {
        let mut kept = self.kept.lock();
        for target in targets {
            kept.held = kept.held.saturating_sub(1);
            kept.clean.remove(target);
        }
        kept.held
    }

    /// There may be more for this target.
    pub(super) fn soil(&self, target: &str) {
        self.kept.lock().clean.remove(target);
    }

    /// There may be something for anybody.
    pub(super) fn soil_all(&self) {
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

/// Whether a target's breaker lets anybody pass at present.
pub(super) fn is_open(registered: &Registered) -> bool {
    matches!(passable(&registered.destination), Passable::In(_))
}
