//! Replays of failed deliveries, in each mode.

use super::context::{
    LONG, LedgerContext, SHORT, TARGET, all_failed, event, event_of, failed, fine, line, new_job,
};
use crate::delivery::{DeliveryState, Settle};
use crate::event::{NewEvent, Origin};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::ledger::Error;
use crate::letter::{Cause, PARKED_AFTER, Status};
use crate::replay::{ItemState, JobState, ReplayAction, ReplayMode, ReplayPace, Selection};

fn targets() -> Vec<String> {
    vec![TARGET.to_owned()]
}

async fn actions(
    context: &LedgerContext,
    selection: Selection,
    mode: ReplayMode,
) -> Vec<(DeliveryId, ReplayAction)> {
    let plan = context.ledger().plan(selection, mode, targets()).await.expect("it can be planned");
    assert!(plan.iter().all(|planned| !planned.why.is_empty()), "{plan:?}");
    plan.into_iter().map(|planned| (planned.delivery, planned.action)).collect()
}

/// Skip, run or conflict, item by item; and nothing is changed.
pub async fn a_plan_says_what_would_happen(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let letters = Selection::Letters(vec![letter]);
    for mode in ReplayMode::ALL {
        assert_eq!(actions(context, letters.clone(), mode).await, [(delivery, ReplayAction::Run)]);
    }
    let plan = context
        .ledger()
        .plan(letters.clone(), ReplayMode::Resume, targets())
        .await
        .expect("it can be planned");
    let told = context.told(delivery).await.delivery;
    assert_eq!((plan[0].letter, plan[0].event, plan[0].target.as_str()), (Some(letter), told.event, TARGET));
    assert_eq!(plan[0].signature, context.letter(letter).await.signature.as_str());
    let elsewhere = vec!["other".to_owned()];
    let plan = context
        .ledger()
        .plan(letters.clone(), ReplayMode::Resume, elsewhere)
        .await
        .expect("it can be planned");
    assert_eq!(plan[0].action, ReplayAction::Conflict, "its target is gone");
    assert_eq!(context.state(delivery).await, DeliveryState::Dlq);
    // During a replay it is a conflict, and afterwards there is nothing to do.
    let job = context.job(letters.clone(), ReplayMode::Resume).await;
    context.release(job.new.id).await;
    assert_eq!(
        actions(context, letters.clone(), ReplayMode::Resume).await,
        [(delivery, ReplayAction::Conflict)]
    );
    let held = context.take_one().await.holding;
    assert_eq!(
        actions(context, letters.clone(), ReplayMode::AsNew).await,
        [(delivery, ReplayAction::Conflict)]
    );
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(actions(context, letters.clone(), ReplayMode::Resume).await, [(delivery, ReplayAction::Skip)]);
    assert_eq!(actions(context, letters, ReplayMode::ReExecute).await, [(delivery, ReplayAction::Run)]);
}

/// Of what is in progress and of what is not released; not of what has ended.
pub async fn a_job_names_the_targets_it_still_sends_to(context: &LedgerContext) {
    const OTHER: &str = "other";
    let unfinished =
        async |job: JobId| context.ledger().unfinished_targets(job).await.expect("it can be read");
    let mut letters = Vec::new();
    for target in [TARGET, OTHER] {
        context.accept(event(target)).await;
        let held = context.take_for(&[target], 1).await.remove(0).holding;
        letters.push(context.bury(held).await.1);
    }
    let all = vec![TARGET.to_owned(), OTHER.to_owned()];
    let mut sorted = all.clone();
    sorted.sort_unstable();
    let job = new_job(Selection::Letters(letters), ReplayMode::Resume);
    let id = context.ledger().create(job, all).await.expect("a job can be made").new.id;
    assert_eq!(unfinished(id).await, sorted, "nothing is released");
    context.ledger().release(id, 1).await.expect("it is released");
    assert_eq!(unfinished(id).await, sorted, "one is in progress");
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(unfinished(id).await, [OTHER], "the other one has ended");
    context.release(id).await;
    assert_eq!(unfinished(id).await, [OTHER], "it is in progress");
    let held = context.take_for(&[OTHER], 1).await.remove(0).holding;
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(unfinished(id).await, [""; 0], "the job is done");
}

