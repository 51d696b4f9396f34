//! Reads histories and ledger once, in any order, and says which promises were broken: linear in their length.
//!
//! The checker knows nothing of the store. What it may expect follows from the history alone:
//!
//! - At most one effect for each key in `marked`, and for each derived key in `keyed`.
//! - All stored answers of a key are identical.
//! - An answer names an entry of the ledger, of its own key, that is not younger than the answer.
//! - A key is in doubt at the end exactly if it was begun in `marked` and not ended. The history knows the begin and the end of an
//!   effect; between the end and its answer, and between a call and its begin, a killed process leaves the question open, and then both
//!   are right. A key is never in doubt without a killed process.
//! - An effect that began in a process that was not killed came to its end, even if its caller left.
//! - Every stored answer is given again at the end.
//! - At least 80 % of all calls whose callers waited got an outcome: a run that only fails proves nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::history::{HistoryEvent, HistoryRow};
use super::witness::LedgerEntry;
use super::{ChaosKey, KeyKind};

/// The least share of calls that get an outcome if their callers wait, in percent.
const FLOOR: u64 = 80;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BrokenPromise {
    /// An effect happened twice.
    SecondEffect,
    /// Two callers got different outcomes.
    DifferentAnswers,
    /// An outcome without an effect, or from before it.
    AnswerWithoutEffect,
    /// A key is in doubt, and no process that could have begun it was killed.
    DoubtWithoutCrash,
    /// A key was begun and not ended, and is not in doubt.
    DoubtForgotten,
    /// An effect that began in a process that lived on did not end.
    EffectCut,
    /// An outcome that a caller got is not given again.
    OutcomeLost,
    /// A caller was told something that no call can be told.
    UnexpectedEnd,
    /// Too few calls got an outcome.
    TooFewAnswers,
}

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub struct ChaosVerdict {
    /// Calls, those of the audit included.
    pub calls: u64,
    /// Calls that got an outcome.
    pub answered: u64,
    /// Calls by how they ended.
    pub ends: BTreeMap<&'static str, u64>,
    /// Effects in the ledger.
    pub effects: u64,
    /// Keys that were used.
    pub keys: u64,
    /// Processes killed and stopped.
    pub killed: u64,
    /// Processes stopped.
    pub stopped: u64,
    /// Keys in doubt at the end.
    pub in_doubt: u64,
    /// Of these, the keys whose effect surely began and did not end.
    pub surely_in_doubt: u64,
    /// The first keys of each broken promise, and their number.
    pub broken: BTreeMap<BrokenPromise, (u64, Vec<String>)>,
}

impl ChaosVerdict {
    /// True if nothing was broken.
    pub fn holds(&self) -> bool {
        self.broken.is_empty()
    }

    fn breaks(&mut self, promise: BrokenPromise, story: impl FnOnce() -> String) {
        let (count, stories) = self.broken.entry(promise).or_default();
        *count += 1;
        if stories.len() < 5 {
            stories.push(story());
        }
    }
}

impl fmt::Display for ChaosVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, answered, effects, keys, killed, stopped, in_doubt, surely_in_doubt, .. } = self;
        let percent = answered * 100 / (*calls).max(1);
        write!(
            f,
            "{calls} calls ({percent} % got an outcome) of {keys} keys, {effects} effects, {killed} kills, {stopped} stops, \
             {in_doubt} keys in doubt ({surely_in_doubt} surely begun): {:?}",
            self.ends
        )?;
        for (promise, (count, stories)) in &self.broken {
            write!(f, "\n{promise:?}: {count}")?;
            for story in stories {
                write!(f, "\n  {story}")?;
            }
        }
        Ok(())
    }
}

/// Which keys are called in `keyed`: the gateway names its keys in another way than the workers.
type KindOf = fn(u64) -> KeyKind;

/// Collects rows and entries.
#[derive(Debug)]
pub struct ChaosChecker {
    kind: KindOf,
    keys: HashMap<u64, KeyHistory>,
    killed: HashSet<u32>,
    auditors: HashSet<u32>,
    verdict: ChaosVerdict,
}

