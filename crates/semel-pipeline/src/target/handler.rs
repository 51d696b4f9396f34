//! Handlers: targets in the program itself.

use std::fmt;

use semel::store::BoxFuture;

use super::{DeliveryCall, DeliveryOutcome, Target};

type HandlerFn = dyn Fn(DeliveryCall) -> BoxFuture<'static, DeliveryOutcome> + Send + Sync;

/// A target that is a function of the program.
///
/// ```
/// use semel_pipeline::target::{DeliveryCall, Handler, DeliveryOutcome};
///
/// let crm = Handler::new(async |call: DeliveryCall| {
///     if call.payload().is_empty() {
///         return DeliveryOutcome::refused("there is nothing in it");
///     }
///     DeliveryOutcome::done()
/// });
/// ```
pub struct Handler {
    run: Box<HandlerFn>,
}

impl Handler {
    /// The target that runs this function. It gets the key that names the effect, so that it can make the effect
    /// happen once.
    pub fn new<F, Fut>(run: F) -> Self
    where
        F: Fn(DeliveryCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = DeliveryOutcome> + Send + 'static,
    {
        Self { run: Box::new(move |call| Box::pin(run(call))) }
    }
}

impl Target for Handler {
    fn deliver(&self, call: DeliveryCall) -> BoxFuture<'_, DeliveryOutcome> {
        (self.run)(call)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
