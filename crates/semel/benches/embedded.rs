//! The embedded store against plain SQLite and against the bare disk.
//!
//! `cargo bench -p semel --bench embedded` prints, `-- --check` also fails where a goal is missed. Both sides of
//! every comparison take turns on the same disk, so that a busy machine slows both.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};
use rustix::time::{ClockId, clock_gettime};
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{self, Begin, Command, Fence, Grant, NewClaim, Owner, Record, Ruling, Terms};
use semel::store::{EmbeddedStore, Store};
use semel::time::{Clock, SystemClock};

const REPEATS: usize = 7;
const TURN: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target folder can be written");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("threads");
    let mut met = true;

    println!("durable claim + complete, pairs a second and CPU a pair (goal: at least 5 x plain SQLite)");
    for callers in [64, 256] {
        met &= compare_pairs(&runtime, folder.path(), callers);
    }
    println!("one caller, median of one durable call (goal: at most 2 x a raw 4 KiB write + fdatasync)");
    met &= compare_latency(&runtime, folder.path());
    println!("replay from disk, one caller");
    replays(&runtime, folder.path());

    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

// === throughput ===

fn compare_pairs(runtime: &tokio::runtime::Runtime, folder: &Path, callers: usize) -> bool {
    let store = Arc::new(EmbeddedStore::open(folder.join(format!("pairs-{callers}"))).expect("a new store"));
    let plain = Plain::open(&folder.join(format!("plain-{callers}.db")));
    let mut ratios = Vec::new();
    for _ in 0..REPEATS {
        let ours = ours(runtime, &store, callers);
        let theirs = measure(|until| {
            let mut pairs = 0;
            while Instant::now() < until {
                plain.pair();
                pairs += 1;
            }
            pairs
        });
        ratios.push(ours.rate() / theirs.rate());
        println!(
            "  {callers:>3} callers: embedded {:>7.0}/s {:>6.1} us | plain {:>6.0}/s {:>6.1} us",
            ours.rate(),
            ours.cpu_each(),
            theirs.rate(),
            theirs.cpu_each()
        );
    }
    verdict(&format!("{callers} callers, pairs a second"), &mut ratios, |ratio| ratio >= 5.0, ">= 5")
}

