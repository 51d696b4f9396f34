//! `semel serve`: opens the store, starts the listeners, and ends well.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::Engine;
use semel::engine::WaiterCaps;
use semel::secret::Secret;
use semel::store::{EncryptedStore, Store};
use semel_http::edge::{self, Drained, Tls};
use semel_pipeline::ledger::AuditLine;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::{self, Access, Admin, Parts};
use crate::cli::ServeArgs;
use crate::config::{Config, PROCESS, Sealing, Sockets, downstream, transport};
use crate::descriptors::{self, Budget};
use crate::gateway::{Gateway, Requests};
use crate::ledgers;
use crate::logs;
use crate::metrics::Metrics;
use crate::otlp::Exporter;
use crate::pipeline::{Pipeline, RunWaiters, Telling};
use crate::signals::{Signals, Wish};
use crate::store::{self as stores, Opened};

/// How often the store is looked at and keys in doubt are counted.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// What an error about it begins with.
const ADMIN_CERTIFICATE: &str = "the admin side's certificate";

/// Said where the secret is in a store that can lose its data.
const SECRET_IN_REDIS: &str = "no secret is configured, so the deployment's secret is kept in Redis alone: if Redis loses \
                               its data while no other process runs, no key is recognised again, and a process that \
                               misses the loss refuses requests until it is restarted; set `secret` in the config";

/// Said where there is no durable place for the audit log.
const AUDIT_IN_LOG: &str = "there is no ledger, so changes by hand (forget, settle) are written to this log only and not to a \
                            durable audit log; set `url` in [ledger]";

/// Runs the server until it is told to stop.
///
/// # Errors
/// A config that cannot be used; a store or a port that cannot be had; a shutdown that was forced.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let config = Config::load(args, &PROCESS)?;
    logs::start(config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(args, config));
    // What still runs on other threads is not waited for: it was drained, or is to be forgotten.
    runtime.shutdown_background();
    logs::flush();
    served
}

async fn serve(args: &ServeArgs, config: Config) -> anyhow::Result<()> {
    // Before anything can be under way: a signal from now on is heard.
    let mut signals = Signals::listen()?;
    let drain = config.drain;
    let server = Server::start(config).await?;
    server.announce()?;
    while signals.next().await == Wish::Reload {
        server.reload(args).await;
    }
    tracing::info!(target: "semel", "stopping: no new requests, those under way may finish; a second signal ends at once");
    tokio::select! {
        () = server.stop(drain) => Ok(()),
        () = signals.stop() => anyhow::bail!("a second signal: ended at once; what was under way may be in doubt"),
    }
}

/// A running server.
pub(crate) struct Server {
    engine: Engine,
    metrics: Arc<Metrics>,
    admin: Arc<Admin>,
    admin_at: SocketAddr,
    admin_tls: Option<Tls>,
    gateway: Option<(Arc<Gateway>, SocketAddr)>,
    /// Turns true when the listeners are to close.
    closing: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    /// File descriptors, and who gets them.
    budget: Budget,
    /// The listeners that were opened. A reload that changes them is refused.
    sockets: Sockets,
    /// Other settings that a reload cannot change.
    fixed: String,
    exporter: Option<Arc<Exporter>>,
    /// Where outcomes are sealed: its keys can be changed.
    sealed: Option<Arc<EncryptedStore>>,
    /// None where there is no ledger.
    pipeline: Option<Arc<Pipeline>>,
}

