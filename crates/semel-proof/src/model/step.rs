//! The effect of an action on the world.

use std::sync::Arc;

use semel::key::Hint;
use semel::record::{Begin, Command, Force, Grant, Mode, NewClaim, Phase, Ruling, Settlement, State};
use semel::time::Timestamp;

use super::action::{ModelAction, Packet, PacketOwner};
use super::store::ModelRule;
use super::world::{CallerVerdict, LIVES, Made, ModelState, ModelWorker, Stage, fingerprint, token};
use super::{LEASE, Mutant, ProtocolModel};

/// The world after `action`; `None` if it cannot happen.
pub(super) fn take(protocol: &ProtocolModel, before: &ModelState, action: ModelAction) -> Option<ModelState> {
    let mut world = before.clone();
    let grant = |worker: usize| before.workers[worker].grant();
    match action {
        ModelAction::ClaimAndBegin(worker) => world.ask(protocol, worker, Begin::WithClaim)?,
        ModelAction::Claim(worker) => world.ask(protocol, worker, Begin::Later)?,
        ModelAction::Begin(worker) => world.begin(protocol, worker, grant(worker)?),
        ModelAction::Effect(worker) if protocol.mode == Mode::Atomic => {
            world.commit(protocol, worker, grant(worker)?);
        }
        ModelAction::Effect(worker) => world.effect(protocol, worker)?,
        ModelAction::Complete(worker) => world.complete(protocol, worker, grant(worker)?),
        ModelAction::Release(worker) => world.end(protocol, worker, &Command::Release(grant(worker)?)),
        ModelAction::Bind(worker) => world.end(protocol, worker, &Command::Bind(grant(worker)?)),
        ModelAction::Abandon(worker) => {
            world.left.abandons -= 1;
            let _ = world.apply(protocol, &Command::Abandon(grant(worker)?));
            let may_happen =
                matches!(world.workers[worker].stage, Stage::Ready(_)) && protocol.mode != Mode::Atomic;
            if may_happen {
                world.workers[worker].stage = Stage::Loose;
            } else {
                world.tell(worker, CallerVerdict::Failed);
            }
        }
        ModelAction::Renew(worker) => {
            let _ = world.apply(protocol, &Command::Renew(grant(worker)?));
        }
        ModelAction::Crash(worker) => {
            world.left.crashes -= 1;
            world.workers[worker].stage = Stage::Gone;
        }
        ModelAction::CrashLoose(worker) => {
            world.left.crashes -= 1;
            world.workers[worker].stage = Stage::Loose;
        }
        ModelAction::Cancel(worker) => {
            world.left.cancels -= 1;
            world.workers[worker].cancelled = true;
            if protocol.broken_by(Mutant::ReleaseOnCancel) {
                let _ = world.apply(protocol, &Command::Release(grant(worker)?));
                let runs = matches!(world.workers[worker].stage, Stage::Ready(_));
                world.workers[worker].stage = if runs { Stage::Loose } else { Stage::Gone };
            }
        }
        ModelAction::LatePacket(worker, attempt, packet) => {
            world.left.late_packets -= 1;
            let begin = match packet {
                Packet::WithBegin => Begin::WithClaim,
                Packet::Plain => Begin::Later,
            };
            let owner = match attempt {
                PacketOwner::Present => world.workers[worker].owner,
                PacketOwner::Former => world.workers[worker].former,
            };
            world.claim_unheard(protocol, owner, world.workers[worker].payload, begin)?;
        }
        ModelAction::AskAgain(worker) => {
            world.left.asks -= 1;
            world.ask_anew(worker);
        }
        ModelAction::Tick => {
            let lease_left = world.slot.0.as_ref()?.lease_until.left(world.now);
            if lease_left <= LEASE / 2 {
                return None;
            }
            world.left.ticks -= 1;
            world.now = world.now.after(LEASE / 2);
        }
        ModelAction::Pass => world.pass()?,
        ModelAction::Sweep => {
            let epoch = before.slot.0.as_ref().map_or(0, |record| record.epoch.get());
            world.sweep(protocol);
            // Long after retention the epoch is removed with its record, and with it the key that the receiver knew:
            // its effect under that key no longer protects the next life.
            if protocol.mode == Mode::Keyed && epoch > 0 && world.slot.0.is_none() {
                world.new_life()?;
            }
        }
        ModelAction::Settle => world.settle(protocol)?,
        ModelAction::SettleRashly => {
            world.left.rash_settlements -= 1;
            if world.life().effects > 0 {
                return None;
            }
            let _ = world.apply(protocol, &Command::Settle(Settlement::Run));
        }
        ModelAction::Forget => {
            let _ = world.apply(protocol, &Command::Forget(Force::No));
            world.new_life()?;
        }
        ModelAction::ForgetByForce => {
            world.left.forced -= 1;
            let _ = world.apply(protocol, &Command::Forget(Force::Yes));
        }
        ModelAction::Reexecute => {
            let _ = world.apply(protocol, &Command::Reexecute);
            world.new_life()?;
        }
        ModelAction::Lose => {
            world.left.losses -= 1;
            world.slot.0 = None;
            world.floor = semel::record::Fence::default();
            // Its packets were lost with its connections.
            world.witness.last_owner = None;
            // A store comes back later than its last grant: a restart takes more than a microsecond.
            world.now = world.now.max(Timestamp::from_micros(world.witness.highest.get() + 1));
        }
        ModelAction::ClockBack => {
            world.left.clock_steps -= 1;
            let lease = u64::try_from(LEASE.as_micros()).unwrap_or(0);
            world.now = Timestamp::from_micros(world.now.as_micros() - lease);
        }
    }
    Some(world)
}