fn ours(runtime: &tokio::runtime::Runtime, store: &Arc<EmbeddedStore>, callers: usize) -> Turn {
    measure(|until| {
        let pairs = Arc::new(AtomicU64::new(0));
        runtime.block_on(async {
            let tasks: Vec<_> = (0..callers)
                .map(|_| {
                    let (store, pairs) = (Arc::clone(store), Arc::clone(&pairs));
                    tokio::spawn(async move {
                        while Instant::now() < until {
                            pair(&*store).await;
                            pairs.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no call fails");
            }
        });
        pairs.load(Ordering::Relaxed)
    })
}

async fn pair(store: &dyn Store) {
    let id = KeyId::from_bytes(rand::random());
    let Ok(Ruling::Won(win)) = store.apply(id, claim()).await else { panic!("a new key is won") };
    let ruling = store.apply(id, complete(win.grant)).await;
    assert!(matches!(ruling, Ok(Ruling::Accepted { .. })), "{ruling:?}");
}

fn claim() -> Command {
    Command::Claim(NewClaim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([7; 32]),
        terms: Terms::default().into(),
        begin: Begin::WithClaim,
        hint: Hint::new("order-20"),
    })
}

fn complete(grant: Grant) -> Command {
    Command::Complete {
        grant,
        fingerprint: Fingerprint::from_bytes([7; 32]),
        outcome: Arc::new(Outcome::new("json", vec![b'x'; 200])),
        retention: None,
    }
}

/// What one would write without group commit: the same rules, one transaction per call, the same pragmas, and
/// no thread in between.
struct Plain(Connection);

impl Plain {
    fn open(path: &Path) -> Self {
        let connection = Connection::open(path).expect("a new file");
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 CREATE TABLE records (id BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;",
            )
            .expect("a new table");
        Self(connection)
    }

    fn apply(&self, id: KeyId, command: &Command) -> Ruling {
        let transaction = rusqlite::Transaction::new_unchecked(&self.0, TransactionBehavior::Immediate);
        let transaction = transaction.expect("nobody else writes");
        let mut record = {
            let mut get =
                self.0.prepare_cached("SELECT record FROM records WHERE id = ?1").expect("valid SQL");
            let mut rows = get.query([id.as_bytes()]).expect("a read");
            let row = rows.next().expect("a read");
            row.map(|row| Record::decode(&row.get::<_, Vec<u8>>(0).expect("a blob")).expect("a record"))
        };
        let ruling = record::apply(&mut record, command, SystemClock.now(), Fence::default());
        if let Some(record) = record {
            let mut put =
                self.0.prepare_cached("INSERT OR REPLACE INTO records VALUES (?1, ?2)").expect("valid SQL");
            put.execute(params![id.as_bytes(), record.encode()]).expect("a write");
        }
        transaction.commit().expect("a commit");
        ruling
    }

    fn pair(&self) {
        let id = KeyId::from_bytes(rand::random());
        let Ruling::Won(win) = self.apply(id, &claim()) else { panic!("a new key is won") };
        let ruling = self.apply(id, &complete(win.grant));
        assert!(matches!(ruling, Ruling::Accepted { .. }));
    }
}

// === latency ===

fn compare_latency(runtime: &tokio::runtime::Runtime, folder: &Path) -> bool {
    let store = EmbeddedStore::open(folder.join("latency")).expect("a new store");
    let raw = RawFile::new(&folder.join("raw"));
    let mut ratios = Vec::new();
    for _ in 0..REPEATS {
        let (mut calls, mut writes) = (Vec::new(), Vec::new());
        for turn in 0..400 {
            let start = Instant::now();
            runtime.block_on(async {
                let ruling = store.apply(KeyId::from_bytes(rand::random()), claim()).await;
                assert!(matches!(ruling, Ok(Ruling::Won(_))));
            });
            calls.push(start.elapsed());
            let start = Instant::now();
            raw.write(turn);
            writes.push(start.elapsed());
        }
        let (call, write) = (median(&mut calls), median(&mut writes));
        println!("  call {call:>9.1?} | raw {write:>9.1?}");
        ratios.push(call.as_secs_f64() / write.as_secs_f64());
    }
    verdict("one durable call over one raw write", &mut ratios, |ratio| ratio <= 2.0, "<= 2")
}

/// A file of fixed size that is written and synced block by block.
struct RawFile(File);

impl RawFile {
    const BLOCKS: u64 = 64;

    fn new(path: &Path) -> Self {
        let file = OpenOptions::new().create_new(true).write(true).open(path).expect("a new file");
        file.write_all_at(&vec![0; 4096 * Self::BLOCKS as usize], 0).expect("a write");
        file.sync_all().expect("a sync");
        Self(file)
    }

    fn write(&self, turn: u64) {
        self.0.write_all_at(&[turn as u8; 4096], turn % Self::BLOCKS * 4096).expect("a write");
        self.0.sync_data().expect("a sync");
    }
}

fn replays(runtime: &tokio::runtime::Runtime, folder: &Path) {
    let store = EmbeddedStore::open(folder.join("replays")).expect("a new store");
    let id = KeyId::from_bytes(rand::random());
    runtime.block_on(async {
        let Ok(Ruling::Won(win)) = store.apply(id, claim()).await else { panic!("a new key is won") };
        assert!(matches!(store.apply(id, complete(win.grant)).await, Ok(Ruling::Accepted { .. })));
        for _ in 0..REPEATS {
            let turn = measure_async(20_000, async || {
                assert!(matches!(store.apply(id, claim()).await, Ok(Ruling::Replay { .. })));
            })
            .await;
            println!("  {:>7.0}/s {:>5.2} us", turn.rate(), turn.cpu_each());
        }
    });
}

// === measuring ===

struct Turn {
    count: u64,
    wall: Duration,
    cpu: Duration,
}

impl Turn {
    fn rate(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64()
    }

    fn cpu_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.count as f64
    }
}

fn measure(work: impl FnOnce(Instant) -> u64) -> Turn {
    let (start, cpu) = (Instant::now(), cpu_time());
    let count = work(start + TURN);
    Turn { count, wall: start.elapsed(), cpu: cpu_time() - cpu }
}

async fn measure_async(count: u64, work: impl AsyncFn()) -> Turn {
    let (start, cpu) = (Instant::now(), cpu_time());
    for _ in 0..count {
        work().await;
    }
    Turn { count, wall: start.elapsed(), cpu: cpu_time() - cpu }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    values[values.len() / 2]
}

fn verdict(name: &str, ratios: &mut [f64], met: impl Fn(f64) -> bool, goal: &str) -> bool {
    let middle = median(ratios);
    let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
    let word = if met(middle) { "met" } else { "MISSED" };
    println!("  => {name}: {middle:.2} ({low:.2} to {high:.2}), goal {goal}: {word}");
    met(middle)
}
