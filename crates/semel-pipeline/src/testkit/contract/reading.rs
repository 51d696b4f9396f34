//! Reading.

use std::collections::HashSet;
use std::time::Duration;

use super::context::{LONG, LedgerContext, TARGET, dedupe, event, event_of, failed, fine, line, page, run};
use crate::delivery::{DeliveryState, Settle};
use crate::event::{NewEvent, Notes, Trace};
use crate::id::EventKind;
use crate::ledger::{DeliveryFilter, Error, EventFilter, LetterFilter};
use crate::letter::Status;

/// Rows that are added during paging neither hide others nor show them twice.
pub async fn pages_have_no_gaps_and_no_doubles(context: &LedgerContext) {
    let events: Vec<_> = (0..25).map(|_| event(TARGET)).collect();
    let mut expected: Vec<_> = events.iter().map(|event| event.id).collect();
    expected.reverse();
    context.ledger().accept(events).await.expect("they are accepted");
    let (mut events, mut deliveries) = (Vec::new(), Vec::new());
    let (mut next_event, mut next_delivery) = (None, None);
    loop {
        let ledger = context.ledger();
        let found =
            ledger.events(EventFilter::default(), page(next_event, 4)).await.expect("they can be listed");
        assert!(found.items.len() <= 4);
        events.extend(found.items.into_iter().map(|event| event.new.id));
        let more = ledger.deliveries(DeliveryFilter::default(), page(next_delivery, 4)).await;
        let more = more.expect("they can be listed");
        deliveries.extend(more.items.into_iter().map(|delivery| delivery.event));
        (next_event, next_delivery) = (found.next, more.next);
        assert_eq!(next_event.is_none(), next_delivery.is_none(), "both have as many");
        if next_event.is_none() {
            break;
        }
        context.publish().await;
    }
    assert_eq!(events, expected, "the newest first, each once");
    // Deliveries of one call have no defined order among themselves.
    assert_eq!(deliveries.len(), 25);
    assert_eq!(deliveries.into_iter().collect::<HashSet<_>>(), expected.into_iter().collect());
}

/// Each filter, alone and with others.
pub async fn events_are_found_by_what_they_are(context: &LedgerContext) {
    let tagged = |tag: &str| Notes { tags: vec![tag.to_owned(), "all".to_owned()], ..Notes::default() };
    let a = context.accept(NewEvent { tenant: "acme".to_owned(), notes: tagged("red"), ..run() }).await;
    let b =
        context.accept(NewEvent { event_type: "order.lost".to_owned(), ..event_of("acme", TARGET) }).await;
    let c = context.accept(NewEvent { notes: tagged("blue"), ..event(TARGET) }).await;
    let text = |word: &str| Some(word.to_owned());
    let any = EventFilter::default();
    for (filter, expected) in [
        (any.clone(), vec![c, b, a]),
        (EventFilter { kind: Some(EventKind::Run), ..any.clone() }, vec![a]),
        (EventFilter { tenant: text("acme"), ..any.clone() }, vec![b, a]),
        (EventFilter { tenant: text(""), ..any.clone() }, vec![c]),
        (EventFilter { event_type: text("order.lost"), ..any.clone() }, vec![b]),
        (EventFilter { tag: text("all"), ..any.clone() }, vec![c, a]),
        (EventFilter { tag: text("red"), ..any.clone() }, vec![a]),
        (EventFilter { tag: text("all"), tenant: text("acme"), ..any.clone() }, vec![a]),
        (EventFilter { tenant: text("acme"), kind: Some(EventKind::Event), ..any.clone() }, vec![b]),
        (EventFilter { tag: text("green"), ..any.clone() }, vec![]),
    ] {
        let found =
            context.ledger().events(filter.clone(), page(None, 10)).await.expect("they can be listed");
        let ids: Vec<_> = found.items.into_iter().map(|event| event.new.id).collect();
        assert_eq!((ids, found.next), (expected, None), "{filter:?}");
    }
}

