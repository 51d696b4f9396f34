//! Limits of replay jobs: never more items in progress than allowed, with any number of processes.

use std::collections::HashSet;

use super::context::{LedgerContext, TARGET, all_failed, event, failed, fine, line, new_job, page};
use crate::delivery::{DeliveryState, Settle};
use crate::id::{JobId, LetterId};
use crate::ledger::{DeliveryFilter, Error};
use crate::letter::{Cause, Status};
use crate::replay::{ItemState, JobOrder, JobState, NewJob, ReplayMode, ReplayPace};

/// This many dead letters.
async fn dead(context: &LedgerContext, count: usize) {
    let events = (0..count).map(|_| event(TARGET)).collect();
    context.ledger().accept(events).await.expect("they are accepted");
    let words: Vec<_> = context
        .take(u32::try_from(count).expect("a few"))
        .await
        .into_iter()
        .map(|work| (work.holding, Settle::Bury(failed("it is down"), Cause::Exhausted)))
        .collect();
    assert_eq!(words.len(), count);
    context.ledger().settle(words).await.expect("they can be settled");
}

async fn job(context: &LedgerContext, concurrency: u32) -> JobId {
    let new = new_job(all_failed(), ReplayMode::Resume);
    let new = NewJob { pace: ReplayPace { concurrency, ..new.pace }, ..new };
    context.ledger().create(new, vec![TARGET.to_owned()]).await.expect("a job can be made").new.id
}

async fn in_flight(context: &LedgerContext) -> usize {
    let states = vec![DeliveryState::Replaying, DeliveryState::Running, DeliveryState::RetryWait];
    let filter = DeliveryFilter { states, ..DeliveryFilter::default() };
    context.ledger().deliveries(filter, page(None, 1_000)).await.expect("they can be listed").items.len()
}

/// The number of released items in progress never exceeds the limit.
pub async fn concurrency_is_never_exceeded(context: &LedgerContext) {
    dead(context, 10).await;
    let job = job(context, 3).await;
    assert_eq!(context.ledger().release(job, 2).await.expect("it can be released").counts.released, 2);
    assert_eq!(context.release(job).await.counts.released, 3);
    assert_eq!(context.release(job).await.counts.released, 3);
    assert_eq!(in_flight(context).await, 3);
    let taken = context.take(10).await;
    assert_eq!((taken.len(), context.release(job).await.counts.released), (3, 3));
    // A retried item still counts; one that has ended does not.
    let later = Settle::Retry(failed("it is down"), super::context::LONG);
    context.settle(taken[0].holding, later).await;
    context.settle(taken[1].holding, Settle::Done(fine())).await;
    context.bury(taken[2].holding).await;
    let counts = context.counts(job).await;
    assert_eq!((counts.released, counts.replayed, counts.failed_again, counts.pending), (1, 1, 1, 7));
    let counts = context.release(job).await.counts;
    assert_eq!((counts.released, counts.pending, counts.total), (3, 5, 10));
    assert_eq!(in_flight(context).await, 3);
}

/// Counted in one transaction, so any number of processes respects the limit.
pub async fn racing_releases_keep_the_limit(context: &LedgerContext) {
    dead(context, 40).await;
    let job = job(context, 5).await;
    let mut done = 0;
    while done < 40 {
        let calls: Vec<_> = (0..6)
            .map(|number| {
                let ledger = context.handle(number);
                tokio::spawn(async move { ledger.release(job, 3).await.expect("it can be released") })
            })
            .collect();
        for call in calls {
            let answer = call.await.expect("no call panics");
            assert!(answer.counts.released <= 5, "{:?}", answer.counts);
        }
        assert!(in_flight(context).await <= 5);
        let taken = context.take(100).await;
        assert!(!taken.is_empty() && taken.len() <= 5, "{} at once", taken.len());
        for work in taken {
            context.settle(work.holding, Settle::Done(fine())).await;
            done += 1;
        }
    }
    let job = context.ledger().job(job).await.expect("it can be read").expect("it is there");
    assert_eq!((job.state, job.counts.replayed, job.counts.released), (JobState::Done, 40, 0));
}

