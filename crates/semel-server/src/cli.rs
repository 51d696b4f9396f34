//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::bench::{self, BenchArgs};
use crate::commands::check::{self, CheckArgs};
use crate::commands::completions::{self, CompletionsArgs, ManArgs};
use crate::commands::config::{self, ConfigCommand};
use crate::commands::deliveries::{self, AuditArgs, DeliveriesCommand};
use crate::commands::demo::{self, DemoArgs};
use crate::commands::dlq::{self, DlqCommand};
use crate::commands::drill::{self, DrillArgs};
use crate::commands::events::{self, EventsCommand};
use crate::commands::health::{self, HealthArgs};
use crate::commands::init::{self, InitArgs};
use crate::commands::keys::{self, KeysCommand};
use crate::commands::metrics::{self, MetricsCommand};
use crate::commands::replay::{self, ReplayArgs};
use crate::commands::runbook::{self, RunbookArgs};
use crate::commands::runs::{self, RunsCommand};
use crate::commands::screen::{ColorChoice, OutputClosed, choose_colours, with_causes};
use crate::commands::serve;
use crate::commands::status::{self, StatusArgs};
use crate::commands::store::{self, StoreCommand};
use crate::commands::targets::{self, TargetsArgs};
use crate::config::Invalid;
use crate::interrupted::Interrupted;
use crate::misused::Misused;

/// The server refused, could not be reached, or failed.
const FAILED: u8 = 1;
/// The command line or the config file is unusable. Nothing was started.
const MISUSED: u8 = 2;
/// Ctrl-C, as shells report it.
const INTERRUPTED: u8 = 130;
/// Nobody reads the output any more: SIGPIPE, as shells report it.
const OUTPUT_CLOSED: u8 = 141;

/// Makes effects happen once.
#[derive(Debug, Parser)]
#[command(name = "semel", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Colours in tables: on a terminal, unless NO_COLOR is set; always; never
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    color: ColorChoice,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the gateway and the admin API
    Serve(ServeArgs),
    /// Write a small config file that starts
    Init(InitArgs),
    /// Run a demo: a sample payments API behind the gateway, with traffic to watch
    Demo(DemoArgs),
    /// Inspect keys and settle those in doubt
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Test whether an API is idempotent: run storyboards and built-in suites against it
    Check(CheckArgs),
    /// Print the duplicate protection of every downstream service
    Runbook(RunbookArgs),
    /// Publish events and follow their deliveries
    #[command(subcommand)]
    Events(EventsCommand),
    /// Show the state of a server on one screen
    Status(StatusArgs),
    /// List targets with their circuit breaker and backlog; pause and resume them
    Targets(TargetsArgs),
    /// List and show deliveries
    #[command(subcommand)]
    Deliveries(DeliveriesCommand),
    /// List changes by operators, newest first
    Audit(AuditArgs),
    /// List, discard, restore and edit dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Trigger, inspect and change runs
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Replay dead letters
    Replay(ReplayArgs),
    /// Move records from one store to another
    #[command(subcommand)]
    Store(StoreCommand),
    /// Cause failures on purpose and verify that nothing is lost or done twice
    Drill(DrillArgs),
    /// Measure the stores on this machine: operations per second, and bytes per key
    Bench(BenchArgs),
    /// Check the config file, print an example, or print its JSON schema
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Ask a running server whether it works; for probes of containers and supervisors
    Health(HealthArgs),
    /// List the metrics of a server, or print alert rules and a dashboard for them
    #[command(subcommand)]
    Metrics(MetricsCommand),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for every command
    Man(ManArgs),
}

