//! Random walks over the rules: the properties that hold after any sequence of commands, at any times, under any
//! terms.

use proptest::prelude::*;

use super::*;

/// One step of a walk. Indexes choose among existing values, so that most steps are valid.
#[derive(Clone, Debug)]
enum Step {
    Claim { owner: u8, payload: u8, begin: bool, terms: Terms },
    Write { kind: u8, grant: usize, outcome: u8 },
    Operate { kind: u8 },
    Pass(u64),
    ClockBack(u64),
    Sweep,
    LoseAll,
}

fn terms() -> impl Strategy<Value = Terms> {
    let mode = prop::sample::select(MODES.to_vec());
    (mode, 1..20u64, 0..30u64, 0..40u64, 0..5u64, 0..20u64).prop_map(
        |(mode, lease, in_flight_max, retention, grace, memory)| Terms {
            mode,
            lease: Duration::from_micros(lease),
            in_flight_max: Duration::from_micros(in_flight_max),
            retention: Duration::from_micros(retention),
            grace: Duration::from_micros(grace),
            memory: Duration::from_micros(memory),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5u8, 0..2u8, any::<bool>(), terms()).prop_map(|(owner, payload, begin, terms)| Step::Claim {
            owner,
            payload,
            begin,
            terms
        }),
        8 => (0..6u8, 0..4usize, 0..2u8).prop_map(|(kind, grant, outcome)| Step::Write { kind, grant, outcome }),
        2 => (0..5u8).prop_map(|kind| Step::Operate { kind }),
        4 => (0..25u64).prop_map(Step::Pass),
        1 => (0..60u64).prop_map(Step::ClockBack),
        2 => Just(Step::Sweep),
        1 => Just(Step::LoseAll),
    ]
}

/// A store, the grants it gave (newest last), their highest fence, and how far its clock may go back.
struct Walk {
    slot: Slot,
    grants: Vec<Grant>,
    highest: Fence,
    earliest: Timestamp,
}

impl Walk {
    fn new() -> Self {
        Self {
            slot: Slot::new(Mode::Marked),
            grants: Vec::new(),
            highest: Fence::default(),
            earliest: Timestamp::default(),
        }
    }

    fn command(&self, step: &Step) -> Option<Command> {
        Some(match *step {
            Step::Claim { owner, payload, begin, terms } => claim(
                Owner::from_bytes([owner; 16]),
                Fingerprint::from_bytes([payload; 32]),
                terms,
                if begin { Begin::WithClaim } else { Begin::Later },
            ),
            Step::Write { kind, grant, outcome: number } => {
                let grant = *self.grants.iter().rev().nth(grant)?;
                match kind {
                    0 => Command::Begin(grant),
                    1 => Command::Renew(grant),
                    2 => Command::Release(grant),
                    3 => Command::Bind(grant),
                    4 => Command::Abandon(grant),
                    _ => complete(grant, &number.to_string()),
                }
            }
            Step::Operate { kind } => match kind {
                0 => Command::Settle(Settlement::Done(outcome("settled"))),
                1 => Command::Settle(Settlement::Run),
                2 => Command::Forget(Force::No),
                3 => Command::Forget(Force::Yes),
                _ => Command::Reexecute,
            },
            Step::Pass(_) | Step::ClockBack(_) | Step::Sweep | Step::LoseAll => return None,
        })
    }

    fn take(&mut self, step: &Step) {
        if let Some(command) = self.command(step) {
            self.run(&command);
            return;
        }
        match *step {
            Step::Pass(by) => self.slot.pass(Duration::from_micros(by)),
            Step::ClockBack(by) => {
                self.slot.now = Timestamp::from_micros(self.slot.now.as_micros() - by).max(self.earliest);
            }
            Step::Sweep if self.slot.record.is_some() => self.slot.sweep(),
            Step::LoseAll => {
                // Without record and floor only the clock is left to keep fences growing, so it must not be
                // behind the last grant, now or later.
                self.slot.record = None;
                self.slot.floor = Fence::default();
                self.earliest = Timestamp::from_micros(self.highest.get() + 1);
                self.slot.now = self.slot.now.max(self.earliest);
            }
            Step::Sweep | Step::Claim { .. } | Step::Write { .. } | Step::Operate { .. } => {}
        }
    }

    fn run(&mut self, command: &Command) {
        let before = self.slot.record.clone();
        let phase = self.slot.phase();
        let ruling = self.slot.apply(command);
        let after = self.slot.record.clone();

        if !matches!(ruling, Ruling::Won(_) | Ruling::Accepted { .. }) {
            assert_eq!(before, after, "{command:?} was not taken and changed the record");
        }
        if let (Some(before), Some(after)) = (&before, &after) {
            assert!(after.fence >= before.fence && after.epoch >= before.epoch);
            if phase == Phase::Done && after.phase(self.slot.now) == Phase::Done {
                assert_eq!(before, after, "a completed outcome changed");
            }
            if phase == Phase::InDoubt {
                assert!(!matches!(ruling, Ruling::Won(_)), "run again in doubt");
            }
            if before.fingerprint != after.fingerprint {
                assert_eq!(phase, Phase::Vacant, "the payload changed within a life");
            }
        }
        if let Ruling::Won(win) = &ruling {
            let known = self.grants.contains(&win.grant);
            assert!(known || win.grant.fence > self.highest, "an old fence was granted again");
            assert!(matches!(self.slot.phase(), Phase::Claimed | Phase::Begun) || win.lease_left.is_zero());
            if !known {
                self.grants.push(win.grant);
            }
        }
        self.highest = self.highest.max(after.map_or(Fence::default(), |record| record.fence));
    }

    /// Sweeping is due exactly from `sweep_at` on, and the phase never depends on whether it ran.
    fn check_sweep(&self) {
        let Some(record) = &self.slot.record else { return };
        let now = self.slot.now.as_micros();
        for at in (now - 50..now + 100).map(Timestamp::from_micros) {
            let due = record.sweep_at().is_some_and(|due| at >= due);
            let sweep = record.sweep(at);
            assert_eq!(sweep != Sweep::Keep, due, "{record:?} at {at}");
            match sweep {
                Sweep::Keep => {}
                Sweep::Shrink(shrunk) => assert_eq!(shrunk.phase(at), record.phase(at)),
                Sweep::Remove => assert_eq!(record.phase(at), Phase::Vacant),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold_on_every_walk(steps in prop::collection::vec(step(), 1..40)) {
        let mut walk = Walk::new();
        for step in &steps {
            walk.take(step);
            walk.check_sweep();
        }
    }
}
