//! Many callers that write as fast as they can, every write reported once the store acknowledged it.
//!
//! The writes of an item follow from a seed and its number, so a test can check every byte in the store.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, Fence, Grant, NewClaim, Owner, Record, Ruling, State, Terms};
use semel::store::{EmbeddedStore, Store};
use serde::{Deserialize, Serialize};

use super::VictimReport;

/// The number of callers, and the first number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flood {
    /// The folder of the store.
    pub store: PathBuf,
    /// The seed of all writes.
    pub seed: u64,
    /// The number of the first item.
    pub first: u64,
    /// How many callers write at the same time.
    pub callers: u32,
    /// When a write is reported.
    pub word: ReportTiming,
}

/// When a write is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportTiming {
    /// Once the store acknowledged it.
    Kept,
    /// Before it was sent, like a store that acknowledges too early. The test must detect it.
    Broken,
}

/// A key and its sequence of writes.
#[derive(Clone, Debug)]
pub struct FloodItem {
    /// The key.
    pub id: KeyId,
    claim: NewClaim,
    outcome: Arc<Outcome>,
    plan: Vec<Write>,
}

/// One write of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Claim,
    Begin,
    Complete,
    Release,
}

impl FloodItem {
    /// The item with this number.
    pub fn of(seed: u64, number: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let begin = if rng.random_bool(0.5) { Begin::WithClaim } else { Begin::Later };
        let claim = NewClaim {
            owner: Owner::from_bytes(rng.random()),
            fingerprint: Fingerprint::from_bytes(rng.random()),
            terms: Arc::new(Terms::default()),
            begin,
            hint: Hint::new(&number.to_string()),
        };
        // Mostly small; some larger than a page, so that a torn one would show.
        let size = if rng.random_bool(0.05) { 20_000 } else { 400 };
        let size = rng.random_range(0..size);
        let body: Vec<u8> = (0..size).map(|_| rng.random()).collect();
        let mut plan = vec![Write::Claim];
        if begin == Begin::Later && rng.random_bool(0.3) {
            plan.push(Write::Begin);
        }
        match rng.random_range(0..20) {
            0 => {}
            1 => plan.push(Write::Release),
            _ => plan.push(Write::Complete),
        }
        let outcome = Arc::new(Outcome::new("bytes", body).with_metadata(number.to_le_bytes()));
        Self { id: KeyId::from_bytes(rng.random()), claim, outcome, plan }
    }

    /// How many writes it has.
    pub fn writes(&self) -> u32 {
        u32::try_from(self.plan.len()).expect("a plan has a handful of writes")
    }

    fn command(&self, write: Write, fence: Fence) -> Command {
        let grant = Grant::from_parts(self.claim.owner, fence);
        match write {
            Write::Claim => Command::Claim(self.claim.clone()),
            Write::Begin => Command::Begin(grant),
            Write::Complete => Command::Complete {
                grant,
                fingerprint: self.claim.fingerprint,
                outcome: Arc::clone(&self.outcome),
                retention: None,
            },
            Write::Release => Command::Release(grant),
        }
    }

    /// True if `found` is exactly the result of the first `writes` writes.
    pub fn is_after(&self, writes: u32, found: Option<&Record>) -> bool {
        let Some(last) = self.plan[..writes as usize].last() else { return found.is_none() };
        let Some(record) = found else { return false };
        let state = match last {
            Write::Claim if self.claim.begin == Begin::Later => State::Claimed,
            Write::Claim | Write::Begin => State::Begun,
            Write::Complete => State::Done(Arc::clone(&self.outcome)),
            Write::Release => State::Vacant,
        };
        record.state == state
            && record.owner == self.claim.owner
            && record.fingerprint == self.claim.fingerprint
            && record.terms == self.claim.terms
            && record.hint == self.claim.hint
            && record.attempt == 1
            && record.epoch.get() == 0
            && record.fence > Fence::default()
    }
}

impl Flood {
    pub(super) fn run(self) -> ExitCode {
        let store = match EmbeddedStore::open(&self.store) {
            Ok(store) => Arc::new(store),
            Err(error) => {
                VictimReport::not_opened(&error).send();
                return ExitCode::FAILURE;
            }
        };
        VictimReport::Ready.send();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("a runtime can be started");
        let next = Arc::new(AtomicU64::new(self.first));
        let callers: Vec<_> = (0..self.callers)
            .map(|_| {
                let (store, next, flood) = (Arc::clone(&store), Arc::clone(&next), self.clone());
                runtime.spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        flood.write(&store, number).await;
                    }
                })
            })
            .collect();
        for caller in callers {
            // A caller ends only by a panic, which contains the store's answer.
            if runtime.block_on(caller).is_err() {
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }

    async fn write(&self, store: &EmbeddedStore, number: u64) {
        let item = FloodItem::of(self.seed, number);
        let mut fence = Fence::default();
        for (write, step) in (1..).zip(&item.plan) {
            if self.word == ReportTiming::Broken {
                VictimReport::Acknowledged { item: number, write, fence: fence.get() }.send();
            }
            match store.apply(item.id, item.command(*step, fence)).await {
                Ok(Ruling::Won(win)) => fence = win.grant.fence(),
                Ok(Ruling::Accepted { .. }) => {}
                other => panic!("write {write} of item {number}: {other:?}"),
            }
            if self.word == ReportTiming::Kept {
                VictimReport::Acknowledged { item: number, write, fence: fence.get() }.send();
            }
        }
    }
}
