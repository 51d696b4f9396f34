//! The forwarding side: what reaches an upstream, what comes back, and what is said when nothing does.

mod failures;
mod headers;
mod streams;
