//! The possible actions.

use semel::record::{Mode, Phase};

use super::world::{Stage, Worker, World, number};
use super::{Mutant, Protocol};

/// One action. The numbers are workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It claims, with the begin mark.
    ClaimAndBegin(usize),
    /// It claims, and will begin later.
    Claim(usize),
    /// It marks that its effect may start.
    Begin(usize),
    /// Its effect happens; in `atomic` together with complete, or not at all.
    Effect(usize),
    /// It stores the outcome and answers.
    Complete(usize),
    /// Its handler reports that nothing happened, which is true.
    Release(usize),
    /// As `Release`, and the key stays bound to the payload.
    Bind(usize),
    /// Its handler does not know the result; the effect may be in progress.
    Abandon(usize),
    /// It extends its lease.
    Renew(usize),
    /// Its process dies, and with it an effect that was not yet in progress.
    Crash(usize),
    /// Its process dies; its effect is in progress and may still happen.
    CrashLoose(usize),
    /// Its caller is dropped; the effect continues.
    Cancel(usize),
    /// A claim packet of its current or former attempt arrives once more; nobody receives the answer.
    LatePacket(usize, Attempt, Packet),
    /// Its caller, which was refused, asks again.
    AskAgain(usize),
    /// Half a lease passes.
    Tick,
    /// Time passes until something about the record ends.
    Pass,
    /// The store sweeps.
    Sweep,
    /// A person asks the witness and settles a key in doubt.
    Settle,
    /// Fault: a person settles to run although the owner may still act.
    SettleRashly,
    /// An operator forgets an ended record.
    Forget,
    /// Fault: an operator forgets by force.
    ForgetByForce,
    /// An operator asks for the effect once more.
    Reexecute,
    /// Fault: the store comes back empty.
    Lose,
    /// Fault: the store's clock goes back.
    ClockBack,
}

/// The attempt of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The current attempt of the worker: also a first packet whose answer was lost.
    Present,
    /// The previous attempt, which has ended.
    Former,
}

/// The content of a late claim packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The claim and the begin mark.
    WithBegin,
    /// The claim alone.
    Plain,
}

/// All actions that may happen in `world`. Some of them turn out to change nothing.
pub(super) fn possible(protocol: &Protocol, world: &World, actions: &mut Vec<Action>) {
    for (index, worker) in world.workers.iter().enumerate() {
        // Of workers that differ only in their names one represents all; a name counts if the record contains it.
        let named = |owner: u8| world.slot.0.as_ref().is_some_and(|record| number(record.owner) == owner);
        let alike = |other: &Worker| {
            Worker { owner: worker.owner, ..*other } == *worker
                && worker.former == 0
                && !named(other.owner)
                && !named(worker.owner)
        };
        if index > 0 && alike(&world.workers[index - 1]) {
            continue;
        }
        worker_actions(protocol, world, index, actions);
    }
    let left = &world.left;
    let phase = world.phase();
    if left.ticks > 0 && matches!(phase, Phase::Claimed | Phase::Begun) {
        actions.push(Action::Tick);
    }
    actions.extend([Action::Pass, Action::Sweep]);
    if phase == Phase::InDoubt {
        actions.push(Action::Settle);
        if left.rash_settlements > 0 {
            actions.push(Action::SettleRashly);
        }
    }
    if left.lives > 0 && matches!(phase, Phase::Done | Phase::Expired) {
        actions.extend([Action::Forget, Action::Reexecute]);
    }
    if left.forced > 0 && phase != Phase::Vacant {
        actions.push(Action::ForgetByForce);
    }
    if left.losses > 0 && world.slot.0.is_some() {
        actions.push(Action::Lose);
    }
    if left.clock_steps > 0 {
        actions.push(Action::ClockBack);
    }
}

fn worker_actions(protocol: &Protocol, world: &World, index: usize, actions: &mut Vec<Action>) {
    let worker = &world.workers[index];
    let left = &world.left;
    let works = match worker.stage {
        Stage::Asking => {
            actions.extend([Action::ClaimAndBegin(index), Action::Claim(index)]);
            false
        }
        Stage::Holding(_) => {
            actions.extend([Action::Begin(index), Action::Release(index), Action::Bind(index)]);
            if protocol.broken_by(Mutant::EffectBeforeBegin) {
                actions.push(Action::Effect(index));
            }
            true
        }
        Stage::Ready(_) => {
            actions.extend([Action::Effect(index), Action::Release(index), Action::Bind(index)]);
            if left.crashes > 0 && protocol.mode != Mode::Atomic {
                actions.push(Action::CrashLoose(index));
            }
            true
        }
        Stage::Acted(..) => {
            actions.push(Action::Complete(index));
            true
        }
        Stage::Loose => {
            actions.push(Action::Effect(index));
            false
        }
        Stage::Told(_) => {
            if left.asks > 0 {
                actions.push(Action::AskAgain(index));
            }
            false
        }
        Stage::Answered | Stage::Gone => false,
    };
    if works {
        actions.push(Action::Renew(index));
        if left.crashes > 0 {
            actions.push(Action::Crash(index));
        }
        if left.cancels > 0 && !worker.cancelled {
            actions.push(Action::Cancel(index));
        }
        if left.abandons > 0 {
            actions.push(Action::Abandon(index));
        }
    }
    for (attempt, owner) in [(Attempt::Present, worker.owner), (Attempt::Former, worker.former)] {
        if left.late_packets > 0 && owner != 0 {
            actions.extend([Packet::WithBegin, Packet::Plain].map(|p| Action::LatePacket(index, attempt, p)));
        }
    }
}
