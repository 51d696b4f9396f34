//! Accepting events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::context::{LONG, LedgerContext, SHORT, TARGET, dedupe, event, run};
use crate::delivery::DeliveryState;
use crate::event::{Accepted, Dedupe, NewEvent, Notes, Origin, Trace};
use crate::ledger::{KeyHolder, KeyState};

/// Every member of an event is stored unchanged, and its payload byte for byte.
pub async fn an_event_is_kept_as_it_was_accepted(context: &LedgerContext) {
    let new = NewEvent {
        tenant: "acme".to_owned(),
        dedupe: Some(Dedupe { lifetime: Some(LONG), ..dedupe("a") }),
        payload: Bytes::from_static(b"{\"empty\":[], \"large\":9007199254740993}\0\xff\n"),
        content_type: "application/octet-stream".to_owned(),
        headers: vec![
            ("b".to_owned(), "1".to_owned()),
            ("a".to_owned(), "\"\\é".to_owned()),
            ("b".to_owned(), String::new()),
        ],
        order_key: Some("customer-4".to_owned()),
        origin: Origin::Stream { stream: "orders".to_owned(), message: "1-0".to_owned() },
        targets: vec!["crm".to_owned(), "ledger".to_owned()],
        delay: Duration::from_millis(1_500),
        deliver_within: Some(LONG),
        notes: Notes {
            tags: vec!["b".to_owned(), "a".to_owned()],
            metadata: [
                ("list".to_owned(), "[]".to_owned()),
                ("n".to_owned(), "1234567890123456789".to_owned()),
            ]
            .into(),
        },
        trace: Trace { request_id: Some("req-1".to_owned()), traceparent: Some("00-aa-bb-01".to_owned()) },
        ..run()
    };
    let id = context.accept(new.clone()).await;
    let kept = context.ledger().event(id).await.expect("it can be read").expect("it is there");
    assert_eq!(kept.new, new);
    assert_eq!(kept.version, 0);
    let none = event(TARGET).id;
    assert_eq!(context.ledger().event(none).await.expect("it can be read"), None);
}

/// One answer for each event of a call, in the order of the call; the first of two with one key wins.
pub async fn a_batch_is_answered_in_order(context: &LedgerContext) {
    let key = dedupe("a");
    let other = Dedupe { fingerprint: dedupe("b").fingerprint, ..key.clone() };
    let events = vec![
        event(TARGET),
        NewEvent { dedupe: Some(key.clone()), ..event(TARGET) },
        NewEvent { dedupe: Some(key), ..event(TARGET) },
        NewEvent { dedupe: Some(other), ..event(TARGET) },
        event(TARGET),
    ];
    let ids: Vec<_> = events.iter().map(|event| event.id).collect();
    let answers = context.ledger().accept(events).await.expect("they are accepted");
    let expected = [
        Accepted::First(ids[0]),
        Accepted::First(ids[1]),
        Accepted::Cached(ids[1]),
        Accepted::Conflict,
        Accepted::First(ids[4]),
    ];
    assert_eq!(answers, expected);
    assert_eq!(context.take(10).await.len(), 3, "what was accepted has a delivery, and nothing else");
    assert_eq!(context.ledger().accept(Vec::new()).await.expect("nothing is accepted"), []);
}

/// The second event under a key is a duplicate of the first.
pub async fn the_same_key_is_accepted_once(context: &LedgerContext) {
    let key = dedupe("a");
    let first = context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await;
    for _ in 0..3 {
        let again = NewEvent { dedupe: Some(key.clone()), ..event(TARGET) };
        let answers = context.ledger().accept(vec![again]).await.expect("it is answered");
        assert_eq!(answers, [Accepted::Cached(first)]);
    }
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    let holder = KeyHolder { event: first, fingerprint: key.fingerprint, expired: false };
    assert_eq!(found.holder, Some(holder));
    let unknown = context.ledger().find(dedupe("a").id).await.expect("it can be looked for");
    assert_eq!(unknown, KeyState::default());
    assert_eq!(context.take(10).await.len(), 1);
}

/// A key belongs to its first payload.
pub async fn another_payload_under_the_key_is_a_conflict(context: &LedgerContext) {
    let key = dedupe("a");
    context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await;
    let other = Dedupe { fingerprint: dedupe("b").fingerprint, ..key };
    let new = NewEvent { dedupe: Some(other), ..event(TARGET) };
    let id = new.id;
    let answers = context.ledger().accept(vec![new]).await.expect("it is answered");
    assert_eq!(answers, [Accepted::Conflict]);
    assert_eq!(context.ledger().event(id).await.expect("it can be read"), None);
}

