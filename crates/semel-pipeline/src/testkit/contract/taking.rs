//! Giving out work: to which worker, in which order, and what happens when a worker is lost.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::context::{
    LONG, LedgerContext, SHORT, TARGET, event, event_of, failed, fine, line, ordered, run, take,
};
use crate::delivery::{AttemptClass, DeliveryState, LeaseResult, Settle, Work};
use crate::event::{NewEvent, Trace};
use crate::id::EventId;
use crate::ledger::Take;
use crate::letter::Cause;
use crate::replay::ReplayMode;

/// A worker needs no other data to make the delivery.
pub async fn taken_work_says_everything(context: &LedgerContext) {
    let new = NewEvent {
        tenant: "acme".to_owned(),
        headers: vec![("x".to_owned(), "1".to_owned())],
        trace: Trace { request_id: Some("req-1".to_owned()), traceparent: None },
        ..run()
    };
    let id = context.accept(new.clone()).await;
    let work = context.take_one().await;
    let told = context.told(work.holding.delivery).await;
    assert_eq!((work.event, work.target.as_str(), work.tenant.as_str()), (id, TARGET, "acme"));
    assert_eq!(
        (work.event_type, work.payload, work.content_type),
        (new.event_type, new.payload, new.content_type)
    );
    assert_eq!((work.headers, work.trace), (new.headers, new.trace));
    assert_eq!((work.attempt, work.crashes, work.epoch), (1, 0, 0));
    assert_eq!((work.expired, work.job), (false, None));
    assert_eq!(work.accepted_at, told.event.accepted_at);
    assert_eq!((told.delivery.state, told.delivery.attempts), (DeliveryState::Running, 1));
    assert!(told.delivery.started_at.is_some() && told.delivery.completed_at.is_none());
    let [attempt] = &told.attempts[..] else { panic!("the start is written before the work is given out") };
    assert_eq!((attempt.number, attempt.worker.as_str(), &attempt.ending), (1, "worker-1", &None));
    assert_eq!(attempt.request_id, work.request_id);
}

/// One worker holds a delivery at a time.
pub async fn a_taken_delivery_is_nobody_elses(context: &LedgerContext) {
    context.publish().await;
    context.take_one().await;
    assert_eq!(context.take(10).await, []);
    assert!(context.handle(1).take(take(&[TARGET], 10, LONG)).await.expect("it is answered").is_empty());
}

/// Never more than the limits, in total and for each target.
pub async fn limits_are_kept(context: &LedgerContext) {
    for target in ["a", "b"] {
        let events = (0..10).map(|_| event(target)).collect();
        context.ledger().accept(events).await.expect("they are accepted");
    }
    let asked = Take {
        worker: "worker-1".to_owned(),
        targets: vec![("a".to_owned(), 2), ("b".to_owned(), 5)],
        limit: 6,
        lease: LONG,
    };
    let count = |work: &[Work], target: &str| work.iter().filter(|work| work.target == target).count();
    let taken = context.ledger().take(asked.clone()).await.expect("work can be taken");
    assert_eq!((taken.len(), count(&taken, "a") <= 2, count(&taken, "b") <= 5), (6, true, true));
    let taken = context.ledger().take(Take { limit: 100, ..asked.clone() }).await.expect("work can be taken");
    assert_eq!((count(&taken, "a"), count(&taken, "b")), (2, 5));
    let none = context.ledger().take(Take { limit: 0, ..asked }).await.expect("it is answered");
    assert_eq!(none, []);
}

/// An idle delivery is taken once its delay has passed, and not before.
pub async fn a_delay_is_waited_for(context: &LedgerContext) {
    let id = context.accept(NewEvent { delay: SHORT, ..event(TARGET) }).await;
    assert_eq!(context.only(id).await.delivery.state, DeliveryState::Idle);
    if context.manual_clock().is_some() {
        assert_eq!(context.take(10).await, []);
        context.pass(SHORT - Duration::from_micros(1)).await;
        assert_eq!(context.take(10).await, []);
        context.pass(Duration::from_micros(1)).await;
    } else {
        context.pass(SHORT).await;
    }
    let work = context.take_one().await;
    // As for a delayed one, for a retry.
    context.settle(work.holding, Settle::Retry(failed("it is down"), SHORT)).await;
    assert_eq!(context.state(work.holding.delivery).await, DeliveryState::RetryWait);
    context.pass(SHORT).await;
    assert_eq!(context.take_one().await.attempt, 2);
}

