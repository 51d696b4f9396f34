//! Not shipped: models, fault tests and process-level proofs of Semel.

pub mod model;
pub mod victim;
