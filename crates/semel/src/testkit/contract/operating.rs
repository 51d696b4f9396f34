//! Operators' commands: forget, settle, re-execute; and the invalidation of caches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::context::{Context, apply};
use super::expecting::{
    OTHER_PAYLOAD, accepted, ask, ask_and_begin, ask_otherwise, complete, lost, outcome, replayed, soon, won,
    writes,
};
use crate::key::KeyId;
use crate::record::{Command, Epoch, Force, Mode, NewClaim, Phase, Ruling, Settlement};
use crate::store::{Invalidate, Trust};
use crate::sync::Mutex;

/// A forgotten key is free again, for any payload.
pub async fn forget_takes_the_outcome_away(context: &Context) {
    let placed = context.place(Phase::Done).await;
    accepted(context.apply(placed.id, Command::Forget(Force::No)).await);
    assert_eq!(context.phase(placed.id).await, Phase::Vacant);
    if let Some(snapshot) = context.get(placed.id).await {
        assert_eq!(snapshot.record.outcome(snapshot.now), None, "the outcome is gone from the stub");
    }
    let next = context.win(placed.id, &ask_otherwise(*placed.claim.terms)).await;
    assert_eq!(next.attempt, 1);
    assert_eq!(context.record(placed.id).await.fingerprint, OTHER_PAYLOAD);
}

/// Forgetting preserves the fence and the epoch: the next claim is above both.
pub async fn forget_keeps_the_fence(context: &Context) {
    let placed = context.place(Phase::Done).await;
    accepted(context.apply(placed.id, Command::Reexecute).await);
    let raised = context.record(placed.id).await.fence;
    accepted(context.apply(placed.id, Command::Forget(Force::No)).await);
    let next = context.win(placed.id, &ask(*placed.claim.terms)).await;
    assert!(next.grant.fence() > raised);
    assert_eq!(next.epoch, Epoch::new(1), "a derived key is never used for two epochs");
}

/// A forced forget takes a claim away from its owner, whose later writes are refused.
pub async fn forced_forget_fences_the_owner_out(context: &Context) {
    for phase in [Phase::Claimed, Phase::Begun, Phase::Lapsed, Phase::InDoubt] {
        let placed = context.place(phase).await;
        assert_eq!(context.apply(placed.id, Command::Forget(Force::No)).await, Ruling::Refused { phase });
        accepted(context.apply(placed.id, Command::Forget(Force::Yes)).await);
        for command in writes(placed.grant, &outcome("late")) {
            assert_eq!(lost(context.apply(placed.id, command).await), None);
        }
        let next = context.win(placed.id, &ask(*placed.claim.terms)).await;
        assert!(next.grant.fence() > placed.grant.fence());
        lost(context.apply(placed.id, complete(placed.grant, &outcome("late"))).await);
    }
}

/// Settled as done: the outcome is given for the retention, also to the owner that comes back.
pub async fn settle_done_is_replayed(context: &Context) {
    let placed = context.place(Phase::InDoubt).await;
    let terms = *placed.claim.terms;
    accepted(context.apply(placed.id, Command::Settle(Settlement::Done(outcome("settled")))).await);
    let (shown, left) = replayed(context.ask(placed.id, &ask(terms)).await);
    assert_eq!(shown, outcome("settled"));
    context.expect_left(left, terms.retention + terms.grace);
    assert_eq!(context.ask(placed.id, &ask_otherwise(terms)).await, Ruling::Conflict);
    assert!(context.record(placed.id).await.fence > placed.grant.fence(), "settling raises the fence");
    let late = context.apply(placed.id, complete(placed.grant, &outcome("late"))).await;
    assert_eq!(lost(late), Some(outcome("settled")));
    let again = context.apply(placed.id, Command::Settle(Settlement::Run)).await;
    assert_eq!(again, Ruling::Refused { phase: Phase::Done }, "settled once");
}

/// Settled as not done: the same payload runs again, in the same epoch; the old owner cannot.
pub async fn settle_run_is_run_again(context: &Context) {
    let placed = context.place(Phase::InDoubt).await;
    let terms = *placed.claim.terms;
    accepted(context.apply(placed.id, Command::Settle(Settlement::Run)).await);
    let raised = context.record(placed.id).await.fence;
    assert!(raised > placed.grant.fence(), "settling raises the fence");
    assert_eq!(lost(context.apply(placed.id, complete(placed.grant, &outcome("late"))).await), None);
    assert_eq!(context.ask(placed.id, &ask_otherwise(terms)).await, Ruling::Conflict);
    let next = context.win(placed.id, &ask_and_begin(terms)).await;
    assert_eq!((next.attempt, next.epoch), (2, Epoch::default()));
    assert!(next.grant.fence() > raised);
    accepted(context.apply(placed.id, complete(next.grant, &outcome("run again"))).await);
}

