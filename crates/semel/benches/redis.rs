//! The Redis store against `redis-benchmark` sending the same commands.
//!
//! `cargo bench -p semel --features redis --bench redis` prints, `-- --check` also fails where a goal is missed,
//! `-- replay` (claim, first, complete, replay, rate, wake, secret) measures that alone.
//! Both sides take turns on one server. What counts is the server's CPU per operation: wall-clock time is shared with
//! the clients on the same cores.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

#[path = "redis/wake.rs"]
mod wake;

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command as Program, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{
    Begin, Command, Epoch, Fence, Grant, Mode, NewClaim, Owner, Record, Ruling, State, Terms,
};
use semel::secret::Secret;
use semel::store::{RedisStore, Store};
use semel::time::Timestamp;
use semel_testbed::Redis;

const REPEATS: usize = 5;
const OPERATIONS: usize = 50_000;
/// To complete: many more than operations, so that drawing at random seldom finds one twice.
const BEGUN: usize = 500_000;
/// To replay: what is asked for again is seldom the whole store.
const DONE: usize = 20_000;
/// As many as redis-benchmark can draw from.
const EVERY: usize = 2_000_000_000;
/// A key as the store names it, whose last twelve digits redis-benchmark draws.
const DRAWN: &str = "semel:{00000000000000000000__rand_int__}";
const CALLERS: usize = 64;
const MANY: usize = 256;
/// As many commands in the air as redis-benchmark has with 50 clients that send 16 at a time.
const CROWD: usize = 50 * 16;
const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);
const OWNER: Owner = Owner::from_bytes([9; 16]);
/// Has no zero bytes, and is exact as a double.
const FENCE: Fence = Fence::new(0x0101_0101_0101_0110);
const RULES: &str = include_str!("../src/store/redis/rules.lua");

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("threads");
    let server =
        Redis::options().config("save", "\"\"").config("appendonly", "no").start().expect("a server");
    let store = runtime.block_on(RedisStore::connect(&server.url())).expect("a healthy server");
    let keeping = runtime.block_on(RedisStore::connect(&server.url())).expect("a healthy server");
    let store = Arc::new(store);
    let mut bench =
        Bench { runtime, store: Arc::clone(&store), keeps_secret: false, sha: load(&server), server };
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|wanted| wanted == name);
    let mut met = true;

    println!(
        "server CPU an operation, ours at {CALLERS} callers | redis-benchmark -P 16 of the same command (goal: at most 1.2 x)"
    );
    if wanted("claim") {
        met &= bench.compare("claim", |bench| bench.claims(CALLERS), Bench::their_claims);
    }
    if wanted("first") {
        println!("  where the effect may run again, a claim on a key that is new needs no script");
        println!("  at {CROWD} callers, as many commands in progress as redis-benchmark has");
        met &= bench.compare("first", |bench| bench.first_claims(CROWD), Bench::their_sets);
        println!("  at {CALLERS} callers (not counted)");
        bench.compare("first", |bench| bench.first_claims(CALLERS), Bench::their_sets);
    }
    if wanted("complete") {
        met &= bench.compare("complete", Bench::completes, Bench::their_completes);
    }
    if wanted("replay") {
        // What a command costs the server depends on how many it finds at each look. So the goal counts where both sides
        // have as many in progress.
        println!("  at {CROWD} callers, as many commands in progress as redis-benchmark has");
        met &= bench.compare("replay", |bench| bench.replays(CROWD), Bench::their_gets);
        println!("  at {CALLERS} callers (not counted)");
        bench.compare("replay", |bench| bench.replays(CALLERS), Bench::their_gets);
    }
    if wanted("rate") {
        println!(
            "claims a second | redis-benchmark -c 50 of the same command without pipelining (goal: at least 1.3 x)"
        );
        met &= bench.compare_rates(CALLERS);
        println!("  the same at {MANY} callers (not counted)");
        bench.compare_rates(MANY);
    }
    if wanted("wake") {
        println!("publish to answer in another process, median | polled every 20 ms (goal: at most 0.05 x)");
        met &= bench.compare_wakeups();
    }

    if wanted("secret") {
        println!(
            "  the secret is kept in Redis, and read behind every claim | it is configured (not counted)"
        );
        bench.compare_secrets(&store, &Arc::new(keeping));
    }

    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn load(server: &Redis) -> String {
    server.tell(&["SCRIPT", "LOAD", RULES]).expect("a healthy server").text()
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    store: Arc<RedisStore>,
    /// Whether the store was asked for a secret, and so has to find it with every claim.
    keeps_secret: bool,
    sha: String,
    server: Redis,
}

