//! The intake of a running server: triggers with their gate and buffer, drainers, streams, and replay jobs.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use semel::Engine;
use semel::secret::Secret;
use semel::store::{self, ErrorKind, RedisClient, RedisContent, RedisStore};
use semel_pipeline::ledger::Ledger;
use semel_pipeline::replayer::Replayer;
use semel_pipeline::source::{Pump, RedisStream, SourceCounters};
use semel_pipeline::target::TargetRegistry;
use semel_triggers::buffer::{Buffer, Depth};
use semel_triggers::drainer::{DrainCounters, DrainPace, Drainer};
use semel_triggers::gate::Gate;
use semel_triggers::trigger::{Burst, Triggers};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config;
use crate::ledgers::OpenLedger;

/// All sources of new events.
pub(crate) struct RunningIntake {
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) drains: Arc<DrainCounters>,
    /// By name of their stream.
    pub(crate) sources: Vec<(String, Arc<SourceCounters>)>,
    /// The last count of the buffer.
    pub(crate) depth: parking_lot::Mutex<Depth>,
    /// The store of the claims, on the Redis server of the buffer. It detects a loss of data.
    pub(crate) claims: Arc<OnceLock<Arc<RedisStore>>>,
    stop: watch::Sender<bool>,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

impl RunningIntake {
    /// Starts everything that is configured.
    ///
    /// # Errors
    /// A Redis server that cannot be used, or an invalid name.
    pub(crate) async fn start(
        settings: &config::IntakeConfig,
        opened: OpenLedger,
        registry: &TargetRegistry,
        secret: &Arc<Secret>,
    ) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let ledger = &opened.ledger();
        let mut tasks = vec![tokio::spawn(Replayer::new(Arc::clone(ledger)).run(stopped.clone()))];
        let (relay, mut on_stop) = (opened.relay((**secret).clone(), registry.clone()), stopped.clone());
        tasks.push(tokio::spawn(async move {
            let stopped = async { drop(on_stop.wait_for(|stop| *stop).await) };
            tokio::select! { () = stopped => {}, () = relay => {} }
        }));
        let gate = &settings.gate;
        let drains = Arc::new(DrainCounters::default());
        let drainers = Drainers {
            pace: DrainPace { batch: gate.batch, lease: gate.lease, rest: gate.rest, ..DrainPace::default() },
            count: gate.drainers,
            ledger: Arc::clone(ledger),
            counters: Arc::clone(&drains),
            stopped: stopped.clone(),
        };
        let triggers = |burst| {
            Triggers::new(Arc::clone(ledger), Arc::clone(secret), burst)
                .drain_counters(Arc::clone(&drains))
                .limits(gate.wait, gate.lease)
                .context("[gate]")
        };
        let claims = Arc::new(OnceLock::new());
        let triggers = match burst(gate, secret, &claims).await {
            Ok(burst) => {
                if let Some(burst) = &burst {
                    tasks.extend(drainers.start(burst));
                }
                Arc::new(triggers(burst)?)
            }
            Err(error) if is_unreachable(&error) => {
                tracing::warn!(target: "semel", error = format!("{error:#}"), "triggers go to the ledger until Redis answers");
                let triggers = Arc::new(triggers(None)?.with_burst_pending());
                let settings = (gate.clone(), Arc::clone(secret), Arc::clone(&claims));
                tasks.push(tokio::spawn(later(settings, Arc::clone(&triggers), drainers)));
                triggers
            }
            Err(error) => return Err(error),
        };
        let mut sources = Vec::new();
        for source in &settings.sources {
            let counters = Arc::new(SourceCounters::default());
            let mut builder = RedisStream::builder(&source.url, &source.stream, &source.group)
                .at_once(source.at_once)
                .min_idle(source.min_idle);
            if let Some(pem) = &source.ca {
                builder = builder.root_certificate(pem.clone());
            }
            let stream = builder.build().with_context(|| format!("the stream {:?}", source.stream))?;
            tracing::info!(target: "semel", source = source.stream, group = source.group, consumer = stream.consumer(), "reading events");
            let targets = registry.clone();
            let routes = Arc::new(move |event_type: &str| targets.current().wanting(event_type));
            let pump =
                Pump::new(stream, Arc::clone(ledger), Arc::clone(secret), routes, Arc::clone(&counters))
                    .renew_every(source.min_idle / 3);
            tasks.push(tokio::spawn(pump.run(stopped.clone())));
            sources.push((source.stream.clone(), counters));
        }
        let tasks = parking_lot::Mutex::new(tasks);
        Ok(Self { triggers, drains, sources, depth: parking_lot::Mutex::default(), claims, stop, tasks })
    }

    /// Counts the buffered runs for the metrics.
    pub(crate) async fn count(&self) {
        let Some(burst) = self.triggers.burst() else { return };
        let counted = async {
            let mut all = Depth::default();
            for tenant in burst.buffer.tenants().await? {
                let depth = burst.buffer.depth(&tenant).await?;
                all.queued += depth.queued;
                all.leased += depth.leased;
                all.oldest = all.oldest.max(depth.oldest);
            }
            Ok::<Depth, semel::store::Error>(all)
        };
        match counted.await {
            Ok(depth) => *self.depth.lock() = depth,
            Err(error) => tracing::debug!(target: "semel", %error, "cannot count the buffer"),
        }
    }

    /// Stops it: batches in progress are finished, and unacknowledged messages are read again later.
    pub(crate) async fn stop(&self, limit: Duration) {
        // Sending fails only without receivers.
        let _ = self.stop.send(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let ended = async {
            for task in tasks {
                let _ = task.await;
            }
        };
        // The end of the process stops the rest; nothing is lost.
        let _ = tokio::time::timeout(limit, ended).await;
    }
}

