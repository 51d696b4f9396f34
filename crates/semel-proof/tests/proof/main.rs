//! The proofs, in one binary.

mod model;
