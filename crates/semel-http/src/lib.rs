#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! - [`profile`]: the promises to clients and the format of answers, as data: `ietf`, `stripe`, `stripe-v2`, `ucp`, `adcp-mcp` (feature `mcp`).
//!   [`codec`]: how a request carries a call, plain or as a message.
//! - [`policy`]: the validated settings of a route.
//! - [`key_source`], [`scope`]: where the key is, and the principal that it belongs to.
//! - [`guard`], [`layer`]: the core, and its `tower` layer.
//! - [`edge`], [`proxy`]: the two ends of the gateway: the listener, and the client of the upstreams.
//! - [`call`]: the contract with the service that answers: how it reports failures.
//! - [`capacity`]: limits on calls in progress and on bytes in memory.
//! - [`stored`]: the stored answer, and the headers between guard, client and upstream.
//! - [`problem`]: errors for clients. [`observe`]: the interface for metrics. [`well_known`]: the published policy.

pub mod body;
pub mod call;
pub mod capacity;
pub mod codec;
pub mod edge;
pub mod guard;
pub mod key_source;
pub mod layer;
mod limits;
#[cfg(feature = "mcp")]
mod mcp;
pub mod observe;
pub mod policy;
mod present;
pub mod problem;
pub mod profile;
pub mod proxy;
mod request_fingerprint;
pub mod scope;
pub mod stored;
pub mod well_known;

pub use body::{Body, BoxError};
pub use call::{CallError, CallFate, ProbeCaller};
pub use codec::Codec;
#[cfg(feature = "mcp")]
pub use codec::KeyedTools;
pub use guard::Guard;
pub use key_source::KeySource;
pub use layer::SemelLayer;
pub use policy::{PolicyError, RoutePolicy};
pub use problem::Situation;
pub use profile::Profile;
pub use scope::Scope;
