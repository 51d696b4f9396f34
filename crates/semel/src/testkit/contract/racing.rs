//! Concurrent callers: one wins, and all get the same result.

use std::collections::HashSet;
use std::sync::Arc;

use super::context::{Context, apply};
use super::expecting::{accepted, ask, ask_and_begin, at_once, busy, complete, lost, outcome, replayed, won};
use crate::key::KeyId;
use crate::record::{Command, Mode, NewClaim, Phase, Ruling, Settlement};

const MANY: usize = 64;

/// Many claim a free key concurrently: one wins, all others must wait, none gets an error.
pub async fn racing_claims_have_one_winner(context: &Context) {
    for _ in 0..8 {
        let terms = context.lasting(Mode::Marked);
        let id = context.key();
        one_winner(context, id, |_| ask_and_begin(terms)).await;
    }
}

/// One claim sent many times concurrently wins every time, with the same grant.
pub async fn racing_repeats_of_one_claim_all_win(context: &Context) {
    for _ in 0..8 {
        let (id, claim) = (context.key(), ask(context.lasting(Mode::Marked)));
        let rulings = claim_at_once(context, id, |_| claim.clone()).await;
        let grants: HashSet<_> = rulings.into_iter().map(|ruling| won(ruling).grant).collect();
        assert_eq!(grants.len(), 1, "one claim was granted more than once");
        assert_eq!(context.record(id).await.attempt, 1);
    }
}

/// Many take a lapsed claim over concurrently: one wins, and attempt and fence rise by one claim only.
pub async fn racing_takers_have_one_winner(context: &Context) {
    let terms = context.ending(Mode::Rerun);
    let ids: Vec<KeyId> = (0..8).map(|_| context.key()).collect();
    let mut owners = Vec::new();
    for id in &ids {
        owners.push(context.win(*id, &ask_and_begin(terms)).await);
    }
    context.pass(terms.lease).await;
    for (id, old) in ids.into_iter().zip(owners) {
        // The new owners have a long lease, so that it does not expire on a slow machine.
        let terms = context.lasting(Mode::Rerun);
        let win = one_winner(context, id, |_| ask_and_begin(terms)).await;
        assert_eq!(win.attempt, 2, "one takeover, one attempt more");
        assert!(win.grant.fence() > old.grant.fence());
        lost(context.apply(id, complete(old.grant, &outcome("late"))).await);
    }
}

/// The owner completes with different outcomes concurrently: one is stored, and every other call names it.
pub async fn racing_completes_leave_one_outcome(context: &Context) {
    for _ in 0..8 {
        let (id, claim) = (context.key(), ask_and_begin(context.lasting(Mode::Marked)));
        let grant = context.win(id, &claim).await.grant;
        let rulings = at_once(16, |number| {
            let store = context.handle(number);
            let command = complete(grant, &outcome(&format!("outcome {number}")));
            async move { apply(&*store, id, command).await }
        })
        .await;
        let (stands, _) = replayed(context.ask(id, &claim).await);
        let mut taken = 0;
        for (number, ruling) in rulings.into_iter().enumerate() {
            if matches!(ruling, Ruling::Accepted { .. }) {
                assert_eq!(stands, outcome(&format!("outcome {number}")), "accepted, but another one stands");
                taken += 1;
            } else {
                assert_eq!(lost(ruling).as_ref(), Some(&stands), "the refused complete names what stands");
            }
        }
        assert_eq!(taken, 1, "completes that were taken");
    }
}

/// Release and complete of one owner concurrently: one is accepted, the other lost, and the record matches.
pub async fn racing_release_and_complete_leave_one(context: &Context) {
    for _ in 0..16 {
        let (id, claim) = (context.key(), ask_and_begin(context.lasting(Mode::Marked)));
        let grant = context.win(id, &claim).await.grant;
        let rulings = at_once(2, |number| {
            let store = context.handle(number);
            let command = if number == 0 { Command::Release(grant) } else { complete(grant, &outcome("o")) };
            async move { apply(&*store, id, command).await }
        })
        .await;
        let taken: Vec<bool> = rulings.iter().map(|r| matches!(r, Ruling::Accepted { .. })).collect();
        match (taken.as_slice(), context.phase(id).await) {
            ([true, false], Phase::Vacant) | ([false, true], Phase::Done) => {}
            (taken, phase) => panic!("release and complete taken: {taken:?}, but the record is {phase:?}"),
        }
    }
}

