//! Checks that the server can meet the promises, for every new connection and every minute; and that it still has its
//! data, every second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::MissedTickBehavior;

use super::Shared;
use super::address::Node;
use super::builder::{OnStoreLoss, RedisContent};
use super::clock::Tick;
use super::error::CallReach;
use super::link::NumberedConnection;
use super::script::{Dialect, ScriptReply};
use crate::outage::{Availability, Server, Verdict};
use crate::store::transfer::DataLoss;
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;
use crate::time::Timestamp;

/// How often the marker is incremented.
const BEAT: Duration = Duration::from_secs(1);

/// The known state of the server.
pub(super) struct ServerHealth {
    on_loss: OnStoreLoss,
    content: RedisContent,
    state: Mutex<HealthState>,
    /// One caller checks a new connection, the others wait for its result.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct HealthState {
    /// The connection that was last checked.
    connection: u64,
    /// Why no claims are granted: the server's settings would lose them.
    unfit: Option<String>,
    /// When data were last lost, by the server's clock; zero for never.
    lost_at: Timestamp,
    warnings: Vec<String>,
    /// The last seen markers, id and beat, by their keys.
    markers: HashMap<Vec<u8>, (Vec<u8>, u64)>,
}

impl ServerHealth {
    pub(super) fn new(on_loss: OnStoreLoss, content: RedisContent) -> Self {
        Self { on_loss, content, state: Mutex::default(), looking: tokio::sync::Mutex::default() }
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.state.lock().warnings.clone()
    }

    pub(super) fn has_lost_data(&self) -> bool {
        self.state.lock().lost_at != Timestamp::default()
    }
}

