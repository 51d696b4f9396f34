//! Fingerprints against the usual ways: CPU time per payload and the ratio to the yardstick.
//!
//! `cargo bench -p semel --bench fingerprint`, with `-- --check` to fail when a goal is missed. Both sides run in turns
//! on the same bytes.
//!
//! - `json`: canonical form and hash, against serde_json's tree, serde_jcs and BLAKE3. Goal: 4 times as fast.
//! - `exact`: the payload of a request, against bare BLAKE3 of its body. Goal: 0.8 of its speed.

use std::hint::black_box;
use std::process::ExitCode;

use rustix::time::{ClockId, clock_gettime};
use semel::canonical::{CanonicalLimits, Canonicalizer, Exclusions};
use semel::fingerprint::Payload;
use semel::key::Key;
use semel::secret::Secret;

/// CPU time of one sample.
const SAMPLE_NS: u64 = 100_000_000;
const REPEATS: usize = 9;

struct Comparison {
    name: String,
    bytes: usize,
    goal: f64,
    ours: Box<dyn Fn()>,
    theirs: Box<dyn Fn()>,
}

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let payments = serde_json::to_string(&payment(3)).expect("a payment is JSON");
    let pretty = serde_json::to_string_pretty(&payment(8)).expect("a payment is JSON");
    let batch: Vec<_> = (0..40).map(payment).collect();
    let batch = serde_json::to_string(&batch).expect("payments are JSON");
    // serde_json writes a tree in the order of its names, clients do not.
    let comparisons = [
        json("json, one payment", shuffled(&payments)),
        json("json, one payment, sorted", payments),
        json("json, one payment, indented", pretty),
        json("json, forty payments", shuffled(&batch)),
        exact("exact, 4 KiB", 4 << 10),
        exact("exact, 64 KiB", 64 << 10),
        key(),
    ];
    println!(
        "{:<30} {:>8} {:>10} {:>10} {:>9} {:>22}",
        "", "bytes", "ours ns", "theirs ns", "MB/s", "ratio (spread)"
    );
    let mut missed = false;
    for comparison in &comparisons {
        missed |= !comparison.run();
    }
    if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn json(name: &str, text: String) -> Comparison {
    let theirs = text.clone();
    Comparison {
        name: name.to_owned(),
        bytes: text.len(),
        goal: 4.0,
        ours: Box::new(move || {
            let payload = Payload::json(black_box(text.as_bytes()), &Exclusions::none());
            black_box(payload).expect("the payload is JSON");
        }),
        theirs: Box::new(move || {
            let value: serde_json::Value =
                serde_json::from_slice(black_box(theirs.as_bytes())).expect("the payload is JSON");
            let canonical = serde_jcs::to_vec(&value).expect("the payload is JSON");
            black_box(blake3::hash(&canonical));
        }),
    }
}

fn exact(name: &str, size: usize) -> Comparison {
    let body: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
    let theirs = body.clone();
    Comparison {
        name: name.to_owned(),
        bytes: size,
        goal: 0.8,
        ours: Box::new(move || {
            black_box(Payload::exact(&[b"POST", b"/v1/payments", b"", black_box(&body)]));
        }),
        theirs: Box::new(move || {
            black_box(blake3::hash(black_box(&theirs)));
        }),
    }
}

fn key() -> Comparison {
    let secret = Secret::from_bytes([7; 32]);
    let key = Key::new("charge")
        .scope("principal-17")
        .scope("account-2041")
        .value("6f1c0c1e-5a4b-4c6e-9f5e-1d2a3b4c5d6e");
    let bytes = "charge principal-17 account-2041 6f1c0c1e-5a4b-4c6e-9f5e-1d2a3b4c5d6e";
    Comparison {
        name: "key id".to_owned(),
        bytes: bytes.len(),
        goal: 0.5,
        ours: Box::new(move || {
            black_box(black_box(&key).id(&secret)).expect("the key is valid");
        }),
        theirs: Box::new(move || {
            black_box(blake3::keyed_hash(&[7; 32], black_box(bytes.as_bytes())));
        }),
    }
}

