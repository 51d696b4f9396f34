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
    /// Print which downstream uses which pattern
    Runbook(RunbookArgs),
    /// Publish events, and see what became of them
    #[command(subcommand)]
    Events(EventsCommand),
    /// Look at dead letters, give them up or take that back
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Check, show or describe the config file
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
    /// How clients are spoken to: ietf, stripe, stripe-v2, ucp [default: ietf]
    #[arg(long, value_name = "P")]
    pub(crate) profile: Option<String>,
    /// Whose keys are whose: authorization, header:NAME, jwt:CLAIM, single-tenant [default: authorization]
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

/// Where the running server is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remote {
    /// The admin side of a running server
    #[arg(long, value_name = "URL", env = "SEMEL_ADMIN", default_value = "http://127.0.0.1:8081")]
    pub(crate) admin: String,
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
    Settle {
        /// The key's id, 32 hex characters
        id: String,
        /// It did not happen: the same request may run again
        #[arg(long, conflicts_with = "outcome", required_unless_present = "outcome")]
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
    /// Tell the whole story of an action, by any of its ids: an event, run, delivery, dead letter, key or request
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
    },
    /// Print a complete, commented example
    Example,
    /// Print the JSON schema of the file
    Schema,
}
