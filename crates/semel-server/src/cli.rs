//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::runbook::RunbookArgs;

/// Makes effects happen once.
#[derive(Debug, Parser)]
#[command(name = "semel", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run the gateway and the admin API
    Serve(ServeArgs),
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
    /// List, discard, restore and edit dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Trigger, inspect and change runs
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Replay dead letters
    Replay(ReplayArgs),
    /// Cause failures on purpose and verify that nothing is lost or done twice
    Drill(DrillArgs),
    /// Check the config file, print an example, or print its JSON schema
    #[command(subcommand)]
    Config(ConfigCommand),
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

#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// Stop after this time [default: run until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) length: Option<String>,
    /// Listen address of the gateway; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Listen address of the admin API; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) admin: String,
    /// Print only one line of JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Storyboards to run
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Built-in suite: ietf, stripe, stripe-v2, ucp, adcp, adcp-idempotency, runs; can be repeated
    #[arg(long, value_name = "NAME")]
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
    /// Shell command that restarts the target, for cases about crashes; it must return when the target is up again
    #[arg(long, value_name = "CMD")]
    pub(crate) restart: Option<String>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Pretty)]
    pub(crate) format: ReportFormat,
    /// For each failed case, show the harm to a client, how to fix it, the request and the answer
    #[arg(long)]
    pub(crate) explain: bool,
    /// Timeout for an answer, in seconds
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

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys, or find one by namespace, scope and value
    List {
        /// Only keys in this phase: claimed, begun, lapsed, in_doubt, done, bound, expired, vacant
        #[arg(long)]
        phase: Option<String>,
        /// Only keys whose value begins with this; eight characters are stored
        #[arg(long)]
        hint: Option<String>,
        /// Find one key: its namespace
        #[arg(long, requires = "key")]
        namespace: Option<String>,
        /// Find one key: its scope; repeat it for several parts
        #[arg(long, requires = "key")]
        scope: Vec<String>,
        /// Find one key: its value
        #[arg(long, requires = "namespace")]
        key: Option<String>,
        /// Maximum number of keys
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one key
    Show {
        /// The key's id, 32 hex characters
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a record: the next call with its key runs again
    Forget {
        /// The key's id, 32 hex characters
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Even if it is claimed or in doubt
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Settle a key in doubt
    #[command(group = clap::ArgGroup::new("fate").required(true).args(["run", "outcome"]))]
    Settle {
        /// The key's id, 32 hex characters
        id: String,
        /// The effect did not happen: the same request may run again
        #[arg(long)]
        run: bool,
        /// The effect happened, with this outcome: JSON; {"status": 201, "body": …} for a gateway's answer
        #[arg(long, value_name = "JSON")]
        outcome: Option<String>,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write every key as one line of JSON
    Export {
        /// Only keys in this phase
        #[arg(long)]
        phase: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum EventsCommand {
    /// Publish one event, accepted once per type, deduplication key and tenant
    Publish {
        /// Type, such as order.paid
        #[arg(long = "type", value_name = "TYPE")]
        event_type: String,
        /// Deduplication key
        #[arg(long, value_name = "KEY")]
        dedupe_key: String,
        /// Payload: JSON, delivered byte for byte; @FILE reads it from a file, - from standard input
        #[arg(long, value_name = "JSON")]
        payload: String,
        /// Tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Deliveries with the same order key are made one after the other
        #[arg(long, value_name = "KEY")]
        order_key: Option<String>,
        /// Delay of the first attempt
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// Expire after this time: it is not delivered any more
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List events, newest first
    List {
        /// Only this type
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only events with this request id
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
        /// Maximum number of events
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the history of an action by any of its ids: an event, run, delivery, dead letter, replay, key or request
    Show {
        /// evt_…, run_…, dlv_…, dlq_…, the id of a key, or a request id
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        filter: DlqFilter,
        /// Maximum number of dead letters
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one dead letter with every attempt
    Show {
        /// dlq_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show groups of similar failures, largest first
    Groups {
        #[command(flatten)]
        filter: DlqFilter,
        #[command(flatten)]
        remote: Remote,
    },
    /// Discard a dead letter; it can be restored
    Discard {
        /// dlq_…
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Create a copy with another payload, which can be replayed
    Edit {
        /// dlq_…
        id: String,
        /// Payload: JSON; @FILE reads a file, - standard input
        #[arg(long)]
        payload: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Tenant, if the dead letter has none
        #[arg(long)]
        target: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Restore a discarded dead letter; a parked one becomes pending again
    Restore {
        /// dlq_…
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// A filter for dead letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct DlqFilter {
    /// Only this status: pending, replaying, replayed, discarded, parked
    #[arg(long)]
    pub(crate) status: Option<String>,
    /// Only this target
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only this failure signature, as printed by `dlq groups`
    #[arg(long)]
    pub(crate) signature: Option<String>,
}

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

/// Choose the dead letters: --status failed, --dlq --id, --event-id, or --job.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["status", "dlq", "event_id", "job"]))]
pub(crate) struct ReplayArgs {
    /// All deliveries that ended in dlq or blocked: `failed`
    #[arg(long, value_name = "S")]
    pub(crate) status: Option<String>,
    /// Maximum number, oldest first [default: 100]
    #[arg(long, value_name = "N", requires = "status")]
    pub(crate) limit: Option<u64>,
    /// Only this tenant
    #[arg(long, requires = "status")]
    pub(crate) tenant: Option<String>,
    /// Only this failure signature, as printed by `dlq groups`
    #[arg(long, requires = "status")]
    pub(crate) signature: Option<String>,
    /// Dead letters by id
    #[arg(long, requires = "id")]
    pub(crate) dlq: bool,
    /// A dead letter; can be repeated
    #[arg(long, value_name = "ID", requires = "dlq")]
    pub(crate) id: Vec<String>,
    /// Deliveries of one event
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
    /// Only these targets, separated by commas
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// resume: skip completed deliveries; re-execute: run effects again; as-new: send as new events [default: resume]
    #[arg(long, value_name = "M")]
    pub(crate) mode: Option<String>,
    /// Reason; required for re-execute
    #[arg(long, value_name = "R")]
    pub(crate) reason: Option<String>,
    /// Show the plan without executing it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Maximum rate per second; 0 is no limit [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,
    /// Canary size: the rest is released after these succeeded [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) canary: Option<u32>,
    /// Maximum number in progress [default: 16]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// Do not wait for the end of the job
    #[arg(long)]
    pub(crate) detach: bool,
    /// An existing job: follow or control it
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// Pause the job
    #[arg(long, requires = "job", conflicts_with_all = ["resume", "cancel"])]
    pub(crate) pause: bool,
    /// Resume the job and follow it
    #[arg(long, requires = "job", conflicts_with = "cancel")]
    pub(crate) resume: bool,
    /// Cancel the job
    #[arg(long, requires = "job")]
    pub(crate) cancel: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Trigger a run of a target
    Trigger {
        /// Name of the target in the config
        target: String,
        /// Payload: JSON; @FILE reads a file, - standard input
        #[arg(long, default_value = "{}")]
        payload: String,
        /// Key of the run: another trigger with the same key is the same run
        #[arg(long)]
        key: Option<String>,
        /// Tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Tag to find it by; can be repeated
        #[arg(long)]
        tag: Vec<String>,
        /// Delay before the run starts
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// How long the key is remembered
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        /// Wait until the run has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// List runs, newest first
    List {
        /// Only this target
        #[arg(long)]
        target: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only this tag
        #[arg(long)]
        tag: Option<String>,
        /// Show the number of buffered runs instead
        #[arg(long, conflicts_with_all = ["target", "tag"])]
        buffered: bool,
        /// Maximum number of runs
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a run, buffered or not
    Show {
        /// run_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Cancel a run that has not started
    Cancel {
        /// run_…
        id: String,
        /// Reason, for the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add tags to a run
    Tag {
        /// run_…
        id: String,
        /// Tags to add
        #[arg(required = true)]
        tags: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Reset a key: the next trigger with it is a new run
    ResetKey {
        /// Name of the target in the config
        target: String,
        /// The key
        key: String,
        /// Tenant of the run
        #[arg(long)]
        tenant: Option<String>,
        /// Name of the token that triggered it, if it was another one
        #[arg(long)]
        principal: Option<String>,
        /// Reason, for the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DrillArgs {
    /// Name of the drill, or `all`; any other word lists the drills
    pub(crate) name: String,
    /// Redis server to use instead of starting redis-server, for drills that do not kill it
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// PostgreSQL database for the ledger, instead of starting a server, for drills that do not kill it
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// Print one line of JSON per drill
    #[arg(long)]
    pub(crate) json: bool,
}
