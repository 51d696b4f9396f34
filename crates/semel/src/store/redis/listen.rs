//! The second connection: it receives wake-ups for waiters and invalidations for caches.
//!
//! A waiter's watch is created immediately and its subscription a round trip later. Once the server has confirmed it,
//! the watch is woken, so the waiter reads again: a change in between is not missed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::MissedTickBehavior;

use super::Shared;
use super::address::SharedConnection;
use super::error::CallReach;
use super::secret::SECRET_IS_MISSING;
use crate::backoff::Backoff;
use crate::key::KeyId;
use crate::mutant::{self, Mutant};
use crate::outage::{Availability, Verdict};
use crate::store::Trust;

/// How often the connection is tested and unused channels are unsubscribed.
const TICK: Duration = Duration::from_secs(1);

/// How many keys one command subscribes to.
const BATCH: usize = 256;

/// Listens while the store exists. `watched` are new keys to watch. Without `availability`, another source wakes waiters
/// too, and a broken subscription is not logged.
pub(super) async fn listen(
    shared: Arc<Shared>,
    availability: Option<Arc<Availability>>,
    mut watched: UnboundedReceiver<KeyId>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        let (pushes, mut messages) = unbounded_channel();
        // All watched keys are subscribed once there is a connection; until then the channel would grow without
        // limit.
        while watched.try_recv().is_ok() {}
        let opened = shared.link.address.open(shared.link.timeouts, Some(pushes)).await;
        match opened {
            Ok(wire) => {
                let mut ear = Ear { shared: &shared, wire, keys: HashSet::new() };
                if let Err(error) = ear.receive(&mut watched, &mut messages, &mut backoff).await {
                    shared.caches.set_trust(Trust::Unconfirmed);
                    // Often the first sign of an outage.
                    if let Some(availability) = &availability
                        && availability.judge().await == Verdict::Available
                    {
                        tracing::warn!(store = %shared.name, %error, "the Redis subscription broke; no wake-ups until it is restored");
                    }
                }
            }
            Err(error) => {
                tracing::debug!(store = %shared.name, %error, "the connection for Redis subscriptions failed");
            }
        }
        shared.caches.set_trust(Trust::Unconfirmed);
        backoff.wait().await;
    }
}

struct Ear<'a> {
    shared: &'a Arc<Shared>,
    wire: SharedConnection,
    /// Keys with a subscribed channel.
    keys: HashSet<KeyId>,
}

