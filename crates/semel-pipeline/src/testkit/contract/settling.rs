//! The results of attempts.

use std::time::Duration;

use super::context::{LONG, LedgerContext, SHORT, TARGET, event, failed, fine, line, take};
use crate::delivery::{
    AttemptClass, DeliveryState, DeliveryStep, Ending, Holding, Impossible, LeaseResult, Settle,
};
use crate::event::NewEvent;
use crate::ledger::{Change, Error};
use crate::letter::Cause;
use crate::replay::{ReplayAction, ReplayMode, Selection};

fn every_word() -> [Settle; 5] {
    [
        Settle::Done(fine()),
        Settle::Retry(failed("it is down"), LONG),
        Settle::Defer(LONG),
        Settle::Block(failed("it is down")),
        Settle::Bury(failed("it is down"), Cause::NonRetryable),
    ]
}

/// Each result leads to the state in the diagram.
pub async fn every_ending_leads_where_it_is_drawn(context: &LedgerContext) {
    for word in every_word() {
        context.publish().await;
        let held = context.take_one().await.holding;
        context.settle(held, word.clone()).await;
        let told = context.told(held.delivery).await.delivery;
        assert_eq!(told.state, word.step().to(), "{word:?}");
        let ended = !told.state.is_takeable();
        assert_eq!(told.completed_at.is_some(), ended, "{word:?}");
        assert_eq!(told.letter.is_some(), told.state == DeliveryState::Dlq, "{word:?}");
        let error = matches!(word, Settle::Retry(..) | Settle::Block(_) | Settle::Bury(..));
        assert_eq!(told.error.as_deref(), error.then_some("it is down"), "{word:?}");
    }
}

/// Every attempt has its number, its worker, its times and its result.
pub async fn attempts_tell_their_story(context: &LedgerContext) {
    context.publish().await;
    let mut delivery = None;
    for (attempt, word) in [
        (1, Settle::Retry(failed("first"), Duration::ZERO)),
        (2, Settle::Retry(failed("second"), Duration::ZERO)),
        (3, Settle::Done(fine())),
    ] {
        let work = context.take_one().await;
        assert_eq!(work.attempt, attempt);
        context.settle(work.holding, word).await;
        delivery = Some(work.holding.delivery);
    }
    let told = context.told(delivery.expect("there was work")).await;
    assert_eq!((told.delivery.attempts, told.delivery.crashes, told.delivery.error), (3, 0, None));
    let told: Vec<_> = told
        .attempts
        .into_iter()
        .map(|attempt| {
            assert!(attempt.ended_at.is_some_and(|end| end >= attempt.started_at));
            assert_eq!((attempt.worker.as_str(), attempt.epoch, attempt.job), ("worker-1", 0, None));
            (attempt.number, attempt.ending.expect("it has ended"))
        })
        .collect();
    assert_eq!(told, [(1, failed("first")), (2, failed("second")), (3, fine())]);
}

/// A worker without the lease changes nothing by reporting a result.
pub async fn a_late_worker_changes_nothing(context: &LedgerContext) {
    context.publish().await;
    let held = context.take_one().await.holding;
    let stranger = Holding { token: held.token ^ 1, ..held };
    let nobody = Holding { delivery: crate::id::DeliveryId::from_bytes([9; 16]), token: 1 };
    let before = context.told(held.delivery).await;
    for word in every_word() {
        assert_eq!(context.say(stranger, word.clone()).await, LeaseResult::Lost);
        assert_eq!(context.say(nobody, word).await, LeaseResult::Lost);
    }
    assert_eq!(context.told(held.delivery).await, before);
    context.settle(held, Settle::Done(fine())).await;
    let before = context.told(held.delivery).await;
    // It has reported its result: another one is too late.
    for word in every_word().into_iter().skip(1) {
        assert_eq!(context.say(held, word).await, LeaseResult::Lost);
    }
    assert_eq!(context.ledger().renew(vec![held], LONG).await.expect("it is answered"), [LeaseResult::Lost]);
    assert_eq!(context.told(held.delivery).await, before);
}

/// A worker that did not receive the answer repeats its result, and gets the answer.
pub async fn a_word_can_be_repeated(context: &LedgerContext) {
    for word in every_word() {
        context.publish().await;
        let held = context.take_one().await.holding;
        context.settle(held, word.clone()).await;
        let before = context.told(held.delivery).await;
        let letters = context.ledger().totals().await.expect("they can be read").letters;
        assert_eq!(context.say(held, word.clone()).await, LeaseResult::Kept, "{word:?}");
        assert_eq!(context.told(held.delivery).await, before, "{word:?}");
        assert_eq!(context.ledger().totals().await.expect("they can be read").letters, letters, "{word:?}");
    }
}

