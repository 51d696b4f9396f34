//! The proofs, in one binary.

mod chaos;
mod contract;
mod crash;
mod hygiene;
mod model;
mod multi_process;
mod promises;
mod publish;
mod schedules;
mod snippets;

// The registry's source is compiled a second time here, and finds these two under `crate::`.
use schedules::{key, sync};
