//! A running server: opens the store, starts the listeners, reloads its configuration, and shuts down gracefully.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::Engine;
use semel::engine::WaiterCaps;
use semel::secret::Secret;
use semel::store::{EncryptedStore, Store};
use semel_http::edge::{self, DrainResult, EdgeOptions, Tls};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::audit::{States, reload_line, reload_states};
use crate::admin::{self, Access, Admin, Parts};
use crate::cli::ServeArgs;
use crate::config::{Config, PROCESS, Sealing, Sockets, downstream, transport};
use crate::console::{self, Console};
use crate::descriptors::{self, DescriptorBudget};
use crate::gateway::{Gateway, Requests};
use crate::ledgers;
use crate::pipeline::{AttemptObservers, Pipeline, RunWaiters};
use crate::store::{self, OpenStore};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::otlp::Exporter;

/// How often the store is checked and keys in doubt are counted.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Context of errors about the certificate.
const ADMIN_CERTIFICATE: &str = "the admin API's certificate";

/// Warning if the secret is in a store that can lose its data.
const SECRET_IN_REDIS: &str = "no secret is configured, so the deployment's secret is stored only in Redis: if Redis loses \
                               its data while no other process runs, no key is recognised again, and a process that \
                               misses the loss refuses requests until it is restarted; set `secret` in the config";

/// Warning if there is no durable place for the audit log.
const AUDIT_IN_LOG: &str = "there is no ledger, so changes by operators (forget, settle) are written to this log only and not to a \
                            durable audit log; set `url` in [ledger]";

/// A running server.
pub(crate) struct Server {
    engine: Engine,
    metrics: Arc<Metrics>,
    admin: Arc<Admin>,
    admin_at: SocketAddr,
    admin_tls: Option<Tls>,
    gateway: Option<(Arc<Gateway>, SocketAddr)>,
    /// True when the listeners are to close.
    closing: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    /// Distribution of file descriptors.
    budget: DescriptorBudget,
    /// The open listeners. A reload that changes them is refused.
    sockets: Sockets,
    /// Other settings that a reload cannot change.
    fixed: String,
    exporter: Option<Arc<Exporter>>,
    /// Set if outcomes are encrypted: a reload can change the keys.
    sealed: Option<Arc<EncryptedStore>>,
    /// `None` without a ledger.
    pipeline: Option<Arc<Pipeline>>,
}

