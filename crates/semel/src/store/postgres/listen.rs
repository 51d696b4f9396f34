//! Notifications from other processes: one connection that listens, a heartbeat that proves it does, and the marks
//! that make other processes notify.
//!
//! | payload | meaning |
//! |---|---|
//! | `w` key | the key changed: wake its waiters |
//! | `f` key nonce process | the process forgot the key: drop it from caches, then confirm |
//! | `a` nonce process | the process has dropped it |
//! | `h` process number | the process receives its own message, so it receives all |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_postgres::{PostgresError, Subscription};
use sqlx::Row as _;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::columns;
use super::row;
use super::shared::{StoreShared, TRUST};
use crate::backoff::Backoff;
use crate::hex;
use crate::key::KeyId;
use crate::outage::Verdict;
use crate::store::Trust;
use crate::sync::Mutex;

/// How often a process proves that it listens.
const BEAT: Duration = Duration::from_secs(3);

/// The heartbeats in progress, and until when the last one that arrived makes caches trustworthy.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    sent: Mutex<HashMap<u64, Instant>>,
    until: Mutex<Option<Instant>>,
    /// The listener must reconnect: it has missed a message.
    deaf: Notify,
    listening: Notify,
}

/// Listens until the runtime ends. `ready` is notified once it does.
pub(super) async fn listen(shared: Arc<StoreShared>, pulse: Arc<Pulse>, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let mut backoff = Backoff::new(Duration::from_millis(15), Duration::from_millis(1500));
    loop {
        if shared.availability.refusal().is_some() {
            backoff.wait().await;
            continue;
        }
        match Subscription::open(&shared.settings, shared.channel()).await {
            Ok(mut subscription) => {
                backoff.reset();
                // Messages from before the connection were missed.
                shared.wakeups.wake_all();
                pulse.listening.notify_one();
                if let Some(ready) = ready.take() {
                    let _ = ready.send(());
                }
                let outages = shared.availability.ended_outages();
                tokio::select! {
                    () = receive(&shared, &pulse, &mut subscription) => {}
                    () = pulse.deaf.notified() => {}
                }
                subscription.close().await;
                *pulse.until.lock() = None;
                shared.trust(Trust::Unconfirmed);
                // Often the first sign of an outage, or its last one: that was logged.
                let is_available = shared.availability.judge().await == Verdict::Available;
                if is_available && shared.availability.ended_outages() == outages {
                    tracing::warn!(store = %shared.settings.address, "wake-ups are lost: reconnecting, waiters poll");
                }
            }
            Err(error) => tracing::debug!(%error, "the listener cannot connect yet"),
        }
        backoff.wait().await;
    }
}

async fn receive(shared: &Arc<StoreShared>, pulse: &Pulse, subscription: &mut Subscription) {
    while let Some(payload) = subscription.next().await {
        handle_notification(shared, pulse, &payload);
    }
}

fn handle_notification(shared: &Arc<StoreShared>, pulse: &Pulse, payload: &str) {
    let Some((&kind, rest)) = payload.as_bytes().split_first() else { return };
    match kind {
        b'w' => {
            if let Some(id) = hex::read(rest) {
                shared.wakeups.wake(KeyId::from_bytes(id));
            }
        }
        b'f' => {
            let Some((id, nonce)) = rest.split_at_checked(32) else { return };
            let Some((nonce, process)) = nonce.split_at_checked(16) else { return };
            // The caches of this process already know what it forgot itself.
            if hex::read::<16>(process) == Some(shared.process) {
                return;
            }
            if let (Some(id), Some(nonce)) = (hex::read(id), hex::read::<8>(nonce)) {
                let id = KeyId::from_bytes(id);
                shared.invalidate(id);
                shared.wakeups.wake(id);
                let shared = Arc::clone(shared);
                tokio::spawn(async move { acknowledge(&shared, nonce).await });
            }
        }
        b'a' => {
            let Some((nonce, process)) = rest.split_at_checked(16) else { return };
            if let (Some(nonce), Some(process)) = (hex::read::<8>(nonce), hex::read(process)) {
                shared.acks.receive(i64::from_be_bytes(nonce), process);
            }
        }
        b'h' => {
            let Some((process, number)) = rest.split_at_checked(32) else { return };
            if hex::read::<16>(process) == Some(shared.process)
                && let Some(number) = hex::read::<8>(number)
                && let Some(sent) = pulse.sent.lock().remove(&u64::from_be_bytes(number))
            {
                *pulse.until.lock() = Some(sent + TRUST - Duration::from_secs(1));
                shared.trust(Trust::Confirmed);
            }
        }
        _ => {}
    }
}

