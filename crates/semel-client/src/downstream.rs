//! Calls to other people's systems, once.
//!
//! A provider that honours keys is given a derived one: [`Attempt::derived_key`](semel::Attempt::derived_key), stable for
//! one effect and different for every provider, so that the caller's key never leaves. A provider that honours none but
//! can be asked is called [claim-first](ClaimFirst): the claim with its reserved request id is written before the call, and
//! after a crash the provider is asked before anybody calls again. Which of them uses which pattern stands in the
//! [`Runbook`]. What a provider's errors say passes a [`Scrubber`] before it goes anywhere.
//!
//! Guessing from answers whether something was a duplicate is not offered: it is wrong just when it matters.

mod claim_first;
mod runbook;
mod scrub;
#[cfg(test)]
mod tests;

pub use self::claim_first::{AskPolicy, ClaimFirst, Error, Reconcile, Reconciled, ReservedId};
pub use self::runbook::{DuplicatePattern, Runbook, RunbookEntry, SecretSource};
pub use self::scrub::Scrubber;
