//! The possible actions.

use semel::record::{Mode, Phase};

use super::world::{ModelState, ModelWorker, Stage, number};
use super::{Mutant, ProtocolModel};

/// One action. The numbers are workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelAction {
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
    LatePacket(usize, PacketOwner, Packet),
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
pub enum PacketOwner {
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
pub(super) fn possible(protocol: &ProtocolModel, world: &ModelState, actions: &mut Vec<ModelAction>) {
    for (index, worker) in world.workers.iter().enumerate() {
        // Of workers that differ only in their names one represents all; a name counts if the record contains it.
        let named = |owner: u8| world.slot.0.as_ref().is_some_and(|record| number(record.owner) == owner);
        let alike = |other: &ModelWorker| {
            ModelWorker { owner: worker.owner, ..*other } == *worker
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
        actions.push(ModelAction::Tick);
    }
    actions.extend([ModelAction::Pass, ModelAction::Sweep]);
    if phase == Phase::InDoubt {
        actions.push(ModelAction::Settle);
        if left.rash_settlements > 0 {
            actions.push(ModelAction::SettleRashly);
        }
    }
    if left.lives > 0 && matches!(phase, Phase::Done | Phase::Expired) {
        actions.extend([ModelAction::Forget, ModelAction::Reexecute]);
    }
    if left.forced > 0 && phase != Phase::Vacant {
        actions.push(ModelAction::ForgetByForce);
    }
    if left.losses > 0 && world.slot.0.is_some() {
        actions.push(ModelAction::Lose);
    }
    if left.clock_steps > 0 {
        actions.push(ModelAction::ClockBack);
    }
}

fn worker_actions(
    protocol: &ProtocolModel,
    world: &ModelState,
    index: usize,
    actions: &mut Vec<ModelAction>,
) {
    let worker = &world.workers[index];
    let left = &world.left;
    let works = match worker.stage {
        Stage::Asking => {
            actions.extend([ModelAction::ClaimAndBegin(index), ModelAction::Claim(index)]);
            false
        }
        Stage::Holding(_) => {
            actions.extend([
                ModelAction::Begin(index),
                ModelAction::Release(index),
                ModelAction::Bind(index),
            ]);
            if protocol.broken_by(Mutant::EffectBeforeBegin) {
                actions.push(ModelAction::Effect(index));
            }
            true
        }
        Stage::Ready(_) => {
            actions.extend([
                ModelAction::Effect(index),
                ModelAction::Release(index),
                ModelAction::Bind(index),
            ]);
            if left.crashes > 0 && protocol.mode != Mode::Atomic {
                actions.push(ModelAction::CrashLoose(index));
            }
            true
        }
        Stage::Acted(..) => {
            actions.push(ModelAction::Complete(index));
            true
        }
        Stage::Loose => {
            actions.push(ModelAction::Effect(index));
            false
        }
        Stage::Told(_) => {
            if left.asks > 0 {
                actions.push(ModelAction::AskAgain(index));
            }
            false
        }
        Stage::Answered | Stage::Gone => false,
    };
    if works {
        actions.push(ModelAction::Renew(index));
        if left.crashes > 0 {
            actions.push(ModelAction::Crash(index));
        }
        if left.cancels > 0 && !worker.cancelled {
            actions.push(ModelAction::Cancel(index));
        }
        if left.abandons > 0 {
            actions.push(ModelAction::Abandon(index));
        }
    }
    for (attempt, owner) in [(PacketOwner::Present, worker.owner), (PacketOwner::Former, worker.former)] {
        if left.late_packets > 0 && owner != 0 {
            actions.extend(
                [Packet::WithBegin, Packet::Plain].map(|p| ModelAction::LatePacket(index, attempt, p)),
            );
        }
    }
}
