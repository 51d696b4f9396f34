//! A process that stands still for several leases and goes on as if nothing had happened.
//!
//! The embedded store has one opener, so nobody outside can claim meanwhile: `zombie_publish` and `zombie_release`
//! with a successor in another process belong to the shared stores. Here the successor, where there is one, is
//! another caller of the same frozen process: both wake up at the same moment and race.

use semel::Mode;
use semel::record::State;
use semel_proof::victim::life::{LifeEnd, Start, receipt};
use semel_proof::victim::{ReportedEnd, VictimJob, VictimReport};

use super::block_on;
use super::points::Place;
use super::supervisor::Victim;

/// Freezes the victim for three leases.
fn freeze(place: &Place, victim: &mut Victim) {
    victim.freeze();
    // It finds this line when it wakes.
    victim.tell("go on");
    block_on(async { tokio::time::sleep(place.life.lease * 3).await });
    victim.thaw();
}

fn in_effect(report: &VictimReport) -> Option<u64> {
    match report {
        VictimReport::InEffect { fence } => Some(*fence),
        _ => None,
    }
}

fn ended(report: &VictimReport) -> Option<ReportedEnd> {
    match report {
        VictimReport::Ended(answered) => Some(answered.clone()),
        _ => None,
    }
}

/// Frozen in the effect. Nobody else claimed, so it completes by its own fence, in doubt or not.
fn alone(mode: Mode) {
    let place = Place::new(mode, Start::WithClaim);
    let mut victim = Victim::start(&VictimJob::Life(place.life.with(LifeEnd::PausesInEffect)));
    let fence = victim.wait_for("its effect", in_effect);
    freeze(&place, &mut victim);
    let answered = victim.wait_for("its answer", ended);
    assert_eq!(answered, ReportedEnd::Value { receipt: receipt(fence), replayed: false, stored: true });
    assert!(victim.end().1.success());
    let next = place.next();
    block_on(async {
        assert_eq!(next.record().await.attempt, 1);
        next.replays(&receipt(fence)).await;
        assert_eq!(next.steps(), (1, 1));
    });
}

/// Frozen in the effect, while another caller waits for it.
fn with_rival(mode: Mode) {
    let place = Place::new(mode, Start::WithClaim);
    let mut victim = Victim::start(&VictimJob::Life(place.life.with(LifeEnd::PausesInEffectWithRival)));
    let fence = victim.wait_for("its effect", in_effect);
    victim.wait_for("the other caller", |report| (*report == VictimReport::RivalWaits).then_some(()));
    freeze(&place, &mut victim);
    let answers = [victim.wait_for("an answer", ended), victim.wait_for("the other answer", ended)];
    assert!(victim.end().1.success());

    let receipts: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            ReportedEnd::Value { receipt, stored: true, .. } => Some(receipt.as_str()),
            ReportedEnd::Value { .. } | ReportedEnd::Nothing(_) => None,
        })
        .collect();
    let next = place.next();
    block_on(async {
        next.replays(receipts[0]).await;
        assert!(
            receipts.iter().all(|receipt| *receipt == receipts[0]),
            "two answers for one key: {answers:?}"
        );
        let record = next.record().await;
        match mode {
            // The one that waited may have seen the doubt before it was lifted; it never acts on it.
            Mode::Marked | Mode::Atomic => {
                assert_eq!((record.attempt, receipts[0]), (1, receipt(fence).as_str()));
                let in_doubt = |answer: &ReportedEnd| matches!(answer, ReportedEnd::Nothing(why) if why.contains("InDoubt"));
                assert!(receipts.len() == 2 || answers.iter().any(in_doubt), "{answers:?}");
                assert_eq!(next.steps(), (1, 1));
            }
            // Whichever came first: one effect at the receiver, one receipt.
            Mode::Keyed => {
                assert_eq!((receipts.len(), next.steps()), (2, (1, 1)), "{answers:?}");
            }
            // Both may have acted, and both answer with the winner's.
            Mode::Rerun => {
                assert_eq!(receipts.len(), 2, "{answers:?}");
                let attempts = record.attempt as usize;
                assert_eq!(next.steps(), (attempts, attempts));
            }
        }
    });
}

mod frozen_host {
    use super::*;

    #[test]
    fn marked() {
        alone(Mode::Marked);
        with_rival(Mode::Marked);
    }

    #[test]
    fn keyed() {
        alone(Mode::Keyed);
        with_rival(Mode::Keyed);
    }

    #[test]
    fn rerun() {
        alone(Mode::Rerun);
        with_rival(Mode::Rerun);
    }
}

/// Frozen between claim and begin: its mark is refused, so it claims again, with a higher fence, and acts once.
fn before_begin(mode: Mode) {
    let place = Place::new(mode, Start::Later);
    let mut victim = Victim::start(&VictimJob::Life(place.life.with(LifeEnd::PausesBeforeBegin)));
    let claimed = |report: &VictimReport| match report {
        VictimReport::Claimed { fence } => Some(*fence),
        _ => None,
    };
    let first = victim.wait_for("its claim", claimed);
    freeze(&place, &mut victim);
    let second = victim.wait_for("its second claim", claimed);
    assert!(second > first);
    assert_eq!(victim.wait_for("its effect", in_effect), second);
    let answered = victim.wait_for("its answer", ended);
    assert_eq!(answered, ReportedEnd::Value { receipt: receipt(second), replayed: false, stored: true });
    assert!(victim.end().1.success());
    let next = place.next();
    block_on(async {
        let record = next.record().await;
        assert_eq!(record.fence.get(), second);
        assert!(matches!(record.state, State::Done(_)), "{record:?}");
        next.replays(&receipt(second)).await;
        assert_eq!(next.steps(), (1, 1));
    });
}

mod zombie_effect {
    use super::*;

    #[test]
    fn marked() {
        before_begin(Mode::Marked);
    }

    #[test]
    fn keyed() {
        before_begin(Mode::Keyed);
    }

    #[test]
    fn rerun() {
        before_begin(Mode::Rerun);
    }
}