impl Server {
    /// Starts it. Port 0 takes any free port.
    ///
    /// # Errors
    /// A store or a port that cannot be had.
    pub(crate) async fn start(mut config: Config) -> anyhow::Result<Self> {
        let (sockets, fixed) = (config.sockets(), config.fixed());
        let budget = Budget::new(descriptors::raise(), &config);
        for warning in budget.warnings(&config) {
            tracing::warn!(target: "semel", "{warning}");
        }
        budget.apply(&mut config);
        let metrics = Arc::new(Metrics::default());
        metrics.watch_descriptors(
            budget.clone(),
            config.gateway.as_ref().map(|gateway| gateway.limits.connections),
        );
        let exporter = Exporter::start(&PROCESS)?;
        if let Some(exporter) = &exporter {
            tracing::info!(target: "semel", "spans go to the OpenTelemetry collector");
            metrics.watch_exporter(Arc::clone(exporter));
        }
        // Before anything is sent to them.
        for warning in transport::warnings(&config) {
            tracing::warn!(target: "semel", "{warning}");
        }
        let Opened { store, redis, embedded, limited, warnings } = stores::open(&config.records).await?;
        for warning in &warnings {
            tracing::warn!(target: "semel", "{warning}");
        }
        // Everything above speaks to the sealed store, so that nothing is ever written in plain.
        let sealed = config.sealing.as_ref().map(|Sealing { ring, plain, .. }| {
            tracing::info!(target: "semel", key = ring.current_id(), "outcomes are sealed at rest");
            Arc::new(EncryptedStore::over(Arc::clone(&store), ring.clone()).plain(*plain))
        });
        let store = match &sealed {
            Some(sealed) => Arc::clone(sealed) as Arc<dyn Store>,
            None => store,
        };
        let secret = match &config.secret {
            Some(secret) => secret.clone(),
            None => store.secret(Secret::random()).await.context("the deployment's secret")?,
        };
        let secret = downstream::with_secrets(secret, &config.downstreams);
        if let Some(redis) = redis {
            if config.secret.is_none() {
                tracing::warn!(target: "semel", "{SECRET_IN_REDIS}");
            }
            metrics.watch_redis(redis);
        }
        let records = &config.records;
        let waiters = &records.waiters;
        let caps =
            WaiterCaps { per_key: waiters.per_key, per_scope: waiters.per_scope, in_all: waiters.in_all };
        let engine = Engine::over(store)
            .secret(secret.clone())
            .hot_cache(records.hot_cache, Duration::from_secs(10))
            .waiter_caps(caps)
            .max_outcome(records.max_outcome)
            .observe(Arc::clone(&metrics) as Arc<dyn semel::engine::Observer>)
            .build()?;
        engine.verify(3).await.context("the store does not keep what it should")?;
        if let Some(limited) = limited {
            metrics.watch_limits(Arc::clone(&limited));
            if limited.limits().max_bytes.is_some() {
                // Ends with the runtime.
                drop(tokio::spawn(stores::measure(limited, records.place.clone())));
            }
        }
        let secret = Arc::new(secret);
        let ledger = ledgers::open(&config, embedded).await?;
        if ledger.is_none() && !config.tokens.is_empty() {
            tracing::warn!(target: "semel", "{AUDIT_IN_LOG}");
        }
        let pipeline = match ledger {
            Some(ledger) => {
                let counters = Arc::clone(metrics.deliveries());
                let waiters =
                    Arc::new(RunWaiters::new(config.pipeline.run_waiters, config.pipeline.run_wait));
                let telling = Arc::new(Telling { counters, exporter: exporter.clone(), waiters });
                let settings = (&config.pipeline, &config.intake);
                Some(Pipeline::start(ledger, settings, Arc::clone(&secret), telling).await?)
            }
            None => None,
        };
        let requests = Arc::new(Requests::default());
        let listener = bind(config.admin.listen, "admin").await?;
        let admin_at = listener.local_addr()?;
        let admin = Admin::new(Parts {
            engine: engine.clone(),
            secret,
            pipeline: pipeline.clone(),
            requests: Arc::clone(&requests),
            metrics: Arc::clone(&metrics),
            access: Access::new(&config.admin, admin_at, &config.tokens)?,
            waiters: records.waiters.in_all,
            max_outcome: records.max_outcome,
            reserved: config.gateway.as_ref().map(|gateway| gateway.namespace.clone()),
        });
        let gateway = match &config.gateway {
            Some(settings) => {
                for warning in settings.warnings() {
                    tracing::warn!(target: "semel", "{warning}");
                }
                let gateway = Arc::new(Gateway::new(&engine, settings, requests)?);
                metrics.watch_gateway(Arc::clone(gateway.counters()), gateway.capacity().clone());
                Some((settings, gateway, bind(settings.listen, "gateway").await?))
            }
            None => None,
        };
        for warning in config.admin.warnings() {
            tracing::warn!(target: "semel", "{warning}");
        }
        let admin_tls = match &config.admin.tls {
            Some(files) => Some(files.open().context(ADMIN_CERTIFICATE)?),
            None => None,
        };
        let (closing, closed) = watch::channel(false);
        let mut listeners = Vec::new();
        let gateway = match gateway {
            Some((settings, gateway, listener)) => {
                let at = listener.local_addr()?;
                let options = gateway.options(settings, config.drain, exporter.as_ref());
                let service = gateway.service(exporter.clone());
                let serving = edge::serve(listener, service, options, close(closed.clone()));
                listeners.push(tokio::spawn(listen(serving)));
                Some((gateway, at))
            }
            None => None,
        };
        let options = admin::listener(admin_tls.clone(), config.drain, budget.admin);
        let serving = edge::serve(listener, admin.router(), options, close(closed));
        listeners.push(tokio::spawn(listen(serving)));
        // Ends with the runtime.
        drop(tokio::spawn(Arc::clone(&admin).watch_store(LOOK_EVERY)));
        if let Some(pipeline) = &pipeline {
            drop(tokio::spawn(Arc::clone(pipeline).sweep()));
        }
        Ok(Self {
            engine,
            metrics,
            admin,
            admin_at,
            admin_tls,
            gateway,
            closing,
            listeners,
            budget,
            sockets,
            fixed,
            exporter,
            sealed,
            pipeline,
        })
    }

    /// Says where it listens, for people and for whoever started it.
    fn announce(&self) -> anyhow::Result<()> {
        let gateway = self.gateway_url().unwrap_or_else(|| "-".to_owned());
        let mut out = std::io::stdout().lock();
        writeln!(out, "semel ready gateway={gateway} admin={}", self.admin_url())
            .and_then(|()| out.flush())
            .context("standard output is closed")
    }

