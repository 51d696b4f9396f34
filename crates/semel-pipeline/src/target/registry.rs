//! All targets of a process, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use semel_client::retry::{Destination, Destinations};

use super::filter::is_type;
use super::{EventTypes, Policy, Target};

/// A target with everything that is known of it.
#[derive(Clone, Debug)]
pub struct Registered {
    /// Who is delivered to.
    pub target: Arc<dyn Target>,
    /// Which events it wants.
    pub events: EventTypes,
    /// How it is treated.
    pub policy: Policy,
    /// Its budget and breaker.
    pub destination: Destination,
}

/// A set of targets. Made once, then put in force as a whole.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    named: BTreeMap<Arc<str>, Arc<Registered>>,
}

/// A target that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Names are for configs, tables and metrics.
    #[error(
        "{0:?} cannot be the name of a target: expected letters, digits, `.`, `_`, `-`, `:` or `/`, at most 200"
    )]
    Name(String),
    /// Two of one name.
    #[error("{0:?} is taken by another target")]
    Taken(String),
}

impl Targets {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a target. Budget and breaker are those of its name in `destinations`: they stay when a config is read anew,
    /// and are shared with whatever else goes there. Limits of the policy's own are in force there from now on.
    ///
    /// # Errors
    /// A name that cannot be one, or is taken.
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

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Registered>)> {
        self.named.iter()
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.named.keys().map(|name| name.as_ref().to_owned()).collect()
    }

    /// The names of those that want events of this type.
    pub fn wanting(&self, event_type: &str) -> Vec<String> {
        let wanting = self.named.iter().filter(|(_, registered)| registered.events.want(event_type));
        wanting.map(|(name, _)| name.as_ref().to_owned()).collect()
    }
}

/// The targets that are in force. Clones share them; a new set takes the place of the old one at once.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    current: Arc<RwLock<Arc<Targets>>>,
}

impl Registry {
    /// With these in force.
    pub fn new(targets: Targets) -> Self {
        Self { current: Arc::new(RwLock::new(Arc::new(targets))) }
    }

    /// Those in force.
    pub fn current(&self) -> Arc<Targets> {
        Arc::clone(&self.current.read())
    }

    /// Puts others in force. Deliveries under way end as they began; what waits for a target that is gone stays in the
    /// ledger until it comes back.
    pub fn replace(&self, targets: Targets) {
        *self.current.write() = Arc::new(targets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Handler, Outcome};

    fn handler() -> Arc<dyn Target> {
        Arc::new(Handler::new(async |_| Outcome::done()))
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
