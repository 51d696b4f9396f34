//! The guard as a `tower` layer, for axum and any other service.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{Body, BoxError};
use crate::call::BoxFuture;
use crate::guard::Guard;

/// Puts a [`Guard`] in front of a service.
///
/// ```
/// use semel::Engine;
/// use semel::store::MemoryStore;
/// use semel_http::{Guard, Scope, SemelLayer};
///
/// let engine = Engine::builder(MemoryStore::new()).build()?;
/// let layer = SemelLayer::new(Guard::builder(engine).scope(Scope::SingleTenant).build()?);
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SemelLayer {
    guard: Guard,
}

impl SemelLayer {
    /// A layer that puts this guard in front of every service it wraps.
    #[must_use]
    pub fn new(guard: Guard) -> Self {
        Self { guard }
    }
}

impl<S> Layer<S> for SemelLayer {
    type Service = Guarded<S>;

    fn layer(&self, service: S) -> Guarded<S> {
        Guarded { guard: self.guard.clone(), service }
    }
}

/// A service behind a [`Guard`].
///
/// The service is cloned for every request, because the call may continue after the client has disconnected.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    guard: Guard,
    service: S,
}

impl<S> Guarded<S> {
    /// Puts `guard` in front of `service`.
    pub fn new(guard: Guard, service: S) -> Self {
        Self { guard, service }
    }
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The instance that was polled ready is used; the clone replaces it.
        let clone = self.service.clone();
        let service = std::mem::replace(&mut self.service, clone);
        self.guard.handle(service, request)
    }
}
