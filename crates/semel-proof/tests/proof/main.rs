//! The proofs, in one binary.

mod crash;
mod hygiene;
mod model;
mod schedules;

// The registry's source is compiled a second time here, and finds these two under `crate::`.
use schedules::{key, sync};
