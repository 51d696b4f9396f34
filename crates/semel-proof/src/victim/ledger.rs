//! Many writers and workers on the embedded ledger: every call reported once the ledger acknowledged it.
//!
//! The result of an event follows from its number, so a test can check the state of every delivery.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::secret::Secret;
use semel::store::EmbeddedStore;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::delivery::{AttemptClass, Ending, LeaseResult, Settle, Work};
use semel_pipeline::event::{Accepted, Dedupe, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{EmbeddedLedger, Intake as _, Take, Working as _};
use semel_pipeline::letter::Cause;
use serde::{Deserialize, Serialize};

use super::VictimReport;

/// The only target.
pub const TARGET: &str = "victim";

/// How long work is leased: short, so that the next victim soon continues the work of this one.
pub const LEASE: Duration = Duration::from_millis(300);

/// The first number of the writers, and how many writers and workers there are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Post {
    /// The folder of the store.
    pub store: PathBuf,
    /// The number of the first event.
    pub first: u64,
    /// How many tasks accept events.
    pub writers: u32,
    /// How many tasks take and settle.
    pub workers: u32,
}

/// The acknowledged step of an event, as the `write` of a [`VictimReport::Acknowledged`].
pub mod word {
    /// It was accepted.
    pub const ACCEPTED: u32 = 1;
    /// Its first attempt was written as failed, to be retried.
    pub const RETRIED: u32 = 2;
    /// It was delivered.
    pub const DONE: u32 = 3;
    /// It became a dead letter.
    pub const BURIED: u32 = 4;
}

/// The key of the event with this number.
pub fn key(number: u64) -> Dedupe {
    let (secret, payload) = (Secret::from_bytes([5; 32]), number.to_string());
    let made = Dedupe::of_event(&secret, "", "numbered", &payload, payload.as_bytes());
    made.expect("a number is a good key")
}

/// The event with this number.
fn event(number: u64) -> NewEvent {
    NewEvent {
        id: EventId::new(EventKind::Event, SystemClock.now()),
        tenant: format!("tenant-{}", number % 5),
        event_type: "numbered".to_owned(),
        dedupe: Some(key(number)),
        payload: number.to_string().into_bytes().into(),
        content_type: "text/plain".to_owned(),
        headers: Vec::new(),
        // Some have an order key, so that lanes advance during the kills too.
        order_key: number.is_multiple_of(4).then(|| format!("key-{}", number % 16)),
        origin: Origin::Api { principal: "victim".to_owned() },
        targets: vec![TARGET.to_owned()],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

/// The result of a worker's attempt at the event with this number, and its word.
pub fn ending(number: u64, attempt: u32) -> (Settle, u32) {
    let ending = |class, error: &str| Ending {
        class,
        status: None,
        error: error.to_owned(),
        excerpt: String::new(),
        retry_after: None,
    };
    match number % 10 {
        0 => (Settle::Bury(ending(AttemptClass::Permanent, "never"), Cause::NonRetryable), word::BURIED),
        1 if attempt == 1 => {
            (Settle::Retry(ending(AttemptClass::Transient, "not yet"), Duration::ZERO), word::RETRIED)
        }
        _ => (Settle::Done(ending(AttemptClass::Success, "")), word::DONE),
    }
}

/// The number of a delivery's event.
pub fn number_of(work: &Work) -> u64 {
    let text = std::str::from_utf8(&work.payload).ok();
    text.and_then(|text| text.parse().ok()).expect("the payload is the number that was written")
}

impl Post {
    pub(super) fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime can be started");
        let store = match EmbeddedStore::open(&self.store) {
            Ok(store) => Arc::new(store),
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        let ledger = runtime.block_on(EmbeddedLedger::open(store)).expect("the ledger can be opened");
        let ledger = Arc::new(ledger);
        VictimReport::Ready.send();
        let next = Arc::new(AtomicU64::new(self.first));
        let mut tasks = Vec::new();
        for _ in 0..self.writers {
            tasks.push(runtime.spawn(write(Arc::clone(&ledger), Arc::clone(&next))));
        }
        for _ in 0..self.workers {
            tasks.push(runtime.spawn(work(Arc::clone(&ledger))));
        }
        for task in tasks {
            // A task ends only by a panic, which contains the ledger's answer.
            if runtime.block_on(task).is_err() {
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }
}

async fn write(ledger: Arc<EmbeddedLedger>, next: Arc<AtomicU64>) {
    loop {
        let first = next.fetch_add(3, Ordering::Relaxed);
        let answers = ledger.accept((first..first + 3).map(event).collect()).await;
        for (number, answer) in (first..).zip(answers.expect("events are accepted")) {
            assert!(matches!(answer, Accepted::First(_)), "event {number}: {answer:?}");
            VictimReport::Acknowledged { item: number, write: word::ACCEPTED, fence: 0 }.send();
        }
    }
}

async fn work(ledger: Arc<EmbeddedLedger>) {
    loop {
        let changed = ledger.changed();
        let take = Take {
            worker: std::process::id().to_string(),
            targets: vec![(TARGET.to_owned(), 8)],
            limit: 8,
            lease: LEASE,
        };
        let taken = ledger.take(take).await.expect("work can be taken");
        if taken.is_empty() {
            let _ = tokio::time::timeout(Duration::from_millis(50), changed).await;
            continue;
        }
        let (settled, words): (Vec<_>, Vec<_>) = taken
            .iter()
            .map(|work| {
                let number = number_of(work);
                // An earlier crash counts as an attempt too; an event that fails once fails in the first attempt that
                // ends.
                let (settle, word) = ending(number, work.attempt - work.crashes);
                ((work.holding, settle), (number, word))
            })
            .unzip();
        let said = ledger.settle(settled).await.expect("work can be settled");
        for ((number, word), said) in words.into_iter().zip(said) {
            // Lost is allowed: the machine was busy for longer than the lease.
            if said == LeaseResult::Kept {
                VictimReport::Acknowledged { item: number, write: word, fence: 0 }.send();
            }
        }
    }
}