impl Shared {
    /// Why no claim may be granted now.
    pub(super) fn refusal(&self) -> Option<Error> {
        let state = self.health.state.lock();
        if let Some(why) = &state.unfit {
            return Some(Error::new(ErrorKind::Setup, why.clone()).logged());
        }
        if let Some(refusal) = self.transfer.closed(&self.name) {
            return Some(refusal);
        }
        let lost_at = state.lost_at;
        drop(state);
        self.refuses_after(lost_at).then(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the Redis server came back with less data than it had: new claims are refused for one retention, \
                 because effects whose records were lost would run again",
            )
            .logged()
        })
    }

    /// True if no claims are granted because data were lost at this time; zero for never.
    fn refuses_after(&self, lost_at: Timestamp) -> bool {
        match self.health.on_loss {
            OnStoreLoss::Refuse(length) if lost_at != Timestamp::default() => {
                self.clock.now().is_none_or(|now| now < lost_at.after(length))
            }
            OnStoreLoss::Refuse(_) | OnStoreLoss::Alarm => false,
        }
    }

    /// The last loss of data, as the server knows it now.
    pub(super) async fn data_loss(&self) -> Result<Option<DataLoss>, Error> {
        self.beat_now().await?;
        let at = self.health.state.lock().lost_at;
        let loss = DataLoss { at, refuses_claims: self.refuses_after(at) };
        Ok((at != Timestamp::default()).then_some(loss))
    }

    /// True if claims may use this connection immediately.
    pub(super) fn is_introduced(&self, numbered: &NumberedConnection) -> bool {
        self.health.state.lock().connection == numbered.number
    }

    /// Checks a connection before its first claim.
    pub(super) async fn introduce(&self, numbered: &mut NumberedConnection) -> Result<(), Error> {
        if self.is_introduced(numbered) {
            return Ok(());
        }
        let _one = self.health.looking.lock().await;
        if self.is_introduced(numbered) {
            return Ok(());
        }
        self.examine(numbered).await?;
        self.beat(numbered).await?;
        self.health.state.lock().connection = numbered.number;
        Ok(())
    }

    /// Reads the server's settings and stores the conclusions.
    async fn examine(&self, numbered: &mut NumberedConnection) -> Result<(), Error> {
        let nodes = match numbered.wire.primaries().await {
            Ok(nodes) => nodes,
            Err(error) => return Err(self.link.failed(error, numbered.number, CallReach::Read)),
        };
        let mut warnings = Vec::new();
        let mut unfit = None;
        for node in &nodes {
            let facts = self.facts(numbered, node).await?;
            if facts.of("role").is_some_and(|role| role != "master") {
                // After a failover the next connection leads to the new primary; on the first connection it is a
                // configuration error.
                self.link.give_up(numbered.number);
                let first = self.health.state.lock().connection == 0;
                return Err(Error::new(
                    if first { ErrorKind::Setup } else { ErrorKind::Unavailable },
                    "the Redis server is a replica, which takes no writes: give the URL of its primary, or of Sentinel",
                ));
            }
            unfit = unfit.or(facts.unfit(self.link.address.dialect()));
            self.rules.server_is(facts.version());
            warnings.extend(facts.warnings(self.health.content));
        }
        warnings.dedup();
        // A script that may write but not publish would fail after its write, so test it now.
        let mut publish = self.publish();
        publish.arg("");
        if let Err(error) = numbered.wire.query(&publish).await {
            return Err(self.link.failed(error, numbered.number, CallReach::Read));
        }
        let mut state = self.health.state.lock();
        if state.unfit != unfit {
            match &unfit {
                Some(why) => {
                    tracing::error!(store = %self.name, why, "the Redis server's settings are unsafe: no claims are granted");
                }
                None => tracing::info!(store = %self.name, "the Redis server's settings are safe again"),
            }
        }
        state.unfit = unfit;
        state.warnings = warnings;
        Ok(())
    }

    /// How much memory all primaries use in total.
    pub(super) async fn used_bytes(&self) -> Result<u64, Error> {
        let mut numbered = self.link.connection().await?;
        let failed = |error, number| self.link.failed(error, number, CallReach::Read);
        let nodes = numbered.wire.primaries().await.map_err(|error| failed(error, numbered.number))?;
        let mut bytes = 0_u64;
        for node in &nodes {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let text =
                numbered.wire.query_node(info, node).await.map_err(|error| failed(error, numbered.number))?;
            let used = fields(&text).get("used_memory").and_then(|used| used.parse::<u64>().ok());
            bytes = bytes.saturating_add(used.unwrap_or_default());
        }
        Ok(bytes)
    }

    async fn facts(&self, numbered: &mut NumberedConnection, node: &Node) -> Result<RedisServerInfo, Error> {
        let mut info = redis::cmd("INFO");
        info.arg("all");
        let text = match numbered.wire.query_node(info, node).await {
            Ok(text) => text,
            Err(error) => return Err(self.link.failed(error, numbered.number, CallReach::Read)),
        };
        let mut facts = RedisServerInfo(fields(&text));
        for setting in ["maxmemory-policy", "save", "appendfsync", "min-replicas-to-write"] {
            let mut config = redis::cmd("CONFIG");
            config.arg("GET").arg(setting);
            // Often forbidden; then INFO must suffice.
            if let Ok(Value::Map(pairs)) = numbered.wire.query_node(config, node).await {
                for (_, value) in pairs {
                    if let Value::BulkString(value) = value {
                        facts.0.insert(setting.to_owned(), String::from_utf8_lossy(&value).into_owned());
                    }
                }
            }
        }
        Ok(facts)
    }

    /// Increments the markers, and checks whether one went back since the last time, whether the store grants claims
    /// and whether the secret is still the one of this process.
    async fn beat(&self, numbered: &mut NumberedConnection) -> Result<(), Error> {
        let mut lost_at = Timestamp::default();
        for key in self.names.markers(self.link.address.dialect()) {
            let mut beat = self.count(numbered, &key, "").await?;
            let known = self.health.state.lock().markers.get(&key).cloned();
            if known.is_some_and(|(id, count)| id != beat.id || count >= beat.count) {
                beat = self.count(numbered, &key, "lost").await?;
            }
            if let Tick::SteppedBack(by) = self.clock.saw(beat.now) {
                tracing::error!(
                    store = %self.name,
                    clock_stepped_back = true,
                    by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
                    "the Redis server's clock went back by more than a stub lives: fences of forgotten keys may repeat"
                );
            }
            lost_at = lost_at.max(beat.lost_at);
            self.health.state.lock().markers.insert(key, (beat.id, beat.count));
        }
        self.keep_loss(lost_at);
        self.read_transfer(numbered).await?;
        self.compare_secret(numbered).await.map(drop)
    }

    /// Records when data were last lost, as seen by this process or another; zero for never.
    fn keep_loss(&self, lost_at: Timestamp) {
        let mut state = self.health.state.lock();
        if lost_at > state.lost_at {
            tracing::error!(
                store = %self.name,
                store_loss = true,
                %lost_at,
                consequence = self.health.content.consequence(),
                "the Redis server came back with less data than it had"
            );
            // Another process may run lost effects again, so this process must not answer with their earlier
            // outcomes.
            self.caches.clear();
        }
        state.lost_at = lost_at;
    }

    async fn count(&self, numbered: &mut NumberedConnection, key: &[u8], seen: &str) -> Result<Beat, Error> {
        let candidate: [u8; 16] = rand::random();
        let arguments = [b"beat".to_vec(), candidate.to_vec(), seen.as_bytes().to_vec()];
        let answer = self.link.call(numbered, &self.rules.marker, key, &arguments, CallReach::Write).await?;
        let mut answer = ScriptReply::new(answer)?;
        Ok(Beat {
            id: answer.bytes()?,
            count: answer.number()?,
            now: Timestamp::from_micros(answer.number()?),
            lost_at: Timestamp::from_micros(answer.number()?),
        })
    }
}

struct Beat {
    id: Vec<u8>,
    count: u64,
    now: Timestamp,
    lost_at: Timestamp,
}

