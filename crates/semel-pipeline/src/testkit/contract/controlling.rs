//! Pausing targets, and retrying their deliveries at once.

use std::time::Duration;

use super::context::{LONG, LedgerContext, SHORT, TARGET, event, failed, fine, line, page, take};
use crate::delivery::{DeliveryState, Settle};
use crate::event::NewEvent;
use crate::ledger::{AuditLine, TargetPause};

async fn pause(context: &LedgerContext) -> TargetPause {
    context.ledger().pause_target(TARGET.to_owned(), why("it is broken")).await.expect("it can be paused")
}

async fn resume(context: &LedgerContext) -> Option<TargetPause> {
    let resumed = context.ledger().resume_target(TARGET.to_owned(), why("it works again")).await;
    resumed.expect("it can be resumed")
}

fn why(reason: &str) -> AuditLine {
    AuditLine { reason: reason.to_owned(), ..line("pause", &TARGET) }
}

async fn next_due(context: &LedgerContext) -> Option<Duration> {
    context.ledger().next_due(vec![TARGET.to_owned()]).await.expect("it is known")
}

/// Events are accepted, and wait until the target is resumed. Other targets are not affected.
pub async fn nothing_is_taken_for_a_paused_target(context: &LedgerContext) {
    context.publish().await;
    pause(context).await;
    context.publish().await;
    context.accept(event("other")).await;
    for handle in [0, 1] {
        let taken = context.handle(handle).take(take(&[TARGET, "other"], 10, LONG)).await;
        let taken = taken.expect("work can be taken");
        let targets: Vec<&str> = taken.iter().map(|work| work.target.as_str()).collect();
        assert_eq!(targets, if handle == 0 { vec!["other"] } else { vec![] });
    }
    assert_eq!(next_due(context).await, None, "nothing is due until it is resumed");
    assert!(resume(context).await.is_some());
    assert_eq!(next_due(context).await, Some(Duration::ZERO));
    assert_eq!(context.take(10).await.len(), 2);
}

/// The first pause stands; each change is in the audit log once.
pub async fn a_pause_says_who_and_why(context: &LedgerContext) {
    let paused = pause(context).await;
    assert_eq!((paused.target.as_str(), paused.reason.as_str()), (TARGET, "it is broken"));
    assert_eq!(paused.by, why("").who);
    let again = context.ledger().pause_target(TARGET.to_owned(), why("another reason")).await;
    assert_eq!(again.expect("it is paused"), paused);
    let all = context.ledger().paused_targets().await.expect("they can be listed");
    assert_eq!(all, std::slice::from_ref(&paused));
    assert_eq!(resume(context).await, Some(paused));
    assert_eq!(resume(context).await, None, "it is not paused");
    assert!(context.ledger().paused_targets().await.expect("they can be listed").is_empty());
    let log = context.ledger().audit_log(Some(TARGET.to_owned()), page(None, 10)).await;
    let reasons: Vec<String> =
        log.expect("it can be read").items.into_iter().map(|audited| audited.line.reason).collect();
    assert_eq!(reasons, ["it works again", "it is broken"]);
}

/// A worker ends what it has begun. What it lost, and what it gives back, waits for the resumption.
pub async fn a_delivery_in_progress_ends_during_a_pause(context: &LedgerContext) {
    for _ in 0..3 {
        context.publish().await;
    }
    let taken = context.ledger().take(take(&[TARGET], 2, LONG)).await.expect("work can be taken");
    let lost = context.ledger().take(take(&[TARGET], 1, SHORT)).await.expect("work can be taken");
    pause(context).await;
    assert!(next_due(context).await.is_some_and(|wait| wait <= SHORT), "a lease expires");
    context.settle(taken[0].holding, Settle::Done(fine())).await;
    context.settle(taken[1].holding, Settle::Retry(failed("it is down"), Duration::ZERO)).await;
    context.pass(SHORT).await;
    assert!(context.take(10).await.is_empty());
    let lost = lost[0].holding.delivery;
    assert_eq!(context.state(lost).await, DeliveryState::RetryWait, "it was given back");
    for delivery in [lost, taken[1].holding.delivery] {
        let retaken = context.ledger().retake(delivery, "w".to_owned(), LONG).await;
        assert_eq!(retaken.expect("it is answered"), None);
    }
    resume(context).await;
    assert_eq!(context.take(10).await.len(), 2);
}

/// A pause is in the ledger, not in a process.
pub async fn a_pause_survives(context: &LedgerContext) {
    context.publish().await;
    let paused = pause(context).await;
    context.open_again().await;
    assert_eq!(context.ledger().paused_targets().await.expect("they can be listed"), [paused]);
    assert!(context.take(10).await.is_empty());
}

/// Two people pause at the same time: one pause stands, and both are told which.
pub async fn racing_pauses_have_one_first(context: &LedgerContext) {
    for _ in 0..5 {
        let pauses = [0, 1].map(|number| {
            let ledger = context.handle(number);
            async move {
                let pause = ledger.pause_target(TARGET.to_owned(), why(&number.to_string())).await;
                pause.expect("it can be paused")
            }
        });
        let [one, other] = pauses;
        let (one, other) = tokio::join!(one, other);
        assert_eq!(one, other);
        let resumed = [0, 1].map(|number| context.handle(number));
        let [first, second] = &resumed;
        let (first, second) = tokio::join!(
            first.resume_target(TARGET.to_owned(), why("")),
            second.resume_target(TARGET.to_owned(), why(""))
        );
        let ended = [first, second].map(|resumed| resumed.expect("it can be resumed").is_some());
        assert!(ended[0] != ended[1], "one of them ended it: {ended:?}");
    }
}

/// Workers that wait for work are told when a target is resumed.
pub async fn a_resumption_is_news(context: &LedgerContext) {
    context.publish().await;
    pause(context).await;
    let ledger = context.ledger();
    let changed = ledger.changed();
    resume(context).await;
    tokio::time::timeout(Duration::from_secs(20), changed).await.expect("the wait ends");
}

/// A person knows that the target works again: what waits for a retry is due now, and nothing else.
pub async fn waiting_deliveries_are_retried_now(context: &LedgerContext) {
    let later = context.accept(NewEvent { delay: LONG, ..event(TARGET) }).await;
    let later = context.only(later).await.delivery.id;
    for _ in 0..3 {
        context.publish().await;
    }
    let taken = context.take(10).await;
    let ids: Vec<_> = taken.iter().map(|work| work.holding.delivery).collect();
    context.settle(taken[0].holding, Settle::Retry(failed("it is down"), LONG)).await;
    context.settle(taken[1].holding, Settle::Retry(failed("it is down"), LONG)).await;
    context.settle(taken[2].holding, Settle::Done(fine())).await;
    assert!(context.take(10).await.is_empty());
    let ledger = context.ledger();
    let all = vec![ids[0], ids[1], ids[2], later];
    assert_eq!(ledger.retry_now(all.clone()).await.expect("it can be done"), 2);
    assert_eq!(ledger.retry_now(all).await.expect("it can be done"), 0, "they are due already");
    assert_eq!(ledger.retry_now(Vec::new()).await.expect("it can be done"), 0);
    let mut due: Vec<_> = context.take(10).await.iter().map(|work| work.holding.delivery).collect();
    due.sort_unstable();
    let mut expected = vec![ids[0], ids[1]];
    expected.sort_unstable();
    assert_eq!(due, expected);
}