/// A person settles while the owner comes back: one outcome is stored, and both get it.
pub async fn racing_settle_and_complete_leave_one(context: &Context) {
    for _ in 0..16 {
        let placed = context.place(Phase::InDoubt).await;
        let (id, grant) = (placed.id, placed.grant);
        let rulings = at_once(2, |number| {
            let store = context.handle(number);
            let command = if number == 0 {
                Command::Settle(Settlement::Done(outcome("settled")))
            } else {
                complete(grant, &outcome("owner's"))
            };
            async move { apply(&*store, id, command).await }
        })
        .await;
        let (stands, _) = replayed(context.ask(id, &placed.claim).await);
        match rulings.as_slice() {
            [Ruling::Accepted { .. }, Ruling::Lost { winner: Some(winner) }] => {
                assert_eq!((&stands, winner), (&outcome("settled"), &outcome("settled")));
            }
            [Ruling::Refused { phase: Phase::Done }, Ruling::Accepted { .. }] => {
                assert_eq!(stands, outcome("owner's"));
            }
            other => panic!("settle and complete both answered {other:?}"),
        }
    }
}

/// Hundreds of keys concurrently, each with its own callers: every key has one winner and answers with its own
/// outcome.
pub async fn many_keys_in_parallel(context: &Context) {
    let terms = context.lasting(Mode::Marked);
    let ids: Vec<KeyId> = (0..200).map(|_| context.key()).collect();
    let shared = Arc::new(ids.clone());
    let wins = at_once(3 * ids.len(), |number| {
        let (store, ids) = (context.handle(number), Arc::clone(&shared));
        async move {
            let id = ids[number % ids.len()];
            match apply(&*store, id, Command::Claim(ask_and_begin(terms))).await {
                Ruling::Won(win) => {
                    accepted(apply(&*store, id, complete(win.grant, &outcome(&id.to_string()))).await);
                    1
                }
                Ruling::Replay { outcome: stands, .. } => {
                    assert_eq!(stands, outcome(&id.to_string()), "a replay of another key's outcome");
                    0
                }
                ruling => {
                    busy(ruling);
                    0
                }
            }
        }
    })
    .await;
    assert_eq!(wins.into_iter().sum::<usize>(), ids.len(), "one win per key");
    for id in ids {
        let (stands, _) = replayed(context.ask(id, &ask(terms)).await);
        assert_eq!(stands, outcome(&id.to_string()));
    }
}

/// Many callers claim and release one key repeatedly: at most one of them holds it at any time, so all fences differ.
pub async fn one_key_through_many_lives(context: &Context) {
    let (id, terms) = (context.key(), context.lasting(Mode::Marked));
    let fences = at_once(8, |number| {
        let store = context.handle(number);
        async move {
            let mut fences = Vec::new();
            for _ in 0..50 {
                if let Ruling::Won(win) = apply(&*store, id, Command::Claim(ask(terms))).await {
                    accepted(apply(&*store, id, Command::Begin(win.grant)).await);
                    accepted(apply(&*store, id, Command::Release(win.grant)).await);
                    assert!(fences.last().is_none_or(|last| *last < win.grant.fence()));
                    fences.push(win.grant.fence());
                }
            }
            fences
        }
    })
    .await;
    let all: Vec<_> = fences.into_iter().flatten().collect();
    let distinct: HashSet<_> = all.iter().collect();
    assert!(!all.is_empty(), "somebody wins");
    assert_eq!(distinct.len(), all.len(), "two wins shared a fence");
}

async fn claim_at_once(context: &Context, id: KeyId, claim: impl Fn(usize) -> NewClaim) -> Vec<Ruling> {
    at_once(MANY, |number| {
        let (store, command) = (context.handle(number), Command::Claim(claim(number)));
        async move { apply(&*store, id, command).await }
    })
    .await
}

async fn one_winner(context: &Context, id: KeyId, claim: impl Fn(usize) -> NewClaim) -> crate::record::Win {
    let rulings = claim_at_once(context, id, claim).await;
    let (wins, others): (Vec<_>, Vec<_>) =
        rulings.into_iter().partition(|ruling| matches!(ruling, Ruling::Won(_)));
    assert_eq!(wins.len(), 1, "{} of {MANY} racing claims won", wins.len());
    for other in others {
        busy(other);
    }
    won(wins.into_iter().next().expect("just counted"))
}
