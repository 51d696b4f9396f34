//! Waiters: every change that they may wait for wakes them, and no change is missed. A wake-up without a change is
//! allowed: after a late confirmation of its subscription a store wakes all waiters, since it cannot know what it
//! missed.

use super::context::{Context, apply};
use super::expecting::{
    KeyInPhase, accepted, ask, ask_and_begin, at_once, busy, complete, outcome, replayed, soon,
};
use crate::record::{Command, Force, Mode, Phase, Ruling, Settlement};

/// A waiter wakes when the outcome is there.
pub async fn complete_wakes(context: &Context) {
    wakes(context, Phase::Begun, |placed| complete(placed.grant, &placed.outcome)).await;
}

/// A waiter wakes when the key is free again.
pub async fn release_wakes(context: &Context) {
    wakes(context, Phase::Claimed, |placed| Command::Release(placed.grant)).await;
}

/// A waiter wakes when the key is free for its payload.
pub async fn bind_wakes(context: &Context) {
    wakes(context, Phase::Claimed, |placed| Command::Bind(placed.grant)).await;
}

/// A waiter wakes when the owner abandons its claim.
pub async fn abandon_wakes(context: &Context) {
    wakes(context, Phase::Begun, |placed| Command::Abandon(placed.grant)).await;
}

/// A waiter wakes when doubt is settled, as done or as run.
pub async fn settle_wakes(context: &Context) {
    wakes(context, Phase::InDoubt, |_| Command::Settle(Settlement::Done(outcome("settled")))).await;
    wakes(context, Phase::InDoubt, |_| Command::Settle(Settlement::Run)).await;
}

/// A waiter wakes when an operator removes the record, or asks for a re-execution.
pub async fn forget_wakes(context: &Context) {
    wakes(context, Phase::Begun, |_| Command::Forget(Force::Yes)).await;
    wakes(context, Phase::Done, |_| Command::Reexecute).await;
}

/// Subscribe, read, and only then the change: the wait returns nevertheless.
pub async fn change_between_look_and_wait_is_seen(context: &Context) {
    let placed = context.place(Phase::Begun).await;
    let mut watch = context.handle(1).watch(placed.id);
    busy(context.ask(placed.id, &ask(*placed.claim.terms)).await);
    accepted(context.apply(placed.id, complete(placed.grant, &placed.outcome)).await);
    soon("a wake-up for a change before the wait", watch.changed()).await;
}

/// All waiters of a key wake, on every handle.
pub async fn every_watch_wakes(context: &Context) {
    let placed = context.place(Phase::Begun).await;
    let mut waiters = Vec::new();
    for number in 0..50 {
        let mut watch = context.handle(number).watch(placed.id);
        waiters.push(tokio::spawn(async move { soon("a wake-up among many", watch.changed()).await }));
    }
    accepted(context.apply(placed.id, complete(placed.grant, &placed.outcome)).await);
    for waiter in waiters {
        waiter.await.expect("every waiter wakes");
    }
}

/// A waiter that leaves does not affect the others.
pub async fn dropped_watch_takes_no_other_along(context: &Context) {
    let placed = context.place(Phase::Begun).await;
    let mut stays = context.handle(1).watch(placed.id);
    for _ in 0..10 {
        drop(context.handle(1).watch(placed.id));
    }
    let leaves = context.handle(1).watch(placed.id);
    let waiter = tokio::spawn(async move { soon("a wake-up after others left", stays.changed()).await });
    drop(leaves);
    accepted(context.apply(placed.id, complete(placed.grant, &placed.outcome)).await);
    waiter.await.expect("the waiter that stayed wakes");
}

/// A dropped wait loses no change: the next wait on the same watch reports it.
pub async fn watch_survives_a_dropped_wait(context: &Context) {
    let placed = context.place(Phase::Begun).await;
    let mut watch = context.handle(1).watch(placed.id);
    tokio::select! {
        biased;
        () = watch.changed() => {}
        () = tokio::task::yield_now() => {}
    }
    accepted(context.apply(placed.id, complete(placed.grant, &placed.outcome)).await);
    soon("the change, after a wait that was dropped", watch.changed()).await;
}

/// Waiters that subscribe, read and wait while the owner completes: each gets the outcome, immediately or when woken.
pub async fn no_wakeup_is_lost_in_a_race(context: &Context) {
    for _ in 0..30 {
        let (id, terms) = (context.key(), context.lasting(Mode::Marked));
        let grant = context.win(id, &ask_and_begin(terms)).await.grant;
        at_once(9, |number| {
            let store = context.handle(number);
            async move {
                if number == 8 {
                    accepted(apply(&*store, id, complete(grant, &outcome("waited for"))).await);
                    return;
                }
                loop {
                    let mut watch = store.watch(id);
                    match apply(&*store, id, Command::Claim(ask(terms))).await {
                        Ruling::Busy { .. } => soon("a wake-up in a race", watch.changed()).await,
                        ruling => return assert_eq!(replayed(ruling).0, outcome("waited for")),
                    }
                }
            }
        })
        .await;
    }
}

/// Brings a key into a phase, waits for it on one handle and changes it on the other.
async fn wakes(context: &Context, phase: Phase, change: impl Fn(&KeyInPhase) -> Command) {
    let placed = context.place(phase).await;
    let mut watch = context.handle(1).watch(placed.id);
    let waiter = tokio::spawn(async move { soon("the wake-up", watch.changed()).await });
    // In most runs the waiter already waits. Both orders must work.
    tokio::task::yield_now().await;
    let command = change(&placed);
    let name = format!("{command:?}");
    accepted(context.apply(placed.id, command).await);
    waiter.await.unwrap_or_else(|_| panic!("{name} woke nobody"));
}
