//! Waiting for a condition with a deadline: the only place of the harness that reads a clock.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result};

/// Timeout for every action of a server. Generous, because the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

const STEP: Duration = Duration::from_millis(5);

/// Blocks until `ready` is true, polling every few milliseconds.
///
/// # Errors
/// [`Error::Timeout`] with `what`, if it is not true in time.
pub fn until(what: &str, within: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
    for_some(what, within, || Ok(ready().then_some(())))
}

/// Blocks until `look` returns a value, polling every few milliseconds.
///
/// # Errors
/// The first error of `look`, or [`Error::Timeout`] if it returned no value in time.
#[expect(clippy::disallowed_methods, reason = "real servers live in real time")]
pub fn for_some<T>(what: &str, within: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() >= within {
            return Err(Error::Timeout { what: what.to_owned(), within });
        }
        thread::sleep(STEP);
    }
}
