//! Accepting runs from the buffer, and the generations of their keys.

use std::collections::BTreeMap;

use super::context::{LONG, LedgerContext, SHORT, all_failed, dedupe, fine, line, new_job, run};
use crate::delivery::{DeliveryState, Settle};
use crate::event::{Accepted, Dedupe, Generation, NewEvent, Notes};
use crate::id::EventId;
use crate::ledger::{Arrival, Change, Drained, DrainedRun, Error, LetterFilter, Page, Patch, RunAction};
use crate::letter::{Cause, Status};
use crate::replay::ReplayMode;

fn increment() -> Patch {
    Patch::Change(Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() })
}

fn drained(run: &NewEvent, changes: Vec<Patch>) -> DrainedRun {
    DrainedRun { run: run.clone(), changes, then: None }
}

async fn drain(context: &LedgerContext, run: &NewEvent, changes: Vec<Patch>) -> Arrival {
    let answers = context.ledger().drain(vec![drained(run, changes)]).await.expect("it is taken in");
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].refused, Vec::<String>::new());
    answers[0].arrival
}

async fn holder(context: &LedgerContext, key: &Dedupe) -> Option<EventId> {
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    found.holder.map(|holder| holder.event)
}

async fn metadata(context: &LedgerContext, id: EventId) -> BTreeMap<String, String> {
    context.ledger().event(id).await.expect("it can be read").expect("it is there").new.notes.metadata
}

/// A run arrives with its changes, and continues the version count of the buffer.
pub async fn a_drained_run_holds_its_key_and_its_changes(context: &LedgerContext) {
    let key = dedupe("a");
    let notes =
        Notes { tags: vec!["x".to_owned()], metadata: BTreeMap::from([("n".to_owned(), "40".to_owned())]) };
    let new = NewEvent { dedupe: Some(key.clone()), notes, ..run() };
    let tag = Patch::Change(Change { add_tags: vec!["y".to_owned()], ..Change::default() });
    let wrong =
        Patch::Change(Change { increment: vec![("n".to_owned(), "one".to_owned())], ..Change::default() });
    let changes = vec![increment(), tag, wrong, increment()];
    let answers = context.ledger().drain(vec![drained(&new, changes)]).await.expect("it is taken in");
    assert_eq!((answers[0].arrival, answers[0].refused.len()), (Arrival::New, 1));
    let event = context.ledger().event(new.id).await.expect("it can be read").expect("it is there");
    assert_eq!((event.version, event.changes), (4, 4));
    assert_eq!(event.new.notes.tags, ["x", "y"]);
    assert_eq!(event.new.notes.metadata.get("n").map(String::as_str), Some("42"));
    assert_eq!(holder(context, &key).await, Some(new.id));
    assert_eq!(context.take_one().await.event, new.id);
}

/// However often a run is drained, each of its changes counts once, and direct changes in the ledger stay.
pub async fn changes_are_applied_once_by_their_number(context: &LedgerContext) {
    let new = run();
    assert_eq!(drain(context, &new, vec![increment()]).await, Arrival::New);
    let change = Change { increment: vec![("n".to_owned(), "10".to_owned())], ..Change::default() };
    context.ledger().change(new.id, change, None).await.expect("it is changed");
    for changes in [1, 3, 2, 3, 4] {
        assert_eq!(drain(context, &new, vec![increment(); changes]).await, Arrival::Known);
    }
    assert_eq!(metadata(context, new.id).await.get("n").map(String::as_str), Some("14"));
    assert_eq!(context.take(10).await.len(), 1, "it is one run");
}

/// Runs that an earlier version cancelled in the buffer are never taken.
pub async fn a_cancelled_run_arrives_cancelled(context: &LedgerContext) {
    let (one, two) = (run(), run());
    let answers = context
        .ledger()
        .drain(vec![drained(&one, vec![Patch::Cancel]), drained(&two, vec![increment(), Patch::Cancel])])
        .await
        .expect("they are taken in");
    assert!(answers.iter().all(|answer| answer.arrival == Arrival::New));
    assert_eq!(context.take(10).await, []);
    for id in [one.id, two.id] {
        assert_eq!(context.only(id).await.delivery.state, DeliveryState::Cancelled);
        assert_eq!(drain(context, if id == one.id { &one } else { &two }, Vec::new()).await, Arrival::Known);
        assert_eq!(context.only(id).await.delivery.state, DeliveryState::Cancelled, "it stays cancelled");
    }
    assert_eq!(metadata(context, two.id).await.get("n").map(String::as_str), Some("1"));
}

