//! Random commands against the pure function: a store must rule exactly as [`record::apply`] does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use super::context::Context;
use super::expecting::{OTHER_PAYLOAD, PAYLOAD, PHASES, outcome, timeless};
use super::listing::scan_all;
use super::sweeping::sweep_all;
use crate::key::{Hint, KeyId, Origin};
use crate::record::{
    self, Begin, Command, Fence, Force, Grant, Mode, NewClaim, Owner, Phase, Record, Ruling, Settlement,
    State, Sweep, Terms,
};
use crate::store::Snapshot;
use crate::time::{Clock, Timestamp};

/// Sequences of random commands on a few keys, from fixed seeds: see [`agrees_with_the_rules`].
pub async fn random_commands_agree_with_the_rules(context: &Context) {
    for seed in 1..=20 {
        agrees_with_the_rules(context, seed, 150).await;
    }
}

/// Sends `steps` random commands to the store and to the pure function, with the same times, and compares every
/// ruling and every record. The same seed gives the same commands.
///
/// There are few keys, owners and payloads, so that they collide. Times jump to the edges of leases and retentions,
/// one microsecond before, at, and after. If the store can be opened again, it sometimes is. If the store's clock
/// cannot be moved, no time passes and times are not compared.
///
/// # Panics
/// At the first difference, with the seed, the step and the commands that led there.
pub async fn agrees_with_the_rules(context: &Context, seed: u64, steps: usize) {
    let mut run = Run::new(context, seed);
    for step in 0..steps {
        run.step = step;
        match run.dice.below(100) {
            0..80 => run.command().await,
            80..90 => run.let_time_pass(),
            90..95 => run.sweep().await,
            95..99 => run.list().await,
            _ => run.open_again().await,
        }
    }
}

/// A separate generator (splitmix64), so that a seed always means the same commands.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn millis(&mut self, from: u64, end: u64) -> Duration {
        Duration::from_millis(from + self.below(end - from))
    }
}

/// One sequence: the store on one side, the model on the other.
struct Run<'a> {
    context: &'a Context,
    seed: u64,
    step: usize,
    dice: Dice,
    keys: [KeyId; 3],
    owners: [Owner; 4],
    /// Every grant won so far: most are stale, and must be refused.
    grants: Vec<(KeyId, Grant)>,
    model: BTreeMap<KeyId, Record>,
    /// The highest fence of any record the model has removed.
    floor: Fence,
    history: VecDeque<String>,
}

/// The parts of a record that both sides must agree on.
#[derive(Debug, PartialEq)]
struct RecordView {
    phase: Phase,
    owner: Owner,
    fence: Fence,
    /// All other parts, except of a stub.
    rest: Option<Record>,
}

impl<'a> Run<'a> {
    fn new(context: &'a Context, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let owners = std::array::from_fn(|_| new_owner(&mut dice));
        Self {
            context,
            seed,
            step: 0,
            dice,
            keys: std::array::from_fn(|_| context.key()),
            owners,
            grants: Vec::new(),
            model: BTreeMap::new(),
            floor: Fence::default(),
            history: VecDeque::new(),
        }
    }

    /// The store's time, or any time if it does not matter.
    fn now(&self) -> Timestamp {
        self.context.manual_clock().map_or(Timestamp::from_micros(1_000_000), Clock::now)
    }

    fn times_count(&self) -> bool {
        self.context.manual_clock().is_some()
    }

    fn note(&mut self, what: String) {
        if self.history.len() == 20 {
            self.history.pop_front();
        }
        self.history.push_back(what);
    }

    #[track_caller]
    fn same<T: PartialEq + Debug>(&self, what: &str, store: &T, rules: &T) {
        if store != rules {
            let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
            panic!(
                "seed {}, step {}: {what}\n  the store says {store:?}\n  the rules say  {rules:?}\nafter\n  {}",
                self.seed,
                self.step,
                history.join("\n  "),
            );
        }
    }

