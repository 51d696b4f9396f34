//! One canonical form for all states with the same future.
//!
//! Five values are only names: the absolute time (the rules compare differences), the numbers of fences (they compare
//! order), the numbers of effects, the tokens of owners and the order of workers (they compare equality). Renaming
//! them makes the model finite, and small.

use semel::record::{Fence, Phase, Record, State};
use semel::time::Timestamp;

use super::world::{CallerVerdict, Made, ModelState, NOW, Stage, fingerprint, number, token};

impl ModelState {
    #[must_use]
    pub(super) fn canonical(mut self) -> Self {
        self.shift_time();
        self.drop_what_no_longer_matters();
        self.rank_fences();
        self.number_effects();
        self.name_workers();
        self
    }

    /// Only the order of fences matters. The next one is above all of them: the record and the floor know the
    /// highest, and a store that lost both comes back at a later time than the highest.
    fn rank_fences(&mut self) {
        let mut known: Vec<Fence> = Vec::with_capacity(8);
        self.each_fence(|fence| known.extend((*fence != Fence::default()).then_some(*fence)));
        known.sort_unstable();
        known.dedup();
        self.each_fence(|fence| {
            if *fence == Fence::default() {
                // No fence was given yet.
                return;
            }
            let above = known.partition_point(|other| other <= fence);
            *fence = Fence::new(NOW.as_micros() - 1 - (known.len() - above) as u64);
        });
    }

    fn each_fence(&mut self, mut visit: impl FnMut(&mut Fence)) {
        visit(&mut self.floor);
        visit(&mut self.witness.highest);
        if let Some(record) = &mut self.slot.0 {
            visit(&mut record.fence);
        }
        for worker in &mut self.workers {
            match &mut worker.stage {
                Stage::Holding(fence) | Stage::Ready(fence) | Stage::Acted(fence, _) => visit(fence),
                Stage::Asking | Stage::Loose | Stage::Answered | Stage::Told(_) | Stage::Gone => {}
            }
        }
    }

    fn shift_time(&mut self) {
        let now = self.now.as_micros();
        self.now = NOW;
        let Some(record) = &mut self.slot.0 else { return };
        for moment in [
            &mut record.claimed_at,
            &mut record.changed_at,
            &mut record.lease_until,
            &mut record.expires_at,
            &mut record.forget_at,
        ] {
            *moment = Timestamp::from_micros(moment.as_micros() + NOW.as_micros() - now);
        }
    }

    fn drop_what_no_longer_matters(&mut self) {
        let clock_may_step_back = self.left.clock_steps > 0;
        let packets = self.left.late_packets > 0;
        let asks = self.left.asks > 0;
        for life in &mut self.witness.lives {
            life.effects = life.effects.min(2);
        }
        if let Some(record) = &mut self.slot.0 {
            if self.floor <= record.fence {
                // The record's own fence implies it, and becomes the floor once the record is removed.
                self.floor = Fence::default();
            }
            forget_details(record);
            if !clock_may_step_back {
                forget_past(record);
            }
        }
        for worker in &mut self.workers {
            if worker.stage == Stage::Told(CallerVerdict::Failed) && !asks {
                worker.stage = Stage::Gone;
            }
            match worker.stage {
                Stage::Holding(_) | Stage::Ready(_) | Stage::Acted(..) | Stage::Loose => {}
                Stage::Asking => (worker.life, worker.epoch) = (0, 0),
                Stage::Answered | Stage::Told(_) | Stage::Gone => {
                    (worker.life, worker.epoch, worker.cancelled) = (0, 0, false);
                }
            }
            let keeps_owner = packets || worker.grant().is_some() || worker.stage == Stage::Asking;
            if !keeps_owner {
                worker.owner = 0;
            }
            if !packets {
                worker.former = 0;
            }
        }
    }

    /// Effects that nothing refers to any more need no number.
    fn number_effects(&mut self) {
        let mut spoken_of: u32 = 0;
        self.each_made(|made| spoken_of |= 1 << made.effect);
        let rank = |effect: u8| (spoken_of & ((2 << effect) - 1)).count_ones() as u8;
        self.witness.effects = rank(self.witness.effects);
        self.each_made(|made| made.effect = rank(made.effect));
    }

    fn each_made(&mut self, mut visit: impl FnMut(&mut Made)) {
        for life in &mut self.witness.lives {
            life.made.iter_mut().chain(&mut life.answer).for_each(&mut visit);
        }
        self.witness.receiver.iter_mut().flatten().for_each(&mut visit);
        for worker in &mut self.workers {
            if let Stage::Acted(_, made) = &mut worker.stage {
                visit(made);
            }
        }
        if let Some(Record { state: State::Done(outcome), .. }) = &mut self.slot.0 {
            let mut made = Made::read(outcome);
            let before = made;
            visit(&mut made);
            if made != before {
                *outcome = made.outcome();
            }
        }
    }

