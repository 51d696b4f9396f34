//! Makes effects happen once.

pub mod window;