/// By status, by dead letter, by event and targets.
pub async fn a_selection_means_what_it_says(context: &LedgerContext) {
    let mut dead: Vec<DeliveryId> = Vec::new();
    for tenant in ["acme", "zoo", "acme"] {
        context.accept(event_of(tenant, TARGET)).await;
        let held = context.take_one().await.holding;
        dead.push(context.bury(held).await.0);
    }
    let (_, blocked, _) = context.bring_to(DeliveryState::Blocked).await;
    context.bring_to(DeliveryState::Done).await;
    dead.push(blocked);
    let run = |of: &[DeliveryId]| of.iter().map(|id| (*id, ReplayAction::Run)).collect::<Vec<_>>();
    assert_eq!(actions(context, all_failed(), ReplayMode::Resume).await, run(&dead), "the oldest first");
    let Selection::Failed { targets, signature, .. } = all_failed() else {
        unreachable!("it is what it says")
    };
    let some = |limit, tenant: Option<&str>| Selection::Failed {
        limit,
        tenant: tenant.map(str::to_owned),
        targets: targets.clone(),
        signature: signature.clone(),
    };
    assert_eq!(actions(context, some(2, None), ReplayMode::Resume).await, run(&dead[..2]));
    assert_eq!(actions(context, some(9, Some("acme")), ReplayMode::Resume).await, run(&[dead[0], dead[2]]));
    let elsewhere =
        Selection::Failed { limit: 9, tenant: None, targets: vec!["other".to_owned()], signature: None };
    assert_eq!(actions(context, elsewhere, ReplayMode::Resume).await, []);
    let letter = context.told(dead[0]).await.delivery.letter.expect("it has a letter");
    let alike = Some(context.letter(letter).await.signature.as_str().to_owned());
    let alike = Selection::Failed { limit: 9, tenant: None, targets: Vec::new(), signature: alike };
    assert_eq!(
        actions(context, alike, ReplayMode::Resume).await,
        run(&dead[..3]),
        "a blocked one has no letter"
    );
    // Discarded dead letters are left out.
    context.ledger().discard(letter, line("discard", &letter)).await.expect("it can be discarded");
    assert_eq!(actions(context, all_failed(), ReplayMode::Resume).await, run(&dead[1..]));
    assert_eq!(
        actions(context, Selection::Letters(vec![letter]), ReplayMode::Resume).await,
        [(dead[0], ReplayAction::Conflict)]
    );
    // Of an event: the failed deliveries, or the named ones.
    let both = vec![TARGET.to_owned(), "other".to_owned()];
    let id = context.accept(NewEvent { targets: both, ..event(TARGET) }).await;
    let (one, other) = (context.take_one().await.holding, context.take_for(&["other"], 1).await[0].holding);
    context.settle(one, Settle::Done(fine())).await;
    let (other, _) = context.bury(other).await;
    let of = |targets: &[&str]| Selection::Event {
        id,
        targets: targets.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert_eq!(
        actions(context, of(&[]), ReplayMode::Resume).await,
        [(other, ReplayAction::Conflict)],
        "not in the config"
    );
    assert_eq!(
        actions(context, of(&[TARGET]), ReplayMode::Resume).await,
        [(one.delivery, ReplayAction::Skip)]
    );
    let answer = context.ledger().plan(of(&["nobody"]), ReplayMode::Resume, self::targets()).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    for unknown in [
        Selection::Letters(vec![LetterId::from_bytes([9; 16])]),
        Selection::Event { id: EventId::from_bytes(EventKind::Event, [9; 16]), targets: Vec::new() },
    ] {
        let answer = context.ledger().plan(unknown, ReplayMode::Resume, self::targets()).await;
        assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
    }
}

/// The same id again is the same job; later dead letters are not in it.
pub async fn a_job_is_made_once(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let new = new_job(all_failed(), ReplayMode::Resume);
    let ledger = context.ledger();
    let job = ledger.create(new.clone(), targets()).await.expect("a job can be made");
    assert_eq!((&job.new, job.state, job.counts.total, job.counts.pending), (&new, JobState::Running, 1, 1));
    context.dead().await;
    assert_eq!(ledger.create(new.clone(), targets()).await.expect("it is there"), job);
    assert_eq!(ledger.job(new.id).await.expect("it can be read"), Some(job));
    assert_eq!(ledger.running().await.expect("they can be listed"), [new.id]);
    let items = ledger.items(new.id, super::context::page(None, 10)).await.expect("they can be listed").items;
    assert_eq!(items.len(), 1);
    assert_eq!((items[0].delivery, items[0].letter), (delivery, Some(letter)));
    assert_eq!((items[0].state, items[0].new_event), (ItemState::Pending, None));
    // An empty job is done immediately.
    let empty = Selection::Failed { limit: 0, tenant: None, targets: Vec::new(), signature: None };
    let job = context.job(empty, ReplayMode::Resume).await;
    assert_eq!((job.state, job.counts.total), (JobState::Done, 0));
    let second = context.job(all_failed(), ReplayMode::Resume).await;
    let jobs = ledger.jobs(super::context::page(None, 2)).await.expect("they can be listed");
    let ids: Vec<_> = jobs.items.iter().map(|listed| listed.new.id).collect();
    assert_eq!(ids, [second.new.id, job.new.id], "the newest first");
    assert_eq!(ledger.job(JobId::from_bytes([9; 16])).await.expect("it can be read"), None);
}

/// An effect is not repeated without a reason.
pub async fn re_execute_needs_a_reason(context: &LedgerContext) {
    context.dead().await;
    for reason in [None, Some(String::new()), Some("  ".to_owned())] {
        let job = crate::replay::NewJob { reason, ..new_job(all_failed(), ReplayMode::ReExecute) };
        let answer = context.ledger().create(job, targets()).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }
    let idle = ReplayPace { concurrency: 0, ..ReplayPace::default() };
    let job = crate::replay::NewJob { pace: idle, ..new_job(all_failed(), ReplayMode::Resume) };
    assert!(matches!(context.ledger().create(job, targets()).await, Err(Error::Refused(_))));
}

/// Resume: the same delivery, the same epoch, so the same derived key.
pub async fn resume_delivers_under_the_same_epoch(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let job = context.job_of(&[letter], ReplayMode::Resume).await.new.id;
    let released = context.release(job).await;
    assert_eq!((released.counts.released, released.counts.pending), (1, 0));
    assert_eq!(context.state(delivery).await, DeliveryState::Replaying);
    let work = context.take_one().await;
    assert_eq!((work.holding.delivery, work.epoch, work.job), (delivery, 0, Some(job)));
    context.settle(work.holding, Settle::Done(fine())).await;
    let job = context.ledger().job(job).await.expect("it can be read").expect("it is there");
    assert_eq!((job.state, job.counts.replayed, job.counts.released), (JobState::Done, 1, 0));
    let items = context.ledger().items(job.new.id, super::context::page(None, 10)).await;
    assert_eq!(items.expect("they can be listed").items[0].state, ItemState::Replayed);
    let story = context.ledger().letter(letter).await.expect("it can be read").expect("it is there");
    assert_eq!(story.letter.status, Status::Replayed);
    let jobs: Vec<_> = story.attempts.iter().map(|attempt| attempt.job).collect();
    assert_eq!(
        jobs,
        [None, Some(job.new.id)],
        "the attempts before and after the replay, and who wanted them"
    );
}

/// Resume: a delivery that was completed meanwhile is skipped and resolved, one in progress is left.
pub async fn resume_skips_what_was_completed(context: &LedgerContext) {
    let (_, one) = context.dead().await;
    let (_, two) = context.dead().await;
    let late = context.job_of(&[one, two], ReplayMode::Resume).await.new.id;
    let early = context.job_of(&[one, two], ReplayMode::Resume).await.new.id;
    context.release(early).await;
    let taken = context.take(10).await;
    context.settle(taken[0].holding, Settle::Done(fine())).await;
    let job = context.release(late).await;
    assert_eq!((job.counts.skipped_completed, job.counts.skipped_inflight), (1, 1));
    assert_eq!((job.counts.released, job.state), (0, JobState::Done));
    assert_eq!(context.take(10).await, [], "nothing is sent twice");
    context.settle(taken[1].holding, Settle::Done(fine())).await;
    let again = context.job_of(&[one, two], ReplayMode::Resume).await;
    assert_eq!((again.counts.skipped_completed, again.state), (2, JobState::Done));
}

/// Re-execute: the same delivery in the next epoch, so another derived key.
pub async fn re_execute_raises_the_epoch(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let job = context.job_of(&[letter], ReplayMode::ReExecute).await.new.id;
    context.release(job).await;
    let work = context.take_one().await;
    assert_eq!((work.holding.delivery, work.epoch), (delivery, 1));
    let (_, again) = context.bury(work.holding).await;
    assert_eq!(again, letter, "the same letter");
    let job = context.job_of(&[letter], ReplayMode::ReExecute).await.new.id;
    context.release(job).await;
    assert_eq!(context.take_one().await.epoch, 2);
    assert_eq!(context.told(delivery).await.delivery.epoch, 2);
}

/// Re-execute of a completed delivery: it stays done, and another delivery repeats the effect.
pub async fn re_execute_repeats_what_was_done(context: &LedgerContext) {
    let (event, done, _) = context.bring_to(DeliveryState::Done).await;
    let selection = Selection::Event { id: event, targets: targets() };
    let job = context.job(selection, ReplayMode::ReExecute).await.new.id;
    context.release(job).await;
    assert_eq!(context.state(done).await, DeliveryState::Done);
    let work = context.take_one().await;
    assert_eq!((work.event, work.epoch, work.job), (event, 1, Some(job)));
    assert_ne!(work.holding.delivery, done);
    context.settle(work.holding, Settle::Done(fine())).await;
    assert_eq!(context.counts(job).await.replayed, 1);
    assert_eq!(context.ledger().deliveries_of(event).await.expect("they can be read").len(), 2);
}

/// As-new: a new event with its own key; the first delivery is unchanged.
pub async fn as_new_is_an_event_of_its_own(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    let of = context.told(delivery).await.event.new;
    let job = context.job_of(&[letter], ReplayMode::AsNew).await.new.id;
    let released = context.release(job).await;
    assert_eq!(released.counts.released, 1);
    assert_eq!(
        (context.state(delivery).await, context.letter(letter).await.status),
        (DeliveryState::Dlq, Status::Replaying)
    );
    let work = context.take_one().await;
    assert_ne!(work.event, of.id);
    assert_eq!((work.event.kind(), &work.payload, work.job), (of.id.kind(), &of.payload, Some(job)));
    let items =
        context.ledger().items(job, super::context::page(None, 10)).await.expect("they can be listed").items;
    assert_eq!((items[0].state, items[0].new_event), (ItemState::Released, Some(work.event)));
    let new = context.ledger().event(work.event).await.expect("it can be read").expect("it is there").new;
    assert_eq!(new.origin, Origin::Replay { of: of.id });
    assert_eq!((new.targets, new.tenant, new.event_type), (targets(), of.tenant, of.event_type));
    let key = new.dedupe.expect("it has a key of its own");
    let found = context.ledger().find(key.id).await.expect("it can be looked for");
    assert_eq!(found.live().map(|holder| holder.event), Some(work.event));
    context.settle(work.holding, Settle::Done(fine())).await;
    assert_eq!(
        (context.state(delivery).await, context.letter(letter).await.status),
        (DeliveryState::Dlq, Status::Replayed)
    );
    assert_eq!(context.counts(job).await.replayed, 1);
}

/// As-new that fails: one dead letter is pending, not two.
pub async fn as_new_that_fails_carries_the_letter_on(context: &LedgerContext) {
    let (_, letter) = context.dead().await;
    let job = context.job_of(&[letter], ReplayMode::AsNew).await.new.id;
    context.release(job).await;
    let held = context.take_one().await.holding;
    let (_, copy) = context.bury(held).await;
    assert_ne!(copy, letter);
    assert_eq!(context.counts(job).await.failed_again, 1);
    let story = context.ledger().letter(letter).await.expect("it can be read").expect("it is there");
    assert_eq!((story.letter.status, story.copies), (Status::Discarded, vec![copy]));
    let copy = context.letter(copy).await;
    assert_eq!((copy.status, copy.copy_of), (Status::Pending, Some(letter)));
    let plan =
        context.ledger().plan(all_failed(), ReplayMode::Resume, targets()).await.expect("it can be planned");
    assert_eq!(plan.iter().map(|planned| planned.letter).collect::<Vec<_>>(), [Some(copy.id)]);
}

/// A replay counts its own attempts; the attempts before it are stored too.
pub async fn a_replay_counts_its_own_attempts(context: &LedgerContext) {
    context.publish().await;
    for _ in 0..2 {
        let held = context.take_one().await.holding;
        context.settle(held, Settle::Retry(failed("it is down"), std::time::Duration::ZERO)).await;
    }
    let held = context.take_one().await.holding;
    let (delivery, letter) = context.bury(held).await;
    assert_eq!(context.letter(letter).await.attempts, 3);
    let job = context.job_of(&[letter], ReplayMode::Resume).await.new.id;
    context.release(job).await;
    let work = context.take_one().await;
    assert_eq!((work.attempt, work.crashes), (1, 0));
    context.settle(work.holding, Settle::Retry(failed("still"), std::time::Duration::ZERO)).await;
    assert_eq!(context.counts(job).await.released, 1, "not ended yet");
    let work = context.take_one().await;
    assert_eq!((work.attempt, work.job), (2, Some(job)));
    context.bury(work.holding).await;
    let counts = context.counts(job).await;
    assert_eq!((counts.failed_again, counts.released), (1, 0));
    let told = context.told(delivery).await;
    assert_eq!((told.delivery.attempts, told.attempts.len()), (2, 5));
    let letter = context.letter(letter).await;
    assert_eq!((letter.attempts, letter.failed_replays, letter.status), (5, 1, Status::Pending));
}

/// A dead letter whose replays fail repeatedly waits for a person.
pub async fn failed_replays_park_a_letter(context: &LedgerContext) {
    let (delivery, letter) = context.dead().await;
    for round in 1..=PARKED_AFTER {
        let job = context.job_of(&[letter], ReplayMode::Resume).await.new.id;
        context.release(job).await;
        let held = context.take_one().await.holding;
        let word = Settle::Bury(failed(&format!("round {round} is lost")), Cause::NonRetryable);
        context.settle(held, word).await;
        let kept = context.letter(letter).await;
        let expected = if round == PARKED_AFTER { Status::Parked } else { Status::Pending };
        assert_eq!((kept.status, kept.failed_replays), (expected, round));
        assert_eq!((kept.cause, kept.error), (Cause::NonRetryable, format!("round {round} is lost")));
    }
    assert_eq!(actions(context, all_failed(), ReplayMode::Resume).await, [], "not with the others");
    assert_eq!(
        actions(context, Selection::Letters(vec![letter]), ReplayMode::Resume).await,
        [(delivery, ReplayAction::Run)]
    );
    context.ledger().restore(letter, line("restore", &letter)).await.expect("it can be taken back");
    let kept = context.letter(letter).await;
    assert_eq!((kept.status, kept.failed_replays), (Status::Pending, 0));
    let job = context.job(all_failed(), ReplayMode::Resume).await.new.id;
    context.release(job).await;
    let held = context.take_one().await.holding;
    context.settle(held, Settle::Done(fine())).await;
    assert_eq!(context.letter(letter).await.status, Status::Replayed);
}

/// A replay delivers it although its time limit had passed.
pub async fn a_replay_of_an_expired_one_is_not_expired(context: &LedgerContext) {
    context.accept(NewEvent { deliver_within: Some(SHORT), ..event(TARGET) }).await;
    context.pass(SHORT).await;
    let work = context.take_one().await;
    assert!(work.expired);
    context.settle(work.holding, Settle::Bury(failed("too late"), Cause::Expired)).await;
    let letter = context.told(work.holding.delivery).await.delivery.letter.expect("it has a letter");
    assert_eq!(context.letter(letter).await.cause, Cause::Expired);
    let job = context.job_of(&[letter], ReplayMode::Resume).await.new.id;
    context.release(job).await;
    let work = context.take_one().await;
    assert!(!work.expired);
    let renewed = context.ledger().renew(vec![work.holding], LONG).await.expect("it can be renewed");
    assert_eq!(renewed, [crate::delivery::LeaseResult::Kept]);
}