/// Several processes read the same state of a job and release the next items: one of them succeeds. A process that
/// repeats its call releases nothing more.
pub async fn of_those_that_saw_the_same_one_releases(context: &LedgerContext) {
    dead(context, 12).await;
    let job = job(context, 1_000).await;
    let mut started = 0;
    for round in 1..=3 {
        let calls: Vec<_> = (0..6)
            .map(|number| {
                let ledger = context.handle(number);
                tokio::spawn(
                    async move { ledger.release_after(job, started, 3).await.expect("it is answered") },
                )
            })
            .collect();
        for call in calls {
            let counts = call.await.expect("no call panics").counts;
            assert_eq!((counts.started(), counts.pending), (3 * round, 12 - 3 * round));
        }
        // Ended items still count as started.
        for work in context.take(2).await {
            context.settle(work.holding, Settle::Done(fine())).await;
        }
        started = 3 * round;
        assert_eq!(context.counts(job).await.started(), started);
    }
    let answer = context.ledger().release_after(job, 8, 3).await.expect("it is answered");
    assert_eq!(answer.counts.started(), 9, "it is not as the caller saw it");
}

/// Two jobs with the same items: each item is released by one of them.
pub async fn two_jobs_share_no_item(context: &LedgerContext) {
    dead(context, 20).await;
    let (one, other) = (job(context, 1_000).await, job(context, 1_000).await);
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let (ledger, job) = (context.handle(number), if number % 2 == 0 { one } else { other });
            tokio::spawn(async move { ledger.release(job, 4).await.expect("it can be released") })
        })
        .collect();
    for call in calls {
        call.await.expect("no call panics");
    }
    context.release(one).await;
    context.release(other).await;
    let taken = context.take(100).await;
    assert_eq!(taken.len(), 20, "each once");
    let distinct: HashSet<_> = taken.iter().map(|work| work.holding.delivery).collect();
    assert_eq!(distinct.len(), 20);
    for work in taken {
        context.settle(work.holding, Settle::Done(fine())).await;
    }
    let (one, other) = (context.counts(one).await, context.counts(other).await);
    assert_eq!(one.replayed + other.replayed, 20);
    assert_eq!(one.skipped_inflight + other.skipped_inflight, 20);
}

/// Nothing is released while it is paused; a cancellation is final.
pub async fn a_job_is_paused_resumed_and_cancelled(context: &LedgerContext) {
    dead(context, 6).await;
    let job = job(context, 2).await;
    let order = async |order| context.ledger().order(job, order, "why".to_owned(), line("order", &job)).await;
    context.release(job).await;
    let paused = order(JobOrder::Pause).await.expect("it can be paused");
    assert_eq!((paused.state, paused.note.as_str()), (JobState::Paused, "why"));
    assert!(context.ledger().running().await.expect("they can be listed").is_empty());
    for work in context.take(10).await {
        context.settle(work.holding, Settle::Done(fine())).await;
    }
    assert_eq!(context.release(job).await.counts.released, 0);
    assert_eq!(order(JobOrder::Resume).await.expect("it can be resumed").state, JobState::Running);
    assert_eq!(context.release(job).await.counts.released, 2);
    let cancelled = order(JobOrder::Cancel).await.expect("it can be cancelled");
    assert_eq!(
        (cancelled.state, cancelled.counts.cancelled, cancelled.counts.pending),
        (JobState::Cancelled, 2, 0)
    );
    assert_eq!(order(JobOrder::Cancel).await.expect("twice too").state, JobState::Cancelled);
    assert_eq!(context.release(job).await.counts.released, 2);
    // Released items continue to their end, the rest is unchanged.
    for work in context.take(10).await {
        context.settle(work.holding, Settle::Done(fine())).await;
    }
    let counts = context.counts(job).await;
    assert_eq!((counts.replayed, counts.released, counts.cancelled), (4, 0, 2));
    let items = context.ledger().items(job, page(None, 10)).await.expect("they can be listed").items;
    let states: Vec<_> = items.iter().map(|item| item.state).collect();
    assert_eq!(states[..4], [ItemState::Replayed; 4]);
    assert_eq!(states[4..], [ItemState::Cancelled; 2]);
    for item in &items[4..] {
        assert_eq!(context.state(item.delivery).await, DeliveryState::Dlq);
        let letter: LetterId = item.letter.expect("it has a letter");
        assert_eq!(context.letter(letter).await.status, Status::Pending);
    }
    for late in [JobOrder::Pause, JobOrder::Resume] {
        assert!(matches!(order(late).await, Err(Error::Refused(_))), "{late:?} of what is over");
    }
    let lines =
        context.ledger().audit_log(Some(job.to_string()), page(None, 10)).await.expect("it can be read");
    assert_eq!(lines.items.len(), 3, "a line for each order that changed something");
    let unknown = JobId::from_bytes([9; 16]);
    let answer = context.ledger().release(unknown, 1).await;
    assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
}

