//! High-water marks: the highest sequence number applied, per session.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

use parking_lot::Mutex;

/// Sessions are spread over this many locks.
const SHARDS: usize = 16;

/// The default first sequence number of a session, for [`Gaps::Strict`].
pub(super) const DEFAULT_FIRST: u64 = 1;

/// Whether a session may skip sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gaps {
    /// Only the number after the mark is accepted. A number that arrives early is refused and must be sent again in
    /// its turn.
    Strict,
    /// Any number above the mark is accepted. A skipped number that arrives later is below the mark and is refused:
    /// lenient allows loss, not reordering.
    Lenient,
}

/// The answer of the marks to a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// It is above the mark and may be applied.
    Accepted(AcceptedMark),
    /// It is at or below the mark: applied before, or skipped under [`Gaps::Lenient`]. Never apply it.
    AtOrBelow {
        /// The session's mark.
        mark: u64,
    },
    /// It came before its turn ([`Gaps::Strict`] only). The mark did not move.
    OutOfOrder {
        /// The expected number.
        expected: u64,
        /// The number that was received.
        got: u64,
    },
}

/// An accepted number and the mark before it, for [`Marks::take_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedMark {
    sequence: u64,
    before: Option<u64>,
}

impl AcceptedMark {
    /// The accepted number.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.sequence
    }
}

impl Gaps {
    /// The rule: compares `sequence` with the mark, or with `first` in a session without a mark.
    pub(super) fn check(self, mark: Option<u64>, first: u64, sequence: u64) -> Advance {
        let expected = match mark {
            Some(mark) if sequence <= mark => return Advance::AtOrBelow { mark },
            Some(mark) => mark + 1, // a mark below some number is below u64::MAX
            None => first,
        };
        if self == Self::Strict && sequence != expected {
            return Advance::OutOfOrder { expected, got: sequence };
        }
        Advance::Accepted(AcceptedMark { sequence, before: mark })
    }
}

/// The highest sequence number of each session, in memory.
///
/// A number at or below a session's mark is never accepted again. Marks are therefore never evicted: a session costs
/// about 100 bytes until [`retire`](Self::retire) is called for it. Call that when a session has ended and its id
/// will not be used again.
///
/// These marks do not survive a restart; a [`Receiver`](super::Receiver) stores its marks.
///
/// ```
/// use semel_window::{Advance, Gaps, Marks};
///
/// let marks = Marks::new(Gaps::Lenient);
/// assert!(matches!(marks.advance(b"s", 7), Advance::Accepted(_)));
/// assert_eq!(marks.advance(b"s", 7), Advance::AtOrBelow { mark: 7 });
/// assert_eq!(marks.advance(b"s", 3), Advance::AtOrBelow { mark: 7 });
/// ```
pub struct Marks {
    gaps: Gaps,
    first: u64,
    spread: RandomState,
    shards: [Mutex<HashMap<Box<[u8]>, u64>>; SHARDS],
}

impl Marks {
    /// Creates marks without sessions. Under [`Gaps::Strict`] a session starts with number 1.
    #[must_use]
    pub fn new(gaps: Gaps) -> Self {
        Self { gaps, first: DEFAULT_FIRST, spread: RandomState::new(), shards: Default::default() }
    }

    /// Sessions start with `first` instead of 1. Only [`Gaps::Strict`] uses it.
    #[must_use]
    pub fn starting_at(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// Checks `sequence` and, if it is accepted, raises the session's mark to it, in one step: of two threads with
    /// the same number, one is accepted.
    #[must_use = "only an accepted number may be applied"]
    pub fn advance(&self, session: &[u8], sequence: u64) -> Advance {
        let mut marks = self.shard(session).lock();
        let advance = self.gaps.check(marks.get(session).copied(), self.first, sequence);
        if let Advance::Accepted(_) = advance {
            marks.insert(session.into(), sequence);
        }
        advance
    }

    /// Restores the mark from before `accepted`, because the operation could not be applied.
    ///
    /// Does nothing if a higher number was accepted since: a lower mark would let that number be applied twice. Finish
    /// one number of a session before the next.
    pub fn take_back(&self, session: &[u8], accepted: AcceptedMark) {
        let mut marks = self.shard(session).lock();
        if marks.get(session) == Some(&accepted.sequence) {
            match accepted.before {
                Some(before) => marks.insert(session.into(), before),
                None => marks.remove(session),
            };
        }
    }

    /// Raises a session's mark to `to`, for example to one read from disk. Never lowers it.
    pub fn raise(&self, session: &[u8], to: u64) {
        let mut marks = self.shard(session).lock();
        match marks.get_mut(session) {
            Some(mark) => *mark = to.max(*mark),
            None => drop(marks.insert(session.into(), to)),
        }
    }

    /// The session's mark; `None` if nothing of it has been accepted.
    #[must_use]
    pub fn mark(&self, session: &[u8]) -> Option<u64> {
        self.shard(session).lock().get(session).copied()
    }

    /// Forgets a session and returns its mark. From now on its old numbers are accepted again, so call it
    /// only for a session that cannot send any more.
    pub fn retire(&self, session: &[u8]) -> Option<u64> {
        self.shard(session).lock().remove(session)
    }

    /// Number of sessions with a mark.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// True if no session has a mark.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, session: &[u8]) -> &Mutex<HashMap<Box<[u8]>, u64>> {
        &self.shards[self.spread.hash_one(session) as usize % SHARDS]
    }
}

