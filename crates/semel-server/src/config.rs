//! The config file: one TOML file, read once into validated types. Flags override it.
//!
//! All mistakes are reported together, each with its position and the expected value. There are no silent defaults: an unknown key, an
//! invalid value or a missing secret prevents the start.

mod access;
mod certificate;
pub(crate) mod downstream;
mod effective;
mod gateway;
mod intake;
mod pipeline;
mod problem;
mod production;
mod reader;
mod records;
mod routes;
mod schema;
mod sealing;
mod secrets;
mod sockets;
mod targets;
pub(crate) mod transport;
mod values;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use semel::secret::Secret;
use toml::de::DeTable;

pub(crate) use self::access::{AdminListener, AdminToken, Role};
pub(crate) use self::effective::{EffectiveConfig, EffectiveSetting};
pub(crate) use self::gateway::GatewayConfig;
pub(crate) use self::intake::{GateConfig, IntakeConfig};
pub(crate) use self::pipeline::{LedgerPlace, PipelineConfig};
pub(crate) use self::problem::{ConfigProblem, Invalid};
pub(crate) use self::records::{Coordinate, EXPECTED_STORES, Loss, Records, StoreUrl};
pub(crate) use self::schema::schema;
use self::sealing::PlainLedger;
pub(crate) use self::sealing::Sealing;
pub(crate) use self::secrets::{Environment, PROCESS};
pub(crate) use self::sockets::Sockets;
pub(crate) use self::targets::targets;
pub(crate) use self::values::{parse_duration, show_duration};

use self::downstream::Downstream;
use self::problem::Problems;
use self::reader::Table;
use self::values::{choice, duration};
use crate::cli::ServeArgs;

/// A complete, commented file. A test parses it.
pub(crate) const EXAMPLE: &str = include_str!("config/example.toml");

/// The validated configuration of a server.
#[derive(Debug)]
pub(crate) struct Config {
    /// Set by the operator; otherwise the store has one.
    pub(crate) secret: Option<Secret>,
    /// `None` without an upstream.
    pub(crate) gateway: Option<GatewayConfig>,
    pub(crate) admin: AdminListener,
    pub(crate) tokens: Vec<AdminToken>,
    pub(crate) records: Records,
    /// `None` if outcomes are not encrypted.
    pub(crate) sealing: Option<Sealing>,
    /// Services that the upstreams call.
    pub(crate) downstreams: Vec<Downstream>,
    pub(crate) pipeline: PipelineConfig,
    pub(crate) intake: IntakeConfig,
    pub(crate) log: LogConfig,
    /// How long requests in progress may take to finish after the server was told to stop.
    pub(crate) drain: Duration,
    /// The settings as people see them.
    pub(crate) effective: EffectiveConfig,
}

/// Logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    pub(crate) level: tracing::Level,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

