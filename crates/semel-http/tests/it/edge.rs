//! The listening side: what gets in, what does not, and what becomes of connections.

mod smuggling;