#[derive(Debug, Default)]
struct KeyHistory {
    entries: u32,
    entry: Option<LedgerEntry>,
    /// The outcome, and when it was first given.
    value: Option<(u64, u64, u64)>,
    differs: Option<(u64, u64)>,
    /// Answers whose entry is not the first one, which is known only at the end.
    unstored: Vec<(u64, u64)>,
    attempts: Vec<Attempt>,
    /// Calls without an answer, by process; and processes of callers that left or met a failing store.
    open: Vec<(u32, u64)>,
    perhaps: Vec<u32>,
    audit: Option<Audited>,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    fence: u64,
    process: u32,
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audited {
    Value(u64, u64),
    InDoubt,
    Other(HistoryEvent),
}

impl Default for ChaosChecker {
    fn default() -> Self {
        Self::new(|key| ChaosKey(key).kind())
    }
}

impl ChaosChecker {
    /// A checker of keys whose kind `kind` knows.
    pub fn new(kind: KindOf) -> Self {
        let (keys, killed, auditors) = (HashMap::new(), HashSet::new(), HashSet::new());
        Self { kind, keys, killed, auditors, verdict: ChaosVerdict::default() }
    }

    /// Takes an entry of the ledger.
    pub fn entry(&mut self, entry: LedgerEntry) {
        self.verdict.effects += 1;
        let key = self.keys.entry(entry.key).or_default();
        key.entries += 1;
        key.entry.get_or_insert(entry);
    }

    /// Takes a row. The rows of one process come in their order.
    pub fn row(&mut self, row: HistoryRow) {
        match row.event {
            HistoryEvent::Audits => {
                self.auditors.insert(row.process);
                return;
            }
            HistoryEvent::Killed => {
                self.killed.insert(row.process);
                self.verdict.killed += 1;
                return;
            }
            HistoryEvent::Stopped => {
                self.verdict.stopped += 1;
                return;
            }
            HistoryEvent::Left => return,
            HistoryEvent::Asked => self.verdict.calls += 1,
            HistoryEvent::Began | HistoryEvent::Ended | HistoryEvent::Failed => {}
            _ => *self.verdict.ends.entry(end_name(row.event)).or_default() += 1,
        }
        let key = self.keys.entry(row.key).or_default();
        key.take(&row);
        match row.event {
            HistoryEvent::Value => self.verdict.answered += 1,
            HistoryEvent::Unexpected => {
                self.verdict.breaks(BrokenPromise::UnexpectedEnd, || format!("{row:?}"));
            }
            _ => {}
        }
        if self.auditors.contains(&row.process) {
            key.audit = match row.event {
                HistoryEvent::Value => Some(Audited::Value(row.entry, row.fence)),
                HistoryEvent::InDoubt => Some(Audited::InDoubt),
                HistoryEvent::Asked | HistoryEvent::Began | HistoryEvent::Ended => key.audit,
                other => Some(Audited::Other(other)),
            };
        }
    }

    /// Judges what was taken.
    pub fn judge(mut self) -> ChaosVerdict {
        let keys = std::mem::take(&mut self.keys);
        self.verdict.keys = keys.len() as u64;
        for (number, key) in &keys {
            self.judge_key(*number, key);
        }
        let left = self.verdict.ends.get(end_name(HistoryEvent::Dropped)).copied().unwrap_or_default();
        let (waited, answered) = (self.verdict.calls.saturating_sub(left), self.verdict.answered);
        if answered * 100 < waited * FLOOR || waited == 0 {
            self.verdict.breaks(BrokenPromise::TooFewAnswers, || {
                format!("{answered} of {waited} calls whose callers waited")
            });
        }
        self.verdict
    }