/// The limits can change while it runs.
pub async fn the_pace_can_be_changed(context: &LedgerContext) {
    dead(context, 10).await;
    let job = job(context, 2).await;
    context.release(job).await;
    let pace = ReplayPace { rate: 12.5, concurrency: 4, canary: 0, pause_above: 0.25 };
    let order = JobOrder::Pace(pace);
    let paced = context.ledger().order(job, order, String::new(), line("pace", &job)).await;
    let paced = paced.expect("it can be paced");
    assert_eq!((paced.new.pace, paced.state), (pace, JobState::Running));
    assert_eq!(context.release(job).await.counts.released, 4);
    let slower = JobOrder::Pace(ReplayPace { concurrency: 1, ..pace });
    context.ledger().order(job, slower, String::new(), line("pace", &job)).await.expect("it can be paced");
    assert_eq!(context.release(job).await.counts.released, 4, "what was released stays so");
    for work in context.take(10).await {
        context.settle(work.holding, Settle::Done(fine())).await;
    }
    assert_eq!(context.release(job).await.counts.released, 1);
}

/// A job is stored in rows: the next process continues it.
pub async fn a_job_goes_on_after_a_restart(context: &LedgerContext) {
    dead(context, 4).await;
    let job = job(context, 2).await;
    context.release(job).await;
    let held = context.take(1).await[0].holding;
    context.open_again().await;
    assert_eq!(context.ledger().running().await.expect("they can be listed"), [job]);
    assert_eq!(context.counts(job).await.released, 2);
    context.settle(held, Settle::Done(fine())).await;
    while context.counts(job).await.replayed < 4 {
        context.release(job).await;
        for work in context.take(10).await {
            context.settle(work.holding, Settle::Done(fine())).await;
        }
    }
    let job = context.ledger().job(job).await.expect("it can be read").expect("it is there");
    assert_eq!((job.state, job.counts.replayed), (JobState::Done, 4));
}

/// Cancelling a replayed delivery while it waits ends its item, and its dead letter.
pub async fn a_cancelled_delivery_ends_its_item(context: &LedgerContext) {
    dead(context, 1).await;
    let job = job(context, 2).await;
    context.release(job).await;
    let work = context.take_one().await;
    context.settle(work.holding, Settle::Retry(failed("it is down"), super::context::LONG)).await;
    context.ledger().cancel(work.event, line("cancel", &work.event)).await.expect("it can be cancelled");
    let kept = context.ledger().job(job).await.expect("it can be read").expect("it is there");
    assert_eq!((kept.state, kept.counts.cancelled, kept.counts.released), (JobState::Done, 1, 0));
    let letter = context.told(work.holding.delivery).await.delivery.letter.expect("it has a letter");
    assert_eq!(context.letter(letter).await.status, Status::Discarded);
    let answer = context.ledger().restore(letter, line("restore", &letter)).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
}

/// Items in the order of their release, page by page.
pub async fn items_come_in_order(context: &LedgerContext) {
    dead(context, 7).await;
    let job = job(context, 3).await;
    let mut all = Vec::new();
    let mut next = None;
    loop {
        let part = context.ledger().items(job, page(next, 3)).await.expect("they can be listed");
        all.extend(part.items.into_iter().map(|item| item.delivery));
        next = part.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(all.len(), 7);
    let mut released = Vec::new();
    while released.len() < 7 {
        context.release(job).await;
        let taken = context.take(10).await;
        assert!(!taken.is_empty());
        let mut now: Vec<_> = taken.iter().map(|work| work.holding.delivery).collect();
        now.sort_by_key(|id| all.iter().position(|item| item == id));
        released.extend(now);
        for work in taken {
            context.settle(work.holding, Settle::Done(fine())).await;
        }
    }
    assert_eq!(released, all, "the first ones first");
}
