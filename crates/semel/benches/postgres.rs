//! The PostgreSQL store against pgbench with the same two statements, and against a lone statement.
//!
//! `cargo bench -p semel --features postgres --bench postgres` prints, `-- --check` also fails where a goal is missed,
//! `-- lone` (pairs, lone, wake) measures that alone.
//! Both sides take turns on one server, so that a busy machine slows both. CPU is that of client and server together.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::io::Write as _;
use std::process::{Command as Program, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, NewClaim, Owner, Ruling, Terms};
use semel::store::{PostgresStore, Store};
use semel_testbed::{Postgres, Storage};
use sqlx::Connection as _;

const REPEATS: usize = 5;
const TURN: Duration = Duration::from_secs(2);

/// A claim and a complete as one would write them by hand on the same table.
const BY_HAND: &str = "\
\\set a random(1, 9223372036854775807)
\\set b random(1, 9223372036854775807)
INSERT INTO semel.record (id, version, state, mode, fingerprint, owner, fence, hint, claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, grace, memory) SELECT decode(lpad(to_hex(:a::bigint), 16, '0') || lpad(to_hex(:b::bigint), 16, '0'), 'hex'), 1, 3, 2, '\\x0707070707070707070707070707070707070707070707070707070707070707', '\\x01010101010101010101010101010101', now, '\\x6f726465722d31', now, now, now + 30000000, now + 86400000000, now + 172800000000, NULL, 30000000, 60000000, 86400000000, 60000000, 86400000000 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) c ON CONFLICT (id) DO NOTHING RETURNING fence \\gset
UPDATE semel.record SET state = 4, version = 2, outcome = '\\x040000007465787400000000006f6b', changed_at = now, lease_until = now, expires_at = now + retention + grace, forget_at = now + retention + grace + memory, sweep_at = now + retention + grace FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) c WHERE id = decode(lpad(to_hex(:a::bigint), 16, '0') || lpad(to_hex(:b::bigint), 16, '0'), 'hex') AND owner = '\\x01010101010101010101010101010101' AND fence = :fence::bigint AND state IN (2, 3) AND now < lease_until;
";

const SINGLE: &str = "INSERT INTO semel.record (id, version, state, mode, fingerprint, owner, fence, hint, claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, grace, memory) SELECT $1, 1, 3, 2, $2, $3, now, $4, now, now, now + 30000000, now + 86400000000, now + 172800000000, NULL, 30000000, 60000000, 86400000000, 60000000, 86400000000 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) c ON CONFLICT (id) DO NOTHING RETURNING fence";

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let server = Postgres::start().expect("a PostgreSQL server can be started");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let store = runtime.block_on(PostgresStore::open(server.url())).expect("the store can be opened");
    let store = Arc::new(store);
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|wanted| wanted == name);
    let mut met = true;
    if wanted("pairs") {
        println!("durable claim + complete, pairs a second and CPU a pair, beside pgbench with 32 clients");
        for (callers, goal) in [(64, 1.5), (256, 2.5)] {
            met &= compare_pairs(&runtime, &server, &store, callers, goal);
        }
    }
    if wanted("lone") {
        println!(
            "one caller, median of one durable claim, beside the single statement (goal: at most 1.10 x)"
        );
        met &= compare_latency(&runtime, &server, &store);
    }
    if wanted("wake") {
        println!(
            "wake-up of a waiter in another process, median from the call of complete (goal: at most 0.15 x polling)"
        );
        met &= compare_wakeups(&runtime);
    }
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Turn {
    pairs: f64,
    cpu: Duration,
    seconds: f64,
}

impl Turn {
    fn rate(&self) -> f64 {
        self.pairs / self.seconds
    }

    fn cpu_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pairs
    }
}