impl fmt::Debug for Marks {
    /// Omits the session ids, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gaps, first, spread: _, shards: _ } = self;
        f.debug_struct("Marks")
            .field("gaps", gaps)
            .field("first", first)
            .field("sessions", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Window, WindowKey};

    fn accepted(advance: Advance) -> AcceptedMark {
        match advance {
            Advance::Accepted(accepted) => accepted,
            refused => panic!("refused: {refused:?}"),
        }
    }

    #[test]
    fn a_number_at_or_below_the_mark_is_refused_by_both_policies() {
        for gaps in [Gaps::Strict, Gaps::Lenient] {
            let marks = Marks::new(gaps);
            for n in 1..=3 {
                accepted(marks.advance(b"s", n));
            }
            for n in 0..=3 {
                assert_eq!(marks.advance(b"s", n), Advance::AtOrBelow { mark: 3 }, "{gaps:?}");
            }
        }
    }

    #[test]
    fn strict_wants_every_number_in_its_turn() {
        let marks = Marks::new(Gaps::Strict);
        assert_eq!(marks.advance(b"s", 0), Advance::OutOfOrder { expected: 1, got: 0 });
        assert_eq!(marks.advance(b"s", 2), Advance::OutOfOrder { expected: 1, got: 2 });
        assert_eq!(marks.mark(b"s"), None, "a refused number leaves no mark");
        accepted(marks.advance(b"s", 1));
        assert_eq!(marks.advance(b"s", 3), Advance::OutOfOrder { expected: 2, got: 3 });
        accepted(marks.advance(b"s", 2));
        accepted(marks.advance(b"s", 3));
        let from_zero = Marks::new(Gaps::Strict).starting_at(0);
        accepted(from_zero.advance(b"s", 0));
        accepted(from_zero.advance(b"s", 1));
    }

    #[test]
    fn lenient_allows_gaps_but_not_going_back() {
        let marks = Marks::new(Gaps::Lenient);
        accepted(marks.advance(b"s", 10));
        accepted(marks.advance(b"s", 12));
        assert_eq!(marks.advance(b"s", 11), Advance::AtOrBelow { mark: 12 });
    }

    #[test]
    fn the_last_number_of_all_is_a_mark_like_any_other() {
        for gaps in [Gaps::Strict, Gaps::Lenient] {
            let marks = Marks::new(gaps).starting_at(u64::MAX);
            accepted(marks.advance(b"s", u64::MAX));
            assert_eq!(marks.advance(b"s", u64::MAX), Advance::AtOrBelow { mark: u64::MAX });
            assert_eq!(marks.advance(b"s", 0), Advance::AtOrBelow { mark: u64::MAX });
        }
    }

    #[test]
    fn sessions_do_not_touch_each_other_and_retire_alone() {
        let marks = Marks::new(Gaps::Lenient);
        accepted(marks.advance(b"a", 5));
        accepted(marks.advance(b"b", 1));
        assert_eq!((marks.mark(b"a"), marks.mark(b"b"), marks.len()), (Some(5), Some(1), 2));
        assert_eq!(marks.retire(b"a"), Some(5));
        assert_eq!(marks.retire(b"a"), None);
        assert_eq!(marks.mark(b"b"), Some(1));
        accepted(marks.advance(b"a", 2));
    }

    #[test]
    fn take_back_restores_what_was_there_and_never_lowers_a_later_mark() {
        let marks = Marks::new(Gaps::Lenient);
        let first = accepted(marks.advance(b"s", 4));
        marks.take_back(b"s", first);
        assert_eq!(marks.mark(b"s"), None);
        let four = accepted(marks.advance(b"s", 4));
        let six = accepted(marks.advance(b"s", 6));
        marks.take_back(b"s", four);
        assert_eq!(marks.mark(b"s"), Some(6), "six was accepted since");
        marks.take_back(b"s", six);
        assert_eq!(marks.mark(b"s"), Some(4));
    }

    #[test]
    fn raise_never_lowers() {
        let marks = Marks::new(Gaps::Strict);
        marks.raise(b"s", 9);
        marks.raise(b"s", 3);
        assert_eq!(marks.mark(b"s"), Some(9));
        accepted(marks.advance(b"s", 10));
    }

    #[test]
    fn an_evicted_key_looks_new_to_the_window_and_is_refused_by_the_mark() {
        let window = Window::new(3).unwrap();
        let marks = Marks::new(Gaps::Strict);
        let key = |n| WindowKey::derive(b"s", n, b"operation");
        for n in 1..=4 {
            assert!(window.check_and_record(key(n)));
            accepted(marks.advance(b"s", n));
        }
        assert!(window.check_and_record(key(1)), "the window has forgotten it");
        assert_eq!(marks.advance(b"s", 1), Advance::AtOrBelow { mark: 4 });
    }

    #[test]
    fn one_of_many_threads_gets_each_number() {
        let marks = Marks::new(Gaps::Lenient);
        let accepted = || (1..=2_000).filter(|n| matches!(marks.advance(b"s", *n), Advance::Accepted(_)));
        let mut taken: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| accepted().collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "a number was accepted twice");
        assert_eq!(marks.mark(b"s"), Some(2_000));
    }
}
