//! Features of runs.

use std::sync::Arc;
use std::time::Duration;

use super::context::{LONG, LedgerContext, TARGET, dedupe, event, fine, line, run};
use crate::delivery::{DeliveryState, DeliveryStep, Impossible, Settle};
use crate::event::{Event, Generation, NewEvent, Notes};
use crate::id::{EventId, EventKind};
use crate::ledger::{Change, Error, EventFilter, Reset};

async fn change(context: &LedgerContext, id: EventId, change: Change) -> Event {
    context.ledger().change(id, change, None).await.expect("it can be changed")
}

fn text(word: &str) -> String {
    word.to_owned()
}

/// Tags once each, in order; members set, removed, incremented, in that order.
pub async fn changes_add_up(context: &LedgerContext) {
    let notes = Notes { tags: vec![text("a")], metadata: [(text("x"), text("1"))].into() };
    let id = context.accept(NewEvent { notes, ..run() }).await;
    let changed = change(
        context,
        id,
        Change {
            add_tags: vec![text("b"), text("a"), text("b")],
            set: vec![(text("y"), text("\"why\"")), (text("n"), text("5")), (text("gone"), text("1"))],
            remove: vec![text("x"), text("gone"), text("never")],
            increment: vec![(text("n"), text("2")), (text("new"), text("3")), (text("x"), text("4"))],
            delay: None,
        },
    )
    .await;
    assert_eq!(changed.new.notes.tags, ["a", "b"]);
    let expected = [("n", "7"), ("new", "3"), ("x", "4"), ("y", "\"why\"")];
    assert_eq!(changed.new.notes.metadata, expected.map(|(name, value)| (text(name), text(value))).into());
    assert_eq!(changed.version, 1);
    let kept = context.ledger().event(id).await.expect("it can be read").expect("it is there");
    assert_eq!(kept, changed);
    let filter = EventFilter { tag: Some(text("b")), ..EventFilter::default() };
    let found =
        context.ledger().events(filter, super::context::page(None, 10)).await.expect("they can be listed");
    assert_eq!(found.items, [changed]);
}

/// Compare-and-set: of two writers with the same version one must read again.
pub async fn a_stale_version_is_refused(context: &LedgerContext) {
    let id = context.accept(run()).await;
    let tag = |name: &str| Change { add_tags: vec![text(name)], ..Change::default() };
    let first = context.ledger().change(id, tag("a"), Some(0)).await.expect("nobody was faster");
    assert_eq!(first.version, 1);
    let answer = context.ledger().change(id, tag("b"), Some(0)).await;
    assert!(matches!(answer, Err(Error::Stale)), "{answer:?}");
    let kept = context.ledger().event(id).await.expect("it can be read").expect("it is there");
    assert_eq!(kept.new.notes.tags, ["a"]);
    context.ledger().change(id, tag("b"), Some(1)).await.expect("nobody was faster");
}

/// Nothing is rounded; a value that is not a number is refused, and then nothing changes.
pub async fn increments_are_exact(context: &LedgerContext) {
    let id = context.accept(run()).await;
    let add = |by: &str| Change { increment: vec![(text("n"), text(by))], ..Change::default() };
    for (by, expected) in [
        ("9007199254740993", "9007199254740993"),
        ("1", "9007199254740994"),
        ("1234567890123456789", "1243575089378197783"),
        ("0.1", "1243575089378197783.1"),
        ("0.2", "1243575089378197783.3"),
        ("-1243575089378197783.3", "0.0"),
        ("-0.5", "-0.5"),
    ] {
        let changed = change(context, id, add(by)).await;
        assert_eq!(changed.new.notes.metadata.get("n").map(String::as_str), Some(expected), "after {by}");
    }
    let before = context.ledger().event(id).await.expect("it can be read");
    for wrong in ["one", "", "0x1", "[]"] {
        let both = Change { add_tags: vec![text("never")], ..add(wrong) };
        let answer = context.ledger().change(id, both, None).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{wrong}: {answer:?}");
    }
    change(context, id, Change { set: vec![(text("word"), text("\"x\""))], ..Change::default() }).await;
    let on_word = Change { increment: vec![(text("word"), text("1"))], ..Change::default() };
    assert!(matches!(context.ledger().change(id, on_word, None).await, Err(Error::Refused(_))));
    let after = context.ledger().event(id).await.expect("it can be read").expect("it is there");
    assert_eq!(after.new.notes.tags, before.expect("it is there").new.notes.tags);
}

/// An empty array stays an array, a 19-digit integer keeps its digits, whatever else changes.
pub async fn metadata_is_never_rewritten(context: &LedgerContext) {
    let odd = [
        ("array", "[]"),
        ("deep", "{\"a\":[],\"b\":{}, \"c\" : 1.10}"),
        ("exponent", "1E400"),
        ("integer", "1234567890123456789"),
        ("precise", "0.30000000000000000001"),
        ("text", "\"\\u00e9\\/\""),
    ];
    let odd: Vec<_> = odd.map(|(name, value)| (text(name), text(value))).into();
    let (given, set) = (odd[..3].to_vec(), odd[3..].to_vec());
    let notes = Notes { tags: Vec::new(), metadata: given.into_iter().collect() };
    let id = context.accept(NewEvent { notes, ..run() }).await;
    change(context, id, Change { set, ..Change::default() }).await;
    for _ in 0..3 {
        let touch = Change {
            add_tags: vec![text("a")],
            increment: vec![(text("count"), text("1"))],
            ..Change::default()
        };
        change(context, id, touch).await;
    }
    context.open_again().await;
    let mut kept =
        context.ledger().event(id).await.expect("it can be read").expect("it is there").new.notes.metadata;
    assert_eq!(kept.remove("count").as_deref(), Some("3"));
    assert_eq!(kept, odd.into_iter().collect());
}