fn compare_pairs(
    runtime: &tokio::runtime::Runtime,
    server: &Postgres,
    store: &Arc<PostgresStore>,
    callers: usize,
    goal: f64,
) -> bool {
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let (theirs, ours) = (pgbench(server), ours(runtime, server, store, callers));
        println!(
            "  {callers:>3} callers {:>7.0}/s {:>5.0} us   pgbench {:>7.0}/s {:>5.0} us",
            ours.rate(),
            ours.cpu_each(),
            theirs.rate(),
            theirs.cpu_each()
        );
        rates.push(ours.rate() / theirs.rate());
        cpus.push(ours.cpu_each() / theirs.cpu_each());
    }
    let (rate, cpu) = (median(&mut rates), median(&mut cpus));
    println!(
        "  {callers:>3} callers: {rate:.2} x the pairs ({:.2} to {:.2}, goal {goal} x), {cpu:.2} x the CPU ({:.2} to {:.2}, goal 0.30 x)",
        rates[0],
        rates[REPEATS - 1],
        cpus[0],
        cpus[REPEATS - 1]
    );
    rate >= goal && cpu <= 0.30
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cpu_of_this_process() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

fn claim() -> NewClaim {
    NewClaim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([7; 32]),
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-1"),
    }
}

fn key() -> KeyId {
    KeyId::from_bytes(*Owner::random().as_bytes())
}