    /// Where the gateway listens, if there is one.
    pub(crate) fn gateway_url(&self) -> Option<String> {
        self.gateway.as_ref().map(|(gateway, at)| format!("{}://{at}", gateway.scheme()))
    }

    /// Where the admin side listens.
    pub(crate) fn admin_url(&self) -> String {
        let scheme = if self.admin_tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.admin_at)
    }

    /// Reads the config again. What cannot be used is refused, and the old one stays in force.
    async fn reload(&self, args: &ServeArgs) {
        let config = Config::load(args, &PROCESS).map_err(anyhow::Error::from);
        match config.and_then(|config| self.replace(config)) {
            Ok(()) => {
                self.metrics.reload(Ok(()));
                tracing::info!(target: "semel", "the config was read anew");
                self.audit_reload("reload").await;
            }
            Err(error) => {
                self.metrics.reload(Err(()));
                for line in format!("{error:#}").lines() {
                    tracing::error!(target: "semel", "{line}");
                }
                tracing::error!(target: "semel", "the new config is refused; the old one stays in force");
                self.audit_reload("reload refused").await;
            }
        }
    }

    /// A reload is a change by hand too: tokens and targets may be others from now on.
    async fn audit_reload(&self, action: &str) {
        let Some(pipeline) = &self.pipeline else { return };
        let line = AuditLine {
            who: "signal".to_owned(),
            action: action.to_owned(),
            subject: "config".to_owned(),
            reason: "SIGHUP".to_owned(),
        };
        if let Err(error) = pipeline.ledger.audit(line).await {
            tracing::warn!(target: "semel", %error, "the audit log does not have this reload");
        }
    }

    fn replace(&self, mut config: Config) -> anyhow::Result<()> {
        let needs_restart = config.fixed() != self.fixed;
        self.budget.apply(&mut config);
        let config = &config;
        // The old sockets stay open: rules that were checked against another address would not protect them.
        self.sockets.check_same(&config.sockets())?;
        let access = Access::new(&config.admin, self.admin_at, &config.tokens)?;
        if self.sealed.is_some() != config.sealing.is_some() {
            anyhow::bail!("encryption is switched on or off only with a restart");
        }
        // First what can fail: an upstream's certificates were not read before. Those of the listeners were, with the config.
        self.replace_routes(config)?;
        if let Some(tls) = &self.admin_tls {
            tls.reload().context(ADMIN_CERTIFICATE)?;
        }
        if let Some(pipeline) = &self.pipeline {
            pipeline.replace(&config.pipeline)?;
        }
        if let (Some(sealed), Some(sealing)) = (&self.sealed, &config.sealing) {
            sealed.rotate(sealing.ring.clone());
            tracing::info!(target: "semel", key = sealing.ring.current_id(), "outcomes are sealed with this key");
        }
        self.admin.replace_access(access);
        for warning in config.admin.warnings() {
            tracing::warn!(target: "semel", "{warning}");
        }
        if needs_restart {
            tracing::warn!(
                target: "semel",
                "the new config changes what only a restart can: the listeners' limits, the store, logs, drain"
            );
        }
        Ok(())
    }

    fn replace_routes(&self, config: &Config) -> anyhow::Result<()> {
        if let (Some((gateway, _)), Some(settings)) = (&self.gateway, &config.gateway) {
            gateway.replace(settings)?;
            for warning in settings.warnings() {
                tracing::warn!(target: "semel", "{warning}");
            }
        }
        Ok(())
    }

    /// Closes the listeners and waits until what is under way has ended and is written, but no longer than `limit`.
    pub(crate) async fn stop(self, limit: Duration) {
        let Self { engine, closing, listeners, exporter, pipeline, .. } = self;
        // Without receivers there is nobody left to tell.
        let _ = closing.send(true);
        let served = async {
            for listener in listeners {
                let _ = listener.await;
            }
            engine.drain().await;
        };
        let delivered = async {
            if let Some(pipeline) = &pipeline {
                // A little less than there is, so that what is left over is counted and told.
                pipeline.stop(limit.mul_f64(0.95)).await;
            }
        };
        let drained = async { tokio::join!(served, delivered) };
        if tokio::time::timeout(limit, drained).await.is_err() {
            let left = engine.in_flight();
            tracing::warn!(target: "semel", left, "draining took longer than {limit:?}; what is left may end in doubt");
        }
        if let Some(exporter) = exporter {
            exporter.flush().await;
        }
    }
}

/// A listener, until it is closed and drained.
async fn listen(serving: impl Future<Output = Drained>) {
    if let Drained::Forced(cut) = serving.await {
        tracing::warn!(target: "semel", cut, "connections were cut when the time to drain was over");
    }
}

async fn close(mut closed: watch::Receiver<bool>) {
    // Without a sender it is the end as well.
    let _ = closed.wait_for(|closing| *closing).await;
}

async fn bind(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the {what} listener cannot have {address}"))
}