/// Deliveries for other targets wait.
pub async fn only_named_targets_are_taken(context: &LedgerContext) {
    context.accept(event("a")).await;
    context.accept(event("b")).await;
    assert_eq!(context.take_for(&["c"], 10).await, []);
    assert_eq!(context.take_for(&[], 10).await, []);
    let taken = context.take_for(&["b", "c"], 10).await;
    assert_eq!(taken.iter().map(|work| work.target.as_str()).collect::<Vec<_>>(), ["b"]);
}

/// Many workers take every delivery once.
pub async fn racing_takers_share_nothing(context: &LedgerContext) {
    let events = (0..200).map(|number| event_of(&format!("t{}", number % 7), TARGET)).collect();
    context.ledger().accept(events).await.expect("they are accepted");
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let ledger = context.handle(number);
            tokio::spawn(async move {
                let mut all = Vec::new();
                let mut empty = 0;
                // Another worker may hold a row at that time: only repeated empty takes are the end.
                while empty < 3 {
                    let taken = ledger.take(take(&[TARGET], 7, LONG)).await.expect("work can be taken");
                    empty = if taken.is_empty() { empty + 1 } else { 0 };
                    all.extend(taken.into_iter().map(|work| work.holding.delivery));
                }
                all
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.expect("no worker panics"));
    }
    all.extend(context.take(1_000).await.into_iter().map(|work| work.holding.delivery));
    assert_eq!(all.len(), 200, "every delivery is given out");
    assert_eq!(all.into_iter().collect::<HashSet<_>>().len(), 200, "and none of them twice");
}

/// However much one tenant has waiting, the shares of the others are equal.
pub async fn tenants_take_turns(context: &LedgerContext) {
    let mut events: Vec<_> = (0..300).map(|_| event_of("large", TARGET)).collect();
    for tenant in ["a", "b", "c"] {
        events.extend((0..20).map(|_| event_of(tenant, TARGET)));
    }
    context.ledger().accept(events).await.expect("they are accepted");
    let mut taken: HashMap<String, u32> = HashMap::new();
    for round in 1..=8 {
        for work in context.take(10).await {
            *taken.entry(work.tenant).or_default() += 1;
        }
        let (most, least) = (taken.values().max(), taken.values().min());
        let (most, least) = (most.copied().unwrap_or(0), least.copied().unwrap_or(0));
        assert!(taken.len() == 4 && most - least <= 2, "round {round}: {taken:?}");
    }
    assert_eq!(taken.values().sum::<u32>(), 80);
    // The other tenants have nothing left: the large one gets everything.
    let rest = context.take(1_000).await;
    assert_eq!(rest.len(), 280);
}

/// A newcomer waits for one turn of each waiting tenant, not for all of their work.
pub async fn a_newcomer_waits_one_round(context: &LedgerContext) {
    let events = (0..100).flat_map(|_| [event_of("a", TARGET), event_of("b", TARGET)]).collect();
    context.ledger().accept(events).await.expect("they are accepted");
    assert_eq!(context.take(11).await.len(), 11);
    context.accept(event_of("late", TARGET)).await;
    let taken = context.take(4).await;
    let place = taken.iter().position(|work| work.tenant == "late");
    assert!(place.is_some(), "among the next four of two others: {taken:?}");
}

async fn events_in_order(context: &LedgerContext, count: usize) -> Vec<EventId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(context.accept(ordered("customer-4", TARGET)).await);
    }
    ids
}

/// Deliveries of one order key go one at a time, the earliest first, also across retries.
pub async fn order_keys_go_one_by_one(context: &LedgerContext) {
    let ids = events_in_order(context, 4).await;
    context.accept(ordered("customer-5", TARGET)).await;
    context.publish().await;
    let taken = context.take(100).await;
    assert_eq!(taken.len(), 3, "one of each key, and what has none");
    let first = taken.iter().find(|work| work.event == ids[0]).expect("the earliest of its key");
    assert_eq!(context.take(100).await, [], "the others wait");
    // A retry keeps its place.
    context.settle(first.holding, Settle::Retry(failed("it is down"), SHORT)).await;
    assert_eq!(context.take(100).await, [], "later ones wait for it too");
    context.pass(SHORT).await;
    let again = context.take_one().await;
    assert_eq!((again.event, again.attempt), (ids[0], 2));
    context.settle(again.holding, Settle::Done(fine())).await;
    let second = context.take_one().await;
    assert_eq!(second.event, ids[1]);
    // Neither a dead letter nor a cancelled delivery blocks the others.
    context.settle(second.holding, Settle::Bury(failed("no"), Cause::NonRetryable)).await;
    context.ledger().cancel(ids[2], line("cancel", &ids[2])).await.expect("it can be cancelled");
    assert_eq!(context.take_one().await.event, ids[3]);
}

