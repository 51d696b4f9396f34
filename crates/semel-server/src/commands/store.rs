//! `semel store`: moves records from one store to another. It opens the stores itself; no server is asked.

mod copy;
mod file;
mod old;
mod place;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use semel::store::transfer::{Transfer, TransferRun, TransferSource as _, TransferState, check_source};
use serde_json::json;

use self::copy::{announce, print_result};
use self::file::{ExportFile, ExportedStore};
use self::old::OldStore;
use self::place::StorePlace;
pub(super) use self::place::{has_password, shown};
use super::screen::{confirm, write_line};
use crate::config::parse_duration;
use crate::interrupted::Interrupted;
use crate::misused::Misused;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy all records to an empty store while servers use the first one, and move the servers there
    Copy(CopyArgs),
    /// Write all records, marks and the secret to a file
    Export {
        /// URL of the store, or the config file of its servers
        from: String,
        /// The new file. It contains outcomes and the secret: keep it private
        file: PathBuf,
        #[command(flatten)]
        switch: SwitchArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read a file of `semel store export` into an empty store
    Import {
        /// The file
        file: PathBuf,
        /// URL of the store, or the config file of its servers
        to: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Open a store again that was closed by a copy, if nothing has run on the other store
    Reopen {
        /// URL of the store, or the config file of its servers
        store: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// URL of the old store, or the config file of its servers
    from: String,
    /// URL of the new store, or the config file of its servers
    to: String,
    #[command(flatten)]
    switch: SwitchArgs,
    /// Pause between two passes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    every: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SwitchArgs {
    /// Close the old store when the copy has caught up; without it, a terminal is asked
    #[arg(long)]
    switch: bool,
    /// Maximum time for claims in progress to end; the default waits until their leases have expired
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
}

/// Runs the command.
///
/// # Errors
/// A store cannot be used, the two do not fit together, or the copy could not be finished.
pub(crate) async fn run(command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Copy(args) => {
            let from = args.from.clone();
            Box::pin(interruptible(&from, copy::copy(args))).await
        }
        StoreCommand::Export { from, file, switch, json } => {
            Box::pin(interruptible(&from, export(&from, &file, switch, json))).await
        }
        StoreCommand::Import { file, to, json } => import(&file, &to, json).await,
        StoreCommand::Reopen { store, yes, json } => reopen(&store, yes, json).await,
    }
}

/// Says what an interrupted copy leaves.
async fn interruptible(from: &str, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(Interrupted::new(format!(
            "run the same command again to continue. If the old store is closed already, `semel store reopen {}` opens it",
            place::shown(from)
        ))
        .into()),
    }
}

/// A duration on the command line.
fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration, as in 30s or 5m".to_owned())
}

async fn export(from: &str, file: &Path, switch: SwitchArgs, json: bool) -> anyhow::Result<()> {
    let mut old = OldStore::open(StorePlace::read(from)?).await?;
    let secret = check_source(old.source()?, old.configured_secret().as_ref()).await?;
    let output = ExportFile::create(file)?;
    if switch.switch {
        old.close(TransferRun::random(), &file::address(file), switch.wait, None).await?;
        old.wait_for_claims(switch.wait, None).await?;
    }
    let written = output.write(old.source()?, secret).await?;
    if json {
        return write_line(
            &json!({ "file": file, "records": written.records, "marks": written.marks, "closed": switch.switch })
                .to_string(),
        );
    }
    write_line(&format!("{} records and {} marks in {}", written.records, written.marks, file.display()))?;
    if !switch.switch {
        announce(
            "the store is still in use: keys that are claimed from now on are not in the file. --switch closes the store first",
        );
    }
    Ok(())
}

async fn import(file: &Path, to: &str, json: bool) -> anyhow::Result<()> {
    let place = StorePlace::read(to)?;
    let from = ExportedStore::open(file)?;
    let to = place.open().await?;
    if from.was_in_use() {
        announce(
            "the exported store was still in use: keys that were claimed after the export are not in the file",
        );
    }
    let mut transfer = Transfer::begin(&from, Arc::clone(&to), [None, place.secret()]).await?;
    transfer.pass(&from).await?;
    let result = transfer.finish(&from).await?;
    print_result(&result, &from.address(), &to.address(), json)
}

async fn reopen(store: &str, yes: bool, json: bool) -> anyhow::Result<()> {
    let place = StorePlace::read(store)?;
    if let Some(folder) = place.folder().filter(|folder| !folder.exists()) {
        return Err(Misused::new(format!("there is no embedded store in {}", folder.display())).into());
    }
    let store = place.open().await?;
    let (name, state) = (store.address(), store.state().await?);
    let print = |moved_to: Option<&str>| match (json, moved_to) {
        (true, _) => write_line(&json!({ "store": name, "open": true, "moved_to": moved_to }).to_string()),
        (false, None) => write_line(&format!("{name} is open")),
        (false, Some(_)) => write_line(&format!("{name} is open again")),
    };
    let moved_to = match &state {
        TransferState::Open => return print(None),
        TransferState::Filling { from, .. } => {
            return Err(Misused::new(format!(
                "{name} was filled in part from {from} and is incomplete: copy again, or empty it"
            ))
            .into());
        }
        TransferState::Moved { to, .. } => {
            confirm(
                &format!(
                    "{name} was moved to {to}. Effects that ran there since would run again here. Open it?"
                ),
                yes,
            )
            .await?;
            to
        }
    };
    if !store.change_state(&state, &TransferState::Open).await? {
        anyhow::bail!("another process changes {name} at the same time");
    }
    print(Some(moved_to))
}
