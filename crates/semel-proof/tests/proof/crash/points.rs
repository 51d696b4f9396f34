//! An owner killed with SIGKILL in each state of its life leaves the key exactly as the table says, on the
//! embedded store, across processes.
//!
//! A victim runs the effect and dies; this process then opens the store and is the next caller. The witness, a
//! file that only effects write to, says what really happened. The rows of `atomic`, whose effect is in the store,
//! are in a module of their own.

use std::sync::Arc;
use std::time::Duration;

use semel::outcome::Outcome;
use semel::record::{Command, Grant, NewClaim, Phase, Record, Ruling, Settlement, State};
use semel::store::{EmbeddedStore, Snapshot, Store as _};
use semel::{Engine, Mode};
use semel_proof::victim::life::{CREDIT, DEBIT, LifeEnd, Start, VictimLife, key, outcome, receipt, reopen};
use semel_proof::victim::witness::{EffectTrace, rows};
use semel_proof::victim::{ReportedEnd, VictimJob};
use tempfile::TempDir;

use super::memory_group::MemoryGroup;
use super::supervisor::Victim;
use super::{PATIENCE, block_on, folder};

/// Where a life is lived.
pub(super) struct Place {
    _folder: TempDir,
    pub(super) life: VictimLife,
}

impl Place {
    pub(super) fn new(mode: Mode, start: Start) -> Self {
        let folder = folder();
        let life = VictimLife {
            store: folder.path().join("store"),
            witness: folder.path().join("witness"),
            mode,
            lease: Duration::from_millis(500),
            start,
            fate: LifeEnd::Lives,
        };
        Self { _folder: folder, life }
    }

    /// Lets a victim live this life to its end.
    pub(super) fn dies(&self, fate: LifeEnd) {
        Victim::start(&VictimJob::Life(self.life.with(fate))).end_by_kill();
    }

    /// The next process.
    pub(super) fn next(&self) -> Next {
        let store = reopen(&self.life.store);
        Next { engine: self.life.engine(store.clone()), store, life: self.life.clone() }
    }
}

/// The process that comes after.
pub(super) struct Next {
    store: Arc<EmbeddedStore>,
    engine: Engine,
    life: VictimLife,
}

impl Next {
    async fn snapshot(&self) -> Option<Snapshot> {
        self.engine.get(&key()).await.expect("the store answers")
    }

    pub(super) async fn record(&self) -> Record {
        self.snapshot().await.expect("there is a record").record
    }

    /// Waits until the lease of a dead owner is over; the phase it is in then.
    async fn phase_after_lease(&self) -> Phase {
        let lapse = async {
            loop {
                let snapshot = self.snapshot().await.expect("there is a record");
                match snapshot.phase() {
                    Phase::Claimed | Phase::Begun => {
                        tokio::time::sleep(snapshot.record.lease_until.left(snapshot.now)).await;
                    }
                    phase => return phase,
                }
            }
        };
        tokio::time::timeout(PATIENCE, lapse).await.expect("a lease ends")
    }

    /// Calls the effect, and waits for a dead owner's lease where there is one.
    pub(super) async fn call(&self) -> ReportedEnd {
        self.life.call(&self.engine).await
    }

    async fn settle(&self, settlement: Settlement) {
        let id = self.engine.id(&key()).await.expect("the store answers");
        let ruling = self.engine.settle(id, settlement).await.expect("the store answers");
        assert!(matches!(ruling, Ruling::Accepted { .. }), "{ruling:?}");
    }

    async fn apply(&self, command: Command) -> Ruling {
        let id = self.engine.id(&key()).await.expect("the store answers");
        self.store.apply(id, command).await.expect("the store answers")
    }

    /// How often the effect took each of its steps.
    pub(super) fn steps(&self) -> (usize, usize) {
        let rows = self.witness();
        let count = |step: &str| rows.iter().filter(|row| row.step == step).count();
        (count(DEBIT), count(CREDIT))
    }

    fn witness(&self) -> Vec<EffectTrace> {
        rows(&self.life.witness).expect("the witness can be read")
    }

