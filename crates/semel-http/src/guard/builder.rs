//! Builds a guard and rejects settings that cannot work.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use semel::Engine;

use super::rotation::RotationWatch;
use super::shortcut::{Recent, ShortcutRule};
use super::{Guard, GuardedRoute, Inner};
use crate::call::ProbeCaller;
use crate::capacity::{Capacity, CapacityLimits};
use crate::limits::Limiter;
use crate::observe::AnswerObserver;
use crate::policy::{OnDoubt, PolicyError, RoutePolicy};
use crate::profile::Profile;
use crate::scope::Scope;
use crate::well_known;

/// Whether the guard answers `GET /.well-known/idempotency` itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WellKnownPolicy {
    /// The guard answers it.
    WellKnown,
    /// The guard passes such requests on.
    Nothing,
}

/// Handling of requests that no route matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// They use the fallback policy.
    #[default]
    Fallback,
    /// They are refused with `no_route`, whatever their method.
    Deny,
}

/// Settings of a [`Guard`].
#[must_use = "nothing is built until build is called"]
pub struct GuardBuilder {
    engine: Engine,
    profile: Profile,
    namespace: String,
    scope: Option<Scope>,
    routes: Vec<RoutePolicy>,
    fallback: Option<RoutePolicy>,
    caller: Option<Arc<dyn ProbeCaller>>,
    observers: Vec<Arc<dyn AnswerObserver>>,
    publish: WellKnownPolicy,
    capacity: Capacity,
    limits: CapacityLimits,
    unmatched: Unmatched,
}

impl GuardBuilder {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            profile: Profile::default(),
            namespace: "http".to_owned(),
            scope: None,
            routes: Vec::new(),
            fallback: None,
            caller: None,
            observers: Vec::new(),
            publish: WellKnownPolicy::WellKnown,
            capacity: Capacity::default(),
            limits: CapacityLimits::default(),
            unmatched: Unmatched::default(),
        }
    }

    /// The dialect of the clients. Default: `ietf`.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The namespace of every key. Default: `http`. Services that share a store need different namespaces.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// How the principal is found. Default: the profile's ([`Profile::scope`]), which is the hash of the `authorization` header, and
    /// the account that the request selects where the profile knows how clients do so.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Adds a route. The first match wins.
    pub fn route(mut self, route: RoutePolicy) -> Self {
        self.routes.push(route);
        self
    }

    /// The policy of requests that no route matches. Default: the profile's.
    pub fn fallback(mut self, fallback: RoutePolicy) -> Self {
        self.fallback = Some(fallback);
        self
    }

    /// The client for the guard's own calls: probes, checks of credentials, and `tools/list`.
    pub fn caller(mut self, caller: Arc<dyn ProbeCaller>) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Adds an observer, which is notified of every answer.
    pub fn observe(mut self, observer: Arc<dyn AnswerObserver>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Whether the policy is published. Default: at `/.well-known/idempotency`.
    pub fn publish(mut self, publish: WellKnownPolicy) -> Self {
        self.publish = publish;
        self
    }

    /// Limits on requests and calls in progress, and the [`Capacity`] that counts them. Guards that replace each other share a
    /// `Capacity`. Default: a new one with the default limits.
    pub fn capacity(mut self, capacity: Capacity, limits: CapacityLimits) -> Self {
        (self.capacity, self.limits) = (capacity, limits);
        self
    }

    /// Handling of requests that no route matches. Default: the fallback policy.
    pub fn unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched = unmatched;
        self
    }

    /// Builds the guard.
    ///
    /// # Errors
    /// The first setting that cannot work, with a hint how to fix it.
    pub fn build(self) -> Result<Guard, PolicyError> {
        let Self { engine, mut profile, namespace, scope, routes, fallback, .. } = self;
        let Self { caller, observers, publish, capacity, limits, unmatched, .. } = self;
        for (setting, limit) in [
            ("calls", limits.calls as u64),
            ("calls_per_upstream", limits.calls_per_upstream as u64),
            ("buffered_bytes", limits.buffered_bytes),
        ] {
            if limit == 0 {
                return Err(PolicyError::Zero { setting });
            }
        }
        let length = namespace.len();
        if !(1..=semel::key::MAX_NAMESPACE).contains(&length) {
            return Err(PolicyError::Namespace { length });
        }
        let fallback = match fallback {
            Some(fallback) => fallback,
            None => RoutePolicy::fallback(&profile)?,
        };
        let calls = |route: &&RoutePolicy| {
            route.verify.is_some() || (route.probe.is_some() && route.on_doubt == OnDoubt::Probe)
        };
        if caller.is_none()
            && let Some(route) = routes.iter().chain([&fallback]).find(calls)
        {
            return Err(PolicyError::NoCaller { pattern: route.pattern().to_string() });
        }
        let well_known = match publish {
            WellKnownPolicy::WellKnown => Some(well_known::document(&profile, &fallback, &routes)),
            WellKnownPolicy::Nothing => {
                profile.documentation = profile.documentation.filter(|link| link != well_known::PATH);
                None
            }
        };
        #[cfg(feature = "mcp")]
        let tools = super::mcp::tools(&profile.codec, routes.iter().chain([&fallback]));
        let scope = scope.unwrap_or_else(|| profile.scope());
        let of = |number, mut policy: RoutePolicy| {
            // Headers that identify the principal are the same in all requests of one principal.
            let scope = policy.scope.as_ref().unwrap_or(&scope);
            let buffered = usize::try_from(limits.buffered_bytes).unwrap_or(usize::MAX);
            // A larger body would never fit into the memory limit.
            policy.request_limit = policy.request_limit.min(buffered);
            policy.headers.fingerprint.retain(|name| !scope.headers().any(|known| known == name));
            GuardedRoute {
                limiter: policy.limits.map(Limiter::new),
                places: capacity.places(policy.upstream.clone(), &limits),
                terms: Arc::new(policy.terms),
                shortcut_rule: ShortcutRule::of(&policy, scope, &profile.codec),
                policy,
                number,
            }
        };
        let routes =
            routes.into_iter().enumerate().map(|(number, policy)| of(Some(number), policy)).collect();
        let fallback = of(None, fallback);
        let inner = Inner {
            engine,
            profile,
            #[cfg(feature = "mcp")]
            tools,
            namespace,
            scope,
            routes,
            fallback,
            caller,
            observers,
            well_known,
            capacity: capacity.clone(),
            limits,
            unmatched,
            probing: Mutex::default(),
            recent: Recent::new(),
            rotation: RotationWatch::new(),
        };
        Ok(Guard { inner: Arc::new(inner) })
    }
}

impl fmt::Debug for GuardBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardBuilder")
            .field("profile", &self.profile.name)
            .field("scope", &self.scope)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}
