//! The listening side: what gets in, what does not, and what becomes of connections.

mod attacks;
mod differential;
mod guarded;
mod http2;
mod lifecycle;
mod shortcut;
mod smuggling;
mod tls;