/// An action on an arriving run is applied in the same transaction, or not at all.
pub async fn a_run_is_cancelled_as_it_arrives(context: &LedgerContext) {
    let new = run();
    let cancel = |run: &NewEvent| DrainedRun {
        run: run.clone(),
        changes: vec![increment()],
        then: Some(RunAction::Cancel(line("cancel", &run.id))),
    };
    context.ledger().drain(vec![cancel(&new)]).await.expect("it is cancelled");
    assert_eq!(context.only(new.id).await.delivery.state, DeliveryState::Cancelled);
    assert_eq!(context.take(10).await, []);

    let later = run();
    let change = Change { delay: Some(LONG), ..Change::default() };
    let then = Some(RunAction::Change(change));
    let put_off = DrainedRun { run: later.clone(), changes: Vec::new(), then };
    context.ledger().drain(vec![put_off]).await.expect("it is put off");
    assert_eq!(context.take(10).await, [], "it is not due");
    assert_eq!(context.only(later.id).await.delivery.state, DeliveryState::Idle);
    let event = context.ledger().event(later.id).await.expect("it can be read").expect("it is there");
    assert_eq!((event.version, event.changes), (1, 0), "compare-and-set goes on where the buffer stopped");

    let done = run();
    assert_eq!(drain(context, &done, Vec::new()).await, Arrival::New);
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Done(fine())).await;
    let refused = context.ledger().drain(vec![cancel(&done)]).await;
    assert!(matches!(refused, Err(Error::Impossible(_))), "{refused:?}");
    assert_eq!(metadata(context, done.id).await.get("n"), None, "nothing of it was written");
}

/// A run that was buffered before its key was reset is delivered, and does not conflict with the next one.
pub async fn a_run_of_an_older_generation_holds_no_key(context: &LedgerContext) {
    let key = Dedupe { generation: Some(Generation::FIRST), ..dedupe("a") };
    let old = NewEvent { dedupe: Some(key.clone()), ..run() };
    let ledger = context.ledger();
    ledger.reset(key.id, line("reset", &key.id)).await.expect("it is reset");
    assert_eq!(drain(context, &old, Vec::new()).await, Arrival::Older);
    assert_eq!(holder(context, &key).await, None);
    let generation = Some(ledger.find(key.id).await.expect("it can be looked for").generation);
    let next = NewEvent { dedupe: Some(Dedupe { generation, ..key.clone() }), ..run() };
    assert_eq!(drain(context, &next, Vec::new()).await, Arrival::New);
    assert_eq!(holder(context, &key).await, Some(next.id));
    let older = NewEvent { dedupe: Some(key.clone()), ..run() };
    assert_eq!(drain(context, &older, Vec::new()).await, Arrival::Older, "the key is held, in a later one");
    let mut taken: Vec<_> = context.take(10).await.into_iter().map(|work| work.event).collect();
    taken.sort();
    let mut all = [old.id, next.id, older.id];
    all.sort();
    assert_eq!(taken, all, "each is delivered");
}

/// Two runs of one key and generation, because Redis did not answer for a while: the second becomes a dead letter,
/// and a person decides.
pub async fn a_run_that_lost_its_key_can_be_replayed(context: &LedgerContext) {
    let key = Dedupe { generation: Some(Generation::FIRST), ..dedupe("a") };
    let winner = context.accept(NewEvent { dedupe: Some(key.clone()), ..run() }).await;
    let other = Dedupe { fingerprint: dedupe("b").fingerprint, ..key.clone() };
    let loser = NewEvent { dedupe: Some(other.clone()), ..run() };
    assert_eq!(drain(context, &loser, vec![increment()]).await, Arrival::LostKey(winner));
    assert_eq!(drain(context, &loser, vec![increment(), increment()]).await, Arrival::Known);
    assert_eq!(metadata(context, loser.id).await.get("n").map(String::as_str), Some("2"));
    assert_eq!(holder(context, &key).await, Some(winner));
    let ledger = context.ledger();
    let found = ledger.find_keyless(key.id, Generation::FIRST, other.fingerprint).await;
    assert_eq!(found.expect("it can be looked for"), Some(loser.id));
    let found = ledger.find_keyless(key.id, Generation::FIRST, key.fingerprint).await;
    assert_eq!(found.expect("it can be looked for"), None, "that one holds the key");
    let page = Page { after: None, limit: 10 };
    let letters = ledger.letters(LetterFilter::default(), page).await.expect("they can be listed").items;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].event, letters[0].cause), (Some(loser.id), Cause::NonRetryable));
    assert_eq!((letters[0].status, &letters[0].payload), (Status::Pending, &loser.payload));
    assert_eq!(context.take(10).await.len(), 1, "only the winner is delivered by itself");
    let targets = letters[0].target.clone().into_iter().collect();
    let job = ledger.create(new_job(all_failed(), ReplayMode::Resume), targets).await.expect("it is made");
    ledger.release(job.new.id, 10).await.expect("it is released");
    let replayed = context.take_one().await;
    assert_eq!((replayed.event, &replayed.payload), (loser.id, &loser.payload));
    let cancelled = NewEvent { dedupe: Some(other), ..run() };
    assert_eq!(drain(context, &cancelled, vec![Patch::Cancel]).await, Arrival::LostKey(winner));
    assert_eq!(context.only(cancelled.id).await.delivery.state, DeliveryState::Cancelled);
}