/// Default listen address with this port on loopback.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Config {
    /// Reads the file that the flags name, if any, and the flags.
    ///
    /// # Errors
    /// Every mistake in them.
    pub(crate) fn load(args: &ServeArgs, environment: &Environment<'_>) -> Result<Self, Invalid> {
        let Some(path) = &args.config else { return Self::parse("the flags", "", args, environment) };
        let name = path.display().to_string();
        let text = read(path)?;
        Self::parse(&name, &text, args, environment)
    }

    /// Checks that a config is valid and fit for production.
    ///
    /// # Errors
    /// Every mistake in it, or every missing setting.
    pub(crate) fn check_production(path: &Path, environment: &Environment<'_>) -> Result<(), Invalid> {
        let (place, text) = (path.display().to_string(), read(path)?);
        let config = Self::parse(&place, &text, &ServeArgs::default(), environment)?;
        let gaps = production::gaps(&config, path, &text);
        if gaps.is_empty() {
            return Ok(());
        }
        let problem = |message| ConfigProblem { place: place.clone(), position: None, message };
        Err(Invalid(gaps.into_iter().map(problem).collect()))
    }

    /// Parses the text of a file.
    pub(crate) fn parse(
        file: &str,
        text: &str,
        args: &ServeArgs,
        environment: &Environment<'_>,
    ) -> Result<Self, Invalid> {
        let problems = Problems::new(file, text);
        let (table, wrong) = DeTable::parse_recoverable(text);
        for error in &wrong {
            problems.at(&error.span().unwrap_or_default(), error.message());
        }
        // A file that is not TOML would only cause misleading errors below.
        let read = wrong.is_empty().then(|| Self::read(Table::root(&table, &problems), args, environment));
        let effective = read.as_ref().map(|read| {
            EffectiveConfig::new(file, table.get_ref(), args, downstream::runbook(&read.downstreams))
        });
        problems.into_result()?;
        let read = read.expect("a file without problems was read");
        Ok(Self { effective: effective.unwrap_or_default(), ..read })
    }

    /// The sockets of this config.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets::of(self)
    }

    /// The settings that a reload cannot change, besides the sockets, in a form that is only compared.
    pub(crate) fn fixed(&self) -> String {
        let gateway = self.gateway.as_ref().map(|gateway| {
            let rules = (&gateway.key_headers, &gateway.trusted_headers, &gateway.hosts, &gateway.upgrades);
            (gateway.limits, gateway.timeouts, rules, &gateway.namespace)
        });
        let sealed = self.sealing.as_ref().map(|sealing| sealing.plain);
        let pipeline = (self.pipeline.fixed(), self.intake.fixed());
        // Compares a derived value, so that the secret is in no text.
        let secret =
            self.secret.as_ref().map(|secret| *secret.derived_key_of("reload", b"secret").as_bytes());
        format!("{:?}", (&self.records, sealed, self.log, self.drain, gateway, pipeline, secret))
    }

    fn read(mut root: Table<'_>, args: &ServeArgs, environment: &Environment<'_>) -> Self {
        let secret = secrets::passphrase(&mut root, "secret", environment);
        let tokens = access::tokens(&mut root, environment);
        let admin = AdminListener::read(&mut root, args, &tokens);
        let gateway = GatewayConfig::read(&mut root, args, environment);
        let (records, sealing) = Records::read(&mut root, args, environment, gateway.as_ref());
        let downstreams = downstream::read(&mut root, environment);
        let mut pipeline = PipelineConfig::read(&mut root, &records, environment);
        let intake = IntakeConfig::read(&mut root, pipeline.ledger.is_some(), environment);
        if sealing.as_ref().is_some_and(|sealing| sealing.ledger == PlainLedger::Refuse) {
            refuse_plain_ledger(&root, &mut pipeline, &intake);
        }
        let log = LogConfig::read(&mut root);
        let drain = root.get("drain", duration).unwrap_or(Duration::from_secs(30));
        root.done();
        let effective = EffectiveConfig::default();
        Self {
            secret,
            gateway,
            admin,
            tokens,
            records,
            sealing,
            downstreams,
            pipeline,
            intake,
            log,
            drain,
            effective,
        }
    }
}

/// Outcomes are encrypted, but events and buffered runs are not. If a ledger or a buffer is configured, the operator must accept that.
fn refuse_plain_ledger(root: &Table<'_>, pipeline: &mut PipelineConfig, intake: &IntakeConfig) {
    let asking = [
        ("[ledger]", pipeline.is_asked_for),
        ("[[target]]", !pipeline.targets.is_empty()),
        ("[[source]]", !intake.sources.is_empty()),
        ("[gate]", intake.gate.buffer.is_some()),
    ];
    let asking: Vec<&str> = asking.iter().filter(|(_, asks)| *asks).map(|(name, _)| *name).collect();
    if asking.is_empty() {
        pipeline.ledger = None;
        return;
    }
    root.problems().whole(format!(
        "[store.encryption] encrypts outcomes, but {} would store events, dead letters and buffered runs unencrypted: set ledger = \
         \"plain\" in [store.encryption] to accept that, or remove them",
        asking.join(", ")
    ));
}

impl LogConfig {
    /// For commands that print their own messages.
    pub(crate) fn quiet() -> Self {
        Self { format: LogFormat::Auto, level: tracing::Level::ERROR }
    }

    fn read(root: &mut Table<'_>) -> Self {
        let mut log = Self { format: LogFormat::Auto, level: tracing::Level::INFO };
        let Some(mut table) = root.table("log") else { return log };
        let formats = [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
        let levels = [
            ("error", tracing::Level::ERROR),
            ("warn", tracing::Level::WARN),
            ("info", tracing::Level::INFO),
            ("debug", tracing::Level::DEBUG),
            ("trace", tracing::Level::TRACE),
        ];
        log.format = table.get("format", choice(&formats)).unwrap_or(log.format);
        log.level = table.get("level", choice(&levels)).unwrap_or(log.level);
        table.done();
        log
    }
}

fn read(path: &Path) -> Result<String, Invalid> {
    std::fs::read_to_string(path).map_err(|error| {
        let place = path.display().to_string();
        Invalid(vec![ConfigProblem {
            place,
            position: None,
            message: format!("cannot read the file: {error}"),
        }])
    })
}

#[cfg(test)]
mod tests;
