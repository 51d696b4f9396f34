//! An owner killed in `atomic`: effect and outcome are there together, or neither is, and nothing is ever in doubt.
//!
//! Claim, effect and outcome are one transaction, so `crash_after_claim`, `crash_after_begin`, `claim_reply_lost` and
//! `publish_reply_lost` have nothing to show: no such state reaches the disk.

use std::sync::Arc;

use semel::Mode;
use semel::record::{Phase, State};
use semel::store::EmbeddedStore;
use semel_proof::victim::atomic::{TRIED, ledger};
use semel_proof::victim::life::{LifeEnd, Start, key, outcome, receipt, reopen};
use semel_proof::victim::witness::rows;
use semel_proof::victim::{ReportedEnd, VictimJob};

use super::block_on;
use super::memory_group::MemoryGroup;
use super::points::Place;
use super::supervisor::Victim;

/// How often an effect was started, whatever became of it.
fn tries(place: &Place) -> usize {
    let rows = rows(&place.life.witness).expect("the witness can be read");
    rows.iter().filter(|row| row.step == TRIED).count()
}

/// Calls as the next process, and as one after it: the effect is there once, and its receipt is everybody's.
async fn finishes(place: &Place, store: &Arc<EmbeddedStore>) {
    let answer = place.life.call_in(&place.life.engine(store.clone()), store).await;
    let ReportedEnd::Value { receipt, replayed: false, stored: true } = answer else {
        panic!("expected a run of its own: {answer:?}")
    };
    replays(place, store, &receipt).await;
}

async fn replays(place: &Place, store: &Arc<EmbeddedStore>, receipt: &str) {
    let tried = tries(place);
    let answer = place.life.call_in(&place.life.engine(store.clone()), store).await;
    assert_eq!(answer, ReportedEnd::Value { receipt: receipt.to_owned(), replayed: true, stored: true });
    assert_eq!((tries(place), ledger(store).await), (tried, (1, 1)));
}

/// The owner dies before its commit, `times` times over: no trace, and the next one runs it.
fn leaves_nothing(times: usize, started: usize, dies: impl Fn(&Place)) {
    let place = Place::new(Mode::Atomic, Start::WithClaim);
    for _ in 0..times {
        dies(&place);
    }
    assert_eq!(tries(&place), started * times, "it got as far as it was to get");
    let store = reopen(&place.life.store);
    block_on(async {
        let engine = place.life.engine(store.clone());
        assert_eq!(engine.get(&key()).await.expect("the store answers"), None);
        assert_eq!(ledger(&store).await, (0, 0));
        finishes(&place, &store).await;
    });
}

#[test]
fn crash_before_claim() {
    leaves_nothing(1, 0, |place| place.dies(LifeEnd::DiesBeforeClaim));
}

#[test]
fn crash_mid_effect() {
    leaves_nothing(1, 1, |place| place.dies(LifeEnd::DiesMidEffect));
}

#[test]
fn crash_after_effect_before_publish() {
    leaves_nothing(1, 1, |place| place.dies(LifeEnd::DiesAfterEffect));
}

#[test]
fn double_crash_takeover() {
    leaves_nothing(2, 1, |place| place.dies(LifeEnd::DiesAfterEffect));
}

#[test]
fn oom_kill() {
    let Some(group) = MemoryGroup::of_bytes(64 << 20) else {
        println!("no memory cgroup can be made here: the process is killed by hand instead");
        return leaves_nothing(1, 1, |place| place.dies(LifeEnd::DiesMidEffect));
    };
    leaves_nothing(1, 1, |place| {
        let job = VictimJob::Life(place.life.with(LifeEnd::DevoursMemory));
        Victim::start_with(&job, |command| group.around(command)).end_by_kill();
    });
    assert!(group.kills() > 0, "it was the system that killed");
}

#[test]
fn crash_after_publish_before_reply() {
    let place = Place::new(Mode::Atomic, Start::WithClaim);
    place.dies(LifeEnd::DiesAfterComplete);
    let store = reopen(&place.life.store);
    block_on(async {
        let engine = place.life.engine(store.clone());
        let found = engine.get(&key()).await.expect("the store answers").expect("there is a record");
        assert_eq!((found.phase(), found.record.attempt, ledger(&store).await), (Phase::Done, 1, (1, 1)));
        let receipt = receipt(found.record.fence.get());
        assert_eq!(found.record.state, State::Done(outcome(&receipt)));
        replays(&place, &store, &receipt).await;
    });
}
