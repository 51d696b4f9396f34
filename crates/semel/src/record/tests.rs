//! The rules, cell by cell. The model in `semel-proof` proves the properties over all interleavings.

mod codec;
mod fence;
mod fuzz;
mod operator;
mod sweep;
mod table;
mod time;
mod walk;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An arbitrary time on the store's clock, well after the epoch.
const START: Timestamp = Timestamp::from_micros(1_000_000_000_000_000);

const A: Owner = Owner::from_bytes([0xa; 16]);
const B: Owner = Owner::from_bytes([0xb; 16]);
const C: Owner = Owner::from_bytes([0xc; 16]);

/// The first payload, and another one under the same key.
const SAME: Fingerprint = Fingerprint::from_bytes([1; 32]);
const OTHER: Fingerprint = Fingerprint::from_bytes([2; 32]);

const MODES: [Mode; 4] = [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun];

/// The record of one key, with the store's clock and fence floor.
#[derive(Clone, Debug)]
struct Slot {
    record: Option<Record>,
    now: Timestamp,
    floor: Fence,
    terms: Terms,
}

impl Slot {
    fn new(mode: Mode) -> Self {
        Self { record: None, now: START, floor: Fence::default(), terms: Terms { mode, ..Terms::default() } }
    }

    fn apply(&mut self, command: &Command) -> Ruling {
        apply(&mut self.record, command, self.now, self.floor)
    }

    /// Claims without the begin mark.
    fn claim(&mut self, owner: Owner) -> Ruling {
        self.apply(&claim(owner, SAME, self.terms, Begin::Later))
    }

    fn win(&mut self, owner: Owner) -> Grant {
        won(&self.claim(owner))
    }

    /// A claim that is won and begun.
    fn begun(mode: Mode, owner: Owner) -> (Self, Grant) {
        let mut slot = Self::new(mode);
        let grant = slot.win(owner);
        assert!(accepted(&slot.apply(&Command::Begin(grant))));
        (slot, grant)
    }

    /// A key whose effect is done with the outcome `done`.
    fn done(mode: Mode, owner: Owner) -> (Self, Grant) {
        let (mut slot, grant) = Self::begun(mode, owner);
        assert!(accepted(&slot.apply(&complete(grant, "done"))));
        (slot, grant)
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }

    fn phase(&self) -> Phase {
        self.record.as_ref().map_or(Phase::Vacant, |record| record.phase(self.now))
    }

    fn stored(&self) -> &Record {
        self.record.as_ref().expect("the store knows the key")
    }

    /// The sweep of a store: the floor is raised before a record is removed.
    fn sweep(&mut self) {
        match self.stored().sweep(self.now) {
            Sweep::Keep => {}
            Sweep::Shrink(record) => self.record = Some(record),
            Sweep::Remove => {
                self.floor = self.floor.max(self.stored().fence);
                self.record = None;
            }
        }
    }
}

fn claim(owner: Owner, fingerprint: Fingerprint, terms: Terms, begin: Begin) -> Command {
    Command::Claim(NewClaim { owner, fingerprint, terms: terms.into(), begin, hint: Hint::new("order-20") })
}

fn complete(grant: Grant, text: &str) -> Command {
    Command::Complete { grant, fingerprint: SAME, outcome: outcome(text), retention: None }
}

fn outcome(text: &str) -> Arc<Outcome> {
    Arc::new(Outcome::new("text", text.as_bytes()))
}

fn won(ruling: &Ruling) -> Grant {
    match ruling {
        Ruling::Won(win) => win.grant,
        other => panic!("the claim was not won: {other:?}"),
    }
}

fn accepted(ruling: &Ruling) -> bool {
    matches!(ruling, Ruling::Accepted { .. })
}

fn lost_to(text: &str) -> Ruling {
    Ruling::Lost { winner: Some(outcome(text)) }
}