/// Each filter, alone and with others.
pub async fn deliveries_are_found_by_what_they_are(context: &LedgerContext) {
    let targets = vec!["a".to_owned(), "b".to_owned()];
    let one = context.accept(NewEvent { targets, ..event_of("acme", "a") }).await;
    let two = context.accept(event("a")).await;
    let held = context.take_for(&["b"], 1).await[0].holding;
    context.settle(held, Settle::Done(fine())).await;
    let any = DeliveryFilter::default();
    for (filter, expected) in [
        (any.clone(), 3),
        (DeliveryFilter { event: Some(one), ..any.clone() }, 2),
        (DeliveryFilter { event: Some(two), ..any.clone() }, 1),
        (DeliveryFilter { target: Some("a".to_owned()), ..any.clone() }, 2),
        (DeliveryFilter { tenant: Some("acme".to_owned()), ..any.clone() }, 2),
        (DeliveryFilter { states: vec![DeliveryState::Queued], ..any.clone() }, 2),
        (DeliveryFilter { states: vec![DeliveryState::Done], ..any.clone() }, 1),
        (DeliveryFilter { states: vec![DeliveryState::Done, DeliveryState::Queued], ..any.clone() }, 3),
        (DeliveryFilter { states: vec![DeliveryState::Dlq, DeliveryState::Queued], ..any.clone() }, 2),
        (
            DeliveryFilter {
                states: vec![DeliveryState::Queued],
                tenant: Some("acme".to_owned()),
                ..any.clone()
            },
            1,
        ),
        (DeliveryFilter { states: vec![DeliveryState::Dlq], ..any.clone() }, 0),
    ] {
        let found =
            context.ledger().deliveries(filter.clone(), page(None, 10)).await.expect("they can be listed");
        assert_eq!((found.items.len(), found.next), (expected, None), "{filter:?}");
        let mut all = Vec::new();
        let mut next = None;
        loop {
            let part =
                context.ledger().deliveries(filter.clone(), page(next, 1)).await.expect("they can be listed");
            all.extend(part.items);
            next = part.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(all, found.items, "page by page: {filter:?}");
    }
}

/// One id finds all related records.
pub async fn events_are_found_by_their_ids(context: &LedgerContext) {
    let key = dedupe("a");
    let trace = Trace { request_id: Some("req-1".to_owned()), traceparent: None };
    let a =
        context.accept(NewEvent { trace: trace.clone(), dedupe: Some(key.clone()), ..event(TARGET) }).await;
    let b = context.accept(NewEvent { trace, delay: LONG, ..event(TARGET) }).await;
    let notes = |tags: &[&str]| Notes {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..Notes::default()
    };
    let tagged = NewEvent { notes: notes(&["x:1", "y:1"]), delay: LONG, ..event(TARGET) };
    let c = context.accept(tagged).await;
    let d = context.accept(NewEvent { notes: notes(&["x:2"]), delay: LONG, ..event(TARGET) }).await;
    let work = context.take_one().await;
    let find_any = async |request: Option<&str>, dedupe, tags: &[&str]| {
        let (request, tags) =
            (request.map(str::to_owned), tags.iter().map(|tag| (*tag).to_owned()).collect());
        context.ledger().find_events(request, dedupe, tags).await.expect("they can be looked for")
    };
    let find = async |request: Option<&str>, dedupe| find_any(request, dedupe, &[]).await;
    assert_eq!(find(Some("req-1"), None).await, [a, b]);
    assert_eq!(find(Some("req-2"), None).await, []);
    assert_eq!(find(None, Some(key.id)).await, [a]);
    assert_eq!(find(Some(&work.request_id), None).await, [a], "by the request of an attempt");
    assert_eq!(find(None, None).await, []);
    assert_eq!(find_any(None, None, &["x:1", "y:1"]).await, [c], "each once");
    assert_eq!(find_any(Some("req-1"), None, &["x:2", "x:1"]).await, [a, b, c, d]);
    assert_eq!(find_any(None, None, &["x"]).await, []);
}

/// The numbers for the metrics match the rows.
pub async fn totals_count_everything(context: &LedgerContext) {
    for state in DeliveryState::ALL {
        context.bring_to(state).await;
        while !context.take(100).await.is_empty() {}
    }
    context.accept(event("other")).await;
    context.pass(Duration::from_millis(30)).await;
    let totals = context.ledger().totals().await.expect("they can be read");
    for target in [TARGET, "other"] {
        for state in DeliveryState::ALL.into_iter().filter(|state| *state != DeliveryState::Done) {
            let filter = DeliveryFilter {
                target: Some(target.to_owned()),
                states: vec![state],
                ..DeliveryFilter::default()
            };
            let there =
                context.ledger().deliveries(filter, page(None, 100)).await.expect("they can be listed");
            let count = |(of, in_state, count): &(String, DeliveryState, u64)| {
                (of == target && *in_state == state).then_some(*count)
            };
            let counted: u64 = totals.deliveries.iter().filter_map(count).sum();
            assert_eq!(counted, there.items.len() as u64, "{target} {state}");
        }
    }
    for status in Status::ALL {
        let filter = LetterFilter { status: Some(status), ..LetterFilter::default() };
        let there = context.ledger().letters(filter, page(None, 100)).await.expect("they can be listed");
        let counted: u64 =
            totals.letters.iter().filter(|(of, _)| *of == status).map(|(_, count)| *count).sum();
        assert_eq!(counted, there.items.len() as u64, "{status:?}");
    }
    let oldest = totals.oldest_due().expect("something is due");
    assert_eq!(totals.due.iter().map(|(target, _)| target.as_str()).collect::<Vec<_>>(), ["other"]);
    assert!(oldest >= Duration::from_millis(30) && oldest < LONG, "{oldest:?}");
    let held = context.take_for(&["other"], 1).await[0].holding;
    context.settle(held, Settle::Retry(failed("no"), LONG)).await;
    assert_eq!(context.ledger().totals().await.expect("they can be read").oldest_due(), None);
}

/// A page of events shows how far each of them is.
pub async fn states_of_events_are_counted(context: &LedgerContext) {
    let targets = vec!["a".to_owned(), "b".to_owned()];
    let one = context.accept(NewEvent { targets, ..event("a") }).await;
    let other = context.accept(run()).await;
    let none = context.accept(NewEvent { targets: Vec::new(), ..event("a") }).await;
    let held = context.take_for(&["b"], 1).await[0].holding;
    context.settle(held, Settle::Done(fine())).await;
    let counted = context.ledger().delivery_states(vec![one, other, none]).await;
    let mut counted = counted.expect("they can be counted");
    counted.sort_by_key(|(event, state, _)| (*event != one, *state));
    let expected =
        [(one, DeliveryState::Queued, 1), (one, DeliveryState::Done, 1), (other, DeliveryState::Queued, 1)];
    assert_eq!(counted, expected);
    let nothing = context.ledger().delivery_states(Vec::new()).await.expect("they can be counted");
    assert!(nothing.is_empty());
}

/// Actor, action, object, reason, time.
pub async fn the_audit_log_keeps_every_line(context: &LedgerContext) {
    for number in 0..5 {
        let line = line("forget", &format!("key-{}", number % 2));
        context.ledger().audit(line).await.expect("it can be written");
    }
    let mut all = Vec::new();
    let mut next = None;
    loop {
        let part = context.ledger().audit_log(None, page(next, 2)).await.expect("it can be read");
        all.extend(part.items);
        next = part.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(all.len(), 5);
    assert!(all.windows(2).all(|pair| pair[0].at >= pair[1].at), "the newest first");
    assert_eq!(all[0].line, line("forget", &"key-0"));
    let of_one = context.ledger().audit_log(Some("key-1".to_owned()), page(None, 10)).await;
    assert_eq!(of_one.expect("it can be read").items.len(), 2);
    // Commands of operators write a line.
    let id = context.publish().await;
    context.ledger().cancel(id, line("cancel", &id)).await.expect("it can be cancelled");
    let lines =
        context.ledger().audit_log(Some(id.to_string()), page(None, 10)).await.expect("it can be read");
    assert_eq!(lines.items.len(), 1);
    assert_eq!(lines.items[0].line, line("cancel", &id));
}

/// An invalid cursor is refused.
pub async fn a_wrong_cursor_is_refused(context: &LedgerContext) {
    let wrong = page(Some("not a cursor".to_owned()), 10);
    let answer = context.ledger().events(EventFilter::default(), wrong).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
}
