//! What calls to other people's systems promise, row by row.

mod claim_first;
mod scrub;
