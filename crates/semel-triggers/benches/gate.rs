//! A burst of triggers with the gate on, against the same burst without a gate and without Redis: how many are accepted a second,
//! and what that costs PostgreSQL.
//!
//! `cargo bench -p semel-triggers --all-features --bench gate` prints, `-- --check` also fails where a goal is missed. Both sides take turns on
//! the same servers, and each begins when those have written down what the turn before left them; after each turn
//! everything is drained, and both must have left the same number of rows.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use semel::Engine;
use semel::secret::Secret;
use semel::store::{RedisClient, RedisStore};
use semel_pipeline::ledger::{EventFilter, Ledger, Page, PostgresLedger};
use semel_testbed::{Postgres, Redis};
use semel_triggers::buffer::Buffer;
use semel_triggers::drainer::{DrainCounters, DrainPace, Drainer};
use semel_triggers::gate::{Gate, GateMode, Limit};
use semel_triggers::trigger::{Burst, RunRequest, Triggers};
use tokio::runtime::Runtime;

/// As the binary has it.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REPEATS: usize = 7;
/// How many callers there are at once, and how many triggers they make. Both bursts are judged.
const BURSTS: [(u64, u64); 2] = [(256, 20_000), (64, 10_000)];
const FASTER: f64 = 1.5;
const CPU: f64 = 0.3;

/// What a burst meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The gate, and the buffer behind it.
    Gate,
    /// The ledger alone, as a user without Redis has it.
    Ledger,
}

/// What a burst came to.
struct Turn {
    rate: f64,
    /// Microseconds of CPU for each trigger: of PostgreSQL, of Redis, of this process.
    cpu: [f64; 3],
    rows: u64,
}

