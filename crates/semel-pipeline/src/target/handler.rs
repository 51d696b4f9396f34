//! Handlers: targets in the program itself.

use std::fmt;

use semel::store::BoxFuture;

use super::{Call, Outcome, Target};

type Run = dyn Fn(Call) -> BoxFuture<'static, Outcome> + Send + Sync;

/// A target that is a function of the program.
///
/// ```
/// use semel_pipeline::target::{Call, Handler, Outcome};
///
/// let crm = Handler::new(async |call: Call| {
///     if call.payload().is_empty() {
///         return Outcome::refused("there is nothing in it");
///     }
///     Outcome::done()
/// });
/// ```
pub struct Handler {
    run: Box<Run>,
}

impl Handler {
    /// The target that runs this function. It gets the key that names the effect, so that it can make the effect
    /// happen once.
    pub fn new<F, Fut>(run: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Self { run: Box::new(move |call| Box::pin(run(call))) }
    }
}

impl Target for Handler {
    fn deliver(&self, call: Call) -> BoxFuture<'_, Outcome> {
        (self.run)(call)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
