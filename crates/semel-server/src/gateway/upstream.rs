//! The proxy as the guard wants a service: errors that say whether anything was sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use semel_http::Body;
use semel_http::call::{CallError, Upstream};
use semel_http::proxy::{Delivery, Error, Proxy, Reply, RouteUpstream};
use tower_service::Service;

/// Sends requests to the upstream that their route names.
#[derive(Clone, Debug)]
pub(super) struct ToUpstream(Proxy);

impl ToUpstream {
    pub(super) fn new(proxy: Proxy) -> Self {
        Self(proxy)
    }
}

impl Service<Request<Body>> for ToUpstream {
    type Response = Response<Reply>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Reply>, CallError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(Upstream(name)) = request.extensions_mut().remove::<Upstream>() {
            request.extensions_mut().insert(RouteUpstream(name));
        }
        let proxy = self.0.clone();
        Box::pin(async move { proxy.forward(request).await.map_err(call_error) })
    }
}

fn call_error(error: Error) -> CallError {
    let status = error.status();
    let call = match (error.delivery(), &error) {
        (Delivery::Undelivered, _) => CallError::undelivered(error),
        (Delivery::Unknown, Error::Timeout) => CallError::timed_out(error),
        (Delivery::Unknown, _) => CallError::unknown(error),
    };
    call.with_status(status)
}