async fn acknowledge(shared: &StoreShared, nonce: [u8; 8]) {
    let payload = format!("a{:016x}{}", u64::from_be_bytes(nonce), shared.name());
    let query =
        shared.settings.query(&shared.settings.statements.notify).bind(shared.channel()).bind(payload);
    let said = shared.fetch(query).await;
    match said {
        Ok(_) => {}
        Err(error) if error.is_logged() => {
            tracing::debug!(%error, "could not confirm that a key was forgotten; the forget is answered later");
        }
        Err(error) => {
            tracing::warn!(%error, "could not confirm that a key was forgotten; the forget is answered later");
        }
    }
}

/// Proves that this process listens, while it has caches. Withdraws trust if it is not heard, or if the database has
/// another secret. Reads whether the store grants claims.
pub(super) async fn send_heartbeats(shared: Arc<StoreShared>, pulse: Arc<Pulse>) {
    let mut number: u64 = 0;
    loop {
        if let Err(fault) = shared.compare_secret().await {
            tracing::debug!(%fault, "could not compare the deployment's secret");
        }
        if let Err(fault) = shared.read_transfer().await {
            tracing::debug!(%fault, "could not read whether the store grants claims; every claim reads it");
        }
        if shared.has_caches() {
            number += 1;
            pulse.sent.lock().retain(|_, sent| sent.elapsed() < TRUST);
            pulse.sent.lock().insert(number, Instant::now());
            if let Err(error) = announce_process(&shared, number).await {
                tracing::debug!(%error, "could not send the heartbeat of the listener");
            }
        }
        let next = Instant::now() + BEAT;
        loop {
            let until = *pulse.until.lock();
            let wake_at = until.map_or(next, |until| until.min(next));
            tokio::select! {
                () = sleep_until(wake_at) => {}
                () = shared.attached.notified() => break,
                () = pulse.listening.notified() => break,
            }
            let until = *pulse.until.lock();
            if until.is_some_and(|until| until <= Instant::now()) {
                *pulse.until.lock() = None;
                shared.trust(Trust::Unconfirmed);
                pulse.deaf.notify_one();
            }
            if Instant::now() >= next {
                break;
            }
        }
    }
}

/// Written before it is sent: a forget waits for this process from then on.
async fn announce_process(shared: &StoreShared, number: u64) -> Result<(), PostgresError> {
    let statements = &shared.settings.statements;
    let trust = columns::micros(TRUST);
    shared.appeared.store(true, Ordering::Release);
    shared
        .fetch(shared.settings.query(&statements.appear).bind(shared.process.as_slice()).bind(trust))
        .await?;
    let payload = format!("h{}{number:016x}", shared.name());
    shared.fetch(shared.settings.query(&statements.notify).bind(shared.channel()).bind(payload)).await?;
    Ok(())
}

/// When to check again a record that a transaction has locked.
const HELD_LOOK: Duration = Duration::from_millis(20);

/// Marks the records that callers wait for, so that other processes notify their changes. A record that is no longer
/// in progress has already changed: its waiters are woken immediately. A record that a caller's transaction has
/// locked cannot be marked without waiting for it in the server: it is checked again, while callers wait here.
pub(super) async fn arm(shared: Arc<StoreShared>) {
    loop {
        let ids: Vec<KeyId> = shared.arms.lock().drain().collect();
        if ids.is_empty() {
            shared.to_arm.notified().await;
            continue;
        }
        let keys: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
        let armed = shared.fetch(shared.settings.query(&shared.settings.statements.arm).bind(&keys)).await;
        match armed {
            Ok(rows) => {
                let in_flight: HashMap<KeyId, (bool, bool)> = rows
                    .iter()
                    .filter_map(|row| {
                        Some((row::id(row).ok()?, (row.try_get(1).ok()?, row.try_get(2).ok()?)))
                    })
                    .collect();
                let mut held = Vec::new();
                for id in ids {
                    match in_flight.get(&id) {
                        // It has ended, or its owner gave it up before it was marked.
                        None | Some((true, false)) => shared.wakeups.wake(id),
                        Some((false, _)) => held.push(id),
                        Some((true, true)) => {}
                    }
                }
                if !held.is_empty() {
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move {
                        sleep(HELD_LOOK).await;
                        for id in held.into_iter().filter(|id| shared.wakeups.is_watched(*id)) {
                            shared.arm(id);
                        }
                    });
                }
            }
            Err(error) => {
                tracing::debug!(%error, "could not request notifications; waiters poll meanwhile");
                sleep(Duration::from_millis(20)).await;
                shared.arms.lock().extend(ids);
            }
        }
    }
}
