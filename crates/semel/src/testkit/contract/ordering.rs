//! Concurrent commands on one key: the answers of the store must be the answers of the rules in some order that
//! respects real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agreement::Dice;
use super::context::{Context, apply};
use super::expecting::{ask, ask_otherwise, at_once, complete, outcome, timeless};
use crate::key::KeyId;
use crate::record::{
    self, Begin, Command, Fence, Force, Grant, Mode, NewClaim, Phase, Record, Ruling, Settlement,
};
use crate::store::Store;
use crate::time::{Clock, Timestamp};

const ACTORS: usize = 4;
const COMMANDS: usize = 5;

/// Actors claim, begin, complete, release and operate on one key concurrently, in many rounds: every round has an
/// order.
pub async fn concurrent_commands_have_an_order(context: &Context) {
    for seed in 1..=60 {
        let (id, ticks) = (context.key(), Arc::new(AtomicU64::new(0)));
        let histories = at_once(ACTORS, |number| {
            let dice = Dice(seed * 1000 + number as u64);
            let claim = any_claim(context, seed, number);
            act(context.handle(number), id, Arc::clone(&ticks), dice, claim)
        })
        .await;
        let left: Vec<&[TimedCall]> = histories.iter().map(Vec::as_slice).collect();
        let now = context.manual_clock().map_or(Timestamp::from_micros(1_000_000), Clock::now);
        let ends_as = context.phase(id).await;
        if !has_an_order(&left, None, now, ends_as) {
            let mut events: Vec<&TimedCall> = histories.iter().flatten().collect();
            events.sort_by_key(|event| event.began);
            panic!("seed {seed}: no order of these gives these answers and ends as {ends_as:?}: {events:#?}");
        }
    }
}

/// One call: command, answer and times, on a clock that ticks with every call's begin and end.
#[derive(Debug)]
struct TimedCall {
    began: u64,
    command: Command,
    ruling: Ruling,
    ended: u64,
}

fn any_claim(context: &Context, seed: u64, number: usize) -> NewClaim {
    let mode = [Mode::Atomic, Mode::Keyed, Mode::Marked, Mode::Rerun][(seed % 4) as usize];
    let terms = context.lasting(mode);
    let claim = if number == 0 && seed.is_multiple_of(3) { ask_otherwise(terms) } else { ask(terms) };
    NewClaim { begin: if seed.is_multiple_of(2) { Begin::WithClaim } else { Begin::Later }, ..claim }
}

/// Sends random commands with the grants it has won.
async fn act(
    store: Arc<dyn Store>,
    id: KeyId,
    ticks: Arc<AtomicU64>,
    mut dice: Dice,
    claim: NewClaim,
) -> Vec<TimedCall> {
    let mut events = Vec::new();
    let mut grant: Option<Grant> = None;
    for _ in 0..COMMANDS {
        let command = match (grant, dice.below(12)) {
            (None, 0..9) | (Some(_), 0) => Command::Claim(claim.clone()),
            (Some(grant), 1 | 2) => Command::Begin(grant),
            (Some(grant), 3) => Command::Renew(grant),
            (Some(grant), 4 | 5) => complete(grant, &outcome(if dice.below(2) == 0 { "one" } else { "two" })),
            (Some(grant), 6) => Command::Release(grant),
            (Some(grant), 7) => Command::Bind(grant),
            (Some(grant), 8) => Command::Abandon(grant),
            (_, 9) => Command::Settle(Settlement::Run),
            (_, 10) => Command::Reexecute,
            _ => Command::Forget(if dice.below(2) == 0 { Force::No } else { Force::Yes }),
        };
        let began = ticks.fetch_add(1, Ordering::SeqCst);
        let ruling = apply(&*store, id, command.clone()).await;
        let ended = ticks.fetch_add(1, Ordering::SeqCst);
        if let Ruling::Won(win) = &ruling {
            grant = Some(win.grant);
        }
        events.push(TimedCall { began, command, ruling, ended });
    }
    events
}

/// True if the rules, starting from `record`, can give the remaining answers. Every actor's calls are in order; a
/// call may come next if no other remaining call had ended before it began.
fn has_an_order(left: &[&[TimedCall]], record: Option<&Record>, now: Timestamp, ends_as: Phase) -> bool {
    let Some(first_end) = left.iter().filter_map(|events| events.first()).map(|event| event.ended).min()
    else {
        return record.map_or(Phase::Vacant, |record| record.phase(now)) == ends_as;
    };
    left.iter().enumerate().any(|(actor, events)| {
        let Some((event, rest)) = events.split_first().filter(|(event, _)| event.began < first_end) else {
            return false;
        };
        let mut next = record.cloned();
        let ruled = record::apply(&mut next, &event.command, now, Fence::default());
        if !fits(&event.ruling, &ruled, next.as_mut(), record) {
            return false;
        }
        let mut left = left.to_vec();
        left[actor] = rest;
        has_an_order(&left, next.as_ref(), now, ends_as)
    })
}

/// True if the store's ruling equals the ruling of the rules, except for times. A new fence may be higher than the
/// rules require; the record then continues with it.
fn fits(store: &Ruling, rules: &Ruling, next: Option<&mut Record>, before: Option<&Record>) -> bool {
    match (store, rules, next) {
        (Ruling::Won(store), Ruling::Won(rules), Some(next)) => {
            let repeated = before.is_some_and(|before| before.fence == next.fence);
            let fence = store.grant.fence();
            let fence_fits = if repeated { fence == next.fence } else { fence >= next.fence };
            next.fence = fence;
            fence_fits
                && (store.grant.owner(), store.attempt, store.epoch)
                    == (rules.grant.owner(), rules.attempt, rules.epoch)
        }
        _ => timeless(store.clone()) == timeless(rules.clone()),
    }
}
