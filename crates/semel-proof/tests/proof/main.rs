//! The proofs, in one binary.

mod crash;