/// How often an unavailable Redis server is tried again after the start.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The parts of the drainers.
struct Drainers {
    pace: DrainPace,
    count: usize,
    ledger: Arc<dyn Ledger>,
    counters: Arc<DrainCounters>,
    stopped: watch::Receiver<bool>,
}

impl Drainers {
    fn start(&self, burst: &Burst) -> Vec<JoinHandle<()>> {
        tracing::info!(target: "semel", buffer = burst.buffer.name(), drainers = self.count, "buffering bursts of triggers");
        let start = |_| {
            let (buffer, ledger) = (Arc::clone(&burst.buffer), Arc::clone(&self.ledger));
            let drainer = Drainer::new(buffer, ledger, self.pace, Arc::clone(&self.counters));
            tokio::spawn(drainer.run(self.stopped.clone()))
        };
        (0..self.count).map(start).collect()
    }
}

/// True if Redis does not answer, as opposed to a refusal. A lost answer counts, because Redis may stop between two calls.
fn is_unreachable(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<store::Error>().map(store::Error::kind);
    matches!(kind, Some(ErrorKind::Unavailable | ErrorKind::Ambiguous))
}

/// Retries until Redis answers, and drains from then on.
async fn later(
    (gate, secret, claims): (config::GateConfig, Arc<Secret>, Arc<OnceLock<Arc<RedisStore>>>),
    triggers: Arc<Triggers>,
    drainers: Drainers,
) {
    let mut stop = drainers.stopped.clone();
    let burst = loop {
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        tokio::select! { () = stopped => return, () = tokio::time::sleep(TRY_EVERY) => {} }
        match burst(&gate, &secret, &claims).await {
            Ok(Some(burst)) => break burst,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(target: "semel", error = format!("{error:#}"), "buffer still unavailable");
            }
        }
    };
    triggers.set_burst(burst.clone());
    for drainer in drainers.start(&burst) {
        // They end when they are told to.
        let _ = drainer.await;
    }
}

async fn burst(
    gate: &config::GateConfig,
    secret: &Arc<Secret>,
    opened: &OnceLock<Arc<RedisStore>>,
) -> anyhow::Result<Option<Burst>> {
    let Some(url) = &gate.buffer else { return Ok(None) };
    let mut client =
        RedisClient::builder(url.clone()).require_replicas(gate.require_replicas).used_for("buffer");
    let mut store = RedisStore::builder(url)
        .used_for("buffer")
        .content(RedisContent::BufferedRuns)
        .prefix(&format!("{}:claims", gate.prefix))
        .require_replicas(gate.require_replicas);
    if let Some(pem) = &gate.ca {
        client = client.root_certificate(pem.clone());
        store = store.root_certificate(pem.clone());
    }
    let client = client.build().context("the buffer of [gate]")?;
    let store = store.connect().await.context("the buffer of [gate]")?;
    let store = Arc::new(store);
    // Set once: it is opened again only if the first attempt failed.
    let _ = opened.set(Arc::clone(&store));
    let claims = Engine::builder(store).secret((**secret).clone()).lease(gate.lease).build()?;
    let buffer = Arc::new(Buffer::new(client, gate.prefix.clone(), gate.capacity));
    let gate = Arc::new(Gate::new(Arc::clone(&buffer), gate.mode, gate.tenant, gate.global));
    Ok(Some(Burst { claims, buffer, gate }))
}
