//! The HTTP surface of Semel: a request with a key happens once.
//!
//! A [`Guard`] stands before any `tower` service: as a [`SemelLayer`] in your own, or in the gateway before anybody's.
//! Whoever sends a request with a new `Idempotency-Key` has it executed; its answer is kept; whoever sends it again is
//! given that answer, byte for byte.
//!
//! # Layout
//!
//! - [`profile`]: what is promised to clients and how they are told, as data: `ietf`, `stripe`, `stripe-v2`, `ucp`,
//!   `adcp-mcp`. [`codec`]: how a request carries a call, plain or as a message.
//! - [`policy`]: the checked settings of a route.
//! - [`key_source`], [`scope`]: where the key is, and whose it is.
//! - [`guard`], [`layer`]: the heart, and its form for `tower`.
//! - [`edge`], [`proxy`]: the gateway's two ends: what listens, and what forwards.
//! - [`call`]: the contract with what answers: how it says that it failed.
//! - [`capacity`]: how much a process takes on at once.
//! - [`stored`]: the kept answer, and the headers by which guard, client and upstream speak.
//! - [`problem`]: why there is no answer. [`observe`]: what is counted. [`well_known`]: what is published.

pub mod body;
pub mod call;
pub mod capacity;
pub mod codec;
pub mod edge;
pub mod guard;
pub mod key_source;
pub mod layer;
mod limits;
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
pub use call::{CallError, Caller, Fate};
pub use codec::{Codec, KeyedTools};
pub use guard::Guard;
pub use key_source::KeySource;
pub use layer::SemelLayer;
pub use policy::{PolicyError, RoutePolicy};
pub use problem::Situation;
pub use profile::Profile;
pub use scope::Scope;
