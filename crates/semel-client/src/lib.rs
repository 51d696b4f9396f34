#![doc = include_str!("../README.md")]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "connect")]
pub mod connect;
pub mod downstream;
pub mod retry;

#[cfg(feature = "client")]
pub use client::{Client, Request};
pub use retry::Retry;