/// Two targets of one event do not wait for each other.
pub async fn order_holds_within_a_target_only(context: &LedgerContext) {
    for _ in 0..2 {
        let targets = vec!["a".to_owned(), "b".to_owned()];
        context.accept(NewEvent { targets, ..ordered("customer-4", "a") }).await;
    }
    let taken = context.take_for(&["a", "b"], 10).await;
    let mut targets: Vec<_> = taken.iter().map(|work| work.target.as_str()).collect();
    targets.sort_unstable();
    assert_eq!(targets, ["a", "b"]);
}

/// A blocked delivery stops its order key, until a person handles it.
pub async fn a_blocked_one_holds_its_order(context: &LedgerContext) {
    let ids = events_in_order(context, 2).await;
    let first = context.take_one().await;
    context.settle(first.holding, Settle::Block(failed("it is down"))).await;
    assert_eq!(context.take(10).await, []);
    context.ledger().cancel(ids[0], line("cancel", &ids[0])).await.expect("a blocked one can be cancelled");
    assert_eq!(context.take_one().await.event, ids[1]);
}

/// A replayed dead letter is the earliest again, but does not run beside a delivery in progress.
pub async fn a_replayed_one_goes_first_again(context: &LedgerContext) {
    let ids = events_in_order(context, 3).await;
    let first = context.take_one().await;
    let (_, letter) = context.bury(first.holding).await;
    let second = context.take_one().await;
    let job = context.job_of(&[letter], ReplayMode::Resume).await;
    context.release(job.new.id).await;
    assert_eq!(context.take(10).await, [], "the second one runs");
    context.settle(second.holding, Settle::Done(fine())).await;
    let again = context.take_one().await;
    assert_eq!(again.event, ids[0], "before the third");
    context.settle(again.holding, Settle::Done(fine())).await;
    assert_eq!(context.take_one().await.event, ids[2]);
}

/// A delivery can be taken by its id while it waits for its retry, before it is due, with all effects of a take.
pub async fn a_delivery_is_taken_again_by_its_id(context: &LedgerContext) {
    let retake = async |delivery| {
        let taken = context.handle(1).retake(delivery, "worker-2".to_owned(), LONG).await;
        taken.expect("it is answered")
    };
    context.publish().await;
    let first = context.take_one().await;
    let id = first.holding.delivery;
    assert_eq!(retake(id).await, None, "it is held");
    assert_eq!(retake(crate::id::DeliveryId::from_bytes([9; 16])).await, None, "there is none");
    context.settle(first.holding, Settle::Retry(failed("once"), LONG)).await;
    assert_eq!(context.take(10).await, [], "it is not due");
    let again = retake(id).await.expect("it waits");
    assert_eq!((again.holding.delivery, again.attempt, again.crashes), (id, 2, 0));
    assert_ne!(again.holding.token, first.holding.token);
    assert_eq!(
        Work { holding: first.holding, attempt: 1, request_id: first.request_id.clone(), ..again.clone() },
        first
    );
    assert_eq!(retake(id).await, None, "it is held again");
    assert_eq!(context.say(first.holding, Settle::Done(fine())).await, LeaseResult::Lost);
    let told = context.told(id).await;
    assert_eq!((told.delivery.state, told.attempts.len()), (DeliveryState::Running, 2));
    assert_eq!(told.attempts[1].worker, "worker-2");
    // Given back it is taken as usual, and the lease of such a take ends like any other.
    context.settle(again.holding, Settle::Defer(LONG)).await;
    let short = context.ledger().retake(id, "worker-1".to_owned(), SHORT).await.expect("it is answered");
    assert_eq!(short.expect("it waits").attempt, 2, "what was given back does not count");
    context.pass(SHORT).await;
    let work = context.take_one().await;
    assert_eq!((work.holding.delivery, work.attempt, work.crashes), (id, 3, 1));
    context.settle(work.holding, Settle::Done(fine())).await;
    assert_eq!(retake(id).await, None, "it is done");
    // In the order of its key, like every other.
    let ids = [context.accept(ordered("k", TARGET)).await, context.accept(ordered("k", TARGET)).await];
    let first = context.take_one().await;
    assert_eq!(first.event, ids[0]);
    let second = context.only(ids[1]).await.delivery.id;
    assert_eq!(retake(second).await, None, "the first runs");
    context.settle(first.holding, Settle::Retry(failed("once"), LONG)).await;
    assert_eq!(retake(second).await, None, "the first goes first");
    let again = retake(first.holding.delivery).await.expect("it is the first");
    context.settle(again.holding, Settle::Done(fine())).await;
    assert_eq!(context.take_one().await.event, ids[1]);
}

