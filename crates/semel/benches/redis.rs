//! The Redis store against `redis-benchmark` sending the same commands.
//!
//! `cargo bench -p semel --features redis --bench redis` prints, `-- --check` also fails where a goal is missed.
//! Both sides take turns on one server. What counts is the server's CPU per operation: wall-clock time is shared with
//! the clients on the same cores.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command as Program, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Claim, Command, Epoch, Fence, Grant, Owner, Record, Ruling, State, Terms};
use semel::store::{RedisStore, Store};
use semel::time::Timestamp;
use semel_testbed::Redis;

const REPEATS: usize = 5;
const OPERATIONS: usize = 20_000;
const CALLERS: usize = 64;
const PAYLOAD: Fingerprint = Fingerprint::from_bytes([7; 32]);
const OWNER: Owner = Owner::from_bytes([9; 16]);
const RULES: &str = include_str!("../src/store/redis/rules.lua");

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("threads");
    let server =
        Redis::options().config("save", "\"\"").config("appendonly", "no").start().expect("a server");
    let store = runtime.block_on(RedisStore::connect(&server.url())).expect("a healthy server");
    let bench = Bench { runtime, store: Arc::new(store), sha: load(&server), server };
    let mut met = true;

    println!(
        "server CPU an operation, ours at {CALLERS} callers | redis-benchmark -P 16 -c 50 (goal: at most 1.2 x)"
    );
    met &= bench.compare("claim", Bench::claims, |bench| bench.their_claims(&["-P", "16"]));
    met &= bench.compare("complete", Bench::completes, Bench::their_completes);
    met &= bench.compare("replay", Bench::replays, Bench::their_gets);
    println!("claims a second against redis-benchmark -c 50 without pipelining (goal: at least 1.3 x)");
    met &= bench.compare_rates();

    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn load(server: &Redis) -> String {
    server.tell(&["SCRIPT", "LOAD", RULES]).expect("a healthy server").text()
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    store: Arc<RedisStore>,
    sha: String,
    server: Redis,
}

/// What one turn took.
struct Turn {
    wall: Duration,
    /// Of the server, in microseconds.
    cpu: f64,
}

impl Turn {
    fn rate(&self) -> f64 {
        OPERATIONS as f64 / self.wall.as_secs_f64()
    }

    fn cpu_each(&self) -> f64 {
        self.cpu / OPERATIONS as f64
    }
}

impl Bench {
    fn compare(&self, name: &str, ours: impl Fn(&Self) -> Turn, theirs: impl Fn(&Self) -> Turn) -> bool {
        let mut ratios = Vec::new();
        for _ in 0..REPEATS {
            let (ours, theirs) = (ours(self), theirs(self));
            ratios.push(ours.cpu_each() / theirs.cpu_each());
            println!(
                "  {name:>8}: ours {:>5.2} us {:>7.0}/s | theirs {:>5.2} us {:>7.0}/s",
                ours.cpu_each(),
                ours.rate(),
                theirs.cpu_each(),
                theirs.rate()
            );
        }
        verdict(name, &mut ratios, "<= 1.2", |ratio| ratio <= 1.2)
    }

    fn compare_rates(&self) -> bool {
        let mut ratios = Vec::new();
        for _ in 0..REPEATS {
            let (ours, theirs) = (self.claims(), self.their_claims(&["-P", "1"]));
            ratios.push(ours.rate() / theirs.rate());
            println!("  ours {:>7.0}/s | theirs {:>7.0}/s", ours.rate(), theirs.rate());
        }
        verdict("claims a second", &mut ratios, ">= 1.3", |ratio| ratio >= 1.3)
    }

    fn measure(&self, work: impl FnOnce()) -> Turn {
        let cpu = || {
            ["used_cpu_user", "used_cpu_sys"]
                .map(|field| self.server.info(field).expect("a healthy server").parse().unwrap_or(0.0))
                .iter()
                .sum::<f64>()
                * 1e6
        };
        let (before, began) = (cpu(), Instant::now());
        work();
        let wall = began.elapsed();
        Turn { wall, cpu: cpu() - before }
    }

    // === ours ===

    fn claims(&self) -> Turn {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        self.each(
            &fresh_ids(),
            |id| Command::Claim(claim(id.as_bytes())),
            |ruling| matches!(ruling, Ruling::Won(_)),
        )
    }

    fn completes(&self) -> Turn {
        let ids = fresh_ids();
        self.place(&ids, &record(State::Begun));
        self.each(&ids, |_| complete(), |ruling| matches!(ruling, Ruling::Accepted { .. }))
    }

