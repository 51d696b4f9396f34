//! A trigger: the one way in, with and without `?wait=true`.

use super::action::{GateOutcome, RedisFailure};
use super::ledger::AcceptResult;
use super::redis::{AckResult, PutResult};
use super::state::{
    CallerStage, ClaimAnswer, ClaimState, KeyRow, LeaseHolder, LeasedRunState, LedgerRun, LookReason,
    ModelDelivery, TriggerRule,
};
use super::{Milestone, ModelStep, TriggerMutant};

impl ModelStep<'_> {
    /// Sends the next command of a caller; `None` if it has to wait.
    pub(super) fn call(&mut self, caller: u8, place: GateOutcome) -> Option<()> {
        let at = usize::from(caller);
        let generation = self.state.callers[at].generation;
        match self.state.callers[at].stage {
            CallerStage::Idle => {
                self.begin(caller);
                if place == GateOutcome::Buffer {
                    self.set_stage(caller, CallerStage::Find(ClaimAnswer::InBurst));
                }
                if self.model.is_keyed(caller) {
                    self.call(caller, place)?;
                }
            }
            CallerStage::Claim => {
                let asked = self.claim(caller, generation);
                self.set_stage(caller, CallerStage::Find(asked));
                if asked == ClaimAnswer::Won && self.broken_by(TriggerMutant::WinnerSkipsLedger) {
                    self.set_stage(caller, CallerStage::Gate);
                }
            }
            CallerStage::Find(asked) => self.find(caller, asked),
            CallerStage::LookUnconfirmedBuffer(asked, row) => {
                if self.state.redis.entry(caller).is_some() {
                    self.answer_unconfirmed(caller);
                } else {
                    self.set_stage(caller, CallerStage::LookUnconfirmedLedger(asked, row, true));
                }
            }
            CallerStage::LookUnconfirmedLedger(asked, row, missing) => {
                if self.state.ledger.event(caller).is_some() {
                    self.answer_unconfirmed(caller);
                } else if missing {
                    self.find_in(caller, asked, row);
                } else {
                    self.release_claim(caller, generation);
                    self.set_stage(caller, CallerStage::Unavailable);
                }
            }
            CallerStage::Gate => {
                let reads = self.model.is_keyed(caller) && !self.broken_by(TriggerMutant::WinnerSkipsLedger);
                if place == GateOutcome::Buffer && !self.waits(caller) && reads {
                    self.find(caller, ClaimAnswer::InBurst);
                } else if place == GateOutcome::Buffer && !self.waits(caller) {
                    self.put_run(caller);
                } else if self.broken_by(TriggerMutant::DirectWriteSkipsBuffer) {
                    self.set_stage(caller, CallerStage::Accept);
                } else {
                    self.look_in_buffer(caller, LookReason::BeforeAccept);
                }
            }
            CallerStage::Put => self.put_run(caller),
            CallerStage::Announce => {
                let number = self.announce();
                if self.broken_by(TriggerMutant::NumberInsteadOfToken) {
                    self.state.callers[at].token = number;
                }
                let last = self.broken_by(TriggerMutant::AnnounceAfterPut);
                self.set_stage(caller, if last { CallerStage::Resolve(caller) } else { CallerStage::Put });
            }
            CallerStage::Look(why) => self.look_in_buffer(caller, why),
            CallerStage::LookUp(run) => {
                if self.state.ledger.event(run).is_some() && self.expired_in_ledger(run) {
                    self.set_stage(caller, CallerStage::Advance(generation));
                } else if self.state.ledger.event(run).is_some() {
                    self.answer(caller, run);
                } else {
                    self.forget(generation);
                    self.restart(caller);
                }
            }
            CallerStage::LookLostBuffer => {
                match self.state.redis.indexed(generation) {
                    Some(run) if self.has_payload_of(caller, run) && !self.state.expired.has(run) => {
                        self.reach(Milestone::LostKeyFound);
                        if self.waits(caller) {
                            self.begin_promotion(caller, run);
                        } else {
                            self.answer(caller, run);
                        }
                    }
                    _ if self.broken_by(TriggerMutant::LedgerBeforeBuffer) => self.refuse(caller),
                    _ => self.set_stage(caller, CallerStage::LookLostLedger),
                };
            }
            CallerStage::LookLostLedger => self.look_lost_in_ledger(caller),
            CallerStage::Accept => match self.accept(caller, generation) {
                AcceptResult::Own => {
                    if self.state.callers[at].alone {
                        self.reach(Milestone::Alone);
                    }
                    self.settle(caller, caller);
                }
                AcceptResult::Held(holder) if self.has_payload_of(caller, holder) => {
                    self.settle(caller, holder);
                }
                AcceptResult::Held(_) => self.set_stage(caller, self.first_look_for_lost()),
                AcceptResult::Expired(from) => self.set_stage(caller, CallerStage::Advance(from)),
                AcceptResult::Stale => self.restart(caller),
            },
            CallerStage::Advance(from) => {
                let next = self.advance(from);
                self.restart(caller);
                if let Some(next) = next {
                    self.state.callers[at].generation = next;
                }
            }
            CallerStage::Wait => {
                if matches!(
                    self.state.redis.claims[usize::from(generation)],
                    ClaimState::Held { lapsed: false, .. }
                ) {
                    return None;
                }
                self.restart(caller);
                self.call(caller, place)?;
            }
            CallerStage::Lease(run) => self.promote(caller, run)?,
            CallerStage::AcceptBuffered(leased) => {
                if self.broken_by(TriggerMutant::PromoteWithoutLease) {
                    self.write_promoted(leased);
                    self.set_stage(caller, CallerStage::Remove(leased.run));
                } else {
                    self.accept_buffered(leased);
                    self.set_stage(caller, CallerStage::Ack(leased));
                }
            }
            CallerStage::Ack(leased) => match self.ack(leased, LeaseHolder::Caller(caller)) {
                AckResult::Gone | AckResult::Lost => {
                    self.reach(Milestone::Promoted);
                    self.settle(caller, leased.run);
                }
                AckResult::Changed(leased) => self.set_stage(caller, CallerStage::AcceptBuffered(leased)),
            },
            CallerStage::Remove(run) => {
                let entry = self.state.redis.entry_mut(run);
                if entry.is_some_and(|entry| entry.lease.is_none()) {
                    *entry = None;
                }
                self.settle(caller, run);
            }
            CallerStage::Resolve(run) => {
                self.resolve(caller, generation, run);
                self.answer(caller, run);
            }
            CallerStage::Absent
            | CallerStage::Answered(_)
            | CallerStage::Conflict
            | CallerStage::Unavailable
            | CallerStage::Gone => {
                return None;
            }
        }
        Some(())
    }

    fn begin(&mut self, caller: u8) {
        let state = &self.state;
        let era = state.ledger.clock;
        let acknowledged = state.witness.answered.iter().find(|run| {
            let answered = usize::from(*run);
            state.witness.era[answered] == era
                && self.has_payload_of(caller, *run)
                && !state.expired.has(*run)
        });
        let expired = state.expired;
        let own = &mut self.state.callers[usize::from(caller)];
        (own.began, own.era, own.expired, own.acknowledged) = (era, era, expired, acknowledged);
        self.begin_claim(caller);
    }

    fn set_stage(&mut self, caller: u8, stage: CallerStage) {
        self.state.callers[usize::from(caller)].stage = stage;
    }

    fn has_payload_of(&self, caller: u8, run: u8) -> bool {
        self.payload(caller) == self.payload(run) || self.broken_by(TriggerMutant::PayloadNotCompared)
    }

    /// Starts again: from the claim, or from the ledger if the caller uses the ledger alone.
    fn restart(&mut self, caller: u8) {
        let at = usize::from(caller);
        let (generation, alone) = (self.state.callers[at].generation, self.state.callers[at].alone);
        if alone {
            self.set_stage(caller, CallerStage::Find(ClaimAnswer::Nothing));
        } else {
            self.release_claim(caller, generation);
            self.state.callers[at].claimed = false;
            self.state.callers[at].token = 0;
            self.begin_claim(caller);
        }
    }

    fn begin_claim(&mut self, caller: u8) {
        let skips = self.waits(caller) && self.broken_by(TriggerMutant::WaitWithoutClaim);
        let first = match self.model.is_keyed(caller) {
            true if skips => CallerStage::Find(ClaimAnswer::Nothing),
            true => CallerStage::Claim,
            false => CallerStage::Gate,
        };
        self.set_stage(caller, first);
    }

    /// Reads the row of the key. This always follows the claim.
    fn find(&mut self, caller: u8, asked: ClaimAnswer) {
        let row = self.state.ledger.row();
        let own = &mut self.state.callers[usize::from(caller)];
        own.era = self.state.ledger.clock;
        (own.outdated, own.late) = (false, false);
        if let Some(holder) = row.holder
            && self.expired_in_ledger(holder)
        {
            return self.set_stage(caller, CallerStage::Advance(row.generation));
        }
        if self.state.callers[usize::from(caller)].is_unconfirmed_before(row.generation) {
            return self.set_stage(caller, CallerStage::LookUnconfirmedBuffer(asked, row));
        }
        self.find_in(caller, asked, row);
    }

    /// Continues with the row of the key.
    fn find_in(&mut self, caller: u8, asked: ClaimAnswer, row: KeyRow) {
        let at = usize::from(caller);
        let KeyRow { generation, holder } = row;
        if generation != self.state.callers[at].generation && asked == ClaimAnswer::InBurst {
            // Its put needs no claim, so it continues with the generation that it just read.
            self.release_claim(caller, self.state.callers[at].generation);
            self.state.callers[at].claimed = false;
            self.state.callers[at].generation = generation;
        }
        if generation != self.state.callers[at].generation {
            self.restart(caller);
            self.state.callers[at].generation = generation;
            if self.state.callers[at].alone {
                // Without a claim to take, it continues with the generation that it just read.
                self.find_in(caller, asked, row);
            }
            return;
        }
        match holder {
            Some(holder) if self.has_payload_of(caller, holder) => return self.settle(caller, holder),
            Some(_) => return self.set_stage(caller, self.first_look_for_lost()),
            None => {}
        }
        let next = match asked {
            ClaimAnswer::Won | ClaimAnswer::TookOver => CallerStage::Gate,
            ClaimAnswer::InBurst => CallerStage::Put,
            ClaimAnswer::Busy => CallerStage::Look(LookReason::Busy),
            ClaimAnswer::Replay(run) => CallerStage::Look(LookReason::Replay(run)),
            ClaimAnswer::Conflict => CallerStage::Look(LookReason::Conflict),
            ClaimAnswer::Nothing => CallerStage::Accept,
        };
        self.set_stage(caller, next);
    }

    /// Looks up the key in the buffer.
    fn look_in_buffer(&mut self, caller: u8, why: LookReason) {
        let generation = self.state.callers[usize::from(caller)].generation;
        let found = match why {
            // By its id. The buffer is asked before the ledger, because a run moves from the buffer to the ledger.
            LookReason::Replay(run) => self.state.redis.entry(run).map(|_| run),
            // The ledger accepts the run under the same id, if it is in the buffer after all.
            LookReason::BeforeAccept => self.reserve(generation).filter(|run| *run != caller),
            _ => self.state.redis.indexed(generation),
        };
        let frees = self.broken_by(TriggerMutant::BufferFreesExpiredKey);
        match found {
            Some(run) if self.state.expired.has(run) && !frees => {
                self.set_stage(caller, CallerStage::Advance(generation));
            }
            Some(run) if self.has_payload_of(caller, run) && !self.state.expired.has(run) => {
                if self.waits(caller) && !self.broken_by(TriggerMutant::WaitNotPromoted) {
                    self.begin_promotion(caller, run);
                } else {
                    self.settle(caller, run);
                }
            }
            Some(run) if !self.state.expired.has(run) => self.set_stage(caller, CallerStage::LookLostLedger),
            _ => match why {
                LookReason::BeforeAccept => self.set_stage(caller, CallerStage::Accept),
                LookReason::Busy if self.broken_by(TriggerMutant::RoundsBypassClaim) => {
                    self.set_stage(caller, CallerStage::Accept);
                }
                LookReason::Busy => self.set_stage(caller, CallerStage::Wait),
                LookReason::Replay(run) => self.set_stage(caller, CallerStage::LookUp(run)),
                LookReason::Conflict => self.set_stage(caller, CallerStage::LookLostLedger),
            },
        }
    }

    fn first_look_for_lost(&self) -> CallerStage {
        if self.broken_by(TriggerMutant::LedgerBeforeBuffer) {
            CallerStage::LookLostLedger
        } else {
            CallerStage::LookLostBuffer
        }
    }

    /// The last look before a conflict is answered: a run may have moved here since the look into the buffer.
    fn look_lost_in_ledger(&mut self, caller: u8) {
        let at = usize::from(caller);
        let row = self.state.ledger.row();
        if row.generation != self.state.callers[at].generation {
            return self.restart(caller);
        }
        match row.holder {
            Some(holder) if self.expired_in_ledger(holder) => {
                return self.set_stage(caller, CallerStage::Advance(row.generation));
            }
            Some(holder) if self.has_payload_of(caller, holder) => return self.settle(caller, holder),
            _ => {}
        }
        let lost = |run: &u8| {
            let event = self.state.ledger.event(*run);
            event.is_some_and(|event| event.lost_key && event.generation == row.generation)
                && self.has_payload_of(caller, *run)
                && !self.state.expired.has(*run)
        };
        let runs = u8::try_from(self.model.callers.len()).unwrap_or(u8::MAX);
        match (0..runs).find(lost) {
            Some(run) => {
                self.reach(Milestone::LostKeyFound);
                self.answer(caller, run);
            }
            // The buffer was not asked, so the caller's run may be there.
            None if self.state.callers[at].alone => self.set_stage(caller, CallerStage::Unavailable),
            None if self.broken_by(TriggerMutant::LedgerBeforeBuffer) => {
                self.set_stage(caller, CallerStage::LookLostBuffer);
            }
            None => self.refuse(caller),
        }
    }

    /// The run of an unconfirmed put is there. It belongs to that generation, and is not placed under another one.
    fn answer_unconfirmed(&mut self, caller: u8) {
        self.reach(Milestone::UnconfirmedFound);
        self.release_claim(caller, self.state.callers[usize::from(caller)].generation);
        self.answer(caller, caller);
    }

    fn put_run(&mut self, caller: u8) {
        let own = self.state.callers[usize::from(caller)];
        let generation = own.generation;
        if own.is_unconfirmed_before(generation) {
            return self.leave_burst(caller);
        }
        match self.put(caller) {
            PutResult::Taken if self.model.listed && self.broken_by(TriggerMutant::AnnounceAfterPut) => {
                self.set_stage(caller, CallerStage::Announce);
            }
            PutResult::Taken => self.settle(caller, caller),
            PutResult::Duplicate(run) if self.has_payload_of(caller, run) => self.settle(caller, run),
            PutResult::Duplicate(_) => self.set_stage(caller, CallerStage::LookLostLedger),
            PutResult::Expired => self.set_stage(caller, CallerStage::Advance(generation)),
            PutResult::Late => self.set_stage(caller, CallerStage::Find(ClaimAnswer::InBurst)),
            PutResult::Reserved => self.leave_burst(caller),
            PutResult::NotListed(token) => {
                self.state.callers[usize::from(caller)].token = token;
                self.set_stage(caller, CallerStage::Announce);
            }
        }
    }

    /// The buffer does not accept the run, or it is unknown whether it did: the run goes to the ledger.
    fn leave_burst(&mut self, caller: u8) {
        let own = &mut self.state.callers[usize::from(caller)];
        own.token = 0;
        let claimed = own.claimed || !self.model.is_keyed(caller);
        let next = if claimed { CallerStage::Look(LookReason::BeforeAccept) } else { CallerStage::Claim };
        self.set_stage(caller, next);
    }

    fn begin_promotion(&mut self, caller: u8, run: u8) {
        if self.state.redis.entry(run).is_some_and(|entry| entry.lease.is_some()) {
            self.reach(Milestone::PromotionWaited);
        }
        self.set_stage(caller, CallerStage::Lease(run));
    }

    /// Leases the run unless it has another lease. Starts again if the run is no longer in the buffer.
    fn promote(&mut self, caller: u8, run: u8) -> Option<()> {
        let Some(entry) = self.state.redis.entry(run) else {
            self.restart(caller);
            return self.call(caller, GateOutcome::Ledger);
        };
        if self.broken_by(TriggerMutant::PromoteWithoutLease) {
            self.set_stage(caller, CallerStage::AcceptBuffered(entry.leased(run)));
            return Some(());
        }
        let leased = self.lease(run, LeaseHolder::Caller(caller))?;
        self.set_stage(caller, CallerStage::AcceptBuffered(leased));
        Some(())
    }

    /// Mutant: promotion without a lease writes the run as live, with its changes and without their number.
    fn write_promoted(&mut self, leased: LeasedRunState) {
        let run = usize::from(leased.run);
        if self.state.ledger.events[run].is_some() {
            return;
        }
        let row = self.state.ledger.row();
        if row.holder.is_none() {
            self.state.ledger.row = Some(KeyRow { holder: Some(leased.run), ..row });
        }
        self.state.ledger.events[run] = Some(LedgerRun {
            generation: row.generation,
            delivery: ModelDelivery::Queued,
            lost_key: false,
            drained: false,
            number: 0,
            increments: leased.increments(0),
        });
    }

    /// The run of this trigger is known: resolves the claim to it, if the caller has one, and answers.
    fn settle(&mut self, caller: u8, run: u8) {
        let own = &self.state.callers[usize::from(caller)];
        if own.claimed && !own.alone {
            self.set_stage(caller, CallerStage::Resolve(run));
        } else {
            self.answer(caller, run);
        }
    }

    fn answer(&mut self, caller: u8, run: u8) {
        let own = self.state.callers[usize::from(caller)];
        let era = self.state.witness.era[usize::from(run)];
        if self.payload(caller) != self.payload(run) {
            self.state.break_rule(TriggerRule::OwnPayload);
        }
        if era < own.began || own.expired.has(run) {
            self.state.break_rule(TriggerRule::CurrentRun);
        }
        if self.waits(caller) && self.state.ledger.event(run).is_none() {
            self.state.break_rule(TriggerRule::WaiterServed);
        }
        self.state.witness.answered.add(run);
        if run == caller && self.model.is_keyed(run) {
            let firsts = &mut self.state.witness.firsts[usize::from(era)];
            *firsts = (*firsts + 1).min(2);
        }
        self.set_stage(caller, CallerStage::Answered(run));
    }

    /// Answers that the key belongs to another payload.
    fn refuse(&mut self, caller: u8) {
        let own = self.state.callers[usize::from(caller)];
        let acknowledged = own.acknowledged.is_some_and(|run| {
            !self.state.expired.has(run)
                && !self.state.witness.lost.has(run)
                && self.state.ledger.clock == own.began
        });
        if acknowledged {
            self.state.break_rule(TriggerRule::RetryFinds);
        }
        self.reach(Milestone::Conflict);
        self.drop_claim(caller, own.generation);
        self.set_stage(caller, CallerStage::Conflict);
    }

    /// Records that the ledger or the buffer accepted the run.
    pub(super) fn record_placed(&mut self, run: u8, era: u8) {
        let witness = &mut self.state.witness;
        if !witness.placed.has(run) {
            witness.placed.add(run);
            witness.era[usize::from(run)] = era;
        }
    }

    /// The first Redis command of a caller fails.
    pub(super) fn begin_failed(&mut self, caller: u8) {
        self.begin(caller);
        self.state.callers[usize::from(caller)].alone = true;
        self.set_stage(caller, CallerStage::Find(ClaimAnswer::Nothing));
    }

    /// A Redis command of a caller fails.
    pub(super) fn fail(&mut self, caller: u8, failure: RedisFailure) -> Option<()> {
        let at = usize::from(caller);
        let before = self.state.callers[at];
        // A trigger without a key puts its run in the step of the gate.
        let put = before.stage == CallerStage::Gate && !self.model.is_keyed(caller) && !self.waits(caller);
        if failure == RedisFailure::AnswerLost {
            self.call(caller, GateOutcome::Buffer)?;
            let after = self.state.callers[at].stage;
            let took_effect = match before.stage {
                CallerStage::Claim => {
                    matches!(
                        after,
                        CallerStage::Find(ClaimAnswer::Won | ClaimAnswer::TookOver) | CallerStage::Gate
                    )
                }
                CallerStage::Put | CallerStage::Gate => self.state.redis.entry(caller).is_some(),
                CallerStage::Announce => true,
                CallerStage::Look(LookReason::BeforeAccept) => after == CallerStage::Accept,
                CallerStage::Lease(_) => matches!(after, CallerStage::AcceptBuffered(_)),
                _ => false,
            };
            if !took_effect {
                return None;
            }
            self.state.callers[at] = before;
        }
        match before.stage {
            CallerStage::Put | CallerStage::Announce => {
                if self.model.is_keyed(caller) && !self.broken_by(TriggerMutant::UnconfirmedForgotten) {
                    self.state.callers[at].unconfirmed.get_or_insert(before.generation);
                }
                self.leave_burst(caller);
            }
            CallerStage::LookUnconfirmedBuffer(asked, row) => {
                self.set_stage(caller, CallerStage::LookUnconfirmedLedger(asked, row, false));
            }
            CallerStage::Gate if put => self.leave_burst(caller),
            CallerStage::Gate | CallerStage::Look(LookReason::BeforeAccept) => {
                self.state.callers[at].alone = true;
                self.state.callers[at].claimed = false;
                self.set_stage(caller, CallerStage::Accept);
            }
            CallerStage::Claim
            | CallerStage::Look(_)
            | CallerStage::LookLostBuffer
            | CallerStage::Lease(_) => {
                self.state.callers[at].alone = true;
                self.state.callers[at].claimed = false;
                self.state.callers[at].token = 0;
                self.set_stage(caller, CallerStage::Find(ClaimAnswer::Nothing));
            }
            CallerStage::Ack(leased) => self.answer(caller, leased.run),
            CallerStage::Resolve(run) => self.answer(caller, run),
            _ => return None,
        }
        Some(())
    }
}