impl std::fmt::Display for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [postgres, redis, own] = self.cpu;
        write!(f, "{:6.0}/s {postgres:3.0} {redis:3.0} {own:3.0} us", self.rate)
    }
}

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let (postgres, redis) = (Postgres::start().expect("a PostgreSQL"), Redis::start().expect("a Redis"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    // One for all turns: a connection that ends takes its CPU time out of the account.
    let ledger = runtime.block_on(PostgresLedger::open(&postgres.url())).expect("a ledger");
    let ledger: Arc<dyn Ledger> = Arc::new(ledger);
    let mut met = true;
    for of in BURSTS {
        let (rate, cpu, same) = compare(&runtime, (&postgres, &redis), &ledger, of);
        met &= rate >= FASTER && cpu <= CPU && same;
    }
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn compare(
    runtime: &Runtime,
    servers: (&Postgres, &Redis),
    ledger: &Arc<dyn Ledger>,
    of: (u64, u64),
) -> (f64, f64, bool) {
    let (callers, triggers) = of;
    println!(
        "{triggers} triggers by {callers} callers at once: accepted a second, and the CPU of PostgreSQL, Redis and this process for each"
    );
    let (mut rates, mut cpus, mut same) = (Vec::new(), Vec::new(), true);
    for repeat in 0..=REPEATS {
        let off = runtime.block_on(burst(servers, ledger, of, (Way::Ledger, repeat)));
        let on = runtime.block_on(burst(servers, ledger, of, (Way::Gate, repeat)));
        // The first one warms both.
        if repeat > 0 {
            println!("  gate {on}   no gate, no Redis {off}");
            rates.push(on.rate / off.rate);
            cpus.push(on.cpu[0] / off.cpu[0]);
        }
        same &= on.rows == off.rows && on.rows == triggers;
    }
    rates.sort_by(f64::total_cmp);
    cpus.sort_by(f64::total_cmp);
    let (rate, cpu) = (rates[REPEATS / 2], cpus[REPEATS / 2]);
    println!(
        "  accepted: {rate:.2} x ({:.2} to {:.2}), goal at least {FASTER} x",
        rates[0],
        rates[REPEATS - 1]
    );
    println!(
        "  PostgreSQL's CPU: {cpu:.2} x ({:.2} to {:.2}), goal at most {CPU} x",
        cpus[0],
        cpus[REPEATS - 1]
    );
    println!("  the same rows in the end: {same}");
    (rate, cpu, same)
}

async fn burst(
    (postgres, redis): (&Postgres, &Redis),
    ledger: &Arc<dyn Ledger>,
    (callers, total): (u64, u64),
    (way, repeat): (Way, usize),
) -> Turn {
    rest(postgres, redis).await;
    let tenant = format!("{way:?}-{repeat}-{callers}");
    let secret = Secret::from_bytes([3; 32]);
    let store = RedisStore::builder(&redis.url()).connect().await.expect("a store");
    let claims = Engine::builder(store).secret(secret.clone()).build().expect("an engine");
    let client = RedisClient::builder(redis.url()).build().expect("the URL is good");
    let buffer = Arc::new(Buffer::new(client, "semel:burst", 1_000_000));
    let gate = Arc::new(Gate::new(Arc::clone(&buffer), GateMode::On, Limit::default(), None));
    let parts = Burst { claims, buffer: Arc::clone(&buffer), gate };
    let parts = (way == Way::Gate).then_some(parts);
    let triggers = Arc::new(Triggers::new(Arc::clone(ledger), Arc::new(secret), parts));
    let next = Arc::new(AtomicU64::new(0));
    let cpu = || [cpu_of(postgres), redis.cpu_time().expect("it runs"), cpu_of_this_process()];
    let (began, before) = (Instant::now(), cpu());
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (triggers, next, tenant) = (Arc::clone(&triggers), Arc::clone(&next), tenant.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= total {
                        return;
                    }
                    triggers.trigger(&ask(&tenant, number)).await.expect("it is accepted");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("it ends");
    }
    let (took, after) = (began.elapsed(), cpu());
    let each = |part: usize| (after[part] - before[part]).as_secs_f64() * 1e6 / total as f64;
    let drainer = Drainer::new(
        Arc::clone(&buffer),
        Arc::clone(ledger),
        DrainPace::default(),
        Arc::<DrainCounters>::default(),
    );
    while !buffer.tenants().await.expect("Redis answers").is_empty() {
        drainer.turn().await.expect("it drains");
    }
    let rows = rows(&**ledger, &tenant).await;
    Turn { rate: total as f64 / took.as_secs_f64(), cpu: [each(0), each(1), each(2)], rows }
}

/// Waits until neither server has anything left to do: what one side leaves behind is not the other's to pay.
async fn rest(postgres: &Postgres, redis: &Redis) {
    for work in ["VACUUM ANALYZE", "CHECKPOINT"] {
        postgres.sql(work).expect("it does its work");
    }
    redis.tell(&["BGREWRITEAOF"]).expect("it begins");
    for busy in ["aof_rewrite_scheduled", "aof_rewrite_in_progress"] {
        while redis.info(busy).expect("it says") != "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The CPU time of this process so far.
fn cpu_of_this_process() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

fn ask(tenant: &str, number: u64) -> RunRequest {
    RunRequest {
        principal: "bench".to_owned(),
        tenant: tenant.to_owned(),
        key: Some(format!("order-{number}")),
        delay: Duration::from_secs(3600),
        ..RunRequest::json("crm", format!("{{\"order\":{number}}}"))
    }
}

async fn rows(ledger: &dyn Ledger, tenant: &str) -> u64 {
    let filter = EventFilter { tenant: Some(tenant.to_owned()), ..EventFilter::default() };
    let (mut rows, mut after) = (0, None);
    loop {
        let page = ledger.events(filter.clone(), Page { after, limit: 1000 }).await.expect("it lists");
        rows += page.items.len() as u64;
        match page.next {
            Some(next) => after = Some(next),
            None => return rows,
        }
    }
}

/// The CPU time of all processes of the server so far.
fn cpu_of(postgres: &Postgres) -> Duration {
    postgres.cpu_time().expect("it runs")
}