/// An operator decided about an attempt that is over by now: neither settle nor forced forget touches the next one.
pub async fn operators_change_only_the_attempt_they_name(context: &Context) {
    let settle_run = |fence| Command::SettleAttempt(fence, Settlement::Run);
    let settle_done = |fence| Command::SettleAttempt(fence, Settlement::Done(outcome("settled")));
    let forget = |fence| Command::Forget(Force::Attempt(fence));
    for (command, phase) in
        [(settle_run as fn(_) -> _, Phase::Bound), (settle_done, Phase::Done), (forget, Phase::Vacant)]
    {
        let placed = context.place(Phase::InDoubt).await;
        let shown = context.record(placed.id).await;
        // Somebody else settles, and a retry is in doubt too.
        accepted(context.apply(placed.id, Command::Settle(Settlement::Run)).await);
        let retry = context.win(placed.id, &ask_and_begin(*placed.claim.terms)).await;
        accepted(context.apply(placed.id, Command::Abandon(retry.grant)).await);
        let before = context.record(placed.id).await;
        assert_eq!(lost(context.apply(placed.id, command(shown.fence)).await), None, "{phase:?}");
        assert_eq!(context.record(placed.id).await, before, "nothing was changed");
        assert_eq!(context.phase(placed.id).await, Phase::InDoubt);
        accepted(context.apply(placed.id, command(before.fence)).await);
        assert_eq!(context.phase(placed.id).await, phase);
        // Owners that come back are refused.
        for grant in [placed.grant, retry.grant] {
            lost(context.apply(placed.id, complete(grant, &outcome("late"))).await);
        }
    }
}

/// Re-execution opens a new epoch for the same payload; the outcome of the old one is gone.
pub async fn reexecute_opens_a_new_epoch(context: &Context) {
    let placed = context.place(Phase::Done).await;
    let (id, terms) = (placed.id, *placed.claim.terms);
    for epoch in 1..=3 {
        accepted(context.apply(id, Command::Reexecute).await);
        assert_eq!(context.phase(id).await, Phase::Bound);
        assert_eq!(context.ask(id, &ask_otherwise(terms)).await, Ruling::Conflict);
        assert_eq!(lost(context.apply(id, complete(placed.grant, &placed.outcome)).await), None);
        let next = context.win(id, &ask_and_begin(terms)).await;
        assert_eq!(next.epoch, Epoch::new(epoch));
        accepted(context.apply(id, complete(next.grant, &outcome(&format!("epoch {epoch}")))).await);
        let (shown, _) = replayed(context.ask(id, &ask(terms)).await);
        assert_eq!(shown, outcome(&format!("epoch {epoch}")));
    }
}

/// When a forget answers, every attached cache has been invalidated: none can answer from it any more.
pub async fn forget_cleans_caches_before_it_answers(context: &Context) {
    caches_are_cleaned(context, Command::Forget(Force::No)).await;
}

/// As for a forget, for a re-execution.
pub async fn reexecute_cleans_caches_before_it_answers(context: &Context) {
    caches_are_cleaned(context, Command::Reexecute).await;
}

/// A dropped cache causes no failure.
pub async fn gone_cache_is_no_trouble(context: &Context) {
    let stays = attach(context, 0).await;
    for _ in 0..3 {
        let cache = attach(context, 0).await;
        drop(cache);
    }
    let placed = context.place(Phase::Done).await;
    accepted(context.apply(placed.id, Command::Forget(Force::No)).await);
    assert_eq!(stays.told_of(placed.id), 1);
    won(context.ask(placed.id, &ask(*placed.claim.terms)).await);
}

/// Records its messages.
#[derive(Default)]
struct Cache {
    told: Mutex<Vec<KeyId>>,
    /// How often it lost its trust, and so had to drop everything.
    emptied: AtomicUsize,
    trust: Mutex<Option<Trust>>,
    trusted: tokio::sync::Notify,
}

impl Cache {
    fn told_of(&self, id: KeyId) -> usize {
        self.told.lock().iter().filter(|told| **told == id).count()
    }

    /// How often it had to drop the record: this one, or all of them, as in a process that was not heard for a while.
    fn dropped(&self, id: KeyId) -> usize {
        self.told_of(id) + self.emptied.load(Ordering::SeqCst)
    }
}

impl Invalidate for Cache {
    fn invalidate(&self, id: KeyId) {
        self.told.lock().push(id);
    }

    fn trust(&self, trust: Trust) {
        if trust == Trust::Unconfirmed {
            self.emptied.fetch_add(1, Ordering::SeqCst);
        }
        *self.trust.lock() = Some(trust);
        self.trusted.notify_one();
    }
}

/// Attaches a cache and waits until the store trusts it.
async fn attach(context: &Context, number: usize) -> Arc<Cache> {
    let cache = Arc::new(Cache::default());
    let weak: Weak<dyn Invalidate> = Arc::<Cache>::downgrade(&cache);
    context.handle(number).attach(weak);
    soon("the store's word that invalidations reach the cache", async {
        while *cache.trust.lock() != Some(Trust::Confirmed) {
            cache.trusted.notified().await;
        }
    })
    .await;
    cache
}

async fn caches_are_cleaned(context: &Context, command: Command) {
    let caches = [attach(context, 0).await, attach(context, 1).await];
    let claim: NewClaim = ask_and_begin(context.lasting(Mode::Marked));
    let placed = context.done(&claim, &outcome("kept")).await;
    for number in 0..2 {
        let store = context.handle(number);
        let already: Vec<usize> = caches.iter().map(|cache| cache.dropped(placed.id)).collect();
        accepted(apply(&*store, placed.id, command.clone()).await);
        for (cache, already) in caches.iter().zip(already) {
            assert!(cache.dropped(placed.id) > already, "{command:?} answered before a cache was told");
        }
        let next = context.win(placed.id, &ask_and_begin(*claim.terms)).await;
        accepted(context.apply(placed.id, complete(next.grant, &outcome("again"))).await);
    }
}