    async fn command(&mut self) {
        let id = self.dice.pick(&self.keys);
        let command = self.any_command(id);
        self.note(format!("{id} at {}: {command:?}", self.now()));

        let mut expected = self.model.get(&id).cloned();
        let fence_before = expected.as_ref().map(|record| record.fence);
        let rules = record::apply(&mut expected, &command, self.now(), self.floor);
        let raised = expected.as_ref().map(|record| record.fence) != fence_before;

        let store = self.context.apply(id, command).await;
        let snapshot = self.context.get(id).await;
        if let (true, Some(expected), Some(snapshot)) = (raised, &mut expected, &snapshot) {
            // A store may use a higher fence than the rules require, e.g. if its floor is higher.
            let fence = snapshot.record.fence;
            self.same("the new fence is below what the rules ask", &(fence < expected.fence), &false);
            expected.fence = fence;
        }
        self.compare_rulings(store, rules, expected.as_ref());
        self.compare_records(snapshot.as_ref(), expected.as_ref());
        if let Some(record) = expected {
            let grant = Grant::from_parts(record.owner, record.fence);
            if raised {
                self.grants.push((id, grant));
            }
            self.model.insert(id, record);
        }
    }

    fn compare_rulings(&self, mut store: Ruling, mut rules: Ruling, expected: Option<&Record>) {
        if let (Ruling::Won(win), Some(expected)) = (&mut rules, expected) {
            win.grant = Grant::from_parts(expected.owner, expected.fence);
        }
        if !self.times_count() {
            (store, rules) = (timeless(store), timeless(rules));
        }
        self.same("another ruling", &store, &rules);
    }

    fn compare_records(&self, store: Option<&Snapshot>, rules: Option<&Record>) {
        let store = store.map(|snapshot| self.view(&snapshot.record, snapshot.now));
        let rules = rules.map(|record| self.view(record, self.now()));
        self.same("another record", &store, &rules);
    }

    /// The visible parts of a record: a stub is its fence and its owner, an expired record need not have its outcome.
    fn view(&self, record: &Record, now: Timestamp) -> RecordView {
        let (phase, owner, fence) = (record.phase(now), record.owner, record.fence);
        let mut rest = record.clone();
        if phase == Phase::Expired {
            rest.state = State::Expired;
        }
        if !self.times_count() {
            let Record { claimed_at, changed_at, lease_until, expires_at, forget_at, .. } = &mut rest;
            for moment in [claimed_at, changed_at, lease_until, expires_at, forget_at] {
                *moment = Timestamp::default();
            }
        }
        RecordView { phase, owner, fence, rest: (phase != Phase::Vacant).then_some(rest) }
    }

    /// Moves the clock, mostly to just before, at or just after a relevant time.
    fn let_time_pass(&mut self) {
        let Some(clock) = self.context.manual_clock().cloned() else { return };
        let now = clock.now();
        let mut moments: Vec<Timestamp> = self
            .model
            .values()
            .flat_map(|record| {
                [Some(record.lease_until), Some(record.expires_at), Some(record.forget_at), record.sweep_at()]
            })
            .flatten()
            .filter(|moment| *moment > now)
            .collect();
        moments.push(now.after(self.dice.millis(0, 60)));
        let moment = self.dice.pick(&moments).as_micros() - 1 + self.dice.below(3);
        if moment > now.as_micros() {
            clock.set(Timestamp::from_micros(moment));
        }
    }

    async fn sweep(&mut self) {
        self.note(format!("sweep at {}", self.now()));
        sweep_all(self.context).await;
        let now = self.now();
        for id in self.keys {
            while let Some(record) = self.model.get(&id) {
                match record.sweep(now) {
                    Sweep::Keep => break,
                    Sweep::Shrink(shrunk) => {
                        self.model.insert(id, shrunk);
                    }
                    Sweep::Remove => {
                        self.floor = self.floor.max(record.fence);
                        self.model.remove(&id);
                    }
                }
            }
            let kept = self.context.get(id).await;
            self.compare_records(kept.as_ref(), self.model.get(&id));
        }
    }

    /// Closing and opening the store changes nothing.
    async fn open_again(&mut self) {
        if self.context.can_reopen() {
            self.note("close and open".to_owned());
            self.context.open_again().await;
        }
    }

