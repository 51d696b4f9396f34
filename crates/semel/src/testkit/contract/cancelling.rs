//! Dropped calls: they may or may not have been executed, and leave nothing behind.

use std::task::{Context as TaskContext, Poll, Waker};

use super::context::{Context, apply};
use super::expecting::{
    PHASES, accepted, ask, ask_and_begin, complete, outcome, replayed, soon, won, writes,
};
use crate::record::{Command, Force, Mode, Ruling};
use crate::secret::Secret;
use crate::store::Scan;

/// A dropped claim is repeated by its owner and won, once.
pub async fn dropped_claim_can_be_repeated(context: &Context) {
    for polls in 0..3 {
        let (id, claim) = (context.key(), ask_and_begin(context.lasting(Mode::Marked)));
        drop_after(polls, context.store().apply(id, Command::Claim(claim.clone()))).await;
        let win = soon("an answer to the repeated claim", context.win(id, &claim)).await;
        assert_eq!(win.attempt, 1, "the dropped claim and its repetition are one");
        drop_after(polls, context.store().apply(id, complete(win.grant, &outcome("once")))).await;
        accepted(
            soon("an answer to the complete", context.apply(id, complete(win.grant, &outcome("once")))).await,
        );
        assert_eq!(replayed(context.ask(id, &claim).await).0, outcome("once"));
    }
}

/// Calls of every kind, dropped at every stage: the store still answers, also for the same key.
pub async fn dropped_calls_leave_no_lock_behind(context: &Context) {
    for phase in PHASES {
        for polls in 0..3 {
            let placed = context.place(phase).await;
            let (id, store) = (placed.id, context.store());
            drop_after(polls, store.get(id)).await;
            drop_after(polls, store.apply(id, Command::Claim(ask(*placed.claim.terms)))).await;
            for command in writes(placed.grant, &placed.outcome) {
                drop_after(polls, store.apply(id, command)).await;
            }
            drop_after(polls, store.apply(id, Command::Forget(Force::No))).await;
            drop_after(polls, store.scan(Scan { phase: None, after: None, limit: 10 })).await;
            drop_after(polls, store.sweep(10)).await;
            drop_after(polls, store.secret(Secret::random())).await;
            soon("an answer after dropped calls", async {
                accepted(context.apply(id, Command::Forget(Force::Yes)).await);
                won(context.ask(id, &ask(*placed.claim.terms)).await);
                store.sweep(1).await.expect("a healthy store");
            })
            .await;
        }
    }
}

/// Half of many calls are aborted while in progress: no caller gets the answer of another call.
pub async fn dropped_calls_leave_no_reply_behind(context: &Context) {
    let terms = context.lasting(Mode::Marked);
    for _ in 0..10 {
        let calls: Vec<_> = (0..40)
            .map(|number| {
                let (id, store) = (context.key(), context.handle(number));
                let own = outcome(&id.to_string());
                tokio::spawn(async move {
                    let claim = ask_and_begin(terms);
                    let win = won(apply(&*store, id, Command::Claim(claim.clone())).await);
                    assert_eq!(win.grant.owner(), claim.owner, "somebody else's win");
                    accepted(apply(&*store, id, complete(win.grant, &own)).await);
                    match apply(&*store, id, Command::Claim(ask(terms))).await {
                        Ruling::Replay { outcome, .. } => assert_eq!(outcome, own, "somebody else's outcome"),
                        other => panic!("a replay was due, but the store ruled {other:?}"),
                    }
                })
            })
            .collect();
        for (number, call) in calls.iter().enumerate() {
            if number % 2 == 1 {
                tokio::task::yield_now().await;
                call.abort();
            }
        }
        for call in calls {
            match call.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled(), "a call was given a wrong answer: {error}"),
            }
        }
    }
}

/// Polls a call `polls` times, lets others run in between, and drops it.
async fn drop_after<T>(polls: usize, call: impl Future<Output = T>) {
    let mut call = std::pin::pin!(call);
    for _ in 0..polls {
        let polled = call.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
        if matches!(polled, Poll::Ready(_)) {
            return;
        }
        tokio::task::yield_now().await;
    }
}
