//! `semel completions` and `semel man`: what a package installs beside the binary.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use crate::cli::Cli;
use crate::misused::Misused;

#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed, such as `keys settle` [default: semel itself]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub(crate) command: Vec<String>,
    /// Write a page for every command into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "semel", &mut script);
    print_bytes(&script);
}

/// Prints the manual page of a command, or writes the pages of all.
///
/// # Errors
/// A file cannot be written, or there is no such command.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.out {
        Some(folder) => {
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
            written.with_context(|| folder.display().to_string())?;
        }
        None => {
            let mut command = Cli::command();
            // Gives every subcommand its whole name.
            command.build();
            for name in &args.command {
                let known: Vec<String> = command
                    .get_subcommands()
                    .filter(|one| !one.is_hide_set() && one.get_name() != "help")
                    .map(|one| one.get_name().to_owned())
                    .collect();
                let Some(found) = command.find_subcommand(name) else {
                    let of = command.get_bin_name().unwrap_or("semel");
                    return Err(Misused::new(format!(
                        "{of} has no command {name:?}; it has {}",
                        known.join(", ")
                    ))
                    .into());
                };
                command = found.clone();
            }
            let mut page = Vec::new();
            let name = command.get_bin_name().unwrap_or("semel").replace(' ', "-");
            clap_mangen::Man::new(command).title(name).render(&mut page)?;
            print_bytes(&page);
        }
    }
    Ok(())
}

/// Standard output may be a closed pipe.
fn print_bytes(bytes: &[u8]) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(bytes);
}
