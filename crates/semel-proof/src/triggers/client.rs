//! Clients that cancel a run, increment its metadata, or reset the key.

use super::state::{ClaimState, ClientStep, Resetter, TriggerRule};
use super::{Milestone, ModelStep, TriggerMutant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Cancel,
    Increment,
}

impl ModelStep<'_> {
    fn client(&mut self, kind: ChangeKind) -> &mut ClientStep {
        match kind {
            ChangeKind::Cancel => &mut self.state.canceller,
            ChangeKind::Increment => &mut self.state.patcher,
        }
    }

    /// Sends the first command, to the ledger.
    pub(super) fn begin_change(&mut self, kind: ChangeKind, run: u8) -> Option<()> {
        match kind {
            ChangeKind::Cancel => self.state.left.cancels -= 1,
            ChangeKind::Increment => self.state.left.increments -= 1,
        }
        self.ask_ledger(kind, run, 0);
        Some(())
    }

    /// Sends the next command; `None` if the client has to wait.
    pub(super) fn change(&mut self, kind: ChangeKind) -> Option<()> {
        match *self.client(kind) {
            ClientStep::Idle => return None,
            ClientStep::Ledger { run, misses } => self.ask_ledger(kind, run, misses),
            ClientStep::Buffer { run, misses } => self.ask_buffer(kind, run, misses),
            ClientStep::InTransit(run) => {
                let arrived = self.state.ledger.event(run).is_some();
                if !arrived && self.state.redis.entry(run).is_some() {
                    return None;
                }
                self.ask_ledger(kind, run, 0);
            }
        }
        Some(())
    }

    fn ask_ledger(&mut self, kind: ChangeKind, run: u8, misses: u8) {
        let next = match (kind, self.state.ledger.event(run)) {
            (_, None) => ClientStep::Buffer { run, misses },
            (ChangeKind::Cancel, Some(_)) => {
                // A run that was executed cannot be cancelled; the client gets that answer.
                if self.cancel_in_ledger(run) == Some(true) {
                    self.acknowledge(kind, run);
                }
                ClientStep::Idle
            }
            (ChangeKind::Increment, Some(mut event)) => {
                event.increments += 1;
                self.state.ledger.events[usize::from(run)] = Some(event);
                self.acknowledge(kind, run);
                ClientStep::Idle
            }
        };
        *self.client(kind) = next;
    }

    fn ask_buffer(&mut self, kind: ChangeKind, run: u8, misses: u8) {
        let after_lease = self.broken_by(TriggerMutant::CancelAfterExpiredLease);
        let next = match self.state.redis.entry_mut(run) {
            // A drainer whose lease expired may still write the run to the ledger as it was when it was leased.
            Some(entry)
                if kind == ChangeKind::Cancel
                    && (entry.lease.is_some() || (entry.ever_leased && !after_lease)) =>
            {
                self.reach(Milestone::CancelWaited);
                ClientStep::InTransit(run)
            }
            // It is already cancelled.
            Some(entry) if kind == ChangeKind::Cancel && entry.cancel != 0 => {
                self.acknowledge(kind, run);
                ClientStep::Idle
            }
            Some(entry) => {
                entry.version += 1;
                if kind == ChangeKind::Cancel {
                    entry.cancel = entry.version;
                }
                self.acknowledge(kind, run);
                ClientStep::Idle
            }
            // The run may have moved to the ledger between the two looks.
            None if misses == 0 => ClientStep::Ledger { run, misses: 1 },
            None => {
                if !self.state.witness.lost.has(run) {
                    self.state.break_rule(TriggerRule::ChangeFinds);
                }
                ClientStep::Idle
            }
        };
        *self.client(kind) = next;
    }

    fn acknowledge(&mut self, kind: ChangeKind, run: u8) {
        match kind {
            ChangeKind::Cancel => self.state.witness.cancelled.add(run),
            ChangeKind::Increment => self.state.witness.increments[usize::from(run)] += 1,
        }
    }

    pub(super) fn reset_key(&mut self) -> Option<()> {
        self.state.resetter = match self.state.resetter {
            Resetter::Idle => {
                self.state.left.resets -= 1;
                Resetter::Close(self.reset())
            }
            Resetter::Close(generation) => {
                if self.broken_by(TriggerMutant::ResetWithoutGeneration) {
                    if let Some(run) = self.state.redis.indexed(generation)
                        && let Some(entry) = self.state.redis.entry_mut(run)
                    {
                        entry.indexed = false;
                    }
                    *self.state.redis.claim_mut(generation) = ClaimState::Free;
                } else if !self.broken_by(TriggerMutant::ResetLeavesGenerationOpen) {
                    self.state.redis.closed[usize::from(generation)] = true;
                }
                Resetter::Idle
            }
        };
        Some(())
    }
}
