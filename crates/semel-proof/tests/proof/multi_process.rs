//! Several processes on one store: 200 callers want one key, and the contract spans two processes.
//!
//! The short form plays three rounds on each store, `SEMEL_PROVE=1` (`scripts/prove multi-process`) a hundred.

mod crowd;
mod pair;
