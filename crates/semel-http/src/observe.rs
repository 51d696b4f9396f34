//! Reports of the guard about its work: one outcome per answer, for metrics and logs.
//!
//! No value comes from a caller: keys, paths and tenants cannot become labels.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use semel::key::{Hint, KeyId};

use crate::problem::Situation;

/// How a request was answered. In the extensions of answers that have [`KeyUsed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnswerOutcome {
    /// Not guarded: passed on.
    PassedOn,
    /// Guarded, but without a key: passed on unprotected.
    Unkeyed,
    /// It ran here, and its answer is stored.
    Ran,
    /// It ran here, and its answer is not stored, because it had no effect.
    Released,
    /// It ran here, and only a tombstone is stored.
    Tombstone,
    /// It ran here, and its result is unknown.
    Doubtful,
    /// It ran here, and the store did not accept its answer.
    NotStored,
    /// Answered from the record.
    Replayed,
    /// The store was unavailable, and the route lets requests through.
    Unprotected,
    /// The credential was refused before an answer from the record.
    VerifyRefused,
    /// Refused.
    Refused(Situation),
    /// The published policy was read.
    WellKnown,
}

const RAN: [&str; 11] = [
    "passed_on",
    "unkeyed",
    "ran",
    "released",
    "tombstone",
    "doubtful",
    "not_stored",
    "replayed",
    "unprotected",
    "verify_refused",
    "well_known",
];
const KINDS: usize = RAN.len() + Situation::ALL.len();

impl AnswerOutcome {
    fn index(self) -> usize {
        match self {
            Self::PassedOn => 0,
            Self::Unkeyed => 1,
            Self::Ran => 2,
            Self::Released => 3,
            Self::Tombstone => 4,
            Self::Doubtful => 5,
            Self::NotStored => 6,
            Self::Replayed => 7,
            Self::Unprotected => 8,
            Self::VerifyRefused => 9,
            Self::WellKnown => 10,
            Self::Refused(situation) => RAN.len() + situation as usize,
        }
    }

    /// Its name in metrics and logs; a refusal has the code of its problem.
    #[must_use]
    pub fn name(self) -> &'static str {
        name(self.index())
    }
}

fn name(index: usize) -> &'static str {
    match RAN.get(index) {
        Some(name) => name,
        None => Situation::ALL[index - RAN.len()].code(),
    }
}

/// In the extensions of answers to guarded requests with an `X-Request-Id`: the id of their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUsed(pub KeyId);

/// In the extensions of answers to calls whose result is unknown because the upstream did not answer: what went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure(pub Arc<str>);

/// One answered request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exchange<'a> {
    /// How it was answered.
    pub outcome: AnswerOutcome,
    /// The status of the answer.
    pub status: StatusCode,
    /// Index of its route, from 0; `None` if no route matched.
    pub route: Option<usize>,
    /// The first characters of its key.
    pub key: Option<&'a Hint>,
    /// Time from the arrival of the request to the head of its answer.
    pub took: Duration,
}

/// Is notified of every answer, on the path of the request: it must be quick and must not block.
pub trait AnswerObserver: Send + Sync + 'static {
    /// Called when a request was answered.
    fn answered(&self, exchange: &Exchange<'_>);

    /// Called when a request runs for the first time whose key and payload another credential sent before. If credentials
    /// rotate, it is a retry that runs again.
    fn credential_rotated(&self) {}
}

/// Counts answers by outcome.
#[derive(Default)]
pub struct AnswerCounters {
    counts: [AtomicU64; KINDS],
    rotated_credentials: AtomicU64,
}

impl AnswerCounters {
    /// A new counter, all zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of answers with this outcome.
    #[must_use]
    pub fn count(&self, outcome: AnswerOutcome) -> u64 {
        self.counts[outcome.index()].load(Ordering::Relaxed)
    }

    /// Number of first runs whose key and payload another credential sent before.
    #[must_use]
    pub fn rotated_credentials(&self) -> u64 {
        self.rotated_credentials.load(Ordering::Relaxed)
    }

    /// All outcome names with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().enumerate().map(|(index, count)| (name(index), count.load(Ordering::Relaxed)))
    }
}

impl AnswerObserver for AnswerCounters {
    fn answered(&self, exchange: &Exchange<'_>) {
        self.counts[exchange.outcome.index()].fetch_add(1, Ordering::Relaxed);
    }

    fn credential_rotated(&self) {
        self.rotated_credentials.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for AnswerCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, count)| *count > 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_place_and_a_name_of_its_own() {
        let mut outcomes = vec![
            AnswerOutcome::PassedOn,
            AnswerOutcome::Unkeyed,
            AnswerOutcome::Ran,
            AnswerOutcome::Released,
            AnswerOutcome::Tombstone,
            AnswerOutcome::Doubtful,
            AnswerOutcome::NotStored,
            AnswerOutcome::Replayed,
            AnswerOutcome::Unprotected,
            AnswerOutcome::VerifyRefused,
            AnswerOutcome::WellKnown,
        ];
        outcomes.extend(Situation::ALL.map(AnswerOutcome::Refused));
        let mut indices: Vec<usize> = outcomes.iter().map(|outcome| outcome.index()).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..KINDS).collect::<Vec<_>>());
        let names: std::collections::BTreeSet<&str> = outcomes.iter().map(|outcome| outcome.name()).collect();
        assert_eq!(names.len(), KINDS);
    }
}