    fn replays(&self) -> Turn {
        let ids = fresh_ids();
        self.place(&ids, &record(State::Done(outcome())));
        self.each(
            &ids,
            |id| Command::Claim(claim(id.as_bytes())),
            |ruling| matches!(ruling, Ruling::Replay { .. }),
        )
    }

    /// Applies a command to every key, many callers at a time.
    fn each(&self, ids: &[KeyId], command: fn(&KeyId) -> Command, fine: fn(&Ruling) -> bool) -> Turn {
        self.measure(|| {
            self.runtime.block_on(async {
                let callers: Vec<_> = ids
                    .chunks(OPERATIONS.div_ceil(CALLERS))
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

    fn their_claims(&self, options: &[&str]) -> Turn {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        let asked = Record { fence: Fence::default(), ..record(State::Begun) }.encode();
        let command = ["EVALSHA", &self.sha, "1", "semel:{__rand_int__}", "claim"];
        self.measure(|| self.redis_benchmark(options, &command, &asked))
    }

    fn their_gets(&self) -> Turn {
        let id = KeyId::from_bytes([1; 16]);
        self.place(&[id], &record(State::Done(outcome())));
        let key = name(&id);
        // The key comes last, so it comes by standard input.
        self.measure(|| self.redis_benchmark(&["-P", "16"], &["GET"], key.as_bytes()))
    }

    /// redis-benchmark cannot give every key its own binary arguments, so this sends 16 at a time as it does.
    fn their_completes(&self) -> Turn {
        let ids = fresh_ids();
        self.place(&ids, &record(State::Begun));
        let encoded = record(State::Done(outcome())).encode();
        let head = record(State::Begun).encode().len();
        let grant = [&OWNER.as_bytes()[..], &1_u64.to_le_bytes()].concat();
        let calls = ids.iter().map(|id| {
            let key = name(id);
            resp(&[
                b"EVALSHA",
                self.sha.as_bytes(),
                b"1",
                key.as_bytes(),
                b"complete",
                &grant,
                PAYLOAD.as_bytes(),
                &encoded[head..],
                b"",
            ])
        });
        let calls: Vec<Vec<u8>> = calls.collect();
        // *2, $8, accepted, :0
        self.measure(|| self.send(&calls, 4))
    }

    fn redis_benchmark(&self, options: &[&str], command: &[&str], last: &[u8]) {
        let mut program = Program::new("redis-benchmark")
            .args(["-p", &self.server.port().to_string(), "-c", "50", "-q"])
            .args(["-n", &OPERATIONS.to_string(), "-r", "1000000000", "-x"])
            .args(options)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-benchmark is installed");
        program.stdin.take().expect("piped").write_all(last).expect("it reads");
        assert!(program.wait().expect("it ends").success(), "redis-benchmark failed");
    }

    /// Puts a record under every key, as a claim or complete would have left it.
    fn place(&self, ids: &[KeyId], record: &Record) {
        self.server.tell(&["FLUSHALL"]).expect("a healthy server");
        let value = record.encode();
        let sets: Vec<Vec<u8>> = ids.iter().map(|id| resp(&[b"SET", name(id).as_bytes(), &value])).collect();
        self.send(&sets, 1);
    }

    /// Sends 16 commands at a time and reads their answers of so many lines each.
    fn send(&self, commands: &[Vec<u8>], lines: usize) {
        let stream = TcpStream::connect(self.server.addr()).expect("a healthy server");
        stream.set_nodelay(true).expect("a socket");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        for batch in commands.chunks(16) {
            stream.get_mut().write_all(&batch.concat()).expect("a healthy server");
            for _ in 0..batch.len() * lines {
                line.clear();
                stream.read_line(&mut line).expect("an answer");
                assert!(!line.starts_with('-'), "{line}");
            }
        }
        let mut rest = [0; 1];
        stream.get_ref().set_nonblocking(true).expect("a socket");
        assert!(stream.read(&mut rest).is_err(), "every answer was read");
    }
}

fn fresh_ids() -> Vec<KeyId> {
    (0..OPERATIONS).map(|_| KeyId::from_bytes(*Owner::random().as_bytes())).collect()
}

fn name(id: &KeyId) -> String {
    format!("semel:{{{id}}}")
}

fn claim(owner: &[u8; 16]) -> Claim {
    Claim {
        owner: Owner::from_bytes(*owner),
        fingerprint: PAYLOAD,
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("order-20"),
    }
}

fn complete() -> Command {
    let grant = Grant::from_parts(OWNER, Fence::new(1));
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
        fence: Fence::new(1),
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
    println!("  {what}: {median:.2} x ({least:.2} to {most:.2}), goal {goal}: {word}");
    met
}
