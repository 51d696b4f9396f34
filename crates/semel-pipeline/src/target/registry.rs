//! All targets of a process, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use semel_client::retry::{Destination, Destinations};

use super::filter::is_type;
use super::{EventTypes, Policy, Target};

/// A target with its settings.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The receiver.
    pub target: Arc<dyn Target>,
    /// The events that it receives.
    pub events: EventTypes,
    /// Its policy.
    pub policy: Policy,
    /// Its retry budget and circuit breaker.
    pub destination: Destination,
}

/// A set of targets. Created once, then activated as a whole.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    named: BTreeMap<Arc<str>, Arc<Registered>>,
}

/// Why a target cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name must be usable in configurations, tables and metrics.
    #[error(
        "{0:?} cannot be the name of a target: expected letters, digits, `.`, `_`, `-`, `:` or `/`, at most 200"
    )]
    Name(String),
    /// Two targets have the same name.
    #[error("{0:?} is taken by another target")]
    Taken(String),
}

impl Targets {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a target. It uses the retry budget and circuit breaker of its name in `destinations`: they survive a
    /// reload of the configuration, and are shared with other calls to that destination. Limits of the policy apply
    /// to them from now on.
    ///
    /// # Errors
    /// The name is invalid, or already used.
    pub fn with(
        mut self,
        name: &str,
        target: Arc<dyn Target>,
        events: EventTypes,
        policy: Policy,
        destinations: &Destinations,
    ) -> Result<Self, RegistryError> {
        if !is_type(name) {
            return Err(RegistryError::Name(name.to_owned()));
        }
        if self.named.contains_key(name) {
            return Err(RegistryError::Taken(name.to_owned()));
        }
        let destination = match policy.limits {
            Some(limits) => destinations.get_with(name, limits),
            None => destinations.get(name),
        };
        self.named.insert(name.into(), Arc::new(Registered { target, events, policy, destination }));
        Ok(self)
    }

    /// The target of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Registered>> {
        self.named.get(name)
    }

    /// All targets, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Registered>)> {
        self.named.iter()
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.named.keys().map(|name| name.as_ref().to_owned()).collect()
    }

    /// The names of the targets that receive events of this type.
    pub fn wanting(&self, event_type: &str) -> Vec<String> {
        let wanting = self.named.iter().filter(|(_, registered)| registered.events.want(event_type));
        wanting.map(|(name, _)| name.as_ref().to_owned()).collect()
    }
}

/// The active targets. Clones share them; a new set replaces the old one atomically.
#[derive(Clone, Debug, Default)]
pub struct TargetRegistry {
    current: Arc<RwLock<Arc<Targets>>>,
}

impl TargetRegistry {
    /// A registry with these targets.
    pub fn new(targets: Targets) -> Self {
        Self { current: Arc::new(RwLock::new(Arc::new(targets))) }
    }

    /// The active targets.
    pub fn current(&self) -> Arc<Targets> {
        Arc::clone(&self.current.read())
    }

    /// Replaces the active targets. Deliveries in progress end as they began; deliveries for a removed target wait in
    /// the ledger until it is configured again.
    pub fn replace(&self, targets: Targets) {
        *self.current.write() = Arc::new(targets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{DeliveryOutcome, Handler};

    fn handler() -> Arc<dyn Target> {
        Arc::new(Handler::new(async |_| DeliveryOutcome::done()))
    }

    #[test]
    fn events_go_to_those_that_want_them() {
        let all = Destinations::default();
        let add = |targets: Targets, name: &str, events| {
            targets.with(name, handler(), events, Policy::default(), &all)
        };
        let targets = add(Targets::new(), "ledger", EventTypes::new(&["order.*"]).unwrap()).unwrap();
        let targets = add(targets, "audit", EventTypes::all()).unwrap();
        let targets = add(targets, "jobs", EventTypes::none()).unwrap();
        assert_eq!(targets.wanting("order.paid"), ["audit", "ledger"]);
        assert_eq!(targets.wanting("user.new"), ["audit"]);
        assert_eq!(targets.names(), ["audit", "jobs", "ledger"]);
        let taken = add(targets.clone(), "audit", EventTypes::all()).unwrap_err();
        assert_eq!(taken, RegistryError::Taken("audit".into()));
        assert!(matches!(add(targets, "a b", EventTypes::all()), Err(RegistryError::Name(_))));
    }
}