/// An open breaker or a stopping process: nothing was attempted.
pub async fn work_given_back_does_not_count(context: &LedgerContext) {
    context.publish().await;
    for _ in 0..3 {
        let work = context.take_one().await;
        assert_eq!(work.attempt, 1);
        context.settle(work.holding, Settle::Defer(Duration::ZERO)).await;
        let told = context.told(work.holding.delivery).await;
        assert_eq!((told.delivery.state, told.delivery.attempts), (DeliveryState::RetryWait, 0));
        let last = told.attempts.last().and_then(|attempt| attempt.ending.as_ref());
        assert_eq!(last.map(|ending| ending.class), Some(AttemptClass::Deferred));
    }
    let work = context.take_one().await;
    let (delivery, letter) = context.bury(work.holding).await;
    assert_eq!(context.letter(letter).await.attempts, 1);
    assert_eq!(context.told(delivery).await.attempts.last().map(|attempt| attempt.number), Some(4));
}

/// A delivery that expires during a long pause becomes a dead letter when it expires, not after the pause.
pub async fn no_retry_is_due_after_its_time_ends(context: &LedgerContext) {
    for word in [Settle::Retry(failed("it is down"), LONG), Settle::Defer(LONG)] {
        context.accept(NewEvent { deliver_within: Some(SHORT), ..event(TARGET) }).await;
        let work = context.take_one().await;
        context.settle(work.holding, word.clone()).await;
        let wait = context.ledger().next_due(vec![TARGET.to_owned()]).await.expect("it is known");
        assert!(wait.is_some_and(|wait| wait <= SHORT), "{word:?}: {wait:?}");
        context.pass(SHORT).await;
        let work = context.take_one().await;
        assert!(work.expired, "{word:?}");
        context.settle(work.holding, Settle::Bury(failed("too late"), Cause::Expired)).await;
    }
}

/// A dead letter that was not sent (poison, expired) has no more attempts than were made.
pub async fn what_is_set_aside_unsent_is_no_attempt(context: &LedgerContext) {
    let unsent = Ending { class: AttemptClass::Deferred, ..failed("it is not sent again") };
    for crashes in 0..3 {
        context.publish().await;
        for _ in 0..crashes {
            let taken = context.ledger().take(take(&[TARGET], 10, SHORT)).await.expect("work can be taken");
            assert_eq!(taken.len(), 1);
            context.pass(SHORT).await;
        }
        let work = context.take_one().await;
        assert_eq!((work.attempt, work.crashes), (crashes + 1, crashes));
        context.settle(work.holding, Settle::Bury(unsent.clone(), Cause::Poison)).await;
        let told = context.told(work.holding.delivery).await;
        let delivery = told.delivery;
        assert_eq!(
            (delivery.state, delivery.attempts, delivery.crashes),
            (DeliveryState::Dlq, crashes, crashes)
        );
        assert_eq!(delivery.error.as_deref(), Some("it is not sent again"));
        let letter = context.letter(delivery.letter.expect("it has a letter")).await;
        assert_eq!((letter.attempts, letter.cause), (crashes, Cause::Poison));
        assert_eq!(letter.error, "it is not sent again");
        let classes: Vec<AttemptClass> =
            told.attempts.iter().filter_map(|attempt| attempt.ending.as_ref().map(|end| end.class)).collect();
        let mut expected = vec![AttemptClass::Crashed; crashes as usize];
        expected.push(AttemptClass::Deferred);
        assert_eq!(classes, expected);
    }
}

