//! The transactions of the ledger: each is one step.

use super::state::{GENERATIONS, KeyRow, LeasedRunState, LedgerRun, LedgerState, ModelDelivery, TriggerRule};
use super::{Milestone, ModelStep, TriggerMutant};

/// Answer of the ledger to a direct write.
pub(super) enum AcceptResult {
    /// The run is in the ledger under its own id.
    Own,
    /// Another run has the key.
    Held(u8),
    /// The run that has the key has expired.
    Expired(u8),
    /// The key is in another generation.
    Stale,
}

impl LedgerState {
    pub(super) fn row(&self) -> KeyRow {
        self.row.unwrap_or_default()
    }

    /// A run by its id.
    pub fn event(&self, run: u8) -> Option<LedgerRun> {
        self.events[usize::from(run)]
    }
}

impl ModelStep<'_> {
    /// Whether the lifetime of a run is over, as the ledger knows it.
    pub(super) fn expired_in_ledger(&self, run: u8) -> bool {
        let drained = self.state.ledger.event(run).is_some_and(|event| event.drained);
        // The second lifetime of the mutant does not end within the model.
        self.state.expired.has(run) && !(drained && self.broken_by(TriggerMutant::LifetimeFromDrain))
    }

    fn next_generation(&mut self, row: KeyRow) {
        let ledger = &mut self.state.ledger;
        ledger.clock += 1;
        assert!(usize::from(ledger.clock) < GENERATIONS, "more generations than there is room for");
        ledger.row = Some(row);
    }

    /// Ends an expired generation, if it is still the present one. Answers the generation that follows.
    pub(super) fn advance(&mut self, from: u8) -> Option<u8> {
        if self.state.ledger.row().generation != from {
            return None;
        }
        let (era, witness) = (self.state.ledger.clock, self.state.witness);
        let over = |run| witness.era[usize::from(run)] == era && self.state.expired.has(run);
        if !witness.placed.iter().any(over) {
            self.state.break_rule(TriggerRule::KeyKept);
        }
        self.reach(Milestone::Expired);
        let generation = self.state.ledger.clock + 1;
        self.next_generation(KeyRow { generation, holder: None });
        Some(generation)
    }

    /// Frees the key. Answers the generation that ended.
    pub(super) fn reset(&mut self) -> u8 {
        let old = self.state.ledger.row().generation;
        let keeps = self.broken_by(TriggerMutant::ResetWithoutGeneration);
        let generation = if keeps { old } else { self.state.ledger.clock + 1 };
        self.next_generation(KeyRow { generation, holder: None });
        old
    }

    /// Removes the row of a key. The holder, if there is one, has expired, and its generation ends with the row.
    pub(super) fn sweep(&mut self) {
        let ended = self.state.ledger.row().holder.is_some();
        self.state.ledger.clock += u8::from(ended);
        self.state.ledger.row = None;
    }

    /// A direct write under a generation.
    pub(super) fn accept(&mut self, run: u8, generation: u8) -> AcceptResult {
        let row = self.state.ledger.row();
        if self.state.ledger.event(run).is_some() {
            return AcceptResult::Own;
        }
        if !self.model.is_keyed(run) {
            self.insert(run, row.generation);
            return AcceptResult::Own;
        }
        if row.generation != generation {
            self.reach(Milestone::StaleWrite);
            if !self.broken_by(TriggerMutant::StaleWriteAccepted) {
                return AcceptResult::Stale;
            }
        }
        match row.holder {
            Some(holder)
                if self.expired_in_ledger(holder) && !self.broken_by(TriggerMutant::AcceptAnswersExpired) =>
            {
                AcceptResult::Expired(row.generation)
            }
            Some(holder) => AcceptResult::Held(holder),
            None => {
                self.state.ledger.row = Some(KeyRow { holder: Some(run), ..row });
                self.insert(run, row.generation);
                AcceptResult::Own
            }
        }
    }

    fn insert(&mut self, run: u8, generation: u8) {
        self.state.ledger.events[usize::from(run)] = Some(LedgerRun {
            generation,
            delivery: ModelDelivery::Queued,
            lost_key: false,
            drained: false,
            number: 0,
            increments: 0,
        });
        self.record_placed(run, self.state.ledger.clock);
    }

    pub(super) fn accept_buffered(&mut self, leased: LeasedRunState) {
        let LeasedRunState { run, generation, .. } = leased;
        if self.state.ledger.event(run).is_some() && !self.broken_by(TriggerMutant::AcceptIgnoresId) {
            self.reach(Milestone::AcceptedTwice);
            self.apply_changes(leased);
            return;
        }
        let row = self.state.ledger.row();
        let newer = row.generation > generation && !self.broken_by(TriggerMutant::DrainIgnoresGeneration);
        let keyed = self.model.is_keyed(run);
        let lost_key = keyed && row.holder.is_some() && row.generation >= generation && !newer;
        if !keyed {
            // It has no key to own or to lose.
        } else if newer {
            self.reach(Milestone::OlderGeneration);
        } else if lost_key {
            self.reach(Milestone::LostKey);
            if self.collision(leased, row) {
                return;
            }
        } else {
            self.state.ledger.row =
                Some(KeyRow { generation: row.generation.max(generation), holder: Some(run) });
        }
        let delivery = if lost_key { ModelDelivery::Dead } else { ModelDelivery::Queued };
        self.state.ledger.events[usize::from(run)] =
            Some(LedgerRun { generation, delivery, lost_key, drained: true, number: 0, increments: 0 });
        self.apply_changes(leased);
    }

    /// Mutants: a run that lost its key is not inserted.
    fn collision(&mut self, leased: LeasedRunState, row: KeyRow) -> bool {
        let Some(winner) = row.holder else { return false };
        let overwrites = self.broken_by(TriggerMutant::CollisionOverwrites);
        if let Some(event) = &mut self.state.ledger.events[usize::from(winner)]
            && overwrites
        {
            event.increments = leased.increments(0);
        }
        overwrites || self.broken_by(TriggerMutant::CollisionAliases)
    }

    /// Applies the changes that the ledger does not have yet.
    fn apply_changes(&mut self, leased: LeasedRunState) {
        let unnumbered = self.broken_by(TriggerMutant::ChangesNotNumbered);
        let set_back = self.broken_by(TriggerMutant::NumberSetBack);
        let Some(event) = &mut self.state.ledger.events[usize::from(leased.run)] else { return };
        event.increments += leased.increments(event.number);
        if !unnumbered {
            event.number = if set_back { leased.version } else { event.number.max(leased.version) };
        }
    }

    /// Cancels a run that has not started; `None` where the ledger does not have it.
    pub(super) fn cancel_in_ledger(&mut self, run: u8) -> Option<bool> {
        let event = self.state.ledger.events[usize::from(run)].as_mut()?;
        let cancelled = matches!(event.delivery, ModelDelivery::Queued | ModelDelivery::Cancelled);
        if cancelled {
            event.delivery = ModelDelivery::Cancelled;
        }
        Some(cancelled)
    }
}

impl LeasedRunState {
    /// How many changes come after this number.
    pub(super) fn increments(self, after: u8) -> u8 {
        self.version.saturating_sub(after)
    }
}
