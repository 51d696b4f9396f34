//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::runbook::RunbookArgs;

/// Makes effects happen once.
#[derive(Debug, Parser)]
#[command(name = "semel", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway and the admin API
    Serve(ServeArgs),
    /// Show it: a sample payments API behind the gateway, with traffic to watch
    Demo(DemoArgs),
    /// Look at keys and settle what is in doubt
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Ask an API whether it is really idempotent: run storyboards and built-in suites against it
    Check(CheckArgs),
    /// Print which downstream uses which pattern
    Runbook(RunbookArgs),
    /// Publish events, and see what became of them
    #[command(subcommand)]
    Events(EventsCommand),
    /// Look at dead letters, give them up or take that back
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Trigger runs, look at them and change them
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Give dead letters another try
    Replay(ReplayArgs),
    /// Make what people fear happen on purpose, and see that it ends well
    Drill(DrillArgs),
    /// Check the config file, show an example, or describe it as a JSON schema
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// Flags override the file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The config file (TOML); `semel config example` prints one
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where guarded requests go; without it there is no gateway
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Where the gateway listens [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Where the admin API listens [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Where records are kept: memory:, embedded:PATH, redis://…, rediss://…, redis-cluster://…,
    /// redis-sentinel://…, postgres://… [default: embedded:./semel-data]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// A Redis in front of a PostgreSQL store
    #[arg(long, value_name = "REDIS_URL")]
    pub(crate) coordinate: Option<String>,
    /// How clients are spoken to: ietf, stripe, stripe-v2, ucp, adcp-mcp [default: ietf]
    #[arg(long, value_name = "P")]
    pub(crate) profile: Option<String>,
    /// Whose keys are whose: authorization, header:NAME, jwt:CLAIM, single-tenant; several parts with commas [default: the profile's]
    #[arg(long, value_name = "S")]
    pub(crate) scope: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// End after so long; otherwise with Ctrl-C
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) length: Option<String>,
    /// Where the gateway listens; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Where the admin API listens; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) admin: String,
    /// Print one line of JSON at the end, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Storyboards to run
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// A built-in suite: ietf, stripe, stripe-v2, ucp, adcp, adcp-idempotency, runs; more than once for several
    #[arg(long, value_name = "NAME")]
    pub(crate) suite: Vec<String>,
    /// The API to ask, or the MCP endpoint
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Sent as a bearer token; as it is where it names a scheme (`Basic …`)
    #[arg(long, value_name = "TOKEN", env = "SEMEL_CHECK_AUTH", hide_env_values = true)]
    pub(crate) auth: Option<String>,
    /// The token of a second principal, for cases about isolation
    #[arg(long, value_name = "TOKEN", env = "SEMEL_CHECK_OTHER_AUTH", hide_env_values = true)]
    pub(crate) other_auth: Option<String>,
    /// Replace a value of the files' `context`; JSON where it is JSON
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// A shell command that restarts the target, for cases about crashes; it ends when the target is up again
    #[arg(long, value_name = "CMD")]
    pub(crate) restart: Option<String>,
    /// How the report is written
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    pub(crate) format: Format,
    /// For each failed case: what a client would have suffered, how to fix it, the request and the answer
    #[arg(long)]
    pub(crate) explain: bool,
    /// Seconds that an answer may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
    /// PEM certificates to trust instead of the web's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// List the built-in suites
    #[arg(long)]
    pub(crate) list: bool,
    /// Print a suite instead of running it; they read as documentation
    #[arg(long, requires = "suite")]
    pub(crate) print: bool,
    /// Write NAME.yaml, a storyboard to start your own from
    #[arg(long, value_name = "NAME")]
    pub(crate) new: Option<String>,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Pretty,
    /// For programs
    Json,
    /// For build servers
    Junit,
}

