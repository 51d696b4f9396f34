//! Sweeping removes expired data, and never data that is still needed.

use std::collections::HashSet;
use std::time::Duration;

use super::context::{Context, Sharing, apply};
use super::expecting::{
    PHASES, accepted, ask, ask_and_begin, at_once, complete, lost, outcome, replayed, won,
};
use crate::key::KeyId;
use crate::record::{Command, Mode, Phase, Ruling, State, Terms};
use crate::store::Swept;

/// After the retention the outcome is removed and the key is known; after memory the key is removed too.
pub async fn sweep_drops_the_outcome_then_the_key(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let placed = context.done(&ask_and_begin(terms), &outcome("kept")).await;
    context.pass(terms.retention + terms.grace).await;
    sweep_all(context).await;
    let snapshot = context.get(placed.id).await.expect("an expired key is remembered");
    assert_eq!(snapshot.record.state, State::Expired, "the outcome is dropped");
    assert_eq!(context.ask(placed.id, &ask(terms)).await, Ruling::Expired);
    context.pass(terms.memory).await;
    sweep_all(context).await;
    assert_eq!(context.get(placed.id).await, None, "nothing is left");
    let next = context.win(placed.id, &ask(terms)).await;
    assert!(next.grant.fence() > placed.grant.fence());
}

/// Records that have not ended are unchanged after a sweep, in every field.
pub async fn sweep_keeps_what_still_speaks(context: &Context) {
    let mut before = Vec::new();
    for phase in PHASES {
        let id = context.place(phase).await.id;
        before.push((id, context.record(id).await));
    }
    sweep_all(context).await;
    for (id, record) in before {
        assert_eq!(context.record(id).await, record, "swept although {:?}", context.phase(id).await);
    }
}

/// A key in doubt waits for a person, however long it takes.
pub async fn sweep_never_takes_doubt(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let id = context.key();
    let grant = context.win(id, &ask_and_begin(terms)).await.grant;
    let age = terms.retention + terms.grace + terms.memory + terms.in_flight_max + terms.lease;
    for _ in 0..if context.manual_clock().is_some() { 100 } else { 1 } {
        context.pass(age).await;
        sweep_all(context).await;
        assert_eq!(context.phase(id).await, Phase::InDoubt);
    }
    accepted(context.apply(id, complete(grant, &outcome("it came back"))).await);
}

/// A released key is known for as long as a packet of its owner can be in transit.
pub async fn sweep_keeps_stubs_for_late_packets(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let (id, claim) = (context.key(), ask(terms));
    let grant = context.win(id, &claim).await.grant;
    accepted(context.apply(id, Command::Release(grant)).await);
    context.pass(terms.in_flight_max).await;
    sweep_all(context).await;
    lost(context.ask(id, &claim).await);
    context.pass(terms.lease).await;
    sweep_all(context).await;
    assert_eq!(context.get(id).await, None, "the stub has served");
}

/// Removing a record does not make any fence go back.
pub async fn sweep_keeps_fences_up(context: &Context) {
    let terms = context.ending(Mode::Marked);
    let ids: Vec<KeyId> = (0..20).map(|_| context.key()).collect();
    let mut fences = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let mut win = context.win(*id, &ask(terms)).await;
        // Some keys get ahead of the clock by many claims in one instant.
        for _ in 0..number % 5 {
            accepted(context.apply(*id, Command::Release(win.grant)).await);
            win = context.win(*id, &ask(terms)).await;
        }
        accepted(context.apply(*id, Command::Release(win.grant)).await);
        fences.push(win.grant.fence());
    }
    context.pass(terms.in_flight_max + terms.lease).await;
    sweep_all(context).await;
    for (id, fence) in ids.into_iter().zip(fences) {
        assert_eq!(context.get(id).await, None, "the stub has served");
        assert!(context.win(id, &ask(terms)).await.grant.fence() > fence);
    }
}