impl ModelState {
    /// A worker claims and acts on the answer. `None` if it only has to wait.
    fn ask(&mut self, protocol: &ProtocolModel, index: usize, begin: Begin) -> Option<()> {
        if !self.may_grant() {
            return None;
        }
        let highest = self.witness.highest;
        let ModelWorker { owner, payload, .. } = self.workers[index];
        let ruling = self.apply(protocol, &claim(protocol, owner, payload, begin));
        match ruling {
            Ruling::Won(win) => {
                if self.witness.highest > highest {
                    self.left.grants = self.left.grants.checked_sub(1)?;
                }
                let life = self.witness.life;
                let worker = &mut self.workers[index];
                worker.life = life;
                worker.epoch = u8::try_from(win.epoch.get()).unwrap_or(u8::MAX);
                worker.stage = match begin {
                    Begin::WithClaim => Stage::Ready(win.grant.fence()),
                    Begin::Later => Stage::Holding(win.grant.fence()),
                };
            }
            Ruling::Busy { .. } => return None,
            Ruling::Replay { outcome, .. } => self.answer(protocol, index, Made::read(&outcome)),
            Ruling::Conflict => self.tell(index, CallerVerdict::Conflict),
            Ruling::InDoubt => self.tell(index, CallerVerdict::InDoubt),
            Ruling::Expired => self.tell(index, CallerVerdict::Expired),
            // Its own late packet came first and its claim has ended since: a new attempt.
            Ruling::Lost { .. } => self.ask_anew(index),
            Ruling::Accepted { .. } | Ruling::Refused { .. } => panic!("a claim was ruled {ruling:?}"),
        }
        Some(())
    }

    /// A claim packet whose answer nobody receives.
    fn claim_unheard(
        &mut self,
        protocol: &ProtocolModel,
        owner: u8,
        payload: u8,
        begin: Begin,
    ) -> Option<()> {
        let highest = self.witness.highest;
        let command = claim(protocol, owner, payload, begin);
        let ruling = self.apply(protocol, &command);
        if self.witness.highest > highest {
            self.left.grants = self.left.grants.checked_sub(1)?;
        }
        matches!(ruling, Ruling::Won(_)).then_some(())
    }