/// The lifetime of a key counts from when the run was accepted, not from when it was drained.
pub async fn a_drained_key_expires_when_the_buffer_said(context: &LedgerContext) {
    let key = Dedupe {
        generation: Some(Generation::FIRST),
        lifetime: Some(LONG),
        expires_at: Some(semel::time::Timestamp::from_micros(1)),
        ..dedupe("a")
    };
    let old = NewEvent { dedupe: Some(key.clone()), ..run() };
    assert_eq!(drain(context, &old, Vec::new()).await, Arrival::New);
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    assert_eq!(found.holder.map(|holder| (holder.event, holder.expired)), Some((old.id, true)));
    assert_eq!(context.take_one().await.event, old.id, "it is delivered nevertheless");
}

/// An event that names a generation is written only while that generation is current.
pub async fn a_stale_generation_is_refused(context: &LedgerContext) {
    let first = Some(Generation::FIRST);
    let key = Dedupe { generation: first, lifetime: Some(SHORT), ..dedupe("a") };
    let held = NewEvent { dedupe: Some(key.clone()), ..run() };
    let ledger = context.ledger();
    let accept = async |new: &NewEvent| {
        let answers = ledger.accept(vec![new.clone()]).await.expect("it is answered");
        answers[0]
    };
    assert_eq!(accept(&held).await, Accepted::First(held.id));
    context.pass(SHORT).await;
    let late = NewEvent { dedupe: Some(key.clone()), ..run() };
    assert_eq!(accept(&late).await, Accepted::Stale, "the key has expired: its generation is to be ended");
    let next = ledger.advance(key.id, Generation::FIRST).await.expect("it is ended");
    assert_eq!(accept(&late).await, Accepted::Stale);
    assert_eq!(accept(&held).await, Accepted::Cached(held.id), "a repeated call knows itself");
    assert_eq!(ledger.event(late.id).await.expect("it can be read"), None);
    let late = NewEvent { dedupe: Some(Dedupe { generation: Some(next), ..key }), ..late };
    assert_eq!(accept(&late).await, Accepted::First(late.id));
}

/// Of all callers that end one generation, one does; the others get the current one.
pub async fn an_expired_generation_ends_once(context: &LedgerContext) {
    let key = dedupe("a");
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let (ledger, id) = (context.handle(number), key.id);
            tokio::spawn(async move { ledger.advance(id, Generation::FIRST).await.expect("it is answered") })
        })
        .collect();
    let mut seen = Vec::new();
    for call in calls {
        seen.push(call.await.expect("no call panics"));
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "all are told the same");
    assert!(seen[0] > Generation::FIRST);
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    assert_eq!((found.generation, found.holder), (seen[0], None));
}

/// Two drainers lease the same run, because a lease has expired: one run, each change once.
pub async fn racing_drains_accept_a_run_once(context: &LedgerContext) {
    for round in 0..5 {
        let key = Dedupe { generation: Some(Generation::FIRST), ..dedupe("a") };
        let new = NewEvent { dedupe: Some(key.clone()), ..run() };
        let calls: Vec<_> = (0..6)
            .map(|number| {
                let (ledger, run) =
                    (context.handle(number), drained(&new, vec![increment(); number % 3 + 1]));
                tokio::spawn(async move { ledger.drain(vec![run]).await.expect("it is taken in").remove(0) })
            })
            .collect();
        let mut arrivals = Vec::new();
        for call in calls {
            let Drained { arrival, refused } = call.await.expect("no call panics");
            assert!(refused.is_empty());
            arrivals.push(arrival);
        }
        assert_eq!(arrivals.iter().filter(|arrival| **arrival == Arrival::New).count(), 1, "{arrivals:?}");
        assert!(arrivals.iter().all(|arrival| matches!(arrival, Arrival::New | Arrival::Known)));
        assert_eq!(metadata(context, new.id).await.get("n").map(String::as_str), Some("3"), "round {round}");
        assert_eq!(holder(context, &key).await, Some(new.id));
    }
    assert_eq!(context.take(100).await.len(), 5);
}
