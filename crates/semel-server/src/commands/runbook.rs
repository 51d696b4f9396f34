//! `semel runbook`: prints the duplicate protection of every downstream service.

use std::path::PathBuf;

use clap::Args;

use super::screen::write_line;
use crate::cli::ServeArgs;
use crate::config::{Config, Environment, downstream};

#[derive(Clone, Debug, Args)]
pub(crate) struct RunbookArgs {
    /// The config file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command.
///
/// # Errors
/// A config file with mistakes.
pub(crate) fn run(args: &RunbookArgs) -> anyhow::Result<()> {
    // The command also works on a machine without the secrets, because it prints only where they are used.
    let anything = |name: &str| {
        std::env::var(name).ok().or_else(|| Some(format!("a stand-in of more than 32 bytes for {name}")))
    };
    let serve = ServeArgs { config: args.config.clone(), ..ServeArgs::default() };
    let config = Config::load(&serve, &Environment(&anything))?;
    let runbook = downstream::runbook(&config.downstreams);
    if args.json {
        write_line(&serde_json::to_string_pretty(&runbook)?)
    } else {
        write_line(runbook.to_string().trim_end())
    }
}
