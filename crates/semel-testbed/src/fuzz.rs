//! A fuzzer for stable Rust: mutates seeds, calls the code under test, and keeps inputs with a new behaviour.
//!
//! Seeds are stored with the code, in `fuzz/NAME.seeds` of the crate: one seed per line, with `\r`, `\n`, `\t`, `\\` and `\xNN` for
//! special bytes. An input that fails is printed in the same form, already reduced: add it as a line.
//!
//! ```
//! use semel_testbed::fuzz::Fuzz;
//!
//! Fuzz::new("number", "12\n-7\n").tokens(&["0x", "e9"]).seconds(0.1).run(|input| {
//!     let text = String::from_utf8_lossy(input);
//!     text.parse::<i64>().is_ok()
//! });
//! ```
//!
//! `SEMEL_FUZZ_SECONDS` sets how long each target runs, and `SEMEL_FUZZ_SEED` repeats a run.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// How long a target runs in the test command. Twelve targets take one minute.
const SECONDS: f64 = 5.0;

/// How long a target runs in the full form, unless `SEMEL_FUZZ_SECONDS` is set.
const FULL_SECONDS: f64 = 120.0;

/// Maximum length of an input.
const LONGEST: usize = 8 * 1024;

/// Maximum number of inputs that are kept for their behaviour.
const MOST: usize = 4096;

/// A call that takes longer is a bug, because inputs are short.
const SLOWEST: Duration = Duration::from_secs(20);

/// Bytes that parsers treat specially.
const SPECIAL: &[u8] =
    b"\0\t\n\r \"#%&'*+,-./0123456789:;<=>?@AZ[\\]^_`az{|}~\x7f\x80\xbf\xc2\xe2\xed\xf0\xff";

/// A function under test, with its seeds.
#[derive(Debug)]
pub struct Fuzz {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    tokens: Vec<Vec<u8>>,
    seconds: f64,
}

/// The result of a run of the fuzzer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of calls.
    pub executions: u64,
    /// Number of different behaviours.
    pub behaviours: usize,
    /// Number of behaviours of the seeds alone.
    pub seeded: usize,
}

impl Fuzz {
    /// A target and its seeds, in the form of a seeds file.
    ///
    /// # Panics
    /// A seed is malformed, or there is none.
    pub fn new(name: &'static str, seeds: &str) -> Self {
        let seeds: Vec<Vec<u8>> = seeds.lines().filter(|line| !line.is_empty()).map(unescape).collect();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        let full = std::env::var_os("SEMEL_PROVE").is_some();
        let seconds = std::env::var("SEMEL_FUZZ_SECONDS")
            .ok()
            .map(|text| text.parse().expect("SEMEL_FUZZ_SECONDS is a number of seconds"));
        let seconds = seconds.unwrap_or(if full { FULL_SECONDS } else { SECONDS });
        Self { name, seeds, tokens: Vec::new(), seconds }
    }

    /// Tokens of valid inputs.
    #[must_use]
    pub fn tokens(mut self, tokens: &[&str]) -> Self {
        self.tokens.extend(tokens.iter().map(|token| token.as_bytes().to_vec()));
        self
    }

    /// Adds a seed that the code under test generated.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Vec<u8>>) -> Self {
        self.seeds.push(seed.into());
        self
    }

    /// Overrides the duration.
    #[must_use]
    pub fn seconds(mut self, seconds: f64) -> Self {
        self.seconds = seconds;
        self
    }

    /// Calls `test` with every seed, then with mutated inputs until the time is over. The return value of `test` identifies a
    /// behaviour: an input with a new one becomes a seed.
    ///
    /// # Panics
    /// `test` panicked, or one call took too long. The message contains the reduced input.
    pub fn run<B: Hash>(self, test: impl Fn(&[u8]) -> B) -> Report {
        let Self { name, seeds, tokens, seconds } = self;
        let random_seed = std::env::var("SEMEL_FUZZ_SEED")
            .map_or_else(|_| rand::random(), |text| text.parse().expect("SEMEL_FUZZ_SEED is a number"));
        let call = |input: &[u8]| -> Option<u64> {
            catch_unwind(AssertUnwindSafe(|| {
                let mut hasher = DefaultHasher::new();
                test(input).hash(&mut hasher);
                hasher.finish()
            }))
            .ok()
        };
        let fail = |input: &[u8]| -> ! {
            let reduced = reduce(input, |input| call(input).is_none());
            panic!("{name} fails (SEMEL_FUZZ_SEED={random_seed}) on: {}", escape(&reduced))
        };
        let (mut pool, mut behaviours, mut executions) = (seeds.clone(), HashSet::new(), 0);
        for seed in &seeds {
            match call(seed) {
                Some(behaviour) => drop(behaviours.insert(behaviour)),
                None => fail(seed),
            }
            executions += 1;
        }
        let (seeded, start) = (behaviours.len(), now());
        let until = start + Duration::from_secs_f64(seconds);
        let mut random = StdRng::seed_from_u64(random_seed);
        loop {
            let before = now();
            if before >= until {
                break;
            }
            // Reading the clock for each call would cost more than many calls do.
            for _ in 0..16 {
                let input = mutate(&pool, &tokens, &mut random);
                executions += 1;
                match call(&input) {
                    Some(behaviour) => {
                        if behaviours.insert(behaviour) && pool.len() < MOST {
                            pool.push(input);
                        }
                    }
                    None => fail(&input),
                }
            }
            assert!(
                before.elapsed() < SLOWEST,
                "{name}: a call takes too long (SEMEL_FUZZ_SEED={random_seed})"
            );
        }
        let report = Report { executions, behaviours: behaviours.len(), seeded };
        println!(
            "fuzz {name}: {executions} executions in {:.1} s, {} behaviours ({seeded} from {} seeds)",
            start.elapsed().as_secs_f64(),
            report.behaviours,
            seeds.len()
        );
        report
    }
}