/// One call changes at most `limit` records; enough calls remove everything that has expired.
pub async fn sweep_is_bounded(context: &Context) {
    let over = many_over(context, 60).await;
    let first = sweep(context, 10).await;
    assert!(first.removed + first.shrunk <= 10, "asked for 10 at most, swept {first:?}");
    if context.sharing() == Sharing::Alone {
        assert!(first.more, "60 were over, 10 at most are gone");
    }
    let (mut calls, mut rests) = (1, 0);
    // The first end may belong to a round that another process began.
    while rests < 2 {
        let swept = sweep(context, 10).await;
        assert!(swept.removed + swept.shrunk <= 10, "asked for 10 at most, swept {swept:?}");
        calls += 1;
        assert!(calls < 10_000, "sweeping does not come to an end");
        rests += usize::from(!swept.more);
    }
    for id in over {
        assert_eq!(context.get(id).await, None, "over, and nothing more to sweep");
    }
}

/// Without work, sweeping reports that, however many records are alive: the caller can stop.
pub async fn sweep_comes_to_rest(context: &Context) {
    for _ in 0..50 {
        context.place(Phase::Done).await;
    }
    for limit in [1, 7, 1000] {
        let mut calls = 0;
        while sweep(context, limit).await.more {
            calls += 1;
            assert!(calls < 10_000, "sweeping at most {limit} at a time never says that nothing is left");
        }
    }
}

/// Concurrent sweeps and claims: live outcomes are given, fences differ, nothing fails.
pub async fn sweeps_and_claims_in_parallel(context: &Context) {
    let living = context.place(Phase::Done).await;
    let over = many_over(context, 100).await;
    let fences: Vec<_> = at_once(8, |number| {
        let (store, over) = (context.handle(number), over.clone());
        let terms = context.lasting(Mode::Marked);
        async move {
            let mut fences = Vec::new();
            for id in over {
                if number < 4 {
                    store.sweep(5).await.expect("a healthy store");
                } else if let Ruling::Won(win) = apply(&*store, id, Command::Claim(ask(terms))).await {
                    fences.push((id, win.grant.fence()));
                    accepted(apply(&*store, id, Command::Release(win.grant)).await);
                }
            }
            fences
        }
    })
    .await
    .into_iter()
    .flatten()
    .collect();
    let distinct: HashSet<_> = fences.iter().collect();
    assert_eq!(distinct.len(), fences.len(), "two wins of a key shared a fence");
    sweep_all(context).await;
    assert_eq!(replayed(context.ask(living.id, &ask(*living.claim.terms)).await).0, living.outcome);
    for id in over {
        // A claim right afterwards is never refused: the stub is stored for late packets and fences.
        won(context.ask(id, &ask(context.lasting(Mode::Marked))).await);
    }
}

/// Records that a sweep removes entirely.
async fn many_over(context: &Context, count: usize) -> Vec<KeyId> {
    let usual = context.ending(Mode::Marked);
    let terms = Terms { grace: Duration::ZERO, memory: Duration::ZERO, retention: usual.lease, ..usual };
    let mut over = Vec::new();
    for number in 0..count {
        let id = context.key();
        let grant = context.win(id, &ask(terms)).await.grant;
        let end = match number % 3 {
            0 => complete(grant, &outcome("over soon")),
            1 => Command::Release(grant),
            _ => Command::Bind(grant),
        };
        accepted(context.apply(id, end).await);
        over.push(id);
    }
    context.pass(terms.in_flight_max + terms.lease).await;
    over
}

async fn sweep(context: &Context, limit: usize) -> Swept {
    context.store().sweep(limit).await.unwrap_or_else(|error| panic!("sweep failed: {error}"))
}

/// Sweeps everything that has expired. Two rounds, since the first may have begun in the middle.
pub(super) async fn sweep_all(context: &Context) {
    for _ in 0..2 {
        let mut calls = 0;
        while sweep(context, 1000).await.more {
            calls += 1;
            assert!(calls < 10_000, "sweeping does not come to an end");
        }
    }
}
