//! The one way out of the buffer: lease, one transaction, acknowledge.

use super::redis::AckResult;
use super::world::{Delivery, Drainer, LeaseHolder};
use super::{Mutant, Step};

impl Step<'_> {
    /// Sends the next command of a drainer; `run` is the run to lease, if it leases one.
    pub(super) fn drain(&mut self, drainer: u8, run: Option<u8>) -> Option<()> {
        let holder = LeaseHolder::Drainer(drainer);
        let at = usize::from(drainer);
        self.world.drainers[at] = match self.world.drainers[at] {
            Drainer::Absent => return None,
            Drainer::Idle if self.model.listed => Drainer::Turn(self.world.redis.list?),
            Drainer::Idle => Drainer::AcceptBuffered(self.lease(run?, holder)?),
            Drainer::Turn(number) => match run {
                Some(run) => Drainer::AcceptBuffered(self.lease(run, holder)?),
                // The buffer keeps an empty tenant listed for 5 s after a refused put. Such a turn changes nothing: the drainer
                // is idle again, in the state in which its turn began. So it needs no step of its own here.
                None if self.world.redis.entries.iter().all(Option::is_none) => {
                    self.close_part(number);
                    Drainer::Leave(number)
                }
                // All runs are leased by others.
                None => Drainer::Idle,
            },
            Drainer::Leave(number) => {
                self.leave(number);
                Drainer::Idle
            }
            Drainer::AcceptBuffered(leased) => {
                self.accept_buffered(leased);
                let cancels = leased.cancel != 0 && leased.cancel <= leased.version;
                if cancels && self.broken_by(Mutant::CancelAfterAccept) {
                    Drainer::CancelAfterwards(leased)
                } else {
                    Drainer::Ack(leased)
                }
            }
            Drainer::CancelAfterwards(leased) => {
                self.cancel_in_ledger(leased.run);
                Drainer::Ack(leased)
            }
            Drainer::Ack(leased) => match self.ack(leased, holder) {
                AckResult::Gone | AckResult::Lost => Drainer::Idle,
                AckResult::Changed(leased) => Drainer::AcceptBuffered(leased),
            },
        };
        Some(())
    }

    pub(super) fn execute(&mut self, run: u8) -> Option<()> {
        let event = self.world.ledger.events[usize::from(run)].as_mut()?;
        if event.delivery != Delivery::Queued {
            return None;
        }
        event.delivery = Delivery::Executed;
        if self.world.witness.executed.has(run) {
            self.world.break_rule(super::world::Rule::ExecutedOnce);
        }
        self.world.witness.executed.add(run);
        Some(())
    }
}
