//! `semel metrics`: lists the metrics of a server, and prints alert rules and a dashboard for them.

use clap::{Args, Subcommand};
use serde_json::json;

use super::screen::write_line;
use super::table::table;
use crate::telemetry::metrics::definitions::{METRICS, Metric};
use crate::telemetry::monitoring::{alerts, dashboard, rules};

#[derive(Debug, Subcommand)]
pub(crate) enum MetricsCommand {
    /// List every metric with its kind, labels and meaning
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print alert rules for Prometheus
    Alerts(AlertsArgs),
    /// Print a dashboard for Grafana, as JSON
    Dashboard,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AlertsArgs {
    /// Address of docs/howto/alerts.md for the links of the alerts
    #[arg(long, value_name = "URL", default_value = "docs/howto/alerts.md")]
    runbook: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn run(command: &MetricsCommand) -> anyhow::Result<()> {
    match command {
        MetricsCommand::List { json: true } => {
            let items = METRICS.iter().map(|metric| {
                json!({ "name": metric.name, "kind": metric.kind.name(), "labels": metric.labels, "help": metric.help })
            });
            write_line(&json!({ "items": items.collect::<Vec<_>>() }).to_string())
        }
        MetricsCommand::List { json: false } => {
            let row = |metric: &&Metric| {
                let Metric { name, kind, labels, help } = metric;
                [name, kind.name(), &labels.join(","), help].map(str::to_owned)
            };
            table(["NAME", "KIND", "LABELS", "MEANING"], &METRICS.iter().map(row).collect::<Vec<_>>())
        }
        MetricsCommand::Alerts(args) if args.json => write_line(&json!({ "items": alerts() }).to_string()),
        MetricsCommand::Alerts(args) => write_line(rules(&args.runbook).trim_end()),
        MetricsCommand::Dashboard => write_line(&format!("{:#}", dashboard())),
    }
}