    async fn list(&mut self) {
        let phase = if self.times_count() { Some(self.dice.pick(&PHASES)) } else { None };
        self.note(format!("list {phase:?} at {}", self.now()));
        let listed: Vec<KeyId> = scan_all(self.context, phase, 2)
            .await
            .into_iter()
            .map(|item| item.id)
            .filter(|id| self.keys.contains(id))
            .collect();
        let now = self.now();
        let expected = self.model.iter().filter(|(_, record)| phase.is_none_or(|of| record.phase(now) == of));
        self.same("another listing", &listed, &expected.map(|(id, _)| *id).collect());
    }

    fn any_command(&mut self, id: KeyId) -> Command {
        let outcome = outcome(self.dice.pick(&["one", "two", ""]));
        let fingerprint = self.dice.pick(&[PAYLOAD, PAYLOAD, PAYLOAD, OTHER_PAYLOAD]);
        // If the store has its own clock, it must not end during the test.
        let other_retention = Duration::from_millis(if self.times_count() { 55 } else { 9_000_000 });
        match self.dice.below(32) {
            0..10 => Command::Claim(self.any_claim(fingerprint)),
            10..13 => Command::Begin(self.any_grant(id)),
            13..16 => Command::Renew(self.any_grant(id)),
            16..20 => Command::Complete {
                grant: self.any_grant(id),
                fingerprint,
                outcome,
                retention: self.dice.pick(&[None, None, Some(Duration::ZERO), Some(other_retention)]),
            },
            20..22 => Command::Release(self.any_grant(id)),
            22..24 => Command::Bind(self.any_grant(id)),
            24..26 => Command::Abandon(self.any_grant(id)),
            26 => Command::Settle(Settlement::Done(outcome)),
            27 => Command::Settle(Settlement::Run),
            28 => Command::Forget(self.dice.pick(&[Force::No, Force::No, Force::Yes])),
            29 => Command::Forget(Force::Attempt(self.any_grant(id).fence())),
            30 => {
                let settlement =
                    if self.dice.below(2) == 0 { Settlement::Run } else { Settlement::Done(outcome) };
                Command::SettleAttempt(self.any_grant(id).fence(), settlement)
            }
            _ => Command::Reexecute,
        }
    }

    fn any_claim(&mut self, fingerprint: crate::fingerprint::Fingerprint) -> NewClaim {
        let mode = self.dice.pick(&[Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Marked, Mode::Rerun]);
        let owner = match self.dice.below(5) {
            0 => new_owner(&mut self.dice),
            _ => self.dice.pick(&self.owners),
        };
        let lease = self.dice.millis(5, 30);
        let terms = Terms {
            mode,
            lease,
            in_flight_max: lease + self.dice.millis(0, 40),
            retention: lease + self.dice.millis(0, 80),
            grace: self.dice.millis(0, 2) * 10,
            memory: self.dice.millis(0, 3) * 20,
        };
        // If the store has its own clock, nothing may end during the test.
        let terms = if self.times_count() {
            terms
        } else {
            Terms { grace: terms.grace * 3600, ..self.context.lasting(mode) }
        };
        let hint = Hint::new(self.dice.pick(&["", "order-1", "ümlaut"]));
        let hint = match self.dice.pick(&["", "/pay", "/refund"]) {
            "" => hint,
            path => hint.with_origin(Origin::new("POST", path, None, None)),
        };
        NewClaim {
            owner,
            fingerprint,
            terms: terms.into(),
            begin: self.dice.pick(&[Begin::WithClaim, Begin::Later]),
            hint,
        }
    }

    /// The current grant of the key half of the time, else an old one, one of another key, or an invented one.
    fn any_grant(&mut self, id: KeyId) -> Grant {
        let current = self.model.get(&id).map(|record| Grant::from_parts(record.owner, record.fence));
        match (self.dice.below(10), current) {
            (0..6, Some(current)) => current,
            (6, Some(current)) => {
                Grant::from_parts(self.dice.pick(&self.owners), Fence::new(current.fence().get() + 1))
            }
            _ if self.grants.is_empty() => Grant::from_parts(self.dice.pick(&self.owners), Fence::new(1)),
            _ => self.dice.pick(&self.grants).1,
        }
    }
}

fn new_owner(dice: &mut Dice) -> Owner {
    let [a, b] = [dice.roll().to_le_bytes(), dice.roll().to_le_bytes()];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a);
    bytes[8..].copy_from_slice(&b);
    Owner::from_bytes(bytes)
}
