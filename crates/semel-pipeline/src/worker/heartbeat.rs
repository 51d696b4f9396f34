//! Renews leases, on its own thread that a busy runtime cannot starve.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lease::Lease;
use crate::delivery::{Holding, LeaseResult};
use crate::id::DeliveryId;
use crate::ledger::Working;

#[derive(Default)]
pub(super) struct Leases {
    held: Mutex<HashMap<DeliveryId, HeldDelivery>>,
}

struct HeldDelivery {
    token: u128,
    renewed: Instant,
    lease: Lease,
}

impl Leases {
    /// Adds the lease of a delivery from a take that was sent at `sent`.
    pub(super) fn hold(&self, holding: Holding, sent: Instant, length: Duration) -> Lease {
        let lease = Lease::new(sent, length);
        let held = HeldDelivery { token: holding.token, renewed: sent, lease: lease.clone() };
        if let Some(before) = self.held.lock().insert(holding.delivery, held) {
            // The worker lost it and took it again: an attempt that still waits must not be sent.
            before.lease.lose();
        }
        lease
    }

    pub(super) fn release(&self, holdings: impl Iterator<Item = Holding>) {
        let mut held = self.held.lock();
        for holding in holdings {
            // The worker may hold the same delivery again, with another token.
            if held.get(&holding.delivery).is_some_and(|held| held.token == holding.token) {
                held.remove(&holding.delivery);
            }
        }
    }

    /// The leases that were not renewed for `age`. Most deliveries end before that.
    fn older_than(&self, age: Duration) -> Vec<Holding> {
        let now = Instant::now();
        let held = self.held.lock();
        let old = held.iter().filter(|(_, held)| now.saturating_duration_since(held.renewed) >= age);
        old.map(|(delivery, held)| Holding { delivery: *delivery, token: held.token }).collect()
    }

    fn renewed(&self, holdings: &[Holding], said: &[LeaseResult], sent: Instant) {
        let mut all = self.held.lock();
        for (holding, said) in holdings.iter().zip(said) {
            let Some(held) = all.get_mut(&holding.delivery).filter(|held| held.token == holding.token) else {
                continue;
            };
            match said {
                LeaseResult::Kept => {
                    held.renewed = sent;
                    held.lease.extend(sent);
                }
                LeaseResult::Lost => {
                    // An attempt that was sent continues. The next attempt carries the same key, and the result of
                    // this one is refused.
                    held.lease.lose();
                    all.remove(&holding.delivery);
                }
            }
        }
    }
}

/// The thread. It ends when this is dropped.
pub(super) struct Heartbeat {
    _stop: oneshot::Sender<()>,
}

impl Heartbeat {
    pub(super) fn start(
        ledger: Arc<dyn Working>,
        leases: Arc<Leases>,
        lease: Duration,
    ) -> std::io::Result<Self> {
        let (stop, mut stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("semel-leases".to_owned()).spawn(move || {
            runtime.block_on(async {
                // Leases that are a sixth old at a beat are renewed, so that at the second beat after it none is
                // older than a half.
                let mut beats = tokio::time::interval(lease / 3);
                beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    tokio::select! {
                        _ = &mut stopped => return,
                        _ = beats.tick() => beat(&*ledger, &leases, lease).await,
                    }
                }
            });
        })?;
        Ok(Self { _stop: stop })
    }
}

async fn beat(ledger: &dyn Working, leases: &Leases, lease: Duration) {
    // Retried once if it fails: at the next beat two thirds of a lease have passed.
    for is_retry in [false, true] {
        let due = leases.older_than(lease / 6);
        if due.is_empty() {
            return;
        }
        let (sent, held) = (Instant::now(), due.len());
        let renewed = tokio::time::timeout(lease / 6, ledger.renew(due.clone(), lease)).await;
        match renewed {
            Ok(Ok(said)) => return leases.renewed(&due, &said, sent),
            Ok(Err(error)) if is_retry && !error.is_logged() => {
                tracing::warn!(target: "semel::deliveries", %error, held, "leases were not renewed");
            }
            Ok(Err(error)) => {
                tracing::debug!(target: "semel::deliveries", %error, held, "leases were not renewed");
            }
            // An outage is logged by the ledger, and a delivery that loses its lease is too.
            Err(_) => tracing::debug!(target: "semel::deliveries", held, "leases were not renewed in time"),
        }
        tokio::time::sleep(lease / 24).await;
    }
}