/// A lost worker leaves a crashed attempt, and its delivery goes to the next worker.
pub async fn a_lost_worker_is_noticed(context: &LedgerContext) {
    context.publish().await;
    let taken = context.ledger().take(take(&[TARGET], 10, SHORT)).await.expect("work can be taken");
    let lost = taken[0].holding;
    context.pass(SHORT).await;
    let work = context.take_one().await;
    assert_eq!((work.holding.delivery, work.attempt, work.crashes), (lost.delivery, 2, 1));
    assert_ne!(work.holding.token, lost.token);
    let told = context.told(lost.delivery).await;
    let classes: Vec<_> =
        told.attempts.iter().map(|attempt| attempt.ending.as_ref().map(|end| end.class)).collect();
    assert_eq!(classes, [Some(AttemptClass::Crashed), None]);
    assert!(told.attempts[0].ended_at.is_some());
    // The late worker is refused, whatever it reports.
    for word in [Settle::Done(fine()), Settle::Defer(LONG), Settle::Bury(failed("no"), Cause::Exhausted)] {
        assert_eq!(context.say(lost, word).await, LeaseResult::Lost);
    }
    assert_eq!(context.ledger().renew(vec![lost], LONG).await.expect("it is answered"), [LeaseResult::Lost]);
    assert_eq!(context.told(lost.delivery).await, told, "nothing has changed");
}

/// A worker that renews keeps its work.
pub async fn a_renewed_lease_holds(context: &LedgerContext) {
    context.publish().await;
    let taken =
        context.ledger().take(take(&[TARGET], 10, Duration::from_secs(5))).await.expect("work can be taken");
    let held = taken[0].holding;
    let stranger = crate::delivery::Holding { token: held.token ^ 1, ..held };
    let said = context.ledger().renew(vec![held, stranger], LONG).await.expect("it can be renewed");
    assert_eq!(said, [LeaseResult::Kept, LeaseResult::Lost]);
    if context.manual_clock().is_some() {
        context.pass(LONG - Duration::from_micros(1)).await;
        assert_eq!(context.take(10).await, []);
        context.pass(Duration::from_micros(1)).await;
        assert_eq!(context.take_one().await.crashes, 1);
    } else {
        assert_eq!(context.take(10).await, []);
    }
}

/// A late worker may continue if no other worker has taken its delivery.
pub async fn a_lost_lease_can_be_renewed_until_noticed(context: &LedgerContext) {
    context.publish().await;
    let taken = context.ledger().take(take(&[TARGET], 10, SHORT)).await.expect("work can be taken");
    context.pass(SHORT).await;
    let held = taken[0].holding;
    assert_eq!(
        context.ledger().renew(vec![held], LONG).await.expect("it can be renewed"),
        [LeaseResult::Kept]
    );
    assert_eq!(context.take(10).await, []);
    context.settle(held, Settle::Done(fine())).await;
}

/// Workers sleep until a delivery is due.
pub async fn next_due_says_when(context: &LedgerContext) {
    let next = async |targets: &[&str]| {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        context.ledger().next_due(targets).await.expect("it can be asked")
    };
    assert_eq!(next(&[TARGET]).await, None);
    let minute = Duration::from_secs(60);
    context.accept(NewEvent { delay: minute, ..event(TARGET) }).await;
    let near = |found: Option<Duration>, expected: Duration| {
        let found = found.expect("something waits");
        assert!(
            found <= expected && found + Duration::from_secs(20) > expected,
            "{found:?}, not {expected:?}"
        );
    };
    near(next(&[TARGET]).await, minute);
    assert_eq!(next(&["other"]).await, None);
    context.publish().await;
    assert_eq!(next(&["other", TARGET]).await, Some(Duration::ZERO));
    // A delivery in progress is due when its lease expires.
    let hour = minute * 60;
    let held = context.ledger().take(take(&[TARGET], 10, hour)).await.expect("work can be taken")[0].holding;
    // The ledger finds an empty lane only by reading it.
    assert_eq!(context.take(10).await, []);
    near(next(&[TARGET]).await, minute);
    context.ledger().renew(vec![held], minute / 2).await.expect("it can be renewed");
    near(next(&[TARGET]).await, minute / 2);
    context.settle(held, Settle::Done(fine())).await;
    near(next(&[TARGET]).await, minute);
}

/// An expired delivery is given out once more, to become a dead letter.
pub async fn expired_work_says_so(context: &LedgerContext) {
    context.accept(NewEvent { deliver_within: Some(SHORT), ..event(TARGET) }).await;
    context.accept(NewEvent { deliver_within: Some(LONG * 10), ..event(TARGET) }).await;
    context.pass(SHORT).await;
    let taken = context.take(10).await;
    let mut expired: Vec<_> = taken.iter().map(|work| work.expired).collect();
    expired.sort_unstable();
    assert_eq!(expired, [false, true]);
}
