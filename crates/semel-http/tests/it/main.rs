//! The HTTP surface, from outside.

mod edge;
mod edge_kit;
mod proxy;
