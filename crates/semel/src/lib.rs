//! Makes effects happen once.