    /// Sorts the workers and numbers the owners in the order of their appearance.
    fn name_workers(&mut self) {
        let record = self.slot.0.as_ref().map_or(0, |record| number(record.owner));
        let last = self.witness.last_owner.unwrap_or(0);
        self.workers.sort_by_key(|worker| {
            let standing = |owner: u8| (owner != 0, owner == record, owner == last);
            let owners = (standing(worker.owner), standing(worker.former));
            (worker.payload, worker.stage, worker.cancelled, owners, worker.life, worker.epoch)
        });
        let mut names = [0_u8; 256];
        let mut count = 0;
        let mut name = |owner: u8| {
            let known = &mut names[usize::from(owner)];
            if *known == 0 && owner != 0 {
                count += 1;
                *known = count;
            }
            *known
        };
        for worker in &mut self.workers {
            worker.owner = name(worker.owner);
            worker.former = name(worker.former);
        }
        if let Some(record) = &mut self.slot.0 {
            record.owner = token(name(number(record.owner)));
        }
        self.witness.last_owner = self.witness.last_owner.map(name);
    }
}

/// Fields that the rules do not read in this state.
fn forget_details(record: &mut Record) {
    // It only matters whether it was taken over.
    record.attempt = record.attempt.min(2);
    match record.state {
        State::Claimed | State::Begun => {}
        State::Vacant => {
            record.fingerprint = fingerprint(0);
            record.attempt = 0;
            record.claimed_at = record.changed_at;
            record.lease_until = record.changed_at;
        }
        State::Bound | State::Done(_) | State::Expired => {
            record.claimed_at = record.changed_at;
            record.lease_until = record.changed_at;
        }
    }
}

/// Past times are equivalent: while the clock does not go back, it does not matter how long ago they were.
fn forget_past(record: &mut Record) {
    let in_flight = matches!(record.phase(NOW), Phase::Claimed | Phase::Begun);
    for moment in [&mut record.lease_until, &mut record.expires_at, &mut record.forget_at] {
        *moment = (*moment).max(NOW);
    }
    if !in_flight {
        // Renewing has ended; only the end of the stub still counts from here.
        let stub = record.terms.in_flight_max.saturating_add(record.terms.lease);
        let oldest = NOW.as_micros() - u64::try_from(stub.as_micros()).unwrap_or(u64::MAX);
        record.changed_at = record.changed_at.max(Timestamp::from_micros(oldest));
        record.claimed_at = record.changed_at;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use semel::record::Mode;

    use super::*;
    use crate::model::{ModelBudget, ProtocolModel, action, step};

    fn successors(protocol: &ProtocolModel, world: &ModelState) -> HashSet<ModelState> {
        let mut actions = Vec::new();
        action::possible(protocol, world, &mut actions);
        let next = actions.into_iter().filter_map(|action| step::take(protocol, world, action));
        next.map(ModelState::canonical).collect()
    }

    // A state and its canonical form must have the same future, or the checker would skip what it never saw.
    #[test]
    fn model_canonical_form_has_the_same_future() {
        let budget = ModelBudget {
            grants: 6,
            crashes: 2,
            cancels: 2,
            abandons: 2,
            late_packets: 3,
            ticks: 3,
            asks: 3,
            lives: 3,
            losses: 1,
            forced: 1,
            rash_settlements: 1,
            clock_steps: 0,
        };
        let mut random = 1_u64;
        let mut compared = 0;
        for walk in 0..400 {
            let mode = [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun][walk % 4];
            let budget =
                if walk % 8 < 4 { budget } else { ModelBudget { losses: 0, clock_steps: 2, ..budget } };
            let protocol = ProtocolModel::new(mode, 4, budget);
            // Never made canonical: time continues and names accumulate.
            let mut world = ModelState::new(&protocol);
            for _ in 0..60 {
                let canonical = world.clone().canonical();
                assert_eq!(canonical, canonical.clone().canonical());
                assert_eq!(successors(&protocol, &world), successors(&protocol, &canonical), "{world:#?}");
                compared += 1;
                let mut actions = Vec::new();
                action::possible(&protocol, &world, &mut actions);
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let choice = usize::try_from(random >> 33).unwrap() % actions.len();
                world = step::take(&protocol, &world, actions[choice]).unwrap_or(world);
            }
        }
        assert_eq!(compared, 24_000);
    }
}