/// Makes one sort of calls.
type Calls = fn(&Bench) -> Turn;

/// What one turn took.
struct Turn {
    /// Operations a second.
    rate: f64,
    usage: Usage,
}

impl Turn {
    fn cpu_each(&self) -> f64 {
        self.usage.cpu / OPERATIONS as f64
    }

    /// How many commands the server found in one read of a socket: what makes them cheap or dear.
    fn commands_a_read(&self) -> f64 {
        self.usage.commands / self.usage.reads
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, rate, together) = (self.cpu_each(), self.rate, self.commands_a_read());
        write!(f, "{cpu:>5.2} us {rate:>7.0}/s, {together:>4.1} a read")
    }
}

impl Bench {
    fn compare(&self, name: &str, ours: impl Fn(&Self) -> Turn, theirs: impl Fn(&Self) -> Turn) -> bool {
        let mut ratios = Vec::new();
        for _ in 0..REPEATS {
            let (ours, theirs) = (ours(self), theirs(self));
            ratios.push(ours.cpu_each() / theirs.cpu_each());
            println!("  {name:>8}: ours {ours} | theirs {theirs}");
        }
        verdict(name, &mut ratios, "<= 1.2", |ratio| ratio <= 1.2)
    }

    fn compare_rates(&self, callers: usize) -> bool {
        let mut ratios = Vec::new();
        for _ in 0..REPEATS {
            let (ours, theirs) = (self.claims(callers), self.their_lone_claims());
            ratios.push(ours.rate / theirs.rate);
            println!("  ours {ours} | theirs {theirs}");
        }
        verdict("claims a second", &mut ratios, ">= 1.3", |ratio| ratio >= 1.3)
    }

    fn compare_wakeups(&self) -> bool {
        let waiter =
            self.runtime.block_on(RedisStore::connect(&self.server.url())).expect("a healthy server");
        let mut ratios = Vec::new();
        for _ in 0..REPEATS {
            let (pushed, polled) = self.runtime.block_on(wake::pushed_and_polled(&self.store, &waiter));
            ratios.push(pushed / polled);
            println!("  ours {pushed:>6.0} us | polled {polled:>6.0} us");
        }
        verdict("wake-up", &mut ratios, "<= 0.05", |ratio| ratio <= 0.05)
    }

    /// The same calls by a store that gave the secret, and by one that did not.
    fn compare_secrets(&mut self, plain: &Arc<RedisStore>, keeping: &Arc<RedisStore>) {
        let calls: [(&str, Calls); 3] = [
            ("claim", |bench| bench.claims(CALLERS)),
            ("first", |bench| bench.first_claims(CROWD)),
            ("replay", |bench| bench.replays(CROWD)),
        ];
        for (name, call) in calls {
            let (mut cpu, mut rates) = (Vec::new(), Vec::new());
            for _ in 0..REPEATS {
                let mut turn = |store: &Arc<RedisStore>, keeps_secret| {
                    (self.store, self.keeps_secret) = (Arc::clone(store), keeps_secret);
                    call(self)
                };
                let (kept, configured) = (turn(keeping, true), turn(plain, false));
                cpu.push(kept.cpu_each() / configured.cpu_each());
                rates.push(kept.rate / configured.rate);
                println!("  {name:>8}: kept {kept} | configured {configured}");
            }
            for (what, mut ratios) in [("server CPU", cpu), ("a second", rates)] {
                ratios.sort_by(f64::total_cmp);
                let (least, median, most) = (ratios[0], ratios[REPEATS / 2], ratios[REPEATS - 1]);
                println!("  {name}, {what}: {median:.3} x ({least:.3} to {most:.3})");
            }
        }
    }

    /// Removes everything but the secret.
    fn empty(&self) {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        if self.keeps_secret {
            drop(self.runtime.block_on(self.store.secret(Secret::random())).expect("a healthy server"));
        }
    }

    fn measure(&self, work: impl FnOnce()) -> Turn {
        let (before, began) = (Usage::of(&self.server), Instant::now());
        work();
        let rate = OPERATIONS as f64 / began.elapsed().as_secs_f64();
        Turn { rate, usage: Usage::of(&self.server).since(&before) }
    }

    // === ours ===

    fn claims(&self, callers: usize) -> Turn {
        self.empty();
        self.each(
            callers,
            &fresh_ids(),
            |id| Command::Claim(claim(id.as_bytes())),
            |ruling| matches!(ruling, Ruling::Won(_)),
        )
    }