impl Ear<'_> {
    /// Returns when the connection is broken.
    async fn receive(
        &mut self,
        watched: &mut UnboundedReceiver<KeyId>,
        messages: &mut UnboundedReceiver<PushInfo>,
        backoff: &mut Backoff,
    ) -> RedisResult<()> {
        let forgotten = self.shared.names.forgotten();
        self.subscribe(&[forgotten]).await?;
        self.shared.caches.set_trust(Trust::Confirmed);
        backoff.reset();
        self.add(self.shared.wakeups.keys()).await?;
        // Messages without a subscription were missed.
        self.shared.wakeups.wake_all();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut new = Vec::new();
        loop {
            tokio::select! {
                biased;
                message = messages.recv() => match message {
                    Some(message) if message.kind == PushKind::Disconnection => {
                        return Err((redis::ErrorKind::Io, "the server closed the connection").into());
                    }
                    Some(message) => self.take(message)?,
                    None => return Err((redis::ErrorKind::Io, "the connection ended").into()),
                },
                count = watched.recv_many(&mut new, BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.add(std::mem::take(&mut new)).await?;
                }
                _ = tick.tick() => {
                    self.unsubscribe_all().await?;
                    self.ping().await?;
                }
            }
        }
    }

    /// Subscribes to the channels of keys, then wakes their watches.
    async fn add(&mut self, ids: Vec<KeyId>) -> RedisResult<()> {
        let new: Vec<KeyId> = ids.into_iter().filter(|id| self.keys.insert(*id)).collect();
        for batch in new.chunks(BATCH) {
            let channels: Vec<Vec<u8>> = batch.iter().map(|id| self.shared.names.record(*id)).collect();
            self.subscribe(&channels).await?;
            if mutant::is(Mutant::NoRecheck) {
                continue;
            }
            for id in batch {
                self.shared.wakeups.wake(*id);
            }
        }
        Ok(())
    }

    /// Unsubscribes from keys that are no longer watched.
    async fn unsubscribe_all(&mut self) -> RedisResult<()> {
        let left: Vec<KeyId> =
            self.keys.iter().filter(|id| !self.shared.wakeups.is_watched(**id)).copied().collect();
        for batch in left.chunks(BATCH) {
            let channels: Vec<Vec<u8>> = batch.iter().map(|id| self.shared.names.record(*id)).collect();
            match &mut self.wire {
                SharedConnection::One(connection) => connection.unsubscribe(&channels).await?,
                SharedConnection::Cluster(connection) => {
                    for channel in &channels {
                        connection.sunsubscribe(channel).await?;
                    }
                }
            }
            for id in batch {
                self.keys.remove(id);
            }
        }
        Ok(())
    }

    async fn subscribe(&mut self, channels: &[Vec<u8>]) -> RedisResult<()> {
        match &mut self.wire {
            SharedConnection::One(connection) => connection.subscribe(channels).await,
            // Channels of different keys are on different shards.
            SharedConnection::Cluster(connection) => {
                for channel in channels {
                    connection.ssubscribe(channel).await?;
                }
                Ok(())
            }
        }
    }

    /// Reads a key on the shard that sends the invalidations: it tests the same path as a ping.
    async fn ping(&mut self) -> RedisResult<()> {
        let mut command = redis::cmd("EXISTS");
        command.arg(self.shared.names.forgotten());
        self.wire.query(&command).await.map(|_| ())
    }

    fn take(&self, message: PushInfo) -> RedisResult<()> {
        let mut data = message.data.into_iter();
        let Some(Value::BulkString(channel)) = data.next() else { return Ok(()) };
        let id = self.shared.names.id(&channel);
        match (message.kind, id, data.next()) {
            (PushKind::Message | PushKind::SMessage, Some(id), _) => self.shared.wakeups.wake(id),
            (PushKind::Message | PushKind::SMessage, None, Some(Value::BulkString(payload))) => {
                if let Some((id, receipt)) = payload.split_first_chunk() {
                    self.forget(KeyId::from_bytes(*id), receipt);
                }
            }
            // The channel's slot has moved to another shard without the subscription.
            (PushKind::Unsubscribe | PushKind::SUnsubscribe, id, _)
                if id.is_none_or(|id| self.keys.contains(&id)) =>
            {
                return Err((redis::ErrorKind::Io, "the server ended a subscription").into());
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&self, id: KeyId, receipt: &[u8]) {
        // The sender has already invalidated its own caches.
        if !receipt.starts_with(&self.shared.process) {
            match id {
                SECRET_IS_MISSING => self.shared.caches.clear(),
                id => self.shared.caches.invalidate(id),
            }
        }
        self.acknowledge(id, receipt);
    }

    /// Confirms to a process that forgot a record that this one cannot answer from it any more. Confirms to a process
    /// without a secret that this process has written its secret back, if it has one.
    fn acknowledge(&self, id: KeyId, receipt: &[u8]) {
        let key = self.shared.names.receipt(receipt);
        let shared = Arc::clone(self.shared);
        tokio::spawn(async move {
            let link = &shared.link;
            if id == SECRET_IS_MISSING
                && let Ok(mut numbered) = link.connection().await
            {
                // Without it, the asking process creates a new one, and this process finds that out.
                let _ = shared.compare_secret(&mut numbered).await;
            }
            let (mut count, mut expire) = (redis::cmd("INCR"), redis::cmd("PEXPIRE"));
            // A lost confirmation delays the other process, at most for the maximum age of a cache entry.
            if link.query(count.arg(&key), CallReach::Write).await.is_ok() {
                let _ = link.query(expire.arg(&key).arg(60_000), CallReach::Write).await;
            }
        });
    }
}
