//! Completions that are answered before the store has them.

use std::sync::Arc;
use std::time::Duration;

use semel::backoff::Backoff;
use semel::key::KeyId;
use semel::record::{Command, Ruling};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::admin::Admin;

/// How much may wait for the store, in units of [`UNIT`]: 64 MiB.
const ROOM: u32 = 1 << 16;
const UNIT: usize = 1 << 10;
/// How long the store is asked. An outcome that comes later than the lease is still accepted while nobody else has claimed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Whether a completion waits for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionMode {
    /// The answer comes when the outcome is stored.
    Stored,
    /// The answer comes at once.
    Deferred,
}

/// Bounds the memory of outcomes that are not stored yet.
pub(super) struct Deferred(Arc<Semaphore>);

impl Default for Deferred {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM as usize)))
    }
}

impl Deferred {
    /// Room for an outcome of this size. `None`: too much waits already, so this one is stored before it is answered.
    pub(super) fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes / UNIT + 1).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(units).ok()
    }

    /// Waits until nothing is left.
    pub(super) async fn drain(&self) {
        // Fails only if closed, which nobody does.
        drop(self.0.acquire_many(ROOM).await);
    }
}

/// Stores an outcome in a task of its own.
pub(super) fn store_later(admin: Arc<Admin>, id: KeyId, command: Command, room: OwnedSemaphorePermit) {
    let stored = async move {
        let give_up = Instant::now() + GIVE_UP_AFTER;
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match admin.engine.apply(id, command.clone()).await {
                Ok(Ruling::Accepted { .. }) => {
                    admin.metrics.claim("accepted");
                    tracing::debug!(target: "semel::claims", id = %id, outcome = "completed");
                    break;
                }
                Ok(_) => {
                    admin.metrics.claim("lost");
                    tracing::warn!(target: "semel::claims", id = %id, "early completion refused: another owner has the claim");
                    break;
                }
                Err(error) if Instant::now() >= give_up => {
                    tracing::error!(target: "semel::claims", id = %id, %error, "early completion not stored");
                    break;
                }
                Err(_) => backoff.wait().await,
            }
        }
        drop(room);
    };
    // Its log lines name the request, although that has been answered.
    drop(tokio::spawn(stored.in_current_span()));
}