    /// True if another grant is within the budget, or none is needed for an answer.
    fn may_grant(&self) -> bool {
        self.left.grants > 0
            || matches!(
                self.phase(),
                Phase::Claimed | Phase::Begun | Phase::Done | Phase::InDoubt | Phase::Expired
            )
    }

    fn begin(&mut self, protocol: &ProtocolModel, index: usize, grant: Grant) {
        match self.apply(protocol, &Command::Begin(grant)) {
            Ruling::Accepted { .. } => self.workers[index].stage = Stage::Ready(grant.fence()),
            _ => self.ask_anew(index),
        }
    }

    /// The effect in a mode in which it is separate from complete.
    fn effect(&mut self, protocol: &ProtocolModel, index: usize) -> Option<()> {
        let worker = self.workers[index];
        if matches!(worker.stage, Stage::Holding(_)) {
            self.breaks(ModelRule::BeginFirst);
        }
        let made = match protocol.mode {
            Mode::Keyed => self.receive(protocol, index)?,
            Mode::Atomic | Mode::Marked | Mode::Rerun => self.happen(protocol, index),
        };
        match worker.stage {
            Stage::Holding(fence) | Stage::Ready(fence) => {
                self.workers[index].stage = Stage::Acted(fence, made);
            }
            _ => self.tell(index, CallerVerdict::Failed),
        }
        Some(())
    }

    /// The receiver of a keyed effect: it acts once per derived key, and refuses another payload under it.
    fn receive(&mut self, protocol: &ProtocolModel, index: usize) -> Option<Made> {
        let worker = self.workers[index];
        let epoch = usize::from(worker.epoch);
        match self.witness.receiver[epoch] {
            Some(made) => (made.payload == worker.payload).then_some(made),
            None => {
                let made = self.happen(protocol, index);
                self.witness.receiver[epoch] = Some(made);
                Some(made)
            }
        }
    }

    fn happen(&mut self, protocol: &ProtocolModel, index: usize) -> Made {
        let worker = self.workers[index];
        self.witness.effects += 1;
        let made = Made { effect: self.witness.effects, payload: worker.payload, settled: false };
        let life = &mut self.witness.lives[usize::from(worker.life)];
        life.effects += 1;
        life.made = (protocol.mode == Mode::Marked).then_some(made);
        made
    }

    /// Effect and complete in one transaction: if it is refused, it never happened.
    fn commit(&mut self, protocol: &ProtocolModel, index: usize, grant: Grant) {
        let worker = self.workers[index];
        let made = Made { effect: self.witness.effects + 1, payload: worker.payload, settled: false };
        match self.apply(protocol, &completion(grant, made)) {
            Ruling::Accepted { .. } => {
                self.happen(protocol, index);
                self.answer(protocol, index, made);
            }
            ruling => self.refused(protocol, index, made, ruling),
        }
    }

    fn complete(&mut self, protocol: &ProtocolModel, index: usize, grant: Grant) {
        let Stage::Acted(_, made) = self.workers[index].stage else { return };
        match self.apply(protocol, &completion(grant, made)) {
            Ruling::Accepted { .. } => self.answer(protocol, index, made),
            ruling => self.refused(protocol, index, made, ruling),
        }
    }

    /// A late owner answers with the winner's outcome; if there is none yet it asks like every other caller.
    fn refused(&mut self, protocol: &ProtocolModel, index: usize, own: Made, ruling: Ruling) {
        match ruling {
            _ if protocol.broken_by(Mutant::ZombieAnswers) => self.answer(protocol, index, own),
            Ruling::Lost { winner: Some(outcome) } => self.answer(protocol, index, Made::read(&outcome)),
            _ => self.ask_anew(index),
        }
    }

    /// The handler reports that nothing happened. The caller may try once more, as a new attempt.
    fn end(&mut self, protocol: &ProtocolModel, index: usize, command: &Command) {
        let _ = self.apply(protocol, command);
        self.ask_anew(index);
    }

