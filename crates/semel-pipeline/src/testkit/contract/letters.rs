//! Dead letters.

use bytes::Bytes;
use semel::time::{Clock, SystemClock};

use super::context::{LedgerContext, TARGET, dedupe, event, event_of, failed, fine, line, page, run};
use crate::delivery::{DeliveryState, Ending, Settle};
use crate::event::{NewEvent, Origin};
use crate::id::LetterId;
use crate::ledger::{Error, LetterFilter};
use crate::letter::{Cause, NewLetter, SourceMessage, Status};
use crate::replay::ReplayMode;

fn raw(message: &str) -> NewLetter {
    NewLetter {
        id: LetterId::new(SystemClock.now()),
        tenant: String::new(),
        source: SourceMessage { stream: "orders".to_owned(), message: message.to_owned() },
        payload: Bytes::from_static(b"\xff not json"),
        content_type: "application/octet-stream".to_owned(),
        headers: vec![("field".to_owned(), "value".to_owned())],
        cause: Cause::Undecodable,
        error: "the field `type` is missing".to_owned(),
        attempts: 2,
    }
}

/// A dead letter contains everything about the failure.
pub async fn a_burial_writes_a_letter(context: &LedgerContext) {
    let origin = Origin::Stream { stream: "orders".to_owned(), message: "7-0".to_owned() };
    let new =
        NewEvent { origin, headers: vec![("x".to_owned(), "1".to_owned())], ..event_of("acme", TARGET) };
    let id = context.accept(new.clone()).await;
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Retry(failed("first"), std::time::Duration::ZERO)).await;
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Bury(failed("order 17 is locked"), Cause::Exhausted)).await;
    let letter = context.told(held.delivery).await.delivery.letter.expect("it has a letter");
    let story = context.ledger().letter(letter).await.expect("it can be read").expect("it is there");
    let letter = story.letter;
    assert_eq!((letter.event, letter.delivery), (Some(id), Some(held.delivery)));
    assert_eq!((letter.tenant.as_str(), letter.target.as_deref()), ("acme", Some(TARGET)));
    assert_eq!(letter.event_type.as_deref(), Some("order.paid"));
    let source = SourceMessage { stream: "orders".to_owned(), message: "7-0".to_owned() };
    assert_eq!(letter.source, Some(source));
    assert_eq!((letter.payload, letter.headers), (new.payload, new.headers));
    assert_eq!((letter.cause, letter.error.as_str()), (Cause::Exhausted, "order 17 is locked"));
    assert_eq!((letter.status, letter.attempts, letter.failed_replays), (Status::Pending, 2, 0));
    assert!(letter.last_attempt_at.is_some() && letter.copy_of.is_none());
    assert!(letter.signature.as_str().contains("exhausted"));
    assert_eq!(story.attempts.len(), 2);
    assert!(story.copies.is_empty());
}

/// The same message is one dead letter, however often and by whichever process it is written.
pub async fn a_message_is_put_once(context: &LedgerContext) {
    let (one, other) = (raw("1-0"), raw("2-0"));
    let ids =
        context.ledger().put(vec![one.clone(), other.clone(), raw("1-0")]).await.expect("they are kept");
    assert_eq!(ids, [one.id, other.id, one.id]);
    assert_eq!(context.handle(1).put(vec![raw("2-0")]).await.expect("it is kept"), [other.id]);
    let kept = context.letter(one.id).await;
    assert_eq!((kept.event, kept.delivery, kept.target.as_deref()), (None, None, None));
    assert_eq!((kept.source, kept.payload, kept.headers), (Some(one.source), one.payload, one.headers));
    assert_eq!((kept.cause, kept.error, kept.attempts), (one.cause, one.error, 2));
    let letters = context.ledger().letters(LetterFilter::default(), page(None, 10)).await;
    assert_eq!(letters.expect("they can be listed").items.len(), 2);
    // A message can have dead letters of its deliveries beside the raw one.
    let origin = Origin::Stream { stream: "orders".to_owned(), message: "1-0".to_owned() };
    context.accept(NewEvent { origin, ..event(TARGET) }).await;
    let held = context.take_one().await.holding;
    context.bury(held).await;
}

