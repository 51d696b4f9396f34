//! `semel serve`: runs the gateway and the admin API until a signal stops it.

use crate::cli::ServeArgs;
use crate::config::{Config, PROCESS};
use crate::server::Server;
use crate::signals::{Signals, Wish};
use crate::supervisor::{Notice, notify};
use crate::telemetry::logs;

/// Runs the server until it is told to stop.
///
/// # Errors
/// An unusable config, store or port, or a forced shutdown.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let config = Config::load(args, &PROCESS)?;
    logs::start(config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(args, config));
    // Other threads are not waited for: their work was drained, or may be dropped.
    runtime.shutdown_background();
    logs::flush();
    served
}

async fn serve(args: &ServeArgs, config: Config) -> anyhow::Result<()> {
    // Before any work starts: from now on no signal is missed.
    let mut signals = Signals::listen()?;
    let drain = config.drain;
    let server = Box::pin(Server::start(config)).await?;
    server.announce()?;
    notify(Notice::Ready);
    while signals.next().await == Wish::Reload {
        server.reload(args).await;
    }
    tracing::info!(target: "semel", "stopping: requests in progress may finish; a second signal stops immediately");
    notify(Notice::Stopping);
    tokio::select! {
        () = server.stop(drain) => Ok(()),
        () = signals.stop() => anyhow::bail!("stopped immediately by a second signal; requests in progress may be in doubt"),
    }
}
