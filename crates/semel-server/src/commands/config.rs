//! `semel config`: check, example, schema.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::screen::write_line;
use crate::cli::ServeArgs;
use crate::config::{Config, EXAMPLE, Invalid, PROCESS, schema};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a config file and report every mistake
    Check {
        /// The file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Also report missing settings that a server on a public network should have
        #[arg(long)]
        production: bool,
    },
    /// Print a complete, commented example
    Example,
    /// Print the JSON schema of the file
    Schema,
}

/// Runs the command.
///
/// # Errors
/// A file with mistakes.
pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Example => write_line(EXAMPLE.trim_end())?,
        ConfigCommand::Schema => write_line(&format!("{:#}", schema()))?,
        ConfigCommand::Check { file, json, production } => {
            let checked = if *production {
                Config::check_production(file, &PROCESS)
            } else {
                let args = ServeArgs { config: Some(file.clone()), ..ServeArgs::default() };
                Config::load(&args, &PROCESS).map(drop)
            };
            if *json {
                write_line(&report(checked.as_ref().err()).to_string())?;
            } else if checked.is_ok() {
                write_line(&format!("{}: fine", file.display()))?;
            }
            checked?;
        }
    }
    Ok(())
}

fn report(invalid: Option<&Invalid>) -> serde_json::Value {
    let problems: Vec<_> = invalid
        .iter()
        .flat_map(|invalid| &invalid.0)
        .map(|problem| {
            let (line, column) = problem.position.unzip();
            json!({ "file": problem.place, "line": line, "column": column, "message": problem.message })
        })
        .collect();
    json!({ "valid": problems.is_empty(), "problems": problems })
}