    fn first_claims(&self, callers: usize) -> Turn {
        self.empty();
        let keyed = |id: &KeyId| {
            let terms = Arc::new(Terms { mode: Mode::Keyed, ..Terms::default() });
            Command::Claim(NewClaim { terms, ..claim(id.as_bytes()) })
        };
        self.each(callers, &fresh_ids(), keyed, |ruling| matches!(ruling, Ruling::Won(_)))
    }

    fn completes(&self) -> Turn {
        self.place(BEGUN, &record(State::Begun));
        self.each(
            CALLERS,
            &scattered(BEGUN),
            |_| complete(),
            |ruling| matches!(ruling, Ruling::Accepted { .. }),
        )
    }

    fn replays(&self, callers: usize) -> Turn {
        self.place(DONE, &record(State::Done(outcome())));
        self.each(
            callers,
            &scattered(DONE),
            |id| Command::Claim(claim(id.as_bytes())),
            |ruling| matches!(ruling, Ruling::Replay { .. }),
        )
    }

    /// Applies a command to every key, many callers at a time.
    fn each(
        &self,
        callers: usize,
        ids: &[KeyId],
        command: fn(&KeyId) -> Command,
        fine: fn(&Ruling) -> bool,
    ) -> Turn {
        self.measure(|| {
            self.runtime.block_on(async {
                let callers: Vec<_> = ids
                    .chunks(OPERATIONS.div_ceil(callers))
                    .map(|ids| {
                        let (store, ids) = (Arc::clone(&self.store), ids.to_vec());
                        tokio::spawn(async move {
                            for id in ids {
                                let ruling = store.apply(id, command(&id)).await.expect("a healthy server");
                                assert!(fine(&ruling), "{ruling:?}");
                            }
                        })
                    })
                    .collect();
                for caller in callers {
                    caller.await.expect("every call is answered");
                }
            });
        })
    }

    // === theirs ===

    fn their_claims(&self) -> Turn {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        let turn = self.redis_benchmark(&["-P", "16"], EVERY, &self.claim_words());
        self.assert_claimed();
        turn
    }

    fn their_sets(&self) -> Turn {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        let record = without_zeros(&record(State::Begun).encode());
        let words = [b"SET".to_vec(), DRAWN.as_bytes().to_vec(), record, b"NX".to_vec(), b"GET".to_vec()];
        let turn = self.redis_benchmark(&["-P", "16"], EVERY, &words);
        self.assert_claimed();
        turn
    }

    fn their_lone_claims(&self) -> Turn {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        let turn = self.redis_benchmark(&["-P", "1"], EVERY, &self.claim_words());
        self.assert_claimed();
        turn
    }

    fn claim_words(&self) -> Vec<Vec<u8>> {
        let asked = Record { fence: Fence::default(), ..record(State::Begun) }.encode();
        self.script(&[b"claim", &without_zeros(&asked)])
    }

    /// Keys drawn at random are nearly all different.
    fn assert_claimed(&self) {
        let keys: usize =
            self.server.tell(&["DBSIZE"]).expect("a healthy server").text().parse().unwrap_or(0);
        assert!(keys > OPERATIONS * 99 / 100, "only {keys} of {OPERATIONS} claims were won");
    }

    fn their_completes(&self) -> Turn {
        self.place(BEGUN, &record(State::Begun));
        let grant = [&OWNER.as_bytes()[..], &FENCE.get().to_le_bytes()].concat();
        let head = record(State::Begun).encode().len();
        let outcome = without_zeros(&record(State::Done(outcome())).encode()[head..]);
        let words = self.script(&[b"complete", &grant, PAYLOAD.as_bytes(), &outcome, b""]);
        self.redis_benchmark(&["-P", "16"], BEGUN, &words)
    }

    fn their_gets(&self) -> Turn {
        self.place(DONE, &record(State::Done(outcome())));
        self.redis_benchmark(&["-P", "16"], DONE, &[b"GET".to_vec(), DRAWN.as_bytes().to_vec()])
    }

    fn script(&self, arguments: &[&[u8]]) -> Vec<Vec<u8>> {
        let words = [&b"EVALSHA"[..], self.sha.as_bytes(), b"1", DRAWN.as_bytes()];
        words.iter().chain(arguments).map(|word| word.to_vec()).collect()
    }