    fn judge_key(&mut self, number: u64, key: &KeyHistory) {
        let story = || format!("slot {}, key {}: {key:?}", number >> 48, ChaosKey(number).number());
        let Self { verdict, killed, .. } = self;
        if key.entries > 1 {
            verdict.breaks(BrokenPromise::SecondEffect, story);
        }
        if key.differs.is_some() {
            verdict.breaks(BrokenPromise::DifferentAnswers, story);
        }
        let first = key.entry.map(|entry| (entry.number, entry.at));
        let is_real = |number: u64, at: u64| {
            key.entries > 1 || first.is_some_and(|(first, happened)| first == number && happened <= at)
        };
        let told = key.value.map(|(entry, _, at)| (entry, at));
        if told.into_iter().chain(key.unstored.iter().copied()).any(|(entry, at)| !is_real(entry, at)) {
            verdict.breaks(BrokenPromise::AnswerWithoutEffect, story);
        }
        if key.attempts.iter().any(|attempt| !attempt.over && !killed.contains(&attempt.process)) {
            verdict.breaks(BrokenPromise::EffectCut, story);
        }
        let marked = (self.kind)(number) != KeyKind::Keyed;
        let begun = |attempt: &Attempt| !attempt.over && killed.contains(&attempt.process);
        let surely = marked && key.attempts.iter().any(begun);
        if key.audit == Some(Audited::InDoubt) {
            verdict.in_doubt += 1;
            verdict.surely_in_doubt += u64::from(surely);
            let processes = key.open.iter().map(|(process, _)| process).chain(&key.perhaps);
            let mut of_attempts = key.attempts.iter().map(|attempt| &attempt.process).chain(processes);
            if !marked || !of_attempts.any(|process| killed.contains(process)) {
                verdict.breaks(BrokenPromise::DoubtWithoutCrash, story);
            }
        } else if surely && key.audit.is_some() {
            verdict.breaks(BrokenPromise::DoubtForgotten, story);
        }
        if let (Some((entry, fence, _)), Some(audit)) = (key.value, key.audit)
            && audit != Audited::Value(entry, fence)
        {
            verdict.breaks(BrokenPromise::OutcomeLost, story);
        }
        if key.value.is_some() && key.audit.is_none() {
            verdict.breaks(BrokenPromise::OutcomeLost, || format!("{}, which was not asked again", story()));
        }
    }
}

impl KeyHistory {
    fn take(&mut self, row: &HistoryRow) {
        let HistoryRow { process, call, entry, fence, at, .. } = *row;
        match row.event {
            HistoryEvent::Asked => {
                self.open.push((process, call));
                return;
            }
            HistoryEvent::Began => {
                self.attempts.push(Attempt { fence, process, over: false });
                return;
            }
            HistoryEvent::Ended | HistoryEvent::Failed => {
                let own = |attempt: &&mut Attempt| (attempt.fence, attempt.process) == (fence, process);
                if let Some(attempt) = self.attempts.iter_mut().find(own) {
                    attempt.over = true;
                }
                return;
            }
            HistoryEvent::Value => match self.value {
                None => self.value = Some((entry, fence, at)),
                Some((known, by, first)) if (known, by) == (entry, fence) => {
                    self.value = Some((known, by, first.min(at)));
                }
                Some(_) => self.differs = Some((entry, fence)),
            },
            HistoryEvent::Unstored => {
                self.unstored.push((entry, at));
                self.perhaps.push(process);
            }
            HistoryEvent::StoreFailed | HistoryEvent::Dropped => self.perhaps.push(process),
            _ => {}
        }
        self.open.retain(|open| *open != (process, call));
    }
}

fn end_name(event: HistoryEvent) -> &'static str {
    match event {
        HistoryEvent::Value => "outcome",
        HistoryEvent::Unstored => "outcome not stored",
        HistoryEvent::InDoubt => "in doubt",
        HistoryEvent::InFlight => "in progress",
        HistoryEvent::StoreFailed => "store failed",
        HistoryEvent::Dropped => "caller left",
        HistoryEvent::Unexpected => "unexpected",
        _ => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: u64 = 0;
    const KEYED: u64 = 3;

    struct Story(ChaosChecker, u64);

    impl Story {
        fn new() -> Self {
            Self(ChaosChecker::default(), 0)
        }

        fn says(mut self, process: u32, event: HistoryEvent, key: u64, (entry, fence): (u64, u64)) -> Self {
            self.1 += 1;
            let call = u64::from(process);
            self.0.row(HistoryRow { at: self.1, key, call, entry, fence, process, event });
            self
        }

        fn happens(mut self, key: u64, number: u64) -> Self {
            self.1 += 1;
            self.0.entry(LedgerEntry { at: self.1, number, key, fence: 5, name: key.into() });
            self
        }

        fn runs(self, process: u32, key: u64) -> Self {
            let story = self.says(process, HistoryEvent::Asked, key, (0, 0)).says(
                process,
                HistoryEvent::Began,
                key,
                (0, 5),
            );
            let story = story.happens(key, 1).says(process, HistoryEvent::Ended, key, (1, 5));
            story.says(process, HistoryEvent::Value, key, (1, 5))
        }

        fn audit(self, key: u64, event: HistoryEvent) -> Self {
            let story =
                self.says(90, HistoryEvent::Audits, 0, (0, 0)).says(90, HistoryEvent::Asked, key, (0, 0));
            story.says(90, event, key, (1, 5))
        }

        fn breaks(self, promise: BrokenPromise) {
            let verdict = self.0.judge();
            assert!(verdict.broken.contains_key(&promise), "{promise:?} was not seen: {verdict}");
        }
    }

    #[test]
    fn a_sound_history_holds() {
        let verdict = Story::new().runs(1, MARKED).audit(MARKED, HistoryEvent::Value).0.judge();
        assert!(verdict.holds(), "{verdict}");
    }

    #[test]
    fn every_broken_promise_is_seen() {
        let run = || Story::new().runs(1, MARKED);
        run().happens(MARKED, 2).audit(MARKED, HistoryEvent::Value).breaks(BrokenPromise::SecondEffect);
        run().says(2, HistoryEvent::Value, MARKED, (1, 6)).breaks(BrokenPromise::DifferentAnswers);
        run().audit(MARKED, HistoryEvent::InDoubt).breaks(BrokenPromise::OutcomeLost);
        run().breaks(BrokenPromise::OutcomeLost);
        let answer = Story::new().says(1, HistoryEvent::Value, MARKED, (1, 5));
        answer.breaks(BrokenPromise::AnswerWithoutEffect);
        let early = Story::new().says(1, HistoryEvent::Value, MARKED, (1, 5)).happens(MARKED, 1);
        early.breaks(BrokenPromise::AnswerWithoutEffect);
        let begun = || {
            Story::new().says(1, HistoryEvent::Asked, MARKED, (0, 0)).says(
                1,
                HistoryEvent::Began,
                MARKED,
                (0, 5),
            )
        };
        begun().breaks(BrokenPromise::EffectCut);
        begun().audit(MARKED, HistoryEvent::InDoubt).breaks(BrokenPromise::DoubtWithoutCrash);
        let killed = || begun().says(1, HistoryEvent::Killed, 0, (0, 0));
        killed().audit(MARKED, HistoryEvent::Value).breaks(BrokenPromise::DoubtForgotten);
        killed().audit(MARKED, HistoryEvent::InDoubt).breaks(BrokenPromise::TooFewAnswers);
        let keyed =
            Story::new().says(1, HistoryEvent::Asked, KEYED, (0, 0)).says(1, HistoryEvent::Killed, 0, (0, 0));
        keyed.audit(KEYED, HistoryEvent::InDoubt).breaks(BrokenPromise::DoubtWithoutCrash);
    }

    #[test]
    fn doubt_after_a_crash_is_right_and_so_is_an_outcome_whose_answer_nobody_got() {
        let ended = || {
            let story = Story::new().says(1, HistoryEvent::Asked, MARKED, (0, 0)).says(
                1,
                HistoryEvent::Began,
                MARKED,
                (0, 5),
            );
            let story = story.happens(MARKED, 1).says(1, HistoryEvent::Ended, MARKED, (1, 5));
            story.says(1, HistoryEvent::Killed, 0, (0, 0))
        };
        for event in [HistoryEvent::Value, HistoryEvent::InDoubt] {
            let verdict = ended().audit(MARKED, event).0.judge();
            assert!(
                verdict.broken.keys().all(|promise| *promise == BrokenPromise::TooFewAnswers),
                "{verdict}"
            );
        }
    }
}