/// Each filter, and page by page.
pub async fn letters_are_found_by_what_they_are(context: &LedgerContext) {
    for (tenant, target) in [("acme", "a"), ("acme", "b"), ("zoo", "a")] {
        context.accept(event_of(tenant, target)).await;
        let held = context.take_for(&[target], 1).await[0].holding;
        context.bury(held).await;
    }
    let ids = context.ledger().put(vec![raw("1-0")]).await.expect("it is kept");
    context.ledger().discard(ids[0], line("discard", &ids[0])).await.expect("it can be discarded");
    let any = LetterFilter::default();
    let signature = context.letter(ids[0]).await.signature.as_str().to_owned();
    for (filter, expected) in [
        (any.clone(), 4),
        (LetterFilter { status: Some(Status::Pending), ..any.clone() }, 3),
        (LetterFilter { status: Some(Status::Discarded), ..any.clone() }, 1),
        (LetterFilter { tenant: Some("acme".to_owned()), ..any.clone() }, 2),
        (LetterFilter { target: Some("a".to_owned()), ..any.clone() }, 2),
        (LetterFilter { target: Some("a".to_owned()), tenant: Some("zoo".to_owned()), ..any.clone() }, 1),
        (LetterFilter { signature: Some(signature), ..any.clone() }, 1),
        (LetterFilter { status: Some(Status::Parked), ..any.clone() }, 0),
    ] {
        let mut all = Vec::new();
        let mut next = None;
        loop {
            let part =
                context.ledger().letters(filter.clone(), page(next, 1)).await.expect("they can be listed");
            all.extend(part.items.into_iter().map(|letter| letter.id));
            next = part.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(all.len(), expected, "{filter:?}");
        let whole = context.ledger().letters(filter, page(None, 100)).await.expect("they can be listed");
        assert_eq!(whole.items.into_iter().map(|letter| letter.id).collect::<Vec<_>>(), all);
    }
}

/// Variable parts of an error do not make another group.
pub async fn groups_gather_what_failed_alike(context: &LedgerContext) {
    let mut last = None;
    for (target, error) in [
        ("a", "order 1 is locked"),
        ("a", "order 2 is locked"),
        ("a", "order 3 is locked"),
        ("b", "order 4 is locked"),
    ] {
        context.accept(event(target)).await;
        let held = context.take_for(&[target], 1).await[0].holding;
        context.settle(held, Settle::Bury(failed(error), Cause::Exhausted)).await;
        if target == "a" {
            last = context.told(held.delivery).await.delivery.letter;
        }
    }
    let last = last.expect("it has a letter");
    context.ledger().discard(last, line("discard", &last)).await.expect("it can be discarded");
    let groups = context.ledger().groups(LetterFilter::default()).await.expect("they can be grouped");
    assert!(!groups.is_partial);
    let groups = groups.groups;
    let sizes: Vec<u64> =
        groups.iter().map(|group| group.counts.iter().map(|(_, count)| count).sum()).collect();
    assert_eq!(sizes, [3, 1], "the largest first");
    let group = &groups[0];
    assert_eq!((group.target.as_deref(), group.cause), (Some("a"), Cause::Exhausted));
    let mut counts = group.counts.clone();
    counts.sort_by_key(|(_, count)| *count);
    assert_eq!(counts, [(Status::Discarded, 1), (Status::Pending, 2)]);
    assert!(group.first_at <= group.last_at && group.error.ends_with("is locked"));
    assert_eq!(context.letter(group.sample).await.signature, group.signature);
    let filter = LetterFilter { status: Some(Status::Discarded), ..LetterFilter::default() };
    let groups = context.ledger().groups(filter).await.expect("they can be grouped").groups;
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].counts, [(Status::Discarded, 1)]);
    let any = LetterFilter::default();
    for (filter, expected) in [
        (LetterFilter { target: Some("b".to_owned()), ..any.clone() }, 1),
        (LetterFilter { tenant: Some("acme".to_owned()), ..any.clone() }, 0),
        (LetterFilter { signature: Some(groups[0].signature.as_str().to_owned()), ..any.clone() }, 1),
        (LetterFilter { target: Some("b".to_owned()), status: Some(Status::Discarded), ..any }, 0),
    ] {
        let found = context.ledger().groups(filter.clone()).await.expect("they can be grouped").groups;
        assert_eq!(found.len(), expected, "{filter:?}");
    }
}

/// A discarded dead letter can be restored; both write a line in the audit log, once.
pub async fn discarded_and_restored(context: &LedgerContext) {
    let (_, letter) = context.dead().await;
    let ledger = context.ledger();
    for _ in 0..2 {
        ledger.discard(letter, line("discard", &letter)).await.expect("it can be discarded, twice too");
        assert_eq!(context.letter(letter).await.status, Status::Discarded);
    }
    let job = context.job_of(&[letter], ReplayMode::Resume).await;
    assert_eq!(job.counts.skipped_inflight, 1, "what was given up is not replayed");
    for _ in 0..2 {
        ledger.restore(letter, line("restore", &letter)).await.expect("it can be restored, twice too");
        assert_eq!(context.letter(letter).await.status, Status::Pending);
    }
    let lines = ledger.audit_log(Some(letter.to_string()), page(None, 10)).await.expect("it can be read");
    let actions: Vec<_> = lines.items.iter().map(|line| line.line.action.as_str()).collect();
    assert_eq!(actions, ["restore", "discard"]);
    let unknown = LetterId::from_bytes([9; 16]);
    let answer = ledger.discard(unknown, line("discard", &unknown)).await;
    assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
}