    /// Lets redis-benchmark send a command, with keys drawn from `keys` different ones.
    fn redis_benchmark(&self, options: &[&str], keys: usize, command: &[Vec<u8>]) -> Turn {
        let before = Usage::of(&self.server);
        let ended = Program::new("redis-benchmark")
            .args(["-p", &self.server.port().to_string(), "-c", "50", "--csv"])
            .args(["-n", &OPERATIONS.to_string(), "-r", &keys.to_string()])
            .args(options)
            .args(command.iter().map(|word| OsStr::from_bytes(word)))
            .output()
            .expect("redis-benchmark is installed");
        let usage = Usage::of(&self.server).since(&before);
        assert!(ended.status.success(), "redis-benchmark failed");
        assert!(usage.errors < 1.0, "redis-benchmark was answered with errors");
        // "name","requests a second",... by its own count, without start and connect.
        let printed = String::from_utf8_lossy(&ended.stdout);
        let rate = printed.lines().last().and_then(|line| line.rsplit("\",\"").nth(6)?.parse().ok());
        Turn { rate: rate.expect("redis-benchmark prints its rate"), usage }
    }

    /// Puts a record under every key, as a claim or complete would have left it.
    fn place(&self, keys: usize, record: &Record) {
        self.empty();
        let value = record.encode();
        let set = |number| resp(&[b"SET", name(&numbered(number)).as_bytes(), &value]);
        let stream = TcpStream::connect(self.server.addr()).expect("a healthy server");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        for first in (0..keys).step_by(100) {
            let batch: Vec<u8> = (first..first + 100).flat_map(set).collect();
            stream.get_mut().write_all(&batch).expect("a healthy server");
            for _ in 0..100 {
                line.clear();
                stream.read_line(&mut line).expect("an answer");
                assert_eq!(line, "+OK\r\n");
            }
        }
    }
}

/// What the server has used and seen since its start.
struct Usage {
    /// Microseconds.
    cpu: f64,
    commands: f64,
    reads: f64,
    errors: f64,
}

impl Usage {
    fn of(server: &Redis) -> Self {
        let info = server.tell(&["INFO", "everything"]).expect("a healthy server").text();
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name}"))
        };
        Self {
            cpu: (field("used_cpu_user") + field("used_cpu_sys")) * 1e6,
            commands: field("total_commands_processed"),
            reads: field("total_reads_processed"),
            errors: field("total_error_replies"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            commands: self.commands - before.commands,
            reads: self.reads - before.reads,
            errors: self.errors - before.errors,
        }
    }
}

/// A key of a given number, as redis-benchmark writes its drawn ones.
fn numbered(number: usize) -> KeyId {
    let digits = format!("{number:032}");
    let byte = |pair: usize| u8::from_str_radix(&digits[2 * pair..2 * pair + 2], 16).expect("two digits");
    KeyId::from_bytes(std::array::from_fn(byte))
}

/// Keys all over the key space.
fn scattered(keys: usize) -> Vec<KeyId> {
    // A prime, so no number comes twice before all have come.
    (0..OPERATIONS).map(|number| numbered(number * 104_729 % keys)).collect()
}

/// redis-benchmark cannot draw keys past a zero byte. Times become "for ever" by it, which is no less work.
fn without_zeros(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| (*byte).max(1)).collect()
}

fn fresh_ids() -> Vec<KeyId> {
    (0..OPERATIONS).map(|_| KeyId::from_bytes(*Owner::random().as_bytes())).collect()
}

fn name(id: &KeyId) -> String {
    format!("semel:{{{id}}}")
}

fn claim(owner: &[u8; 16]) -> NewClaim {
    NewClaim {
        owner: Owner::from_bytes(*owner),
        fingerprint: PAYLOAD,
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-20"),
    }
}

fn complete() -> Command {
    let grant = Grant::from_parts(OWNER, FENCE);
    Command::Complete { grant, fingerprint: PAYLOAD, outcome: outcome(), retention: None }
}

fn outcome() -> Arc<Outcome> {
    Arc::new(Outcome::new("json", vec![b'x'; 200]))
}

fn record(state: State) -> Record {
    let far = Timestamp::from_micros(4_000_000_000_000_000);
    Record {
        state,
        fingerprint: PAYLOAD,
        owner: OWNER,
        fence: FENCE,
        epoch: Epoch::default(),
        attempt: 1,
        hint: Hint::new("order-20"),
        terms: Arc::new(Terms::default()),
        claimed_at: Timestamp::default(),
        changed_at: Timestamp::default(),
        lease_until: far,
        expires_at: far,
        forget_at: far,
    }
}

fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend(b"\r\n");
    }
    out
}

fn verdict(what: &str, ratios: &mut [f64], goal: &str, met: impl Fn(f64) -> bool) -> bool {
    ratios.sort_by(f64::total_cmp);
    let (median, met) = (ratios[ratios.len() / 2], met(ratios[ratios.len() / 2]));
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    let word = if met { "met" } else { "MISSED" };
    println!("  {what}: {median:.3} x ({least:.3} to {most:.3}), goal {goal}: {word}");
    met
}
