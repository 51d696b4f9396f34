//! Clients that cancel a run, increment its metadata, or reset the key.

use super::redis::AckResult;
use super::state::{ClaimState, ClientStep, LeaseHolder, Resetter, TriggerRule};
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

    /// Begins with the buffer, because a run moves from the buffer to the ledger.
    pub(super) fn begin_change(&mut self, kind: ChangeKind, run: u8) -> Option<()> {
        match kind {
            ChangeKind::Cancel => self.state.left.cancels -= 1,
            ChangeKind::Increment => self.state.left.increments -= 1,
        }
        if kind == ChangeKind::Cancel
            && self.state.redis.entry(run).is_some_and(|entry| entry.lease.is_some())
        {
            self.reach(Milestone::CancelWaited);
        }
        *self.client(kind) = ClientStep::Buffer(run);
        Some(())
    }

    /// Sends the next command; `None` if the client has to wait.
    pub(super) fn change(&mut self, kind: ChangeKind) -> Option<()> {
        let later = self.broken_by(TriggerMutant::CancelAfterAccept);
        let next = match *self.client(kind) {
            ClientStep::Idle => return None,
            ClientStep::Buffer(run) => self.ask_buffer(kind, run)?,
            ClientStep::Ledger(run) => {
                self.ask_ledger(kind, run);
                ClientStep::Idle
            }
            ClientStep::Move(leased) => {
                self.accept_buffered(leased);
                if later {
                    ClientStep::CancelAfterwards(leased)
                } else {
                    self.reach(Milestone::CancelledInBuffer);
                    self.ask_ledger(kind, leased.run);
                    ClientStep::Ack(leased)
                }
            }
            ClientStep::CancelAfterwards(leased) => {
                self.cancel_in_ledger(leased.run);
                ClientStep::Ack(leased)
            }
            ClientStep::Ack(leased) => match self.ack(leased, LeaseHolder::Canceller) {
                AckResult::Gone | AckResult::Lost => ClientStep::Idle,
                AckResult::Changed(leased) => ClientStep::Move(leased),
            },
        };
        *self.client(kind) = next;
        Some(())
    }

    fn ask_ledger(&mut self, kind: ChangeKind, run: u8) {
        match (kind, self.state.ledger.event(run)) {
            (_, None) => {
                if !self.state.witness.lost.has(run) {
                    self.state.break_rule(TriggerRule::ChangeFinds);
                }
            }
            (ChangeKind::Cancel, Some(_)) => {
                // A run that was executed cannot be cancelled; the client gets that answer.
                if self.cancel_in_ledger(run) == Some(true) {
                    self.acknowledge(kind, run);
                }
            }
            (ChangeKind::Increment, Some(mut event)) => {
                event.increments += 1;
                self.state.ledger.events[usize::from(run)] = Some(event);
                self.acknowledge(kind, run);
            }
        }
    }

    fn ask_buffer(&mut self, kind: ChangeKind, run: u8) -> Option<ClientStep> {
        if self.state.redis.entry(run).is_none() {
            return Some(ClientStep::Ledger(run));
        }
        if kind == ChangeKind::Cancel {
            let leased = self.lease(run, LeaseHolder::Canceller)?;
            if self.broken_by(TriggerMutant::CancelAfterAccept) {
                self.acknowledge(kind, run);
            }
            return Some(ClientStep::Move(leased));
        }
        self.state.redis.entry_mut(run).as_mut()?.version += 1;
        self.acknowledge(kind, run);
        Some(ClientStep::Idle)
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
                    self.outdate(generation);
                }
                Resetter::Idle
            }
        };
        Some(())
    }
}
