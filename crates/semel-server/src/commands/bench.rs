//! `semel bench`: measures the stores on this machine, for sizing: operations per second, and bytes per record.
//!
//! It starts what it needs, as the drills do, and removes it at the end.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use semel::Engine;
use semel::key::{Key, Origin};
use semel::secret::Secret;
use semel::store::Store;
use serde::Serialize;
use tokio::time::Instant;

use super::drill::check_servers;
use super::drill::environment::Skipped;
use super::drill::postgres::DrillPostgres;
use super::drill::redis::DrillRedis;
use super::drill::watchdog::Watchdog;
use super::remote::print;
use super::screen::write_line;
use super::table::table;
use crate::cli::ServeArgs;
use crate::config::{Config, Environment, LogConfig};
use crate::interrupted::Interrupted;
use crate::signals::Signals;
use crate::store;
use crate::telemetry::logs;

#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// The store
    #[arg(value_parser = names())]
    name: String,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Size of each outcome in bytes
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    bytes: usize,
    /// Number of concurrent callers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    callers: u64,
    /// Redis server to measure, instead of a redis-server started for it
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL database to measure, instead of a server started for it
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Print one line of JSON per store
    #[arg(long)]
    json: bool,
}

/// The stores, with what they are.
const STORES: [(&str, &str); 5] = [
    ("memory", "in this process"),
    ("embedded", "a folder of this machine"),
    ("redis", "a Redis server that syncs every write"),
    ("postgres", "a PostgreSQL server"),
    ("tiered", "PostgreSQL with Redis in front of it"),
];

fn names() -> PossibleValuesParser {
    let stores = STORES.iter().map(|(name, about)| PossibleValue::new(name).help(about));
    stores.chain([PossibleValue::new("all").help("all of them")]).collect::<Vec<_>>().into()
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    store: &'static str,
    keys: u64,
    outcome_bytes: usize,
    callers: u64,
    /// First calls per second: claim, effect, stored outcome.
    first_per_second: f64,
    /// 99th percentile of a first call.
    first_p99_ms: f64,
    /// Answers from the store per second, without the cache of the process.
    answers_per_second: f64,
    answer_p99_ms: f64,
    /// Bytes of the store per key, the outcome included.
    bytes_per_key: Option<u64>,
}

/// How long callers that were interrupted may take to end.
const CALLERS_END: Duration = Duration::from_secs(5);

/// Runs the command.
///
/// # Errors
/// A store cannot be opened or fails, or Ctrl-C.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    logs::start(LogConfig::quiet());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (watchdog, process) = Watchdog::start()?;
    let measured = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        tokio::select! {
            biased;
            _ = signals.next() => Err(Interrupted::new("everything that was started for it is removed").into()),
            measured = measure_all(args, &watchdog) => measured,
        }
    });
    // Its callers end first: they would write while their keys are removed.
    runtime.shutdown_timeout(CALLERS_END);
    watchdog.end();
    process.wait()?;
    measured
}

async fn measure_all(args: &BenchArgs, watchdog: &Watchdog) -> anyhow::Result<()> {
    let needs = |stores: &[&str]| args.name == "all" || stores.contains(&args.name.as_str());
    let redis = args.redis.as_deref().filter(|_| needs(&["redis", "tiered"]));
    let postgres = args.postgres.as_deref().filter(|_| needs(&["postgres", "tiered"]));
    check_servers(redis, postgres).await?;
    let mut rows = Vec::new();
    for (name, _) in STORES.iter().filter(|(name, _)| args.name == "all" || args.name == *name) {
        let measured = match Box::pin(measure(name, args, watchdog)).await {
            // All that can be measured here; a store that was named must be there.
            Err(error) if args.name == "all" && error.is::<Skipped>() => {
                eprintln!("{name}: skipped, {error}");
                continue;
            }
            measured => measured.with_context(|| format!("the store {name}"))?,
        };
        if args.json {
            print(&serde_json::to_value(&measured)?)?;
        }
        rows.push(row(&measured));
    }
    if args.json {
        return Ok(());
    }
    table(["STORE", "FIRST CALLS/S", "P99", "ANSWERS/S", "P99", "BYTES/KEY"], &rows)?;
    write_line(&format!(
        "{} keys, outcomes of {} bytes, {} callers; other machines and other work change these figures",
        args.keys, args.bytes, args.callers
    ))
}

fn row(measured: &Measured) -> [String; 6] {
    let millis = |value: f64| format!("{value:.1} ms");
    [
        measured.store.to_owned(),
        format!("{:.0}", measured.first_per_second),
        millis(measured.first_p99_ms),
        format!("{:.0}", measured.answers_per_second),
        millis(measured.answer_p99_ms),
        measured.bytes_per_key.map(|bytes| bytes.to_string()).unwrap_or_default(),
    ]
}

