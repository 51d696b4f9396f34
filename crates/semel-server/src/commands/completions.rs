//! `semel completions` and `semel man`: what a package installs beside the binary.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};

use crate::cli::Cli;

#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for every command into this directory, instead of one page to standard output
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "semel", &mut script);
    print_bytes(&script);
}

/// Prints the manual page of `semel`, or writes the pages of all commands.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            clap_mangen::generate_to(Cli::command(), folder)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
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