/// Where the running server is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remote {
    /// The admin side of a running server
    #[arg(long, value_name = "URL", env = "SEMEL_ADMIN", default_value = "http://127.0.0.1:8081")]
    pub(crate) admin: String,
    /// For https: PEM certificates of authorities to trust instead of the machine's
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_CA")]
    pub(crate) admin_ca: Option<PathBuf>,
    /// For https: our own certificate, where the server wants one, as a PEM file
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_CERT", requires = "admin_key")]
    pub(crate) admin_cert: Option<PathBuf>,
    /// The key of that certificate, as a PEM file
    #[arg(long, value_name = "FILE", env = "SEMEL_ADMIN_KEY", requires = "admin_cert")]
    pub(crate) admin_key: Option<PathBuf>,
    /// A token, where the server wants one
    #[arg(long, value_name = "TOKEN", env = "SEMEL_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Answer in JSON
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
        /// Only keys whose value begins so; eight characters are kept
        #[arg(long)]
        hint: Option<String>,
        /// Find one key: its namespace
        #[arg(long, requires = "key")]
        namespace: Option<String>,
        /// Find one key: its scope; more than once for several parts
        #[arg(long, requires = "key")]
        scope: Vec<String>,
        /// Find one key: its value
        #[arg(long, requires = "namespace")]
        key: Option<String>,
        /// At most so many
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
    /// Take a record away: the next call with its key runs anew
    Forget {
        /// The key's id, 32 hex characters
        id: String,
        /// Why; it goes into the audit log
        #[arg(long)]
        reason: String,
        /// Also where it is claimed or in doubt
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Say what became of an effect in doubt
    #[command(group = clap::ArgGroup::new("fate").required(true).args(["run", "outcome"]))]
    Settle {
        /// The key's id, 32 hex characters
        id: String,
        /// It did not happen: the same request may run again
        #[arg(long)]
        run: bool,
        /// It happened, and this came of it: JSON; {"status": 201, "body": …} for a gateway's answer
        #[arg(long, value_name = "JSON")]
        outcome: Option<String>,
        /// Why; it goes into the audit log
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
    /// Publish one event: accepted once for its type, dedupe key and tenant
    Publish {
        /// Its type, such as order.paid
        #[arg(long = "type", value_name = "TYPE")]
        event_type: String,
        /// What makes it the same as another
        #[arg(long, value_name = "KEY")]
        dedupe_key: String,
        /// What is delivered: JSON, sent byte for byte; @FILE reads it from a file, - from standard input
        #[arg(long, value_name = "JSON")]
        payload: String,
        /// Whose it is
        #[arg(long)]
        tenant: Option<String>,
        /// Deliveries with the same order key are made one after the other
        #[arg(long, value_name = "KEY")]
        order_key: Option<String>,
        /// How long to wait before the first attempt
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// After so long it is not delivered any more
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List events, the newest first
    List {
        /// Only of this type
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Only of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only those that came with this request id
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Tell the whole story of an action, by any of its ids: an event, run, delivery, dead letter, replay, key or request
    Show {
        /// evt_…, run_…, dlv_…, dlq_…, a key's id, or a request id
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, the newest first
    List {
        #[command(flatten)]
        filter: DlqFilter,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one with every attempt
    Show {
        /// dlq_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show what failed alike, the largest group first
    Groups {
        #[command(flatten)]
        filter: DlqFilter,
        #[command(flatten)]
        remote: Remote,
    },
    /// Give one up; it can be restored
    Discard {
        /// dlq_…
        id: String,
        /// Why; it goes into the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Make a copy with another payload, to be replayed as any other
    Edit {
        /// dlq_…
        id: String,
        /// JSON; @FILE reads a file, - standard input
        #[arg(long)]
        payload: String,
        /// Why; it goes into the audit log
        #[arg(long)]
        reason: String,
        /// For whom, where the letter names nobody
        #[arg(long)]
        target: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Take that back; a parked one becomes pending again
    Restore {
        /// dlq_…
        id: String,
        /// Why; it goes into the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// Which dead letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct DlqFilter {
    /// Only in this status: pending, replaying, replayed, discarded, parked
    #[arg(long)]
    pub(crate) status: Option<String>,
    /// Only for this target
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Only of this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only with this failure signature, as `dlq groups` prints it
    #[arg(long)]
    pub(crate) signature: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read a config file and report every mistake
    Check {
        /// The file
        file: PathBuf,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
        /// Also report everything that a server facing strangers should have and this one lacks
        #[arg(long)]
        production: bool,
    },
    /// Print a complete, commented example
    Example,
    /// Print the JSON schema of the file
    Schema,
}

/// Say what to replay: --status failed, --dlq --id, --event-id, or --job.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["status", "dlq", "event_id", "job"]))]
pub(crate) struct ReplayArgs {
    /// Every delivery that ended in dlq or blocked: `failed`
    #[arg(long, value_name = "S")]
    pub(crate) status: Option<String>,
    /// At most so many, the oldest first [default: 100]
    #[arg(long, value_name = "N", requires = "status")]
    pub(crate) limit: Option<u64>,
    /// Only of this tenant
    #[arg(long, requires = "status")]
    pub(crate) tenant: Option<String>,
    /// Only with this failure signature, as `dlq groups` prints it
    #[arg(long, requires = "status")]
    pub(crate) signature: Option<String>,
    /// Dead letters by their id
    #[arg(long, requires = "id")]
    pub(crate) dlq: bool,
    /// A dead letter; more than once for several
    #[arg(long, value_name = "ID", requires = "dlq")]
    pub(crate) id: Vec<String>,
    /// The deliveries of one event
    #[arg(long, value_name = "ID")]
    pub(crate) event_id: Option<String>,
    /// Only to these targets, with commas between them
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// resume: what was completed is skipped; re-execute: effects happen again; as-new: as events of their own
    /// [default: resume]
    #[arg(long, value_name = "M")]
    pub(crate) mode: Option<String>,
    /// Why; re-execute needs one
    #[arg(long, value_name = "R")]
    pub(crate) reason: Option<String>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// At most so many a second; 0 is no limit [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,
    /// So many first, and the rest once they went well [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) canary: Option<u32>,
    /// At most so many at once [default: 16]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// Do not wait for the end
    #[arg(long)]
    pub(crate) detach: bool,
    /// A job that was made before: follow it, or tell it what to do
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// Release nothing more for now
    #[arg(long, requires = "job", conflicts_with_all = ["resume", "cancel"])]
    pub(crate) pause: bool,
    /// Go on, and follow it
    #[arg(long, requires = "job", conflicts_with = "cancel")]
    pub(crate) resume: bool,
    /// Release nothing more at all
    #[arg(long, requires = "job")]
    pub(crate) cancel: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Trigger a run of a target
    Trigger {
        /// The target, by its name in the config
        target: String,
        /// JSON; @FILE reads a file, - standard input
        #[arg(long, default_value = "{}")]
        payload: String,
        /// Names the run: another trigger with the same key is the same run
        #[arg(long)]
        key: Option<String>,
        /// For whom
        #[arg(long)]
        tenant: Option<String>,
        /// A word to find it by; more than once for several
        #[arg(long)]
        tag: Vec<String>,
        /// Not before so long from now
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// How long the key is remembered
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// List runs, the newest first
    List {
        /// Only of this target
        #[arg(long)]
        target: Option<String>,
        /// Only of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only with this tag
        #[arg(long)]
        tag: Option<String>,
        /// How much waits in the buffer, instead
        #[arg(long, conflicts_with_all = ["target", "tag"])]
        buffered: bool,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one, wherever it is
    Show {
        /// run_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Cancel one that has not started
    Cancel {
        /// run_…
        id: String,
        /// Why; it goes into the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add tags
    Tag {
        /// run_…
        id: String,
        /// Words to find it by
        #[arg(required = true)]
        tags: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Free a key: the next trigger with it is a new run
    ResetKey {
        /// The target, by its name in the config
        target: String,
        /// The key
        key: String,
        /// For whom it was
        #[arg(long)]
        tenant: Option<String>,
        /// Who triggered it, where that was another token
        #[arg(long)]
        principal: Option<String>,
        /// Why; it goes into the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DrillArgs {
    /// Its name, or `all`; any other word lists them
    pub(crate) name: String,
    /// A Redis to use, instead of starting redis-server, where it need not be killed
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// A PostgreSQL for the ledger, instead of starting one for what several processes share, where it need not be killed
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// One line of JSON for each drill
    #[arg(long)]
    pub(crate) json: bool,
}
