//! `semel runbook`: which downstream uses which pattern (R14).

use std::path::PathBuf;

use clap::Args;

use crate::cli::ServeArgs;
use crate::config::{Config, Environment, downstream};

#[derive(Clone, Debug, Args)]
pub(crate) struct RunbookArgs {
    /// The config file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command.
///
/// # Errors
/// A config file with mistakes.
pub(crate) fn run(args: &RunbookArgs) -> anyhow::Result<()> {
    // An on-call engineer reads this on a machine without secrets, and none is needed to say where they are used.
    let anything = |name: &str| {
        std::env::var(name).ok().or_else(|| Some(format!("a stand-in of more than 32 bytes for {name}")))
    };
    let serve = ServeArgs { config: args.config.clone(), ..ServeArgs::default() };
    let config = Config::load(&serve, &Environment(&anything))?;
    let runbook = downstream::runbook(&config.downstreams);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runbook)?);
    } else {
        print!("{runbook}");
    }
    Ok(())
}
