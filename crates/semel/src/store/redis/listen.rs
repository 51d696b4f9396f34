//! The second connection: wake-ups for waiters, and word that a cached outcome is no longer good.
//!
//! A waiter's watch is made at once and its subscription a round trip later. Once the server has confirmed it, the
//! watch is woken, so the waiter looks again: a change in between is not missed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::MissedTickBehavior;

use super::Shared;
use super::address::Wire;
use super::error::Sent;
use super::secret::SECRET_IS_MISSING;
use crate::key::KeyId;
use crate::store::Trust;

/// How often the connection is tried, and channels that nobody listens to any more are left.
const TICK: Duration = Duration::from_secs(1);

/// How long to wait before the next attempt to connect.
const RETRY: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// How many keys are subscribed to by one command.
const BATCH: usize = 256;

/// Listens for as long as the store lives. `watched` are keys that somebody began to watch.
pub(super) async fn listen(shared: Arc<Shared>, mut watched: UnboundedReceiver<KeyId>) {
    let mut failures = 0;
    loop {
        let (pushes, mut messages) = unbounded_channel();
        // All who watch are subscribed for once there is a connection; until then their number has no bound.
        while watched.try_recv().is_ok() {}
        let opened = shared.link.address().open(shared.link.timeouts(), Some(pushes)).await;
        match opened {
            Ok(wire) => {
                let mut ear = Ear { shared: &shared, wire, keys: HashSet::new() };
                if let Err(error) = ear.hear(&mut watched, &mut messages, &mut failures).await {
                    tracing::warn!(store = %shared.name, %error, "the Redis subscription broke; its wake-ups are missing until it is back");
                }
            }
            Err(error) => {
                tracing::debug!(store = %shared.name, %error, "no connection for subscriptions");
            }
        }
        shared.caches.set_trust(Trust::Unconfirmed);
        tokio::time::sleep(RETRY[failures.min(RETRY.len() - 1)]).await;
        failures += 1;
    }
}

/// One connection's life.
struct Ear<'a> {
    shared: &'a Arc<Shared>,
    wire: Wire,
    /// Keys whose channel is subscribed to.
    keys: HashSet<KeyId>,
}

impl Ear<'_> {
    /// Returns when the connection is broken.
    async fn hear(
        &mut self,
        watched: &mut UnboundedReceiver<KeyId>,
        messages: &mut UnboundedReceiver<PushInfo>,
        failures: &mut usize,
    ) -> RedisResult<()> {
        let forgotten = self.shared.names.forgotten();
        self.subscribe(&[forgotten]).await?;
        self.shared.caches.set_trust(Trust::Confirmed);
        *failures = 0;
        self.add(self.shared.wakeups.keys()).await?;
        // Nobody knows what was missed while there was no subscription.
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
                    self.leave().await?;
                    self.ping().await?;
                }
            }
        }
    }

    /// Subscribes to the channels of keys, then wakes who watches them.
    async fn add(&mut self, ids: Vec<KeyId>) -> RedisResult<()> {
        let new: Vec<KeyId> = ids.into_iter().filter(|id| self.keys.insert(*id)).collect();
        for batch in new.chunks(BATCH) {
            let channels: Vec<Vec<u8>> = batch.iter().map(|id| self.shared.names.record(*id)).collect();
            self.subscribe(&channels).await?;
            for id in batch {
                self.shared.wakeups.wake(*id);
            }
        }
        Ok(())
    }

    /// Leaves the channels of keys that nobody watches any more.
    async fn leave(&mut self) -> RedisResult<()> {
        let left: Vec<KeyId> =
            self.keys.iter().filter(|id| !self.shared.wakeups.is_watched(**id)).copied().collect();
        for batch in left.chunks(BATCH) {
            let channels: Vec<Vec<u8>> = batch.iter().map(|id| self.shared.names.record(*id)).collect();
            match &mut self.wire {
                Wire::One(connection) => connection.unsubscribe(&channels).await?,
                Wire::Cluster(connection) => {
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
            Wire::One(connection) => connection.subscribe(channels).await,
            // Channels of different keys are on different shards.
            Wire::Cluster(connection) => {
                for channel in channels {
                    connection.ssubscribe(channel).await?;
                }
                Ok(())
            }
        }
    }

    /// Asks for a key on the shard that sends the invalidations: as good as a ping, and it goes the same way.
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
            // The channel's slot has moved to another shard, and the subscription did not.
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
        // Whoever sent it has told its own caches already.
        if !receipt.starts_with(&self.shared.process) {
            match id {
                SECRET_IS_MISSING => self.shared.caches.clear(),
                id => self.shared.caches.invalidate(id),
            }
        }
        self.acknowledge(id, receipt);
    }

    /// Tells a process that forgot a record that this one cannot replay it any more, and a process without a secret that it is there
    /// if this process has it.
    fn acknowledge(&self, id: KeyId, receipt: &[u8]) {
        let key = self.shared.names.receipt(receipt);
        let shared = Arc::clone(self.shared);
        tokio::spawn(async move {
            let link = &shared.link;
            if id == SECRET_IS_MISSING
                && let Ok(mut numbered) = link.wire().await
            {
                // Without it, the one who asked makes a new one, and this process finds that out.
                let _ = shared.compare_secret(&mut numbered).await;
            }
            let (mut count, mut expire) = (redis::cmd("INCR"), redis::cmd("PEXPIRE"));
            // A receipt that does not arrive delays the other side, for no longer than caches live.
            if link.query(count.arg(&key), Sent::Write).await.is_ok() {
                let _ = link.query(expire.arg(&key).arg(60_000), Sent::Write).await;
            }
        });
    }
}
