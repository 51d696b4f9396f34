//! Retries that know what they may repeat.
//!
//! A try ends with a [`Signal`]: what was seen of it. One table, [`TABLE`], says what a signal means for a call that may
//! be repeated and for one that may not; [`Retry`] says how often and how soon; [`Destinations`] say whether anybody may
//! call there at all: a budget for retries and a breaker for each destination, shared by everything that goes there.
//!
//! No retry ever makes a new key: the operation is called again as it is, under the key that it had.
//!
//! ```
//! use semel_client::retry::{Call, Repeat, Retry, Verdict};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #[derive(Debug)]
//! enum Model { Overloaded, BadSchema }
//!
//! let call = Call::new("summarise").repeat(Repeat::Safe);
//! let classify = |error: &Model| match error {
//!     Model::Overloaded => Verdict::Retry { after: None },
//!     Model::BadSchema => Verdict::Fatal,
//! };
//! let retry = Retry::default().base(std::time::Duration::from_millis(1));
//! let answer = retry.run(&call, classify, async |attempt| match attempt.number {
//!     1 => Err(Model::Overloaded),
//!     _ => Ok("a summary"),
//! });
//! assert_eq!(answer.await.unwrap(), "a summary");
//!
//! let refused = retry.run(&call, classify, async |_| Err::<(), _>(Model::BadSchema)).await.unwrap_err();
//! assert_eq!(refused.attempts, 1);
//! # }
//! ```
//!
//! # Layout
//!
//! - [`Signal`], [`Kind`], [`TABLE`], [`Verdict`]: what a try came to, and what that means.
//! - [`Hints`]: what a server says about when to come back.
//! - [`Retry`]: how often, how soon, how long in all; runs an operation.
//! - [`Destinations`]: budget and breaker.
//! - [`RetryDecision`], [`RetryObserver`]: what was decided, for logs and metrics.

mod breaker;
mod budget;
mod call;
mod destination;
mod hints;
mod observe;
mod policy;
mod run;
mod signal;
mod slots;
mod table;
#[cfg(test)]
mod tests;

pub use self::breaker::Circuit;
pub use self::call::{Call, StoryIds};
pub use self::destination::{Admit, Destination, DestinationState, Destinations, Limits, Permit};
pub use self::hints::{Advice, Hints, http_date};
pub use self::observe::{RetryAction, RetryDecision, RetryObserver};
#[cfg(feature = "client")]
pub(crate) use self::policy::LONGEST;
pub use self::policy::{Delay, DelaySource, Retry};
#[cfg(feature = "client")]
pub(crate) use self::run::TryResult;
pub use self::run::{Error, Stop, Try};
pub use self::signal::{DestinationHealth, Judged, Signal, TryFate, Verdict};
pub use self::table::{Kind, Repeat, RetryRow, Rule, TABLE};
