//! The subcommands of the binary: one module of its name for each, with its flags.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod deliveries;
pub(crate) mod demo;
pub(crate) mod dlq;
pub(crate) mod drill;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod init;
pub(crate) mod keys;
mod listing;
pub(crate) mod metrics;
mod remote;
pub(crate) mod replay;
pub(crate) mod runbook;
pub(crate) mod runs;
pub(crate) mod screen;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod store;
mod table;
pub(crate) mod targets;