/// The first connection: an unfit server is refused.
pub(super) async fn introduce_first(shared: &Shared) -> Result<(), Error> {
    let mut numbered = shared.link.connection().await?;
    shared.introduce(&mut numbered).await?;
    match shared.refusal() {
        Some(refusal) if refusal.kind() == ErrorKind::Setup => Err(refusal),
        _ => {
            for warning in shared.health.warnings() {
                tracing::warn!(store = %shared.name, warning, "the Redis server can lose data");
            }
            Ok(())
        }
    }
}

/// Knows whether the server can be used. A probe is a write: a server that refuses writes cannot be used either.
pub(super) fn availability(shared: &Arc<Shared>, used_for: &'static str) -> Arc<Availability> {
    let server = Server::of(shared.name.clone(), used_for);
    let (timing, runtime) = (shared.link.timing(), tokio::runtime::Handle::current());
    let shared = Arc::clone(shared);
    Availability::new(server, timing, Some(runtime), move || {
        let shared = Arc::clone(&shared);
        Box::pin(async move { shared.beat_now().await.map_err(|error| shared.link.probe_failure(&error)) })
    })
}

impl Shared {
    async fn beat_now(&self) -> Result<(), Error> {
        let mut numbered = self.link.connection().await?;
        self.introduce(&mut numbered).await?;
        let _one = self.health.looking.lock().await;
        self.beat(&mut numbered).await
    }
}

/// Beats every second, and checks the settings at every interval, while the store exists.
pub(super) async fn watch_over(shared: Arc<Shared>, availability: Arc<Availability>, check_every: Duration) {
    let mut beats = tokio::time::interval(BEAT.min(check_every));
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut checks = tokio::time::interval(check_every);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = checks.tick() => {
                if availability.refusal().is_none()
                    && let Ok(mut numbered) = shared.link.connection().await
                    && let Err(error) = shared.examine(&mut numbered).await
                    && availability.judge().await == Verdict::Available
                {
                    tracing::warn!(store = %shared.name, %error, "the Redis server's settings could not be read");
                }
            }
            // During an outage, probes are beats.
            _ = beats.tick() => if availability.refusal().is_none()
                && let Err(error) = shared.beat_now().await
            {
                availability.report();
                tracing::debug!(store = %shared.name, %error, "the Redis marker could not be incremented");
            }
        }
    }
}

struct RedisServerInfo(HashMap<String, String>);

impl RedisServerInfo {
    fn of(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The first two numbers of the version.
    fn version(&self) -> (u32, u32) {
        let version = self.of("redis_version").unwrap_or("0");
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Why claims would be lost here.
    fn unfit(&self, dialect: Dialect) -> Option<String> {
        let need = match dialect {
            Dialect::One => (6, 2),
            Dialect::Cluster => (7, 0),
        };
        if self.version() < need {
            let (major, minor) = need;
            let version = self.of("redis_version").unwrap_or("of an unknown version");
            return Some(format!(
                "the Redis server is {version}, Semel needs {major}.{minor} or newer here: upgrade it"
            ));
        }
        match self.of("maxmemory-policy").or(self.of("maxmemory_policy")) {
            Some("noeviction") => None,
            Some(policy) => Some(format!(
                "the Redis server evicts keys (maxmemory-policy {policy}), and an evicted claim is an effect that \
                 happens twice: set maxmemory-policy noeviction, or use another server"
            )),
            None => Some(
                "the Redis server does not say its maxmemory-policy: allow the user CONFIG GET or INFO"
                    .to_owned(),
            ),
        }
    }

    /// The promises that it does not make.
    fn warnings(&self, content: RedisContent) -> Vec<String> {
        let mut warnings = Vec::new();
        let appends = self.of("aof_enabled") == Some("1");
        let (data, consequence) = (content.name(), content.consequence());
        match (appends, self.of("appendfsync"), self.of("save")) {
            (true, Some("always"), _) => {}
            (true, _, _) => warnings.push(format!(
                "Redis syncs its log once a second: a crash can lose the last seconds of {data}"
            )),
            (false, _, Some("")) => warnings
                .push(format!("Redis keeps nothing on disk: a restart loses all {data}, and {consequence}")),
            (false, _, _) => warnings.push(format!(
                "Redis keeps snapshots only: a crash loses all {data} since the last one, and {consequence}"
            )),
        }
        let replicas = self.of("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0_u32);
        if replicas > 0 && self.of("min-replicas-to-write").is_none_or(|count| count == "0") {
            warnings.push(
                "Redis takes writes without its replicas: a failover can lose the last of them, unless require_replicas \
                 is set; set min-replicas-to-write too, so that a cut-off primary stops"
                    .to_owned(),
            );
        }
        warnings
    }
}

fn fields(info: &Value) -> HashMap<String, String> {
    let text = match info {
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
        .collect()
}