impl Cli {
    /// Runs the command.
    pub(crate) fn run(self) -> ExitCode {
        choose_colours(self.color);
        let result = match self.command {
            CliCommand::Serve(args) => serve::run(&args),
            CliCommand::Init(args) => init::run(&args),
            CliCommand::Demo(args) => demo::run(&args),
            // It has its own exit codes.
            CliCommand::Check(args) => return check::run(&args),
            CliCommand::Keys(command) => block_on(keys::run(command)),
            CliCommand::Runbook(args) => runbook::run(&args),
            CliCommand::Events(command) => block_on(events::run(command)),
            CliCommand::Status(args) => block_on(status::status(&args)),
            CliCommand::Targets(args) => block_on(targets::run(args)),
            CliCommand::Deliveries(command) => block_on(deliveries::run(command)),
            CliCommand::Audit(args) => block_on(deliveries::audit(args)),
            CliCommand::Dlq(command) => block_on(dlq::run(command)),
            CliCommand::Runs(command) => block_on(runs::run(command)),
            CliCommand::Replay(args) => block_on(replay::run(&args)),
            CliCommand::Store(command) => block_on(store::run(command)),
            CliCommand::Drill(args) => drill::run(&args),
            CliCommand::Bench(args) => bench::run(&args),
            CliCommand::Config(command) => config::run(&command),
            CliCommand::Health(args) => block_on(health::run(&args)),
            CliCommand::Metrics(command) => metrics::run(&command),
            CliCommand::Completions(args) => {
                completions::completions(&args);
                Ok(())
            }
            CliCommand::Man(args) => completions::man(&args),
        };
        exit_code(result)
    }
}

/// Prints why a command failed, if it did. Returns its exit code.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    result.map_or_else(|error| report(&error), |()| ExitCode::SUCCESS)
}

fn report(error: &anyhow::Error) -> ExitCode {
    let interrupted = error.downcast_ref::<Interrupted>();
    match interrupted {
        Some(interrupted) if interrupted.is_silent() => {}
        _ if error.is::<OutputClosed>() => return ExitCode::from(OUTPUT_CLOSED),
        _ if error.is::<Invalid>() => eprintln!("{error}"),
        _ => eprintln!("semel: {}", with_causes(error)),
    }
    ExitCode::from(match interrupted {
        Some(_) => INTERRUPTED,
        None if error.is::<Misused>() || error.is::<Invalid>() => MISUSED,
        None => FAILED,
    })
}

/// Runs a command that talks to a server, until it ends or Ctrl-C.
fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            // The command first: it may say more about the interruption.
            biased;
            ended = command => ended,
            _ = interrupt.recv() => Err(Interrupted::default().into()),
        }
    });
    // A thread that reads standard input is not waited for.
    runtime.shutdown_background();
    ended
}

/// Flags override the config file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The config file (TOML); `semel config example` prints one
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Upstream of the gateway; without it only the admin API is served
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Listen address of the gateway [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Listen address of the admin API [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Store of the records: memory:, embedded:PATH, redis://…, rediss://…, redis-cluster://…, redis-sentinel://…, postgres://…
    /// [default: embedded:./semel-data]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Redis server in front of a PostgreSQL store
    #[arg(long, value_name = "REDIS_URL")]
    pub(crate) coordinate: Option<String>,
    /// Dialect of the clients: ietf, stripe, stripe-v2, ucp, adcp-mcp [default: ietf]
    #[arg(long, value_name = "P")]
    pub(crate) profile: Option<String>,
    /// How the principal of a key is found: authorization, header:NAME, jwt:CLAIM, single-tenant; several parts with commas [default:
    /// the profile's]
    #[arg(long, value_name = "S")]
    pub(crate) scope: Option<String>,
}

/// The address of a running server.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remote {
    /// Admin URL of a running server
    #[arg(long, value_name = "URL", env = "SEMEL_ADMIN", default_value = "http://127.0.0.1:8081")]
    pub(crate) admin: String,
    /// For https: PEM file of the authorities to trust instead of the system's
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_CA")]
    pub(crate) admin_ca: Option<PathBuf>,
    /// For https: PEM file of a client certificate, if the server requires one
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_CERT", requires = "admin_key")]
    pub(crate) admin_cert: Option<PathBuf>,
    /// PEM file of the key of that certificate
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_KEY", requires = "admin_cert")]
    pub(crate) admin_key: Option<PathBuf>,
    /// Token, if the server requires one
    #[arg(long, value_name = "TOKEN", env = "SEMEL_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