impl Server {
    /// Starts it. Port 0 selects a free port.
    ///
    /// # Errors
    /// An unusable store or port.
    pub(crate) async fn start(mut config: Config) -> anyhow::Result<Self> {
        let (sockets, fixed) = (config.sockets(), config.fixed());
        let budget = DescriptorBudget::new(descriptors::raise(), &config);
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
            tracing::info!(target: "semel", "exporting spans to the OpenTelemetry collector");
            metrics.watch_exporter(Arc::clone(exporter));
        }
        // Before any data is sent over these connections.
        for warning in transport::warnings(&config) {
            tracing::warn!(target: "semel", "{warning}");
        }
        let OpenStore { store, redis, embedded, limited, warnings, .. } =
            store::open(&config.records).await?;
        for warning in &warnings {
            tracing::warn!(target: "semel", "{warning}");
        }
        // All layers above use the encrypted store, so that nothing is written in plain text.
        let sealed = config.sealing.as_ref().map(|Sealing { ring, plain, .. }| {
            tracing::info!(target: "semel", key = ring.current_id(), "encrypting stored outcomes");
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
        let engine = Engine::builder(store)
            .secret(secret.clone())
            .hot_cache(records.hot_cache, Duration::from_secs(10))
            .waiter_caps(caps)
            .max_outcome(records.max_outcome)
            .observe(Arc::clone(&metrics) as Arc<dyn semel::engine::Observer>)
            .build()?;
        engine.verify(3).await.context("the store failed its self-test")?;
        if let Some(limited) = limited {
            metrics.watch_limits(Arc::clone(&limited));
            if limited.limits().max_bytes.is_some() {
                // Ends with the runtime.
                drop(tokio::spawn(store::measure(limited, records.place.clone())));
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
                let observers = Arc::new(AttemptObservers { counters, exporter: exporter.clone(), waiters });
                let settings = (&config.pipeline, &config.intake);
                Some(Pipeline::start(ledger, settings, Arc::clone(&secret), observers).await?)
            }
            None => None,
        };
        let requests = Arc::new(Requests::new());
        let gateway = match &config.gateway {
            Some(settings) => {
                for warning in settings.warnings() {
                    tracing::warn!(target: "semel", "{warning}");
                }
                let gateway = Arc::new(Gateway::new(&engine, settings, Arc::clone(&requests))?);
                metrics.watch_gateway(Arc::clone(gateway.counters()), gateway.capacity().clone());
                Some((settings, gateway))
            }
            None => None,
        };
        let listener = bind(config.admin.listen, "admin").await?;
        let admin_at = listener.local_addr()?;
        let admin = Admin::new(Parts {
            engine: engine.clone(),
            secret,
            pipeline: pipeline.clone(),
            requests,
            gateway: gateway.as_ref().map(|(_, gateway)| Arc::clone(gateway)),
            metrics: Arc::clone(&metrics),
            access: Access::new(&config.admin, admin_at, &config.tokens)?,
            waiters: records.waiters.in_all,
            max_outcome: records.max_outcome,
            reserved: config.gateway.as_ref().map(|gateway| gateway.namespace.clone()),
            console: Console::new(std::mem::take(&mut config.effective), config.admin.tls.is_some()),
        });
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
            Some((settings, gateway)) => {
                let listener = bind(settings.listen, "gateway").await?;
                let at = listener.local_addr()?;
                let options =
                    gateway.options(settings, config.drain, exporter.as_ref(), metrics.closed_by_gateway());
                let service = gateway.service(exporter.clone());
                let serving = edge::serve(listener, service, options, close(closed.clone()));
                listeners.push(tokio::spawn(listen(serving)));
                Some((gateway, at))
            }
            None => None,
        };
        let options = EdgeOptions {
            closed_at_limit: metrics.closed_by_admin(),
            ..admin::listener(admin_tls.clone(), config.drain, budget.admin)
        };
        let router = console::with_not_found(admin.router(), &admin);
        let serving = edge::serve(listener, router, options, close(closed));
        listeners.push(tokio::spawn(listen(serving)));
        // Ends with the runtime.
        drop(tokio::spawn(Arc::clone(&admin).watch_store(LOOK_EVERY)));
        drop(tokio::spawn(console::live::run(Arc::clone(&admin))));
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

    /// Prints the addresses, for people and for the parent process.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        let gateway = self.gateway_url().unwrap_or_else(|| "-".to_owned());
        let mut out = std::io::stdout().lock();
        writeln!(out, "semel ready gateway={gateway} admin={}", self.admin_url())
            .and_then(|()| out.flush())
            .context("standard output is closed")
    }

    /// The URL of the gateway, if there is one.
    pub(crate) fn gateway_url(&self) -> Option<String> {
        self.gateway.as_ref().map(|(gateway, at)| format!("{}://{at}", gateway.scheme()))
    }

