//! Proves that the harness does what tests rely on.

mod cluster;
mod postgres;
mod proxy;
mod redis;
