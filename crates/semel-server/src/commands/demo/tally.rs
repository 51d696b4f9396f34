//! The answers that the demo's clients got.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::api::Charges;

/// Counts answers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: AtomicUsize,
    first: AtomicUsize,
    replayed: AtomicUsize,
    conflict: AtomicUsize,
    gone: AtomicUsize,
    wrong: AtomicUsize,
}

/// The result of a request of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestResult {
    /// Charged by this request.
    First,
    /// Answered from the record.
    Replayed,
    /// Another payload with a known key.
    Conflict,
    /// The client disconnected.
    Gone,
    /// An unexpected answer.
    Wrong,
}

impl Tally {
    pub(super) fn add(&self, seen: RequestResult) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let counter = match seen {
            RequestResult::First => &self.first,
            RequestResult::Replayed => &self.replayed,
            RequestResult::Conflict => &self.conflict,
            RequestResult::Gone => &self.gone,
            RequestResult::Wrong => &self.wrong,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn of(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }

    /// A progress line.
    pub(super) fn line(&self, charges: &Charges) -> String {
        format!(
            "{:>5} requests  {:>5} charges  {:>5} replays  {:>4} conflicts  {:>3} hung up   charged twice: {}",
            Self::of(&self.sent),
            charges.count(),
            Self::of(&self.replayed),
            Self::of(&self.conflict),
            Self::of(&self.gone),
            charges.twice(),
        )
    }

    /// The summary at the end.
    pub(super) fn summary(&self, charges: &Charges) -> String {
        let (count, keys, twice) = (charges.count(), charges.keys(), charges.twice());
        let verdict = if count == keys { "one charge per key" } else { "NOT one charge per key" };
        format!(
            "\n{}\n{keys} keys, {count} charges, {twice} keys charged twice: {verdict}.",
            self.line(charges)
        )
    }

    /// The summary as JSON.
    pub(super) fn json(&self, charges: &Charges) -> Value {
        json!({
            "requests": Self::of(&self.sent),
            "first": Self::of(&self.first),
            "replays": Self::of(&self.replayed),
            "conflicts": Self::of(&self.conflict),
            "hung_up": Self::of(&self.gone),
            "unexpected": Self::of(&self.wrong),
            "keys": charges.keys(),
            "charges": charges.count(),
            "keys_charged_twice": charges.twice(),
        })
    }
}