async fn measure(name: &'static str, args: &BenchArgs, watchdog: &Watchdog) -> anyhow::Result<Measured> {
    let folder = tempfile::Builder::new().prefix("semel-bench-").tempdir().context("a temporary folder")?;
    watchdog.folder(folder.path())?;
    let redis = match name {
        "redis" | "tiered" => Some(DrillRedis::find(args.redis.as_deref())?),
        _ => None,
    };
    if let Some(redis) = redis.as_ref().filter(|redis| redis.is_foreign()) {
        watchdog.redis(&redis.url, &redis.prefix)?;
    }
    let postgres = match (name, args.postgres.as_deref()) {
        ("postgres" | "tiered", Some(url)) => {
            let named = DrillPostgres::named(url, DrillPostgres::new_schema());
            watchdog.postgres(&named.url, &named.schema)?;
            Some(named)
        }
        ("postgres" | "tiered", None) => {
            let missing = Skipped("it needs PostgreSQL: install it, or use --postgres URL");
            Some(DrillPostgres::start()?.ok_or(missing)?)
        }
        _ => None,
    };
    let mut settings =
        "[store]\nurl = { env = \"URL\" }\nmax_bytes = 0\nnew_keys_per_second = 0\n".to_owned();
    let url = match (name, &redis, &postgres) {
        ("memory", ..) => "memory:".to_owned(),
        ("redis", Some(redis), _) => {
            settings += &format!("prefix = {:?}\n", redis.prefix);
            redis.url.clone()
        }
        (_, redis, Some(postgres)) => {
            settings += &format!("schema = {:?}\n", postgres.schema);
            if let Some(redis) = redis {
                settings +=
                    &format!("prefix = {:?}\ncoordinate = {{ env = \"COORDINATE\" }}\n", redis.prefix);
            }
            postgres.url.clone()
        }
        _ => format!("embedded:{}", folder.path().join("data").display()),
    };
    let given = |variable: &str| match variable {
        "URL" => Some(url.clone()),
        _ => redis.as_ref().map(|redis| redis.url.clone()),
    };
    let config =
        Config::parse("the settings of the store", &settings, &ServeArgs::default(), &Environment(&given))?;
    let opened = store::open(&config.records).await?;
    let measured = Bench::new(name, args, opened.store)?.measure().await;
    drop((redis, postgres, folder));
    measured
}

/// One store while it is measured.
struct Bench<'a> {
    name: &'static str,
    args: &'a BenchArgs,
    engine: Engine,
}

impl<'a> Bench<'a> {
    fn new(name: &'static str, args: &'a BenchArgs, store: Arc<dyn Store>) -> anyhow::Result<Self> {
        // Without the cache of the process: answers come from the store.
        let engine = Engine::builder(store).secret(Secret::random()).hot_cache(0, Duration::ZERO).build()?;
        Ok(Self { name, args, engine })
    }

    async fn measure(&self) -> anyhow::Result<Measured> {
        // Opens connections and creates tables, which are no part of a record.
        self.engine.verify(3).await.context("the store failed its self-test")?;
        let store = self.engine.store();
        let before = store.used_bytes().await?;
        let first = self.call_all("first calls").await?;
        let after = store.used_bytes().await?;
        let answers = self.call_all("answers").await?;
        self.engine.drain().await;
        let used = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(Measured {
            store: self.name,
            keys: self.args.keys,
            outcome_bytes: self.args.bytes,
            callers: self.args.callers,
            first_per_second: first.per_second,
            first_p99_ms: first.p99_ms,
            answers_per_second: answers.per_second,
            answer_p99_ms: answers.p99_ms,
            bytes_per_key: used.map(|used| used / self.args.keys),
        })
    }

    /// Calls every key once.
    async fn call_all(&self, what: &str) -> anyhow::Result<Rate> {
        let began = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..self.args.callers)
            .map(|_| {
                let (engine, next) = (self.engine.clone(), Arc::clone(&next));
                let (keys, bytes) = (self.args.keys, self.args.bytes);
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= keys {
                            return anyhow::Ok(took);
                        }
                        let since = Instant::now();
                        call(&engine, number, bytes).await?;
                        took.push(since.elapsed());
                    }
                })
            })
            .collect();
        let progress = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(200));
            loop {
                ticks.tick().await;
                if std::io::stderr().is_terminal() {
                    let done = next.load(Ordering::Relaxed).min(self.args.keys);
                    eprint!("\r\x1b[K{} {what}: {done}/{}", self.name, self.args.keys);
                    let _ = std::io::stderr().flush();
                }
            }
        };
        let all = async {
            let mut took = Vec::new();
            for caller in callers {
                took.extend(caller.await??);
            }
            anyhow::Ok(took)
        };
        let mut took = tokio::select! {
            took = all => took?,
            () = progress => Vec::new(),
        };
        let elapsed = began.elapsed();
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        took.sort_unstable();
        let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
        Ok(Rate { per_second: took.len() as f64 / elapsed.as_secs_f64(), p99_ms: p99.as_secs_f64() * 1e3 })
    }
}

struct Rate {
    per_second: f64,
    p99_ms: f64,
}

/// A call as the gateway makes it: with the request in the record.
async fn call(engine: &Engine, number: u64, bytes: usize) -> anyhow::Result<()> {
    let key = Key::new("bench").value(format!("order-{number}"));
    let origin =
        Origin::new("POST", "/v1/payments", Some("5f1c96297dfa537d016983df1599a94c"), Some("dc67f9b2"));
    let effect = move || async move { text(bytes) };
    engine.once(key).origin(origin).run_infallible(effect).await.context("a call")?;
    Ok(())
}

/// A text that does not compress: PostgreSQL compresses large outcomes.
fn text(length: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(length + 10);
    while text.len() < length {
        let random: u64 = rand::random();
        text.extend((0..10).map(|place| char::from(LETTERS[(random >> (6 * place)) as usize & 63])));
    }
    text.truncate(length);
    text
}