/// Every operation on a delivery in every state follows the diagram, or is refused and changes nothing.
pub async fn only_drawn_steps_are_possible(context: &LedgerContext) {
    for state in DeliveryState::ALL {
        // Settling.
        let (_, delivery, held) = context.bring_to(state).await;
        let before = context.told(delivery).await;
        let strange = Holding { delivery, token: 1 };
        for word in every_word() {
            assert_eq!(context.say(strange, word.clone()).await, LeaseResult::Lost, "{state} {word:?}");
            if let Some(held) = held.filter(|_| state != DeliveryState::Running && word.step().to() != state)
            {
                assert_eq!(context.say(held, word.clone()).await, LeaseResult::Lost, "{state} {word:?}");
            }
        }
        assert_eq!(context.told(delivery).await, before, "{state}");
        // Taking.
        let due = matches!(state, DeliveryState::Queued | DeliveryState::Replaying);
        assert_eq!(context.take(10).await.len(), usize::from(due), "{state} is taken only if it can be");
        // Cancelling.
        let (event, delivery, _) = context.bring_to(state).await;
        let answer = context.ledger().cancel(event, line("cancel", &event)).await;
        match (DeliveryStep::Cancel.from().contains(&state), answer) {
            (true, Ok(1)) => assert_eq!(context.state(delivery).await, DeliveryState::Cancelled),
            (false, Err(Error::Impossible(why))) => {
                assert_eq!(why, Impossible { state, step: DeliveryStep::Cancel });
                assert_eq!(context.state(delivery).await, state);
            }
            (_, other) => panic!("cancelling what is {state}: {other:?}"),
        }
        while !context.take(100).await.is_empty() {}
        // Putting off.
        let (event, delivery, _) = context.bring_to(state).await;
        let change = Change { delay: Some(LONG), ..Change::default() };
        match (
            matches!(state, DeliveryState::Idle | DeliveryState::Queued),
            context.ledger().change(event, change, None).await,
        ) {
            (true, Ok(_)) | (false, Err(Error::Impossible(_))) => {}
            (_, other) => panic!("putting off what is {state}: {other:?}"),
        }
        assert_eq!(context.state(delivery).await, state);
        while !context.take(100).await.is_empty() {}
        // Replaying.
        let (event, delivery, _) = context.bring_to(state).await;
        let selection = Selection::Event { id: event, targets: vec![TARGET.to_owned()] };
        let plan =
            context.ledger().plan(selection.clone(), ReplayMode::Resume, vec![TARGET.to_owned()]).await;
        let action = plan.expect("it can be planned")[0].action;
        let job = context.job(selection, ReplayMode::Resume).await;
        context.release(job.new.id).await;
        let after = context.state(delivery).await;
        match state {
            DeliveryState::Dlq | DeliveryState::Blocked => {
                assert_eq!((action, after), (ReplayAction::Run, DeliveryState::Replaying));
            }
            DeliveryState::Done => assert_eq!((action, after), (ReplayAction::Skip, DeliveryState::Done)),
            other => assert_eq!((action, after), (ReplayAction::Conflict, other)),
        }
        while !context.take(100).await.is_empty() {}
    }
}

/// Each of many results in one call has its own answer.
pub async fn batches_are_answered_one_by_one(context: &LedgerContext) {
    let events = (0..4).map(|_| event(TARGET)).collect();
    context.ledger().accept(events).await.expect("they are accepted");
    let held: Vec<_> = context.take(10).await.into_iter().map(|work| work.holding).collect();
    let late = Holding { token: held[1].token ^ 1, ..held[1] };
    let words = vec![
        (held[0], Settle::Done(fine())),
        (late, Settle::Done(fine())),
        (held[2], Settle::Bury(failed("no"), Cause::NonRetryable)),
        (held[3], Settle::Retry(failed("no"), LONG)),
    ];
    let said = context.ledger().settle(words).await.expect("they can be settled");
    assert_eq!(said, [LeaseResult::Kept, LeaseResult::Lost, LeaseResult::Kept, LeaseResult::Kept]);
    let mut states = Vec::new();
    for held in held {
        states.push(context.state(held.delivery).await);
    }
    assert_eq!(
        states,
        [DeliveryState::Done, DeliveryState::Running, DeliveryState::Dlq, DeliveryState::RetryWait]
    );
}

/// The worker that lost its lease and its successor report concurrently: one is accepted.
pub async fn racing_settlers_have_one_word(context: &LedgerContext) {
    for _ in 0..10 {
        context.publish().await;
        let early =
            context.ledger().take(take(&[TARGET], 1, SHORT)).await.expect("work can be taken")[0].holding;
        context.pass(SHORT).await;
        let taker = context.handle(1);
        let (said, taken) = tokio::join!(async { context.say(early, Settle::Done(fine())).await }, async {
            taker.take(take(&[TARGET], 1, LONG)).await.expect("work can be taken")
        });
        match (said, &taken[..]) {
            (LeaseResult::Kept, []) => assert_eq!(context.state(early.delivery).await, DeliveryState::Done),
            (LeaseResult::Lost, [work]) => {
                assert_eq!(context.state(early.delivery).await, DeliveryState::Running);
                context.settle(work.holding, Settle::Done(fine())).await;
            }
            // The other had read before the settlement, and found nothing after.
            other => panic!("both, or neither: {other:?}"),
        }
    }
}
