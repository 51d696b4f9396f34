//! The one way out of the buffer: lease, one transaction, acknowledge.

use super::ModelStep;
use super::redis::AckResult;
use super::state::{DrainerStep, LeaseHolder, ModelDelivery};

impl ModelStep<'_> {
    /// Sends the next command of a drainer; `run` is the run to lease, if it leases one.
    pub(super) fn drain(&mut self, drainer: u8, run: Option<u8>) -> Option<()> {
        let holder = LeaseHolder::Drainer(drainer);
        let at = usize::from(drainer);
        self.state.drainers[at] = match self.state.drainers[at] {
            DrainerStep::Absent => return None,
            DrainerStep::Idle if self.model.listed => DrainerStep::Turn(self.state.redis.list?),
            DrainerStep::Idle => DrainerStep::AcceptBuffered(self.lease(run?, holder)?),
            DrainerStep::Turn(number) => match run {
                Some(run) => DrainerStep::AcceptBuffered(self.lease(run, holder)?),
                // The buffer keeps an empty tenant listed for 5 s after a refused put. Such a turn changes nothing: the drainer
                // is idle again, in the state in which its turn began. So it needs no step of its own here.
                None if self.state.redis.entries.iter().all(Option::is_none) => {
                    self.close_part(number);
                    DrainerStep::Leave(number)
                }
                // All runs are leased by others.
                None => DrainerStep::Idle,
            },
            DrainerStep::Leave(number) => {
                self.leave(number);
                DrainerStep::Idle
            }
            DrainerStep::AcceptBuffered(leased) => {
                self.accept_buffered(leased);
                DrainerStep::Ack(leased)
            }
            DrainerStep::Ack(leased) => match self.ack(leased, holder) {
                AckResult::Gone | AckResult::Lost => DrainerStep::Idle,
                AckResult::Changed(leased) => DrainerStep::AcceptBuffered(leased),
            },
        };
        Some(())
    }

    pub(super) fn execute(&mut self, run: u8) -> Option<()> {
        let event = self.state.ledger.events[usize::from(run)].as_mut()?;
        if event.delivery != ModelDelivery::Queued {
            return None;
        }
        event.delivery = ModelDelivery::Executed;
        if self.state.witness.executed.has(run) {
            self.state.break_rule(super::state::TriggerRule::ExecutedOnce);
        }
        self.state.witness.executed.add(run);
        Some(())
    }
}
