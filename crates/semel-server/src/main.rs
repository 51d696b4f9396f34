//! The `semel` binary: the gateway, its admin API, a demo, and the commands around them.
//!
//! # Layout
//!
//! - [`cli`]: the command line; it starts one of the [`commands`].
//! - [`config`]: the config file, read into validated types; every mistake has a position.
//! - [`server`]: opens the store, starts both listeners, drains and reloads.
//! - [`gateway`]: the guard and the proxy of `semel-http`, as configured.
//! - [`pipeline`]: the ledger, the targets and the delivery worker, as configured.
//! - [`admin`]: the admin API: health, metrics, keys, claims, events, deliveries, dead letters.
//! - [`console`]: the pages for people, at the same address.
//! - [`intake`]: triggers with their gate and buffer, streams, and replay jobs.
//! - [`client`]: the HTTP client of the commands that talk to a running server.
//! - [`telemetry`]: logs, metrics and spans.
//! - [`descriptors`]: the limit on file descriptors, and its distribution.
//! - [`signals`], [`supervisor`]: what a supervisor tells the process, and what the process tells it.
//! - [`store`], [`ledgers`]: shared by the others.

// The futures of `semel store copy` are nested deeper than the default allows.
#![recursion_limit = "256"]

mod admin;
mod cli;
mod client;
mod commands;
mod config;
mod console;
mod descriptors;
mod gateway;
mod intake;
mod interrupted;
mod ledgers;
mod misused;
mod pipeline;
mod server;
mod signals;
mod store;
mod supervisor;
mod telemetry;

use std::process::ExitCode;

use clap::Parser as _;

use self::commands::drill::watchdog;

/// Requests make many small allocations: this saves a tenth of their CPU time compared to the system's allocator.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Not a command of the command line: drills start it.
    if std::env::args_os().nth(1).is_some_and(|first| first == watchdog::COMMAND) {
        return cli::exit_code(watchdog::run());
    }
    cli::Cli::parse().run()
}