/// A dead letter that is being or was replayed cannot be discarded.
pub async fn a_letter_in_flight_stays(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let job = context.job_of(&[letter], ReplayMode::Resume).await;
    context.release(job.new.id).await;
    assert_eq!(context.letter(letter).await.status, Status::Replaying);
    let refused = async |what: &str| {
        let discard = context.ledger().discard(letter, line("discard", &letter)).await;
        let restore = context.ledger().restore(letter, line("restore", &letter)).await;
        for answer in [discard, restore] {
            assert!(matches!(answer, Err(Error::Refused(_))), "{what}: {answer:?}");
        }
    };
    refused("replaying").await;
    let held = context.take_one().await.holding;
    refused("running").await;
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(context.letter(letter).await.status, Status::Replayed);
    refused("replayed").await;
    assert_eq!(context.state(delivery).await, DeliveryState::Done);
}

/// An edited copy is a new event that waits in `dlq`; its original is unchanged.
pub async fn an_edited_copy_is_linked_both_ways(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let of = context.told(delivery).await.delivery.event;
    let payload = Bytes::from_static(br#"{"order":18}"#);
    let copy = NewEvent {
        payload: payload.clone(),
        dedupe: Some(dedupe("copy")),
        origin: Origin::Replay { of },
        ..event(TARGET)
    };
    let ledger = context.ledger();
    let made = ledger.edit(letter, copy.clone(), line("edit", &letter)).await.expect("it can be copied");
    let again = ledger.edit(letter, copy.clone(), line("edit", &letter)).await.expect("it can be repeated");
    assert_eq!(again, made);
    let kept = context.letter(made).await;
    assert_eq!((kept.copy_of, kept.status, kept.cause), (Some(letter), Status::Pending, Cause::Manual));
    assert_eq!((kept.payload, kept.event, kept.attempts), (payload.clone(), Some(copy.id), 0));
    let story = ledger.letter(letter).await.expect("it can be read").expect("it is there");
    assert_eq!((story.copies, story.letter.status), (vec![made], Status::Pending));
    let told = context.only(copy.id).await;
    assert_eq!((told.delivery.state, told.delivery.letter), (DeliveryState::Dlq, Some(made)));
    assert_eq!(context.take(10).await, [], "it waits for a replay");
    let job = context.job_of(&[made], ReplayMode::Resume).await;
    context.release(job.new.id).await;
    let work = context.take_one().await;
    assert_eq!((work.payload, work.event, work.attempt), (payload, copy.id, 1));
    context.settle(work.holding, Settle::Done(fine())).await;
    assert_eq!(context.letter(made).await.status, Status::Replayed);
    // A raw message has no event until a person writes one.
    let raw = ledger.put(vec![raw("1-0")]).await.expect("it is kept")[0];
    let answer = ledger
        .plan(crate::replay::Selection::Letters(vec![raw]), ReplayMode::Resume, vec![TARGET.to_owned()])
        .await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    let made = ledger.edit(raw, run(), line("edit", &raw)).await.expect("it can be copied");
    assert_eq!(context.letter(made).await.copy_of, Some(raw));
    let two = NewEvent { targets: vec!["a".to_owned(), "b".to_owned()], ..run() };
    let answer = ledger.edit(raw, two, line("edit", &raw)).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
}

/// Every dead letter of a stream reaches the dead-letter stream, and is then left out.
pub async fn letters_are_mirrored_once(context: &LedgerContext) {
    let ledger = context.ledger();
    let first = ledger.put(vec![raw("1-0"), raw("2-0")]).await.expect("they are kept");
    let origin = Origin::Stream { stream: "orders".to_owned(), message: "3-0".to_owned() };
    context.accept(NewEvent { origin, ..event(TARGET) }).await;
    let held = context.take_one().await.holding;
    let word = Settle::Bury(Ending { status: None, ..failed("no") }, Cause::NonRetryable);
    context.settle(held, word).await;
    let third = context.told(held.delivery).await.delivery.letter.expect("it has a letter");
    context.dead().await;
    let left = async |limit| {
        let found = ledger.unmirrored("orders".to_owned(), limit).await.expect("they can be listed");
        found.into_iter().map(|letter| letter.id).collect::<Vec<_>>()
    };
    assert_eq!(left(10).await, [first[0], first[1], third], "the oldest first, of this stream only");
    assert_eq!(left(1).await, [first[0]]);
    ledger.mirrored(vec![first[0], third]).await.expect("it can be noted");
    assert_eq!(left(10).await, [first[1]]);
    assert!(ledger.unmirrored("others".to_owned(), 10).await.expect("they can be listed").is_empty());
}
