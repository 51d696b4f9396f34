//! `semel config`: check, example, schema.

use serde_json::json;

use super::schema::schema;
use super::secrets::PROCESS;
use super::{Config, Invalid};
use crate::cli::{ConfigCommand, ServeArgs};

/// A complete, commented file. A test parses it.
pub(crate) const EXAMPLE: &str = include_str!("example.toml");

/// Runs the command.
///
/// # Errors
/// A file with mistakes.
pub(crate) fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Example => print!("{EXAMPLE}"),
        ConfigCommand::Schema => println!("{:#}", schema()),
        ConfigCommand::Check { file, json, production } => {
            let checked = if *production {
                Config::check_production(file, &PROCESS)
            } else {
                let args = ServeArgs { config: Some(file.clone()), ..ServeArgs::default() };
                Config::load(&args, &PROCESS).map(drop)
            };
            if *json {
                println!("{}", report(checked.as_ref().err()));
            } else if checked.is_ok() {
                println!("{}: fine", file.display());
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