/// Concurrent writers: no increment is lost.
pub async fn racing_increments_all_land(context: &LedgerContext) {
    let id = context.accept(run()).await;
    let calls: Vec<_> = (0..50)
        .map(|number| {
            let ledger = context.handle(number);
            let add = Change { increment: vec![(text("n"), text("1"))], ..Change::default() };
            tokio::spawn(
                async move { ledger.change(id, add, None).await.expect("it can be changed").version },
            )
        })
        .collect();
    let mut versions = Vec::new();
    for call in calls {
        versions.push(call.await.expect("no call panics"));
    }
    versions.sort_unstable();
    assert_eq!(versions, (1..=50).collect::<Vec<_>>(), "each change is a version of its own");
    let kept = context.ledger().event(id).await.expect("it can be read").expect("it is there");
    assert_eq!(kept.new.notes.metadata.get("n").map(String::as_str), Some("50"));
}

/// A run that has not started can be delayed or brought forward.
pub async fn a_run_is_put_off(context: &LedgerContext) {
    let id = context.publish().await;
    let later = Change { delay: Some(LONG), ..Change::default() };
    change(context, id, later.clone()).await;
    assert_eq!(context.take(10).await, []);
    let due = context.ledger().next_due(vec![text(TARGET)]).await.expect("it can be asked");
    assert!(due.is_some_and(|due| due > LONG / 2), "{due:?}");
    change(context, id, Change { delay: Some(Duration::ZERO), ..Change::default() }).await;
    let held = context.take_one().await.holding;
    for state in [DeliveryState::Running, DeliveryState::Done] {
        let answer = context.ledger().change(id, later.clone(), None).await;
        assert!(matches!(answer, Err(Error::Impossible(_))), "{state}: {answer:?}");
        if state == DeliveryState::Running {
            context.settle(held, Settle::Done(fine())).await;
        }
    }
    let idle = context.accept(NewEvent { delay: LONG, ..event(TARGET) }).await;
    change(context, idle, Change { delay: Some(Duration::ZERO), ..Change::default() }).await;
    assert_eq!(context.take_one().await.event, idle);
}

/// A run that has not started can be cancelled; one that runs or has ended cannot.
pub async fn a_run_is_cancelled(context: &LedgerContext) {
    let targets = vec![text("a"), text("b"), text("c")];
    let id = context.accept(NewEvent { targets, ..run() }).await;
    let running = context.take_for(&["b"], 1).await[0].holding;
    let cancelled = context.ledger().cancel(id, line("cancel", &id)).await.expect("two can be");
    assert_eq!(cancelled, 2);
    let told = context.ledger().deliveries_of(id).await.expect("they can be read");
    let mut states: Vec<_> = told.iter().map(|told| told.delivery.state).collect();
    states.sort();
    assert_eq!(states, [DeliveryState::Running, DeliveryState::Cancelled, DeliveryState::Cancelled]);
    assert!(
        told.iter()
            .all(|told| told.delivery.completed_at.is_some()
                != (told.delivery.state == DeliveryState::Running))
    );
    assert_eq!(context.take_for(&["a", "b", "c"], 10).await, []);
    context.settle(running, Settle::Done(fine())).await;
    let (id, ..) = context.bring_to(DeliveryState::Done).await;
    match context.ledger().cancel(id, line("cancel", &id)).await {
        Err(Error::Impossible(Impossible { state: DeliveryState::Done, step: DeliveryStep::Cancel })) => {}
        other => panic!("what is done cannot be cancelled: {other:?}"),
    }
}

/// The next event under the key is a new one, in its own generation.
pub async fn a_key_is_reset(context: &LedgerContext) {
    let key = dedupe("a");
    let first = context.accept(NewEvent { dedupe: Some(key.clone()), ..run() }).await;
    let ledger = context.ledger();
    let reset = ledger.reset(key.id, line("reset", &key.id)).await.expect("it can be reset");
    assert_eq!(reset, Reset { ended: Generation::FIRST, holder: Some(first) });
    let between = ledger.find(key.id).await.expect("it can be looked for");
    assert_eq!(between.holder, None);
    assert!(between.generation > Generation::FIRST);
    let reset = ledger.reset(key.id, line("reset", &key.id)).await.expect("it is answered");
    assert_eq!(reset, Reset { ended: between.generation, holder: None });
    let second = context.accept(NewEvent { dedupe: Some(key.clone()), ..run() }).await;
    assert_ne!(first, second);
    let found = ledger.find(key.id).await.expect("it can be looked for");
    assert_eq!(found.live().map(|holder| holder.event), Some(second));
    assert!(found.generation > between.generation);
    let log = ledger.audit_log(Some(key.id.to_string()), super::context::page(None, 10)).await;
    assert_eq!(log.expect("it can be read").items.len(), 2);
}

/// Commands on unknown ids change nothing and return not found.
pub async fn unknown_ids_are_not_found(context: &LedgerContext) {
    let ledger: Arc<_> = context.ledger();
    let id = EventId::from_bytes(EventKind::Run, [9; 16]);
    let changed = ledger.change(id, Change::default(), None).await.map(drop);
    let cancelled = ledger.cancel(id, line("cancel", &id)).await.map(drop);
    for answer in [changed, cancelled] {
        assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
    }
    assert!(ledger.deliveries_of(id).await.expect("they can be read").is_empty());
}
