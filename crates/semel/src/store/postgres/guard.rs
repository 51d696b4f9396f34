//! Gives back claims for callers' transactions that were rolled back.
//!
//! The claim is committed before the transaction locks the record, and it remains when the caller rolls back. Then
//! the record is unlocked and unchanged since the claim. While the transaction is open, the record is locked; once it
//! has committed, the record is done. A record that can be locked and is unchanged therefore belongs to an effect of
//! which nothing remains, and its owner may release it. The check never waits for the lock, and holds no connection
//! while the transaction is open. If this process dies, the claim expires with its lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::PostgresStore;
use super::columns::{Swap, SwapColumns};
use super::judge::next_edge;
use super::row::{self, PgRowError};
use super::shared::StoreShared;
use crate::backoff::Backoff;
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Grant, Ruling};
use crate::sync::Mutex;

/// The waits before checks: the first one comes soon after the call has returned, and the longest is how long a
/// rolled-back key may stay claimed.
const WAITS: Backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(128));

/// A claim that its caller will commit or roll back, or has left behind. Created once the claim is won. After it is
/// dropped, the claim is given back if nothing locks it and nothing came of it.
pub(crate) struct Parting {
    shared: Arc<StoreShared>,
    id: KeyId,
    grant: Grant,
    lease_until: Instant,
}

/// Partings that the task has not seen yet.
#[derive(Debug, Default)]
pub(super) struct Parted {
    fresh: Mutex<Vec<ClaimLookup>>,
    came: Notify,
}

/// A claim to check.
#[derive(Debug)]
struct ClaimLookup {
    id: KeyId,
    grant: Grant,
    lease_until: Instant,
    at: Instant,
    backoff: Backoff,
}

impl PostgresStore {
    /// Watches a claim that was just won for a caller's transaction.
    pub(crate) fn parting(&self, id: KeyId, grant: Grant, lease_left: Duration) -> Parting {
        Parting { shared: Arc::clone(&self.shared), id, grant, lease_until: Instant::now() + lease_left }
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        let mut backoff = WAITS;
        let at = Instant::now() + backoff.next_wait();
        let (id, grant, lease_until) = (self.id, self.grant, self.lease_until);
        let look = ClaimLookup { id, grant, lease_until, at, backoff };
        self.shared.parted.fresh.lock().push(look);
        self.shared.parted.came.notify_one();
    }
}

/// Checks all partings of a store until its runtime ends.
pub(super) async fn release_what_was_rolled_back(shared: Arc<StoreShared>) {
    let mut open: Vec<ClaimLookup> = Vec::new();
    loop {
        open.append(&mut shared.parted.fresh.lock());
        let now = Instant::now();
        // After the lease the next claim takes it over anyway.
        open.retain(|look| now < look.lease_until);
        let Some(next) = open.iter().map(|look| look.at).min() else {
            shared.parted.came.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(next) => {}
            () = shared.parted.came.notified() => continue,
        }
        let now = Instant::now();
        let due: Vec<ClaimLookup> = open.extract_if(.., |look| look.at <= now).collect();
        let standing = match release(&shared, &due).await {
            Ok(standing) => standing,
            Err(error) => {
                tracing::debug!(%error, "could not check the transactions of claims; the claims expire with their leases");
                due.iter().map(|look| look.id).collect()
            }
        };
        for mut look in due {
            if standing.contains(&look.id) {
                look.at = Instant::now() + look.backoff.next_wait();
                open.push(look);
            } else {
                shared.wakeups.wake(look.id);
            }
        }
    }
}

/// Releases unlocked claims, and returns those that are still locked.
async fn release(shared: &StoreShared, due: &[ClaimLookup]) -> Result<Vec<KeyId>, PgRowError> {
    let ids: Vec<&[u8]> = due.iter().map(|look| look.id.as_bytes().as_slice()).collect();
    let owners: Vec<&[u8]> = due.iter().map(|look| look.grant.owner.as_bytes().as_slice()).collect();
    let statements = &shared.settings.statements;
    let rows = shared.fetch(shared.settings.query(&statements.standing).bind(&ids).bind(&owners)).await?;
    let (mut columns, mut standing) = (SwapColumns::default(), Vec::new());
    for row in &rows {
        let (id, stored) = (row::id(row)?, row::stored(row)?);
        let mine = |look: &&ClaimLookup| look.id == id && look.grant.owner == stored.record.owner;
        let Some(look) = due.iter().find(mine) else { continue };
        let judged_until = next_edge(&stored.record, stored.now);
        let mut record = Some(stored.record);
        let ruling = record::apply(&mut record, &Command::Release(look.grant), stored.now, Fence::default());
        if let (Ruling::Accepted { .. }, Some(record)) = (ruling, record) {
            let (seen, version) = (stored.version, rand::random());
            columns.push(&Swap { id, seen, judged_until, version, record, wake: true, invalidate: false });
            standing.push(id);
        }
    }
    if standing.is_empty() {
        return Ok(standing);
    }
    let query = columns.bind(shared.settings.query(&statements.swap));
    for row in &shared.fetch(query.bind(shared.channel()).bind(shared.name())).await? {
        let free = row::id(row)?;
        standing.retain(|id| *id != free);
    }
    Ok(standing)
}