    fn ask_anew(&mut self, index: usize) {
        let owner = self.fresh_owner();
        let worker = &mut self.workers[index];
        worker.former = std::mem::replace(&mut worker.owner, owner);
        worker.stage = if worker.cancelled { Stage::Gone } else { Stage::Asking };
    }

    fn tell(&mut self, index: usize, verdict: CallerVerdict) {
        let worker = &mut self.workers[index];
        worker.stage = if worker.cancelled { Stage::Gone } else { Stage::Told(verdict) };
    }

    fn answer(&mut self, protocol: &ProtocolModel, index: usize, made: Made) {
        let worker = &mut self.workers[index];
        let (cancelled, payload) = (worker.cancelled, worker.payload);
        worker.stage = if cancelled { Stage::Gone } else { Stage::Answered };
        if cancelled {
            return;
        }
        if made.payload != payload {
            self.breaks(ModelRule::PayloadAnswer);
        }
        let life = usize::from(self.witness.life);
        // A keyed receiver answers a later life with its result of an earlier one.
        let happened = match protocol.mode {
            Mode::Keyed => made.effect <= self.witness.effects,
            Mode::Atomic | Mode::Marked | Mode::Rerun => self.witness.lives[life].effects > 0,
        };
        if !happened {
            self.breaks(ModelRule::AnswerMade);
        }
        match self.witness.lives[life].answer {
            None => self.witness.lives[life].answer = Some(made),
            Some(first) if first != made => self.breaks(ModelRule::Answers),
            Some(_) => {}
        }
    }

    /// Time passes until the record's next phase.
    fn pass(&mut self) -> Option<()> {
        let record = self.slot.0.as_ref()?;
        let before = self.phase();
        let until = match before {
            Phase::Claimed | Phase::Begun => record.lease_until,
            Phase::Lapsed | Phase::Done | Phase::Bound => record.expires_at,
            Phase::Expired => record.forget_at,
            Phase::Vacant => self.sweep_at()?,
            Phase::InDoubt => return None,
        };
        // An effect counts until the key is forgotten; the absence of an effect counts forever.
        let forgotten =
            matches!(record.state, State::Claimed | State::Begun | State::Done(_) | State::Expired);
        self.now = self.now.max(until);
        if before != Phase::Vacant && self.phase() == Phase::Vacant && forgotten {
            self.new_life()?;
        }
        Some(())
    }

    /// A person settles a key in doubt: done if the witness saw the effect, run if it is certain that no worker still
    /// acts.
    fn settle(&mut self, protocol: &ProtocolModel) -> Option<()> {
        let life = *self.life();
        let may_act = self.workers.iter().any(|worker| {
            worker.life == self.witness.life && matches!(worker.stage, Stage::Ready(_) | Stage::Loose)
        });
        let settlement = match life.made {
            Some(made) => Settlement::Done(Made { settled: true, ..made }.outcome()),
            None if may_act => return None,
            None => Settlement::Run,
        };
        let _ = self.apply(protocol, &Command::Settle(settlement));
        Some(())
    }

    fn new_life(&mut self) -> Option<()> {
        self.left.lives = self.left.lives.checked_sub(1)?;
        self.witness.life += 1;
        assert!(usize::from(self.witness.life) < LIVES, "the budget has more lives than the witness");
        Some(())
    }
}

fn claim(protocol: &ProtocolModel, owner: u8, payload: u8, begin: Begin) -> Command {
    Command::Claim(NewClaim {
        owner: token(owner),
        fingerprint: fingerprint(payload),
        terms: Arc::clone(&protocol.terms),
        begin,
        hint: Hint::default(),
    })
}

fn completion(grant: Grant, made: Made) -> Command {
    let fingerprint = fingerprint(made.payload);
    Command::Complete { grant, fingerprint, outcome: made.outcome(), retention: None }
}
