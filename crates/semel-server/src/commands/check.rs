//! `semel check`: runs storyboards and suites against a target.

mod command_line;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use semel::time::{Clock as _, SystemClock};
use semel_check::{
    BodyFormat, Error, Paint, Progress, Report, ReportOrigin, RunOptions, Runner, SUITES, Storyboard,
    Verbosity, html, json, junit, markdown, pretty, suite, template,
};
use serde_json::Value;

use super::screen::is_coloured;

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Storyboards to run
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Built-in suite; can be repeated
    #[arg(long, value_name = "NAME", value_parser = names())]
    pub(crate) suite: Vec<String>,
    /// URL of the API, or of the MCP endpoint
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Bearer token; sent unchanged if it names a scheme (`Basic …`)
    #[arg(long, value_name = "TOKEN", env = "SEMEL_CHECK_AUTH", hide_env_values = true)]
    pub(crate) auth: Option<String>,
    /// Token of a second principal, for cases about isolation
    #[arg(long, value_name = "TOKEN", env = "SEMEL_CHECK_OTHER_AUTH", hide_env_values = true)]
    pub(crate) other_auth: Option<String>,
    /// Override a value of the files' `context`; parsed as JSON if it is JSON
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Path of the request that creates something; the same as --set path=PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// Header of every request; can be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// Header that carries the key [default: Idempotency-Key]
    #[arg(long, value_name = "NAME")]
    pub(crate) key_header: Option<String>,
    /// How bodies are sent: as JSON, as a form, or the text of --set body=TEXT as it is
    #[arg(long, value_enum, default_value_t = BodyKind::Json)]
    pub(crate) body: BodyKind,
    /// Content type of raw bodies
    #[arg(long, value_name = "TYPE", default_value = "text/plain")]
    pub(crate) content_type: String,
    /// Shell command that restarts the target, for cases about crashes; it must return when the target is up again
    #[arg(long, value_name = "CMD")]
    pub(crate) restart: Option<String>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Pretty)]
    pub(crate) format: ReportFormat,
    /// In the text report, show for each failed case the harm to a client, how to fix it, the request and the answer
    #[arg(long)]
    pub(crate) explain: bool,
    /// Timeout for an answer, in seconds; more than 30 also gives concurrent requests more time
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
    /// PEM certificates to trust instead of the public roots
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// List the built-in suites
    #[arg(long)]
    pub(crate) list: bool,
    /// Print a suite instead of running it
    #[arg(long, requires = "suite")]
    pub(crate) print: bool,
    /// Write NAME.yaml, a storyboard to start from
    #[arg(long, value_name = "NAME")]
    pub(crate) new: Option<String>,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReportFormat {
    /// For humans
    Pretty,
    /// For programs
    Json,
    /// For CI servers
    Junit,
    /// For pull requests
    Markdown,
    /// One page for a ticket, with a timeline of each failure
    Html,
}

/// How bodies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BodyKind {
    /// application/json
    Json,
    /// application/x-www-form-urlencoded
    Form,
    /// As it is, with --content-type
    Raw,
}

/// A case failed.
const FAILED: u8 = 1;
/// The file, the target or an argument is unusable: nothing was graded.
const UNUSABLE: u8 = 2;

