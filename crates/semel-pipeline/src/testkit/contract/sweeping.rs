//! Sweeping removes ended data, and nothing else.

use std::time::Duration;

use super::context::{LONG, LedgerContext, SHORT, TARGET, dedupe, event, failed, fine, line, page};
use crate::delivery::{DeliveryState, Settle};
use crate::event::{Accepted, Dedupe, NewEvent};
use crate::ledger::EventFilter;
use crate::letter::Cause;
use crate::replay::ReplayMode;

async fn sweep(context: &LedgerContext, keep: Duration) -> u64 {
    context.ledger().sweep(keep, 1_000).await.expect("it can be swept")
}

/// Completed, cancelled, replayed or discarded items are removed after their retention.
pub async fn what_is_over_is_swept(context: &LedgerContext) {
    let (done, ..) = context.bring_to(DeliveryState::Done).await;
    let (cancelled, ..) = context.bring_to(DeliveryState::Cancelled).await;
    let (_, discarded) = context.dead().await;
    context.ledger().discard(discarded, line("discard", &discarded)).await.expect("it can be discarded");
    let (delivery, replayed) = context.dead().await;
    let job = context.job_of(&[replayed], ReplayMode::Resume).await.new.id;
    context.release(job).await;
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(sweep(context, LONG).await, 0, "their time is not over");
    context.pass(SHORT).await;
    assert!(sweep(context, SHORT).await >= 5);
    let ledger = context.ledger();
    for event in [done, cancelled] {
        assert_eq!(ledger.event(event).await.expect("it can be read"), None);
    }
    assert_eq!(ledger.delivery(delivery).await.expect("it can be read"), None);
    for letter in [discarded, replayed] {
        assert_eq!(ledger.letter(letter).await.expect("it can be read"), None);
    }
    assert_eq!(ledger.job(job).await.expect("it can be read"), None);
    let totals = ledger.totals().await.expect("they can be read");
    assert!(totals.letters.iter().all(|(_, count)| *count == 0), "{totals:?}");
    assert!(totals.deliveries.iter().all(|(.., count)| *count == 0), "{totals:?}");
    assert_eq!(sweep(context, SHORT).await, 0, "it comes to rest");
}

/// Items that wait for a person stay, however old.
pub async fn what_waits_is_never_swept(context: &LedgerContext) {
    let mut kept = Vec::new();
    for state in DeliveryState::ALL
        .into_iter()
        .filter(|state| !matches!(state, DeliveryState::Done | DeliveryState::Cancelled))
    {
        kept.push(context.bring_to(state).await.0);
        while !context.take(100).await.is_empty() {}
    }
    // One target has it, the other not yet: the event stays for both.
    let targets = vec!["a".to_owned(), "b".to_owned()];
    kept.push(context.accept(NewEvent { targets, ..event("a") }).await);
    let held = context.take_for(&["a"], 1).await[0].holding;
    context.settle(held, Settle::Done(fine())).await;
    // A restored dead letter is as if it was never discarded.
    let (restored, letter) = context.dead().await;
    kept.push(context.told(restored).await.delivery.event);
    let ledger = context.ledger();
    ledger.discard(letter, line("discard", &letter)).await.expect("it can be discarded");
    ledger.restore(letter, line("restore", &letter)).await.expect("it can be restored");
    context.pass(SHORT).await;
    sweep(context, Duration::ZERO).await;
    for event in kept {
        assert!(ledger.event(event).await.expect("it can be read").is_some(), "{event} is still wanted");
        assert!(!ledger.deliveries_of(event).await.expect("they can be read").is_empty());
    }
    assert!(ledger.letter(letter).await.expect("it can be read").is_some());
}

/// A key lives as long as its event, or for its own lifetime.
pub async fn swept_keys_are_free(context: &LedgerContext) {
    let with_event = dedupe("a");
    let longer = Dedupe { lifetime: Some(LONG), ..dedupe("a") };
    let mut ids = Vec::new();
    for key in [&with_event, &longer] {
        ids.push(context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await);
    }
    for work in context.take(10).await {
        context.settle(work.holding, Settle::Done(fine())).await;
    }
    context.pass(SHORT).await;
    sweep(context, SHORT).await;
    let ledger = context.ledger();
    assert_eq!(ledger.find(with_event.id).await.expect("it can be looked for").holder, None);
    let again = NewEvent { dedupe: Some(longer), ..event(TARGET) };
    let answer = ledger.accept(vec![again]).await.expect("it is answered");
    assert_eq!(answer, [Accepted::Cached(ids[1])], "remembered beyond its event");
}

/// The audit log has a retention of its own.
pub async fn old_lines_of_the_audit_log_are_swept(context: &LedgerContext) {
    let ledger = context.ledger();
    let lines = async || {
        let found = ledger.audit_log(None, page(None, 100)).await.expect("it can be read");
        found.items.into_iter().map(|audited| audited.line.subject).collect::<Vec<_>>()
    };
    for number in 0..5 {
        ledger.audit(line("forget", &number)).await.expect("it can be written");
    }
    assert_eq!(ledger.sweep_audit(LONG, 100).await.expect("it can be swept"), 0, "their time is not over");
    context.pass(SHORT).await;
    sweep(context, Duration::ZERO).await;
    assert_eq!(lines().await.len(), 5, "another retention does not concern it");
    assert_eq!(ledger.sweep_audit(SHORT, 2).await.expect("it can be swept"), 2, "never more than the limit");
    assert_eq!(lines().await, ["4", "3", "2"], "the oldest go first");
    assert_eq!(ledger.sweep_audit(SHORT, 100).await.expect("it can be swept"), 3);
    ledger.audit(line("forget", &"new")).await.expect("it can be written");
    assert_eq!(ledger.sweep_audit(LONG, 100).await.expect("it can be swept"), 0);
    assert_eq!(lines().await, ["new"]);
}

/// Never more than the limit; items that cannot be removed do not block the others.
pub async fn a_sweep_is_bounded(context: &LedgerContext) {
    let events = (0..12).map(|_| event(TARGET)).collect();
    context.ledger().accept(events).await.expect("they are accepted");
    for (number, work) in context.take(12).await.into_iter().enumerate() {
        let word =
            if number < 6 { Settle::Bury(failed("no"), Cause::Exhausted) } else { Settle::Done(fine()) };
        context.settle(work.holding, word).await;
    }
    context.pass(SHORT).await;
    let left = async || {
        let found = context.ledger().events(EventFilter::default(), page(None, 100)).await;
        found.expect("they can be listed").items.len()
    };
    context.ledger().sweep(SHORT, 4).await.expect("it can be swept");
    assert_eq!(left().await, 8);
    context.ledger().sweep(SHORT, 4).await.expect("it can be swept");
    assert_eq!(left().await, 6);
    context.ledger().sweep(SHORT, 4).await.expect("it can be swept");
    assert_eq!(left().await, 6, "the dead letters stay");
}