/// An accept whose answer was lost is repeated unchanged, with a key or without.
pub async fn a_repeated_call_writes_nothing(context: &LedgerContext) {
    for new in [event(TARGET), NewEvent { dedupe: Some(dedupe("a")), ..event(TARGET) }] {
        let id = context.accept(new.clone()).await;
        let answers = context.ledger().accept(vec![new]).await.expect("it is answered");
        assert_eq!(answers, [Accepted::Cached(id)]);
        assert_eq!(context.only(id).await.delivery.state, DeliveryState::Queued);
    }
}

/// A key with a lifetime is free after it, for any payload; the event stays.
pub async fn a_key_is_free_after_its_lifetime(context: &LedgerContext) {
    let key = Dedupe { lifetime: Some(SHORT), ..dedupe("a") };
    let first = context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await;
    context.pass(SHORT).await;
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    assert_eq!((found.live(), found.holder.map(|holder| holder.expired)), (None, Some(true)));
    let key = Dedupe { lifetime: Some(LONG), fingerprint: dedupe("b").fingerprint, ..key };
    let second = context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await;
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    assert_eq!(found.live().map(|holder| holder.event), Some(second));
    assert!(context.ledger().event(first).await.expect("it can be read").is_some());
}

/// Of all concurrent accepts under one key exactly one is first, and all get the same id.
pub async fn racing_accepts_have_one_first(context: &LedgerContext) {
    for _ in 0..5 {
        let key = dedupe("a");
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let (ledger, new) =
                    (context.handle(number), NewEvent { dedupe: Some(key.clone()), ..event(TARGET) });
                tokio::spawn(async move { ledger.accept(vec![new]).await.expect("it is answered").remove(0) })
            })
            .collect();
        let (mut first, mut cached) = (Vec::new(), Vec::new());
        for call in calls {
            match call.await.expect("no call panics") {
                Accepted::First(id) => first.push(id),
                Accepted::Cached(id) => cached.push(id),
                other => panic!("the same payload is no conflict: {other:?}"),
            }
        }
        assert_eq!(first.len(), 1, "one is first");
        assert!(cached.iter().all(|id| *id == first[0]), "all get the id of the first");
    }
    assert_eq!(context.take(100).await.len(), 5);
}

/// One delivery for each target, however often it is named; an event without targets is allowed.
pub async fn each_target_has_one_delivery(context: &LedgerContext) {
    let targets = vec!["crm".to_owned(), "ledger".to_owned(), "mail".to_owned()];
    let named = [&targets[..], &targets[1..]].concat();
    let id = context.accept(NewEvent { targets: named, ..event(TARGET) }).await;
    let told = context.ledger().deliveries_of(id).await.expect("they can be read");
    let mut named: Vec<_> = told.iter().map(|told| told.delivery.target.clone()).collect();
    named.sort();
    assert_eq!(named, targets);
    assert!(told.iter().all(|told| told.delivery.state == DeliveryState::Queued && told.attempts.is_empty()));
    let id = context.accept(NewEvent { targets: Vec::new(), ..event(TARGET) }).await;
    assert!(context.ledger().deliveries_of(id).await.expect("they can be read").is_empty());
}

/// A worker that waits for work is notified of events accepted since it began to wait.
pub async fn news_end_a_wait(context: &LedgerContext) {
    let ledger = context.ledger();
    let changed = ledger.changed();
    // Between the call and its first poll.
    context.publish().await;
    let heard = tokio::time::timeout(Duration::from_secs(10), changed).await;
    assert!(heard.is_ok(), "an accepted event is news");
    let waiter = {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move { ledger.changed().await })
    };
    for _ in 0..1_000 {
        context.publish().await;
        if waiter.is_finished() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("a thousand events, and no news");
}

/// Acknowledged events exist after the ledger was opened again.
pub async fn accepted_events_survive(context: &LedgerContext) {
    let key = dedupe("a");
    let id = context.accept(NewEvent { dedupe: Some(key.clone()), ..event(TARGET) }).await;
    let held = context.take_one().await.holding;
    context.open_again().await;
    assert_eq!(
        context.ledger().find(key.id).await.expect("it can be looked for").live().map(|holder| holder.event),
        Some(id)
    );
    assert_eq!(context.state(held.delivery).await, DeliveryState::Running);
    context.settle(held, crate::delivery::Settle::Done(super::context::fine())).await;
    context.open_again().await;
    assert_eq!(context.only(id).await.delivery.state, DeliveryState::Done);
}
