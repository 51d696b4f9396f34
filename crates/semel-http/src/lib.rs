//! The HTTP surface of Semel.

pub mod edge;
pub mod proxy;