    /// Calls, and expects to have run the effect as attempt `attempt`, with a fence above `fence`.
    async fn takes_over(&self, attempt: u32, fence: u64) -> String {
        let answer = self.call().await;
        let ReportedEnd::Value { receipt, replayed: false, stored: true } = answer else {
            panic!("expected a run of its own: {answer:?}")
        };
        let record = self.record().await;
        assert_eq!(
            (record.attempt, self.snapshot().await.map(|found| found.phase())),
            (attempt, Some(Phase::Done))
        );
        assert!(record.fence.get() > fence, "a fence never goes back");
        self.replays(&receipt).await;
        receipt
    }

    /// Every later call is given this receipt, and no effect.
    pub(super) async fn replays(&self, receipt: &str) {
        let before = self.steps();
        let given = ReportedEnd::Value { receipt: receipt.to_owned(), replayed: true, stored: true };
        assert_eq!(self.call().await, given);
        let elsewhere = self.life.engine(self.store.clone());
        assert_eq!(self.life.call(&elsewhere).await, given, "without the first one's cache");
        assert_eq!(self.steps(), before);
    }

    /// Begun and lost in `marked`: nobody runs it again, and it says so.
    async fn is_in_doubt(&self, written: &Record) {
        let before = self.steps();
        assert_eq!(self.phase_after_lease().await, Phase::InDoubt);
        for _ in 0..2 {
            let answer = self.call().await;
            assert!(matches!(&answer, ReportedEnd::Nothing(why) if why.contains("InDoubt")), "{answer:?}");
        }
        assert_eq!(self.steps(), before, "never silently run again");
        assert_eq!(self.record().await, *written, "asking changes nothing");
    }
}

