//! The `semel` binary: the gateway, its admin side, a demo, and the commands around them.
//!
//! # Layout
//!
//! - [`cli`]: what can be typed.
//! - [`config`]: the file, read into checked types; every mistake with its place.
//! - [`serve`]: opens the store, starts both listeners, drains and reloads on signals.
//! - [`gateway`]: the guard and the proxy of `semel-http`, as the config wants them.
//! - [`pipeline`]: the ledger, the targets and the delivery worker, as the config wants them.
//! - [`admin`]: the admin API: health, metrics, keys, claims, events, deliveries, dead letters.
//! - [`intake`]: triggers with their gate and buffer, streams, and the replay of what failed.
//! - [`keys`], [`events`], [`dlq`], [`runs`], [`replay`], [`remote`], [`client`]: the commands that talk to a running server.
//! - [`runbook`]: which downstream uses which pattern.
//! - [`check`]: the tester of `semel-check`.
//! - [`drill`]: what people fear, made to happen on purpose.
//! - [`demo`]: a payments API behind the gateway, with traffic to watch.
//! - [`descriptors`]: how many files and connections may be open, and who gets them.
//! - [`store`], [`ledgers`], [`logs`], [`metrics`], [`otlp`], [`signals`]: what the others share.

mod admin;
mod check;
mod cli;
mod client;
mod config;
mod demo;
mod descriptors;
mod dlq;
mod drill;
mod events;
mod gateway;
mod intake;
mod keys;
mod ledgers;
mod logs;
mod metrics;
mod misused;
mod otlp;
mod pipeline;
mod remote;
mod replay;
mod runbook;
mod runs;
mod serve;
mod signals;
mod store;

use std::process::ExitCode;

use clap::Parser as _;

use self::cli::{Cli, Command};

/// Requests are many small allocations: a tenth of their CPU is saved against the system's allocator.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Failed: the server said no, could not be reached, or ended badly.
const FAILED: u8 = 1;
/// What was typed, or the config file, cannot be used. Nothing was started.
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ran = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        // It has exit codes of its own.
        Command::Check(args) => return check::run(&args),
        Command::Keys(args) => keys::run(args),
        Command::Runbook(args) => runbook::run(&args),
        Command::Events(args) => events::run(args),
        Command::Dlq(args) => dlq::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Replay(args) => replay::run(&args),
        Command::Drill(args) => drill::run(&args),
        Command::Config(args) => config::commands::run(&args),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<config::Invalid>() => {
            eprintln!("{error}");
            ExitCode::from(MISUSED)
        }
        Err(error) => {
            // `{:#}` tells the causes too.
            eprintln!("semel: {error:#}");
            ExitCode::from(if error.is::<misused::Misused>() { MISUSED } else { FAILED })
        }
    }
}