/// Runs the command. Exit code 0: nothing failed; 1: a case failed; 2: nothing could be graded.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    match check(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode, Error> {
    if args.list {
        print(&list());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.new {
        write_template(name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let storyboards = storyboards(args)?;
    if args.print {
        for name in &args.suite {
            if let Some(suite) = SUITES.iter().find(|suite| suite.name == name) {
                print(suite.text);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if storyboards.is_empty() {
        return Err(Error::Setting(
            "semel check: expected a FILE, or --suite NAME (--list shows them)".to_owned(),
        ));
    }
    let Some(target) = &args.target else {
        return Err(Error::Setting("semel check: expected --target URL".to_owned()));
    };
    let mut options = RunOptions::new(target);
    options.auth.clone_from(&args.auth);
    options.other_auth.clone_from(&args.other_auth);
    options.restart.clone_from(&args.restart);
    options.roots.clone_from(&args.ca);
    options.timeout = Duration::from_secs(args.timeout);
    for pair in &args.set {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Error::Setting(format!("--set {pair:?}: expected NAME=VALUE")));
        };
        // Parsed as JSON if it is JSON, else a string.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        options.set.insert(name.to_owned(), value);
    }
    if let Some(path) = &args.path {
        options.set.insert("path".to_owned(), Value::String(path.clone()));
    }
    for header in &args.header {
        let Some((name, value)) = header.split_once(':') else {
            // The text may be a credential.
            return Err(Error::Setting("--header: expected 'NAME: VALUE'".to_owned()));
        };
        options.headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    options.key_header.clone_from(&args.key_header);
    options.body_format = match args.body {
        BodyKind::Json => BodyFormat::Json,
        BodyKind::Form => BodyFormat::Form,
        BodyKind::Raw => BodyFormat::Raw(args.content_type.clone()),
    };
    let runner = Runner::new(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Setting(format!("cannot start the runtime: {error}")))?;
    let bar = Bar::new();
    let report = runtime.block_on(runner.run(&storyboards, &|progress| bar.show(progress)));
    bar.clear();
    let mut report = report?;
    report.origin = Some(ReportOrigin {
        date: crate::admin::records::time(SystemClock.now()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: command_line::shown(std::env::args().skip(1)),
    });
    print(&format_report(&report, args));
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn format_report(report: &Report, args: &CheckArgs) -> String {
    match args.format {
        ReportFormat::Json => format!("{}\n", json(report)),
        ReportFormat::Junit => junit(report),
        ReportFormat::Markdown => markdown(report),
        ReportFormat::Html => html(report),
        ReportFormat::Pretty => {
            let paint = if is_coloured() { Paint::Coloured } else { Paint::Plain };
            let telling = if args.explain { Verbosity::Explained } else { Verbosity::Short };
            pretty(report, paint, telling)
        }
    }
}

fn storyboards(args: &CheckArgs) -> Result<Vec<Storyboard>, Error> {
    let mut storyboards = Vec::new();
    // The command line accepts only known names.
    storyboards.extend(args.suite.iter().filter_map(|name| suite(name)));
    for file in &args.files {
        storyboards.push(Storyboard::read(file)?);
    }
    Ok(storyboards)
}

/// The names of the suites that the command line accepts.
fn names() -> PossibleValuesParser {
    SUITES.iter().map(|suite| PossibleValue::new(suite.name)).collect::<Vec<_>>().into()
}

fn list() -> String {
    let mut text = String::new();
    for known in SUITES {
        if let Some(storyboard) = suite(known.name) {
            text.push_str(&format!("{:<18}{}\n", known.name, storyboard.title));
        }
    }
    text
}

fn write_template(name: &str) -> Result<(), Error> {
    let stem = name.strip_suffix(".yaml").unwrap_or(name);
    let id = Path::new(stem).file_name().map_or(stem, |name| name.to_str().unwrap_or(stem));
    let file = PathBuf::from(format!("{stem}.yaml"));
    let shown = file.display().to_string();
    let created = std::fs::OpenOptions::new().write(true).create_new(true).open(&file);
    let written = created.and_then(|mut file| file.write_all(template(id).as_bytes()));
    written.map_err(|source| Error::Unreadable { file: shown.clone(), source })?;
    print(&format!("{shown} written; run it: semel check {shown} --target URL --auth TOKEN\n"));
    Ok(())
}

/// Standard output may be a closed pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// A progress bar on standard error, if that is a terminal.
struct Bar {
    shown: bool,
}

impl Bar {
    fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    fn show(&self, progress: Progress<'_>) {
        const WIDTH: usize = 24;
        if !self.shown {
            return;
        }
        let filled = (progress.done * WIDTH).checked_div(progress.total).unwrap_or(0);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH - filled));
        let (phase, step) = progress.next;
        eprint!("\r\x1b[2K{bar} {}/{} {phase}/{step}", progress.done, progress.total);
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[2K");
        }
    }
}
