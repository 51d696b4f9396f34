//! Clients that cancel a run, increment its metadata, or reset the key.

use super::world::{ClaimState, ClientStep, Resetter, TriggerRule};
use super::{Milestone, ModelStep, TriggerMutant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Cancel,
    Increment,
}

impl ModelStep<'_> {
    fn client(&mut self, wish: ChangeKind) -> &mut ClientStep {
        match wish {
            ChangeKind::Cancel => &mut self.world.canceller,
            ChangeKind::Increment => &mut self.world.patcher,
        }
    }

    /// Sends the first command, to the ledger.
    pub(super) fn begin_change(&mut self, wish: ChangeKind, run: u8) -> Option<()> {
        match wish {
            ChangeKind::Cancel => self.world.left.cancels -= 1,
            ChangeKind::Increment => self.world.left.increments -= 1,
        }
        self.ask_ledger(wish, run, 0);
        Some(())
    }

    /// Sends the next command; `None` if the client has to wait.
    pub(super) fn change(&mut self, wish: ChangeKind) -> Option<()> {
        match *self.client(wish) {
            ClientStep::Idle => return None,
            ClientStep::Ledger { run, misses } => self.ask_ledger(wish, run, misses),
            ClientStep::Buffer { run, misses } => self.ask_buffer(wish, run, misses),
            ClientStep::InTransit(run) => {
                let arrived = self.world.ledger.event(run).is_some();
                if !arrived && self.world.redis.entry(run).is_some() {
                    return None;
                }
                self.ask_ledger(wish, run, 0);
            }
        }
        Some(())
    }

    fn ask_ledger(&mut self, wish: ChangeKind, run: u8, misses: u8) {
        let next = match (wish, self.world.ledger.event(run)) {
            (_, None) => ClientStep::Buffer { run, misses },
            (ChangeKind::Cancel, Some(_)) => {
                // A run that was executed cannot be cancelled; the client gets that answer.
                if self.cancel_in_ledger(run) == Some(true) {
                    self.acknowledge(wish, run);
                }
                ClientStep::Idle
            }
            (ChangeKind::Increment, Some(mut event)) => {
                event.increments += 1;
                self.world.ledger.events[usize::from(run)] = Some(event);
                self.acknowledge(wish, run);
                ClientStep::Idle
            }
        };
        *self.client(wish) = next;
    }

    fn ask_buffer(&mut self, wish: ChangeKind, run: u8, misses: u8) {
        let after_lease = self.broken_by(TriggerMutant::CancelAfterExpiredLease);
        let next = match self.world.redis.entry_mut(run) {
            // A drainer whose lease expired may still write the run to the ledger as it was when it was leased.
            Some(entry)
                if wish == ChangeKind::Cancel
                    && (entry.lease.is_some() || (entry.ever_leased && !after_lease)) =>
            {
                self.mark(Milestone::CancelWaited);
                ClientStep::InTransit(run)
            }
            // It is already cancelled.
            Some(entry) if wish == ChangeKind::Cancel && entry.cancel != 0 => {
                self.acknowledge(wish, run);
                ClientStep::Idle
            }
            Some(entry) => {
                entry.version += 1;
                if wish == ChangeKind::Cancel {
                    entry.cancel = entry.version;
                }
                self.acknowledge(wish, run);
                ClientStep::Idle
            }
            // The run may have moved to the ledger between the two looks.
            None if misses == 0 => ClientStep::Ledger { run, misses: 1 },
            None => {
                if !self.world.witness.lost.has(run) {
                    self.world.break_rule(TriggerRule::ChangeFinds);
                }
                ClientStep::Idle
            }
        };
        *self.client(wish) = next;
    }

    fn acknowledge(&mut self, wish: ChangeKind, run: u8) {
        match wish {
            ChangeKind::Cancel => self.world.witness.cancelled.add(run),
            ChangeKind::Increment => self.world.witness.increments[usize::from(run)] += 1,
        }
    }

    pub(super) fn reset_key(&mut self) -> Option<()> {
        self.world.resetter = match self.world.resetter {
            Resetter::Idle => {
                self.world.left.resets -= 1;
                Resetter::Close(self.reset())
            }
            Resetter::Close(generation) => {
                if self.broken_by(TriggerMutant::ResetWithoutGeneration) {
                    if let Some(run) = self.world.redis.indexed(generation)
                        && let Some(entry) = self.world.redis.entry_mut(run)
                    {
                        entry.indexed = false;
                    }
                    *self.world.redis.claim_mut(generation) = ClaimState::Free;
                } else if !self.broken_by(TriggerMutant::ResetLeavesGenerationOpen) {
                    self.world.redis.closed[usize::from(generation)] = true;
                }
                Resetter::Idle
            }
        };
        Some(())
    }
}
