//! The store that is read: closed when everything is copied, so that nothing runs on it afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use semel::secret::Secret;
use semel::store::transfer::{
    CLOSING, Pass, Transfer, TransferRun, TransferSource, TransferState, TransferStore, survey,
};
use semel::store::{EmbeddedReader, Error, ErrorKind};
use semel::time::Timestamp;
use tokio::time::{Instant, sleep};

use super::copy::announce;
use super::place::StorePlace;
use crate::commands::screen::readable;

/// Pause between two looks at claims in progress, or at the lock of an embedded store.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A store that is read and then closed.
pub(super) struct OldStore {
    access: Access,
    place: StorePlace,
    /// Its time when it was closed.
    closed_at: Timestamp,
}

/// How this process reads the store.
enum Access {
    /// Beside the server that has an embedded store open.
    Live(EmbeddedReader),
    /// By itself. It holds the lock of an embedded store then.
    Own(Arc<dyn TransferStore>),
    /// Not at present: a reader must be closed before the same process opens the store.
    None,
}

impl OldStore {
    pub(super) async fn open(place: StorePlace) -> anyhow::Result<Self> {
        let mut old = Self { access: Access::None, place, closed_at: Timestamp::default() };
        // Opening would create an embedded store that is not there.
        if let Some(folder) = old.place.folder() {
            drop(EmbeddedReader::open(folder)?);
        }
        old.reopen().await?;
        Ok(old)
    }

    /// Opens the store, or only reads it if a server has it open.
    async fn reopen(&mut self) -> anyhow::Result<()> {
        self.access = Access::None;
        self.access = match (self.place.open().await, self.place.folder()) {
            (Ok(store), _) => Access::Own(store),
            (Err(error), Some(folder)) if is_locked(&error) => Access::Live(EmbeddedReader::open(folder)?),
            (Err(error), _) => return Err(error),
        };
        Ok(())
    }

    /// The secret in the config file, if that was given and has one.
    pub(super) fn configured_secret(&self) -> Option<Secret> {
        self.place.secret()
    }

    pub(super) fn source(&self) -> anyhow::Result<&dyn TransferSource> {
        match &self.access {
            Access::Live(reader) => Ok(reader),
            Access::Own(store) => Ok(&**store),
            Access::None => bail!("the store is not open"),
        }
    }

    /// Marks the store as moved, and returns once no process grants claims on it any more and the transactions of
    /// callers have ended; fails if they do not within `limit`. Copies changes while it waits for the server of an
    /// embedded store to end.
    pub(super) async fn close(
        &mut self,
        run: TransferRun,
        to: &str,
        limit: Option<Duration>,
        mut transfer: Option<&mut Transfer>,
    ) -> anyhow::Result<()> {
        if let Access::Live(reader) = &self.access {
            announce(&format!("stop the server of {}: this command waits for its end", reader.address()));
        }
        while let Access::Live(_) = self.access {
            if let Some(transfer) = &mut transfer {
                transfer.pass(self.source()?).await?;
            }
            sleep(LOOK_AGAIN).await;
            self.reopen().await?;
        }
        let Access::Own(store) = &self.access else { bail!("the store is not open") };
        let state = store.state().await?;
        let moved = TransferState::Moved { run, to: to.to_owned() };
        match &state {
            TransferState::Moved { to: address, .. } if address == to => {}
            _ if store.change_state(&state, &moved).await? => {}
            _ => bail!("another process changes {} at the same time", store.address()),
        }
        announce(&format!("{} is closed: no new keys", store.address()));
        self.closed_at = store.now().await?;
        // An embedded store has no other process.
        if self.place.folder().is_none() {
            sleep(CLOSING).await;
        }
        self.wait_for_transactions(limit).await
    }

    /// Waits until every transaction of a caller that was open when the store was closed has ended. What it commits
    /// must be copied, also after its lease.
    async fn wait_for_transactions(&self, limit: Option<Duration>) -> anyhow::Result<()> {
        let (source, began) = (self.source()?, Instant::now());
        let mut open = source.open_transactions().await?;
        let mut announced = 0;
        while !open.is_empty() {
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                bail!(
                    "{} transactions of callers did not end in time, and what they commit would not be copied: {}",
                    open.len(),
                    listed(&open)
                );
            }
            // Statements of the store look like transactions for a moment.
            if announced != open.len() && began.elapsed() >= LOOK_AGAIN {
                announced = open.len();
                announce(&format!("waiting for {announced} open transactions of callers: {}", listed(&open)));
            }
            sleep(LOOK_AGAIN).await;
            let now = source.open_transactions().await?;
            open.retain(|transaction| now.contains(transaction));
        }
        Ok(())
    }

    /// Waits until every claim has ended or its lease has expired, at most `limit` long, and makes the last pass.
    pub(super) async fn wait_for_claims(
        &self,
        limit: Option<Duration>,
        mut transfer: Option<&mut Transfer>,
    ) -> anyhow::Result<()> {
        let (source, began) = (self.source()?, Instant::now());
        let mut announced = 0;
        loop {
            let pass = match &mut transfer {
                Some(transfer) => transfer.pass(source).await?,
                None => survey(source).await?,
            };
            let Pass { in_progress, in_progress_until, last_done_claim, .. } = pass;
            if last_done_claim > self.closed_at.after(CLOSING) {
                bail!(
                    "a server still runs effects on {}: it has an older version that does not know of the move. Stop it",
                    source.address()
                );
            }
            // The process that held the claims of an embedded store has ended.
            if in_progress == 0 || self.place.folder().is_some() {
                return Ok(());
            }
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                announce(&format!("{in_progress} claims did not end in time; begun ones will be in doubt"));
                return Ok(());
            }
            if announced != in_progress {
                announced = in_progress;
                let left = in_progress_until.left(source.now().await?);
                let left = readable(left);
                announce(&format!(
                    "waiting for {in_progress} claims in progress; their leases end in {left}"
                ));
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

fn listed(transactions: &BTreeSet<String>) -> String {
    transactions.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// True if another process has the store open.
fn is_locked(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Locked)
}