#[expect(clippy::disallowed_methods, reason = "the fuzzer runs for a real length of time")]
fn now() -> Instant {
    Instant::now()
}

/// A new input, made from one or two others.
fn mutate(pool: &[Vec<u8>], tokens: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let pick = |random: &mut StdRng| &pool[random.random_range(0..pool.len())];
    let mut input = pick(random).clone();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        let length = random.random_range(0..=(input.len() - at).min(32));
        match random.random_range(0..10) {
            0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            1 if at < input.len() => input[at] = SPECIAL[random.random_range(0..SPECIAL.len())],
            2 => input.insert(at, SPECIAL[random.random_range(0..SPECIAL.len())]),
            3 => drop(input.drain(at..at + length)),
            4 => {
                let piece = input[at..at + length].to_vec();
                let to = random.random_range(0..=input.len());
                input.splice(to..to, piece);
            }
            5 => {
                let other = pick(random);
                let from = random.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 if !tokens.is_empty() => {
                let token = &tokens[random.random_range(0..tokens.len())];
                input.splice(at..at + length.min(token.len()), token.iter().copied());
            }
            7 if !tokens.is_empty() => {
                let token = &tokens[random.random_range(0..tokens.len())];
                input.splice(at..at, token.iter().copied());
            }
            8 => {
                // A long repetition, for limits on depth and length.
                let piece = input[at..at + length].to_vec();
                let times = random.random_range(1..=200);
                input.splice(
                    at..at,
                    piece.iter().copied().cycle().take(piece.len() * times).collect::<Vec<_>>(),
                );
            }
            9 => input.truncate(at),
            _ => input.extend(std::iter::repeat_with(|| random.random::<u8>()).take(4)),
        }
    }
    input.truncate(LONGEST);
    input
}

/// A shorter input that still fails, found by removing pieces.
fn reduce(input: &[u8], fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut input = input.to_vec();
    let mut size = input.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < input.len() {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            if fails(&shorter) {
                input = shorter;
            } else {
                at += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    input
}

fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

fn unescape(line: &str) -> Vec<u8> {
    let (mut out, mut bytes) = (Vec::new(), line.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16)
                    .unwrap_or_else(|_| panic!("not a byte: \\x{digits} in {line}"))
            }
            other => panic!("not an escape: \\{:?} in {line}", other.map(char::from)),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Fuzz, escape, reduce, unescape};

    #[test]
    fn a_seed_is_read_as_it_is_printed() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)), all);
    }

    #[test]
    fn behaviour_that_no_seed_shows_is_found() {
        let report = Fuzz::new("prefix", "abcdefgh\n")
            .seconds(2.0)
            .run(|input| input.iter().zip(b"abXYefgh").take_while(|(a, b)| a == b).count());
        assert_eq!(report.seeded, 1);
        assert!(report.behaviours > 2, "{report:?}");
    }

    #[test]
    #[should_panic(expected = "on: \\xff")]
    fn a_failing_input_is_reduced() {
        Fuzz::new("byte", "abc\n").seconds(20.0).run(|input| assert!(!input.contains(&0xff)));
    }

    #[test]
    fn reducing_keeps_what_fails() {
        assert_eq!(reduce(b"aaaaXbbbbYcccc", |input| input.contains(&b'X') && input.contains(&b'Y')), b"XY");
    }
}
