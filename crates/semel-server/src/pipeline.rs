//! Events and deliveries of a running server: the ledger, the targets, and the worker.

mod observer;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use semel::secret::Secret;
use semel_client::retry::Destinations;
use semel_pipeline::ledger::{self, Ledger, Totals, Working};
use semel_pipeline::target::TargetRegistry;
use semel_pipeline::worker::{Stopped, Worker, WorkerSettings};
use tokio::time::Instant;

pub(crate) use self::observer::AttemptObservers;
pub(crate) use self::waiters::RunWaiters;
use crate::config::{self, targets};
use crate::intake::RunningIntake;
use crate::ledgers::OpenLedger;

/// How often old rows are removed, and how many at a time.
const SWEEP: (Duration, u32) = (Duration::from_secs(60), 10_000);

/// A count that takes less is made again for every caller.
const QUICK_COUNT: Duration = Duration::from_millis(250);

/// A count of the ledger.
struct CountedTotals {
    totals: Arc<Totals>,
    at: Instant,
    took: Duration,
}

/// The pipeline of a server.
pub(crate) struct Pipeline {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The current targets.
    pub(crate) registry: TargetRegistry,
    /// Retry budgets and circuit breakers.
    pub(crate) destinations: Destinations,
    pub(crate) secret: Arc<Secret>,
    /// Maximum size of a payload.
    pub(crate) max_payload: usize,
    retention: Duration,
    audit_retention: Duration,
    /// The last count of the ledger.
    counted: tokio::sync::Mutex<Option<CountedTotals>>,
    /// The sources of new events.
    pub(crate) intake: RunningIntake,
    /// Callers that wait for a run to end.
    pub(crate) waiters: Arc<RunWaiters>,
    /// `None` after it was stopped.
    worker: Mutex<Option<Worker>>,
}

impl Pipeline {
    /// Starts delivering.
    ///
    /// # Errors
    /// Targets that cannot be used, or no thread for the heartbeat.
    pub(crate) async fn start(
        opened: OpenLedger,
        (settings, intake): (&config::PipelineConfig, &config::IntakeConfig),
        secret: Arc<Secret>,
        observers: Arc<AttemptObservers>,
    ) -> anyhow::Result<Arc<Self>> {
        let ledger = opened.ledger();
        let destinations = Destinations::default();
        let registry = TargetRegistry::new(targets(&settings.targets, &destinations)?);
        let worker =
            WorkerSettings { lease: settings.lease, in_all: settings.in_all, ..WorkerSettings::default() };
        let working = Arc::clone(&ledger) as Arc<dyn Working>;
        let waiters = Arc::clone(&observers.waiters);
        let worker = Worker::start(working, registry.clone(), Arc::clone(&secret), worker, observers)
            .context("the delivery worker")?;
        for (name, registered) in registry.current().iter() {
            tracing::info!(
                target: "semel",
                events = %registered.events,
                "target" = &**name,
                max_attempts = registered.policy.max_attempts(None),
                rounds = registered.policy.rounds(None),
                "delivering events"
            );
        }
        let intake = RunningIntake::start(intake, opened, &registry, &secret).await?;
        Ok(Arc::new(Self {
            intake,
            waiters,
            ledger,
            registry,
            destinations,
            secret,
            max_payload: settings.max_payload,
            retention: settings.retention,
            audit_retention: settings.audit_retention,
            counted: tokio::sync::Mutex::new(None),
            worker: Mutex::new(Some(worker)),
        }))
    }

    /// Replaces the targets.
    ///
    /// # Errors
    /// Targets that cannot be used; the old ones stay.
    pub(crate) fn replace(&self, settings: &config::PipelineConfig) -> anyhow::Result<()> {
        self.registry.replace(targets(&settings.targets, &self.destinations)?);
        if let Some(worker) = &*self.worker.lock() {
            worker.wake();
        }
        Ok(())
    }

    /// Numbers of the ledger. Counting reads every delivery that has not ended: where that takes long, an earlier count is given, so
    /// that no number of callers counts for more than a twentieth of the time.
    ///
    /// # Errors
    /// The ledger failed.
    pub(crate) async fn totals(&self) -> Result<Arc<Totals>, ledger::Error> {
        let mut counted = self.counted.lock().await;
        if let Some(CountedTotals { totals, at, took }) = &*counted
            && *took > QUICK_COUNT
            && at.elapsed() < *took * 20
        {
            return Ok(Arc::clone(totals));
        }
        let since = Instant::now();
        let totals = Arc::new(self.ledger.totals().await?);
        *counted =
            Some(CountedTotals { totals: Arc::clone(&totals), at: Instant::now(), took: since.elapsed() });
        Ok(totals)
    }

    /// Number of deliveries in progress.
    pub(crate) fn in_hand(&self) -> u32 {
        self.worker.lock().as_ref().map_or(0, Worker::in_hand)
    }

    /// Takes no more work, and lets deliveries in progress finish.
    pub(crate) async fn stop(&self, limit: Duration) {
        self.intake.stop(limit / 2).await;
        let worker = self.worker.lock().take();
        if let Some(worker) = worker
            && let Stopped::Left(left) = worker.stop(limit).await
        {
            tracing::warn!(
                target: "semel",
                left,
                "drain timeout: unfinished deliveries will be sent again with the same keys"
            );
        }
    }

    /// Removes old rows periodically while the server runs.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let (every, limit) = SWEEP;
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let swept = async {
                let audited = self.ledger.sweep_audit(self.audit_retention, limit).await?;
                Ok::<u64, ledger::Error>(self.ledger.sweep(self.retention, limit).await? + audited)
            };
            match swept.await {
                Ok(0) => {}
                Ok(swept) => {
                    tracing::debug!(target: "semel", swept, "removed old rows of the ledger");
                }
                Err(error) if error.is_logged() => {
                    tracing::debug!(target: "semel", %error, "cannot remove old rows of the ledger");
                }
                Err(error) => tracing::warn!(target: "semel", %error, "cannot remove old rows of the ledger"),
            }
        }
    }
}