fn ours(
    runtime: &tokio::runtime::Runtime,
    server: &Postgres,
    store: &Arc<PostgresStore>,
    callers: usize,
) -> Turn {
    let pairs = Arc::new(AtomicU64::new(0));
    let outcome = Arc::new(Outcome::new("text", "ok"));
    let before = (server.cpu_time().expect("a running server"), cpu_of_this_process());
    let began = Instant::now();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (store, pairs, outcome) = (Arc::clone(store), Arc::clone(&pairs), Arc::clone(&outcome));
                tokio::spawn(async move {
                    while began.elapsed() < TURN {
                        let (id, claim) = (key(), claim());
                        let fingerprint = claim.fingerprint;
                        let Ok(Ruling::Won(win)) = store.apply(id, Command::Claim(claim)).await else {
                            panic!("a fresh key is won")
                        };
                        let outcome = Arc::clone(&outcome);
                        let complete =
                            Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
                        let done = store.apply(id, complete).await;
                        assert!(matches!(done, Ok(Ruling::Accepted { .. })), "{done:?}");
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a caller ends");
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let after = (server.cpu_time().expect("a running server"), cpu_of_this_process());
    Turn {
        pairs: pairs.load(Ordering::Relaxed) as f64,
        cpu: (after.0 - before.0) + (after.1 - before.1),
        seconds,
    }
}

/// Runs pgbench for one turn. Its shell says how much processor time it took.
fn pgbench(server: &Postgres) -> Turn {
    let mut script = tempfile::NamedTempFile::new().expect("a temporary file");
    script.write_all(BY_HAND.as_bytes()).expect("room for a script");
    let before = server.cpu_time().expect("a running server");
    let run = format!(
        "PATH=$PATH:/usr/lib/postgresql/15/bin pgbench -n -M prepared -c 32 -j 2 -T {} -f {} -h 127.0.0.1 -p {} -U postgres postgres && cat /proc/$$/stat",
        TURN.as_secs(),
        script.path().display(),
        server.port()
    );
    let output = Program::new("sh").arg("-c").arg(run).stderr(Stdio::inherit()).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).expect("pgbench says how it went");
        line[start.len()..].split_whitespace().next().expect("a number").to_owned()
    };
    let pairs: f64 = word("number of transactions actually processed: ")
        .trim_end_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .expect("a number");
    // Its own figure, without the time it took to start and to connect.
    let seconds = pairs / word("tps = ").parse::<f64>().expect("a number");
    let stat = text.lines().last().expect("the shell's own line");
    // Fields 16 and 17, after the name in brackets: ticks of a hundredth of a second for ended children.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[13..15].iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    let client = Duration::from_millis(ticks * 10);
    Turn { pairs, cpu: server.cpu_time().expect("a running server") - before + client, seconds }
}

fn compare_latency(runtime: &tokio::runtime::Runtime, server: &Postgres, store: &Arc<PostgresStore>) -> bool {
    let mut ratios = Vec::new();
    let mut connection =
        runtime.block_on(sqlx::PgConnection::connect(&server.url())).expect("a second connection");
    for _ in 0..REPEATS {
        let (mut single, mut ours) = (Vec::new(), Vec::new());
        runtime.block_on(async {
            for _ in 0..200 {
                let (id, claim) = (key(), claim());
                let began = Instant::now();
                sqlx::query(SINGLE)
                    .bind(id.as_bytes().as_slice())
                    .bind(claim.fingerprint.as_bytes().as_slice())
                    .bind(claim.owner.as_bytes().as_slice())
                    .bind(b"order-1".as_slice())
                    .fetch_one(&mut connection)
                    .await
                    .expect("a statement by hand");
                single.push(began.elapsed().as_secs_f64() * 1e6);
                let began = Instant::now();
                let won = store.apply(key(), Command::Claim(claim)).await;
                ours.push(began.elapsed().as_secs_f64() * 1e6);
                assert!(matches!(won, Ok(Ruling::Won(_))), "{won:?}");
            }
        });
        let (single, ours) = (median(&mut single), median(&mut ours));
        println!("  claim {ours:>6.0} us   single statement {single:>6.0} us");
        ratios.push(ours / single);
    }
    let ratio = median(&mut ratios);
    println!("  {ratio:.2} x ({:.2} to {:.2})", ratios[0], ratios[REPEATS - 1]);
    ratio <= 1.10
}

/// On a server in memory, so that the disk is not what is measured.
fn compare_wakeups(runtime: &tokio::runtime::Runtime) -> bool {
    const POLL: Duration = Duration::from_millis(20);
    let server = Postgres::options().storage(Storage::Memory).start().expect("a PostgreSQL server");
    let open = || runtime.block_on(PostgresStore::open(server.url())).expect("the store can be opened");
    let (owner, waiter) = (open(), open());
    let mut ratios = Vec::new();
    for _ in 0..REPEATS {
        let (mut pushed, mut polled) = (Vec::new(), Vec::new());
        for turn in 0..60 {
            let took = runtime.block_on(async {
                let (id, claim) = (key(), claim());
                let fingerprint = claim.fingerprint;
                let Ok(Ruling::Won(win)) = owner.apply(id, Command::Claim(claim)).await else {
                    panic!("a fresh key is won")
                };
                let mut watch = waiter.watch(id);
                let busy = waiter.apply(id, Command::Claim(self::claim())).await;
                assert!(matches!(busy, Ok(Ruling::Busy { .. })), "{busy:?}");
                let outcome = Arc::new(Outcome::new("text", "ok"));
                let complete = Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
                // Anywhere between two polls.
                let before = POLL.mul_f64(f64::from(turn % 20) / 20.0) + POLL;
                let woken = async {
                    if turn % 2 == 0 {
                        watch.changed().await;
                    } else {
                        loop {
                            tokio::time::sleep(POLL).await;
                            let look = waiter.apply(id, Command::Claim(self::claim())).await;
                            if matches!(look, Ok(Ruling::Replay { .. })) {
                                break;
                            }
                        }
                    }
                    Instant::now()
                };
                let publish = async {
                    tokio::time::sleep(before).await;
                    let began = Instant::now();
                    let done = owner.apply(id, complete).await;
                    assert!(matches!(done, Ok(Ruling::Accepted { .. })), "{done:?}");
                    began
                };
                let (woken, began) = tokio::join!(woken, publish);
                woken.saturating_duration_since(began).as_secs_f64() * 1e6
            });
            if turn % 2 == 0 { pushed.push(took) } else { polled.push(took) }
        }
        let (pushed, polled) = (median(&mut pushed), median(&mut polled));
        println!("  pushed {pushed:>6.0} us   polled every 20 ms {polled:>6.0} us");
        ratios.push(pushed / polled);
    }
    let ratio = median(&mut ratios);
    println!("  {ratio:.3} x ({:.3} to {:.3})", ratios[0], ratios[REPEATS - 1]);
    ratio <= 0.15
}