    /// The URL of the admin API.
    pub(crate) fn admin_url(&self) -> String {
        let scheme = if self.admin_tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.admin_at)
    }

    /// Reloads the config. An invalid one is refused, and the old one stays in use.
    pub(crate) async fn reload(&self, args: &ServeArgs) {
        let config = Config::load(args, &PROCESS).map_err(anyhow::Error::from);
        match config.and_then(|config| self.replace(config)) {
            Ok(states) => {
                self.metrics.reload(Ok(()));
                tracing::info!(target: "semel", "configuration reloaded");
                self.audit_reload("reload", &states).await;
            }
            Err(error) => {
                self.metrics.reload(Err(()));
                for line in format!("{error:#}").lines() {
                    tracing::error!(target: "semel", "{line}");
                }
                tracing::error!(target: "semel", "configuration reload refused; the old configuration stays in use");
                let config = Arc::clone(&self.admin.console.config.read());
                let states = reload_states(&config, &config).unchanged();
                self.audit_reload("reload refused", &states).await;
            }
        }
    }

    /// A reload goes to the audit log, because it can change tokens and targets.
    async fn audit_reload(&self, action: &str, states: &States) {
        let Some(pipeline) = &self.pipeline else { return };
        if let Err(error) = pipeline.ledger.audit(reload_line(action, states)).await {
            tracing::warn!(target: "semel", %error, "cannot write the reload to the audit log");
        }
    }

    /// Uses this configuration. Returns what it changes, for the audit log.
    fn replace(&self, mut config: Config) -> anyhow::Result<States> {
        let needs_restart = config.fixed() != self.fixed;
        self.budget.apply(&mut config);
        let effective = std::mem::take(&mut config.effective);
        let config = &config;
        // The old sockets stay open, so rules that were validated for another address would not protect them.
        self.sockets.check_same(&config.sockets())?;
        let access = Access::new(&config.admin, self.admin_at, &config.tokens)?;
        if self.sealed.is_some() != config.sealing.is_some() {
            anyhow::bail!("enabling or disabling encryption requires a restart");
        }
        // Steps that can fail come first: certificates of upstreams are read here for the first time. Those of the listeners were read
        // with the config.
        self.replace_routes(config)?;
        if let Some(tls) = &self.admin_tls {
            tls.reload().context(ADMIN_CERTIFICATE)?;
        }
        if let Some(pipeline) = &self.pipeline {
            pipeline.replace(&config.pipeline)?;
        }
        if let (Some(sealed), Some(sealing)) = (&self.sealed, &config.sealing) {
            sealed.rotate(sealing.ring.clone());
            tracing::info!(target: "semel", key = sealing.ring.current_id(), "encrypting outcomes with this key");
        }
        self.admin.replace_access(access);
        let effective = Arc::new(effective);
        let old = std::mem::replace(&mut *self.admin.console.config.write(), Arc::clone(&effective));
        for warning in config.admin.warnings() {
            tracing::warn!(target: "semel", "{warning}");
        }
        if needs_restart {
            tracing::warn!(
                target: "semel",
                "the new configuration changes settings that require a restart: the listeners' limits, the store, logs, drain"
            );
        }
        Ok(reload_states(&old, &effective))
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

    /// Closes the listeners and waits until requests in progress have ended and are stored, for at most `limit`.
    pub(crate) async fn stop(self, limit: Duration) {
        let Self { engine, admin, closing, listeners, exporter, pipeline, .. } = self;
        // Sending fails only without receivers.
        let _ = closing.send(true);
        // They never end by themselves.
        admin.console.streams.close();
        let served = async {
            for listener in listeners {
                let _ = listener.await;
            }
            admin.drain().await;
            engine.drain().await;
        };
        let delivered = async {
            if let Some(pipeline) = &pipeline {
                // A little less than `limit`, so that unfinished deliveries are still counted and logged.
                pipeline.stop(limit.mul_f64(0.95)).await;
            }
        };
        let drained = async { tokio::join!(served, delivered) };
        if tokio::time::timeout(limit, drained).await.is_err() {
            let left = engine.in_flight();
            let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(target: "semel", left, timeout_ms, "drain timeout: remaining requests may end in doubt");
        }
        if let Some(exporter) = exporter {
            exporter.flush().await;
        }
    }
}

/// Runs a listener until it is closed and drained.
async fn listen(serving: impl Future<Output = DrainResult>) {
    if let DrainResult::Forced(cut) = serving.await {
        tracing::warn!(target: "semel", cut, "drain timeout: open connections were closed");
    }
}

async fn close(mut closed: watch::Receiver<bool>) {
    // A dropped sender also means the end.
    let _ = closed.wait_for(|closing| *closing).await;
}

async fn bind(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the {what} listener cannot bind {address}"))
}
