//! `semel health`: asks a running server whether it works, for probes of containers and supervisors.

use anyhow::bail;
use clap::Args;
use http::Method;
use serde_json::Value;

use super::remote::print;
use super::screen::write_line;
use crate::cli::Remote;
use crate::client::{AdminClient, Request};

#[derive(Clone, Debug, Args)]
pub(crate) struct HealthArgs {
    /// Check only that the process runs, not that claims work
    #[arg(long)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// Runs the command. It succeeds if the server is ready.
///
/// # Errors
/// The server cannot be reached, or is not ready; the error says why.
pub(crate) async fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let client = AdminClient::of(&args.remote)?;
    let path = if args.live { "/healthz" } else { "/readyz" };
    let response = client.send(&Request::new(Method::GET, path)).await?;
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let word = if args.live { "alive" } else { "ready" };
    let why = body["why"].as_str();
    if !response.status.is_success() {
        bail!("not {word}: {}", why.unwrap_or("the server does not say why"));
    }
    if args.remote.json {
        print(&if args.live { serde_json::json!({"alive": true}) } else { body })
    } else {
        write_line(&format!("{word}{}", why.map(|why| format!(": {why}")).unwrap_or_default()))
    }
}