impl Comparison {
    /// Measures, prints a line, and says whether the goal was reached.
    fn run(&self) -> bool {
        let (ours, theirs) = (rounds(&self.ours), rounds(&self.theirs));
        let samples: Vec<_> =
            (0..REPEATS).map(|_| (sample(&self.ours, ours), sample(&self.theirs, theirs))).collect();
        let sorted = |of: &dyn Fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (ours, theirs) =
            (sorted(&|sample| sample.0)[REPEATS / 2], sorted(&|sample| sample.1)[REPEATS / 2]);
        let ratios = sorted(&|sample| sample.1 / sample.0);
        let (low, ratio, high) = (ratios[0], ratios[REPEATS / 2], ratios[REPEATS - 1]);
        let reached = ratio >= self.goal;
        let verdict = if reached { "reached" } else { "MISSED" };
        println!(
            "{:<30} {:>8} {ours:>10.0} {theirs:>10.0} {:>9.0} {ratio:>7.2} ({low:.2} to {high:.2})  goal {} {verdict}",
            self.name,
            self.bytes,
            self.bytes as f64 / ours * 1000.0,
            self.goal,
        );
        reached
    }
}

/// How many rounds make a sample.
fn rounds(work: &dyn Fn()) -> u64 {
    let mut rounds = 64;
    loop {
        let start = cpu_ns();
        for _ in 0..rounds {
            work();
        }
        let spent = cpu_ns() - start;
        if spent > SAMPLE_NS / 8 {
            return (rounds * SAMPLE_NS / spent).max(1);
        }
        rounds *= 2;
    }
}

/// CPU nanoseconds of one round.
fn sample(work: &dyn Fn(), rounds: u64) -> f64 {
    let start = cpu_ns();
    for _ in 0..rounds {
        work();
    }
    (cpu_ns() - start) as f64 / rounds as f64
}

/// The time this thread spent on a core.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a payment request looks like: nested, with amounts, ids, a few texts beyond ASCII.
fn payment(seed: u64) -> serde_json::Value {
    let items: Vec<_> = (0..5 + seed % 3)
        .map(|n| {
            serde_json::json!({
                "sku": format!("SKU-{:06}", seed * 7919 + n * 104_729),
                "name": format!("Müsli \"crunchy\" no. {n}"),
                "quantity": n + 1,
                "unit_price": {"currency": "EUR", "value": 1999 + n * 25},
                "discount_rate": 0.125 * n as f64,
                "taxable": n % 2 == 0,
                "tags": ["food", "organic", "batch-7"],
            })
        })
        .collect();
    serde_json::json!({
        "intent": "capture",
        "amount": {"value": 12_999 + seed, "currency": "EUR", "exponent": 2},
        "merchant": {"id": "mrc_5f1c0c1e5a4b4c6e", "category_code": "5411", "name": "Café Zürich GmbH"},
        "customer": {
            "id": format!("cus_{seed:016x}"),
            "email": "jane.doe+orders@example.com",
            "address": {
                "line1": "Lange Straße 17",
                "line2": null,
                "city": "Köln",
                "postal_code": "50667",
                "country": "DE"
            },
            "created_at": "2025-11-02T09:14:07.113Z"
        },
        "payment_method": {
            "type": "card",
            "card": {"network": "visa", "last4": "4242", "exp_month": 12, "exp_year": 2029, "three_ds": true},
            "billing_details": {"same_as_customer": true}
        },
        "items": items,
        "metadata": {
            "order_id": "ord_2041_77",
            "cart": "6f1c0c1e-5a4b-4c6e-9f5e-1d2a3b4c5d6e",
            "note": "Leave at the door.\nRing twice.",
            "risk_score": 0.0731
        },
        "statement_descriptor": "CAFE ZURICH ORDER 2041",
        "capture_method": "automatic",
        "return_url": "https://shop.example.com/checkout/return?session=abcdef0123456789",
        "webhooks": ["https://hooks.example.com/a", "https://hooks.example.com/b"]
    })
}

/// The same text with the members of every object in another order.
fn shuffled(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).expect("the payload is JSON");
    let mut out = String::new();
    write_shuffled(&value, &mut out);
    let mut forms = [Vec::new(), Vec::new()];
    for (text, form) in [text, out.as_str()].into_iter().zip(&mut forms) {
        let result =
            Canonicalizer::new().write(text.as_bytes(), CanonicalLimits::DEFAULT, &Exclusions::none(), form);
        result.expect("the payload is JSON");
    }
    assert_eq!(forms[0], forms[1], "only the order changed");
    out
}

fn write_shuffled(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *blake3::hash(name.as_bytes()).as_bytes());
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(&format!("{name:?}:"));
                write_shuffled(value, out);
            }
            out.push('}');
        }
        serde_json::Value::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_shuffled(element, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
