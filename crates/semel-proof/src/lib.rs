//! Not shipped: models, fault tests and process-level proofs of Semel.

pub mod chaos;
pub mod grounds;
pub mod model;
pub mod place;
pub mod remote;
pub mod triggers;
pub mod victim;
