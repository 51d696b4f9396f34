//! The guard: makes a request with a key happen once.
//!
//! It stands before any service. A request is checked before the store is touched; its body is read before its key is
//! claimed; its effect runs in a task of its own, so that a client which hangs up changes nothing; and its answer is
//! kept under the fence before the client sees it.

mod builder;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use semel::Engine;
use tower_service::Service;

pub use self::builder::{GuardBuilder, Publish};
use crate::body::{Body, BoxError};
use crate::call::Caller;
use crate::observe::Observer;
use crate::policy::RoutePolicy;
use crate::profile::Profile;
use crate::scope::Scope;

/// Makes requests happen once. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Guard {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    engine: Engine,
    profile: Profile,
    namespace: String,
    scope: Scope,
    routes: Vec<RoutePolicy>,
    fallback: RoutePolicy,
    caller: Option<Arc<dyn Caller>>,
    observers: Vec<Arc<dyn Observer>>,
    well_known: Option<Bytes>,
}

impl Guard {
    /// Starts to build a guard over an engine.
    pub fn builder(engine: Engine) -> GuardBuilder {
        GuardBuilder::new(engine)
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The dialect it speaks.
    pub fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    /// The policy of a request.
    pub fn policy(&self, method: &http::Method, path: &str) -> &RoutePolicy {
        self.inner.find(method, path).1
    }

    /// Answers a request: by `service`, or by what an earlier call left behind.
    ///
    /// `service` must have been polled ready. Where the request is not guarded its error is passed on; where it is,
    /// every failure is told as a problem, and the error is never returned.
    ///
    /// Cancel-safe: before the service is called, nothing has happened; after, its call and its record finish in a
    /// task of their own.
    ///
    /// # Errors
    /// What the service failed with, for a request that is not guarded.
    pub async fn handle<S, B, R>(&self, service: S, request: Request<B>) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let mut service = service;
        service.call(request.map(Body::stream)).await.map(|response| response.map(Body::stream))
    }
}

impl Inner {
    /// The number of the route that a request matches, and its policy. The first match wins.
    fn find(&self, method: &http::Method, path: &str) -> (Option<usize>, &RoutePolicy) {
        let found = self.routes.iter().enumerate().find(|(_, route)| route.pattern().matches(method, path));
        match found {
            Some((number, route)) => (Some(number), route),
            None => (None, &self.fallback),
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("profile", &self.profile.name)
            .field("scope", &self.scope)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}