/// One test for each mode.
macro_rules! in_every_mode {
    ($(#[doc = $story:expr])* $row:ident, $check:ident) => {
        $(#[doc = $story])*
        mod $row {
            use super::*;

            #[test]
            fn marked() {
                $check(Mode::Marked);
            }

            #[test]
            fn keyed() {
                $check(Mode::Keyed);
            }

            #[test]
            fn rerun() {
                $check(Mode::Rerun);
            }
        }
    };
}

in_every_mode!(
    /// No trace; the next call runs once.
    crash_before_claim,
    before_claim
);

fn before_claim(mode: Mode) {
    let place = Place::new(mode, Start::WithClaim);
    place.dies(LifeEnd::DiesBeforeClaim);
    let next = place.next();
    block_on(async {
        assert_eq!(next.snapshot().await, None);
        assert_eq!(next.steps(), (0, 0));
        next.takes_over(1, 0).await;
        assert_eq!(next.steps(), (1, 1));
    });
}

in_every_mode!(
    /// Claimed and not begun: taken over after the lease, one effect.
    crash_after_claim,
    after_claim
);

fn after_claim(mode: Mode) {
    let place = Place::new(mode, Start::Later);
    place.dies(LifeEnd::DiesAfterClaim);
    let next = place.next();
    block_on(async {
        let Snapshot { record, now, .. } = next.snapshot().await.expect("there is a record");
        assert_eq!((&record.state, record.attempt), (&State::Claimed, 1));
        let phase = if now < record.lease_until { Phase::Claimed } else { Phase::Lapsed };
        assert_eq!(record.phase(now), phase);
        assert_eq!(next.steps(), (0, 0));
        next.takes_over(2, record.fence.get()).await;
        assert_eq!(next.steps(), (1, 1));
    });
}

in_every_mode!(
    /// The claim was executed and its answer lost with the process: who asks again under the same attempt's name
    /// gets its own claim back.
    claim_reply_lost,
    claim_reply_lost_in
);

fn claim_reply_lost_in(mode: Mode) {
    let mut place = Place::new(mode, Start::WithClaim);
    // The claim must still stand when it is asked for again.
    place.life.lease = Duration::from_secs(20);
    place.dies(LifeEnd::DiesAfterClaim);
    let next = place.next();
    block_on(async {
        let record = next.record().await;
        let claim = NewClaim {
            owner: record.owner,
            fingerprint: record.fingerprint,
            terms: Arc::clone(&record.terms),
            begin: semel::record::Begin::WithClaim,
            hint: record.hint.clone(),
        };
        let stranger = NewClaim { owner: semel::record::Owner::random(), ..claim.clone() };
        assert!(matches!(next.apply(Command::Claim(stranger)).await, Ruling::Busy { .. }));
        let Ruling::Won(win) = next.apply(Command::Claim(claim)).await else {
            panic!("its own claim is refused")
        };
        assert_eq!((win.grant, win.attempt), (Grant::from_parts(record.owner, record.fence), 1));
        let (fingerprint, outcome) = (record.fingerprint, outcome("late"));
        let complete = Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
        assert!(matches!(next.apply(complete).await, Ruling::Accepted { .. }));
        next.replays("late").await;
        assert_eq!(next.steps(), (0, 0));
    });
}

in_every_mode!(
    /// Begun, nothing done yet. Marked: in doubt; others: taken over, one effect.
    crash_after_begin,
    after_begin
);

fn after_begin(mode: Mode) {
    // The mark comes with the claim, or as a step of its own.
    for (start, fate) in
        [(Start::WithClaim, LifeEnd::DiesAfterClaim), (Start::Later, LifeEnd::DiesAfterBegin)]
    {
        let place = Place::new(mode, start);
        place.dies(fate);
        let next = place.next();
        block_on(async {
            let record = next.record().await;
            assert_eq!((&record.state, record.attempt), (&State::Begun, 1));
            assert_eq!(next.steps(), (0, 0));
            if mode == Mode::Marked {
                next.is_in_doubt(&record).await;
                // A person looked: it did not happen. That lets it run, under a fence above the lost one's.
                next.settle(Settlement::Run).await;
            }
            next.takes_over(2, record.fence.get()).await;
            assert_eq!(next.steps(), (1, 1));
        });
    }
}

in_every_mode!(
    /// Killed between the effect's two steps. Marked: in doubt and never run again; keyed: each step once at its
    /// receiver; rerun: the first step twice, one outcome.
    crash_mid_effect,
    mid_effect
);

fn mid_effect(mode: Mode) {
    half_done(mode, &|place| place.dies(LifeEnd::DiesMidEffect));
}

fn half_done(mode: Mode, dies: &dyn Fn(&Place)) {
    let place = Place::new(mode, Start::WithClaim);
    dies(&place);
    let next = place.next();
    block_on(async {
        let record = next.record().await;
        assert_eq!((&record.state, record.attempt), (&State::Begun, 1));
        assert_eq!(next.steps(), (1, 0), "half of it happened");
        match mode {
            Mode::Keyed => {
                next.takes_over(2, record.fence.get()).await;
                assert_eq!(next.steps(), (1, 1), "the receiver knew the first step");
            }
            Mode::Rerun => {
                next.takes_over(2, record.fence.get()).await;
                assert_eq!(next.steps(), (2, 1), "at least once");
            }
            Mode::Marked | Mode::Atomic => {
                next.is_in_doubt(&record).await;
                // A person finished the other half by hand.
                next.settle(Settlement::Done(outcome("by hand"))).await;
                assert!(next.record().await.fence > record.fence);
                next.replays("by hand").await;
                assert_eq!(next.steps(), (1, 0));
            }
        }
    });
}

in_every_mode!(
    /// The effect happened and its outcome was not kept. Keyed: the receiver is asked again and the first receipt
    /// recovered; marked: in doubt, until a resolver publishes what the witness knows; rerun: again.
    crash_after_effect_before_publish,
    after_effect
);

fn after_effect(mode: Mode) {
    let place = Place::new(mode, Start::WithClaim);
    place.dies(LifeEnd::DiesAfterEffect);
    let next = place.next();
    block_on(async {
        let record = next.record().await;
        let fence = record.fence.get();
        assert_eq!((&record.state, next.steps()), (&State::Begun, (1, 1)));
        match mode {
            Mode::Keyed => {
                assert_eq!(next.takes_over(2, fence).await, receipt(fence), "the first one's");
                assert_eq!(next.steps(), (1, 1));
            }
            Mode::Rerun => {
                assert_ne!(next.takes_over(2, fence).await, receipt(fence));
                assert_eq!(next.steps(), (2, 2));
            }
            Mode::Marked | Mode::Atomic => {
                next.is_in_doubt(&record).await;
                let credit = next.witness().into_iter().find(|row| row.step == CREDIT).expect("it credited");
                next.settle(Settlement::Done(outcome(&receipt(credit.fence)))).await;
                next.replays(&receipt(fence)).await;
                assert_eq!(next.steps(), (1, 1));
            }
        }
    });
}

in_every_mode!(
    /// Kept, and the caller never told: every later call replays the same bytes.
    crash_after_publish_before_reply,
    after_publish
);

fn after_publish(mode: Mode) {
    for start in [Start::WithClaim, Start::Later] {
        let place = Place::new(mode, start);
        place.dies(LifeEnd::DiesAfterComplete);
        let next = place.next();
        block_on(async {
            let Snapshot { record, now, .. } = next.snapshot().await.expect("there is a record");
            assert_eq!((record.phase(now), record.attempt), (Phase::Done, 1));
            assert_eq!(record.state, State::Done(outcome(&receipt(record.fence.get()))));
            next.replays(&receipt(record.fence.get())).await;
            assert_eq!(next.steps(), (1, 1));
            assert_eq!(next.record().await, record);
        });
    }
}

in_every_mode!(
    /// The outcome was kept and the answer lost with the process: publishing the same again is accepted, anything
    /// else is answered with what stands.
    publish_reply_lost,
    publish_reply_lost_in
);

fn publish_reply_lost_in(mode: Mode) {
    let place = Place::new(mode, Start::WithClaim);
    place.dies(LifeEnd::DiesAfterComplete);
    let next = place.next();
    block_on(async {
        let record = next.record().await;
        let State::Done(kept) = record.state.clone() else { panic!("not done: {record:?}") };
        let complete = |outcome: &Arc<Outcome>| Command::Complete {
            grant: Grant::from_parts(record.owner, record.fence),
            fingerprint: record.fingerprint,
            outcome: Arc::clone(outcome),
            retention: None,
        };
        assert!(matches!(next.apply(complete(&kept)).await, Ruling::Accepted { .. }));
        assert_eq!(next.apply(complete(&outcome("another"))).await, Ruling::Lost { winner: Some(kept) });
        assert_eq!(next.record().await, record);
        next.replays(&receipt(record.fence.get())).await;
    });
}

in_every_mode!(
    /// The second owner dies like the first: attempt and fence rise each time, and the third finishes.
    double_crash_takeover,
    double_crash
);

fn double_crash(mode: Mode) {
    // Begun twice and lost twice where that is taken over; claimed twice where it is not.
    let (start, fate) = match mode {
        Mode::Marked | Mode::Atomic => (Start::Later, LifeEnd::DiesAfterClaim),
        Mode::Keyed | Mode::Rerun => (Start::WithClaim, LifeEnd::DiesAfterEffect),
    };
    let place = Place::new(mode, start);
    let mut fences = Vec::new();
    for attempt in 1..=2 {
        place.dies(fate);
        let next = place.next();
        block_on(async {
            let record = next.record().await;
            assert_eq!(record.attempt, attempt);
            fences.push(record.fence.get());
            if start == Start::Later {
                // It would die of its first try to claim, won or not. Elsewhere it waits for the lease by itself.
                assert_eq!(next.phase_after_lease().await, Phase::Lapsed);
            }
        });
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    let next = place.next();
    block_on(async {
        let given = next.takes_over(3, fences[1]).await;
        match mode {
            Mode::Marked | Mode::Atomic => assert_eq!(next.steps(), (1, 1)),
            Mode::Keyed => {
                assert_eq!((next.steps(), given), ((1, 1), receipt(fences[0])));
            }
            Mode::Rerun => assert_eq!(next.steps(), (3, 3)),
        }
        let seen: Vec<_> = next.witness().iter().map(|row| row.fence).collect();
        assert!(seen.is_sorted(), "the witness saw fences go back: {seen:?}");
    });
}

in_every_mode!(
    /// The system takes the process when memory runs out: the same as `kill -9` in the middle of the effect.
    oom_kill,
    out_of_memory
);

fn out_of_memory(mode: Mode) {
    let Some(group) = MemoryGroup::of_bytes(64 << 20) else {
        // Without rights to make a memory cgroup the system's killer cannot be aimed. The signal is the same.
        println!("no memory cgroup can be made here: the process is killed by hand instead");
        return half_done(mode, &|place| place.dies(LifeEnd::DiesMidEffect));
    };
    half_done(mode, &|place| {
        let job = VictimJob::Life(place.life.with(LifeEnd::DevoursMemory));
        Victim::start_with(&job, |command| group.around(command)).end_by_kill();
    });
    assert!(group.kills() > 0, "it was the system that killed");
}
