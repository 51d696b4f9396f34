use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::fingerprint::Fingerprint;
use crate::key::Hint;
use crate::outcome::Outcome;
use crate::record::{Begin, Force, Grant, Mode, NewClaim, Owner, Phase, Settlement, Terms, Win};
use crate::store::{MemoryStore, Snapshot};
use crate::time::ManualClock;

const HOUR: Duration = Duration::from_secs(3600);

fn id(number: u8) -> KeyId {
    KeyId::from_bytes([number; 16])
}

fn claim_in(mode: Mode, begin: Begin) -> Command {
    Command::Claim(NewClaim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([1; 32]),
        terms: Arc::new(Terms { mode, ..Terms::default() }),
        begin,
        hint: Hint::new("order-1"),
    })
}

fn claim() -> Command {
    claim_in(Mode::Marked, Begin::Later)
}

fn win(store: &MemoryStore, id: KeyId, command: &Command) -> Win {
    match store.apply_now(id, command) {
        Ruling::Won(win) => win,
        other => panic!("expected a win, got {other:?}"),
    }
}

fn accept(store: &MemoryStore, id: KeyId, command: &Command) {
    let ruling = store.apply_now(id, command);
    assert!(matches!(ruling, Ruling::Accepted { .. }), "{command:?}: {ruling:?}");
}

fn complete(store: &MemoryStore, id: KeyId, grant: Grant) {
    let outcome = Arc::new(Outcome::new("text", format!("{id}")).with_metadata("201"));
    let fingerprint = Fingerprint::from_bytes([1; 32]);
    accept(store, id, &Command::Complete { grant, fingerprint, outcome, retention: None });
}

fn run(store: &MemoryStore, number: u8) {
    let win = win(store, id(number), &claim());
    complete(store, id(number), win.grant);
}

/// A store and its clock, which shows the usual time and `ahead`.
fn store(ahead: Duration) -> (Arc<MemoryStore>, ManualClock) {
    let clock = ManualClock::default();
    clock.advance(ahead);
    (Arc::new(MemoryStore::with_clock(clock.clone())), clock)
}

async fn begin(from: &Arc<MemoryStore>, to: &Arc<MemoryStore>) -> Result<Transfer, Error> {
    from.secret(Secret::random()).await?;
    Transfer::begin(&**from, Arc::clone(to) as Arc<dyn TransferStore>, [None, None]).await
}

async fn get(store: &MemoryStore, id: KeyId) -> Snapshot {
    store.get(id).await.expect("memory does not fail").expect("the record is there")
}

/// One key in each phase, by number.
fn fill(store: &MemoryStore, clock: &ManualClock) {
    run(store, 1);
    let expired = Terms { retention: Duration::from_secs(30), grace: Duration::ZERO, ..Terms::default() };
    let Command::Claim(short) = claim() else { unreachable!("it is a claim") };
    let won = win(store, id(2), &Command::Claim(NewClaim { terms: Arc::new(expired), ..short }));
    complete(store, id(2), won.grant);
    win(store, id(3), &claim_in(Mode::Marked, Begin::WithClaim));
    clock.advance(Duration::from_secs(40));
    win(store, id(4), &claim());
    win(store, id(5), &claim_in(Mode::Marked, Begin::WithClaim));
    let bound = win(store, id(6), &claim());
    accept(store, id(6), &Command::Bind(bound.grant));
    let released = win(store, id(7), &claim());
    accept(store, id(7), &Command::Release(released.grant));
    run(store, 8);
    accept(store, id(8), &Command::Forget(Force::No));
    run(store, 9);
    accept(store, id(9), &Command::Reexecute);
    win(store, id(10), &claim_in(Mode::Rerun, Begin::WithClaim));
}

const PHASES: [Phase; 10] = [
    Phase::Done,
    Phase::Expired,
    Phase::InDoubt,
    Phase::Claimed,
    Phase::Begun,
    Phase::Bound,
    Phase::Vacant,
    Phase::Vacant,
    Phase::Bound,
    Phase::Begun,
];

#[tokio::test]
async fn every_kind_of_record_means_the_same_by_another_clock() {
    for ahead in [Duration::ZERO, HOUR, 48 * HOUR] {
        let ((from, clock), (to, _)) = (store(HOUR), store(ahead));
        fill(&from, &clock);
        let secret = from.secret(Secret::random()).await.unwrap();
        let mark = MarkId::of_session(b"session");
        from.raise_mark(mark, 7).await.unwrap();
        from.raise_fence_floor(Fence::new(42)).await.unwrap();

        let mut transfer = begin(&from, &to).await.unwrap();
        let pass = transfer.pass(&*from).await.unwrap();
        assert_eq!((pass.records, pass.changed, pass.in_progress), (10, 10, 3));
        let done = transfer.finish(&*from).await.unwrap();
        assert_eq!((done.records, done.marks, done.in_progress, done.in_doubt), (10, 1, 3, 1));
        for (number, phase) in (1..).zip(PHASES) {
            let (old, new) = (get(&from, id(number)).await, get(&to, id(number)).await);
            assert_eq!((new.phase(), old.phase()), (phase, phase), "key {number}, {ahead:?}");
            assert_eq!(new.record.lease_until.left(new.now), old.record.lease_until.left(old.now));
            assert_eq!(new.record.expires_at.left(new.now), old.record.expires_at.left(old.now));
            let times = |record: Record| Record {
                claimed_at: Timestamp::default(),
                changed_at: Timestamp::default(),
                lease_until: Timestamp::default(),
                expires_at: Timestamp::default(),
                forget_at: Timestamp::default(),
                ..record
            };
            assert_eq!(times(new.record), times(old.record), "key {number}");
        }
        assert_eq!(to.read_mark(mark).await.unwrap(), Some(7));
        assert_eq!(to.fence_floor().await.unwrap(), Fence::new(42));
        assert_eq!(to.stored_secret().await.unwrap().unwrap().expose(), secret.expose());
        assert_eq!(to.state().await.unwrap(), TransferState::Open);
    }
}

#[tokio::test]
async fn a_held_claim_ends_on_the_new_store_as_on_the_old_one() {
    let ((from, clock), (to, new_clock)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let (claimed, begun) = (get(&from, id(4)).await.record, get(&from, id(5)).await.record);
    let mut transfer = begin(&from, &to).await.unwrap();
    transfer.pass(&*from).await.unwrap();
    transfer.finish(&*from).await.unwrap();
    assert!(matches!(to.apply_now(id(4), &claim()), Ruling::Busy { .. }));
    // Its owner may end it there.
    complete(&to, id(10), {
        let record = get(&to, id(10)).await.record;
        Grant::from_parts(record.owner, record.fence)
    });
    new_clock.advance(Terms::default().lease);
    let taken_over = win(&to, id(4), &claim());
    assert!(taken_over.grant.fence() > claimed.fence);
    assert_eq!(taken_over.attempt, 2);
    assert_eq!(to.apply_now(id(5), &claim()), Ruling::InDoubt);
    accept(&to, id(5), &Command::Settle(Settlement::Run));
    assert!(get(&to, id(5)).await.record.fence > begun.fence);
}

#[tokio::test]
async fn later_passes_copy_changes_only() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let mut transfer = begin(&from, &to).await.unwrap();
    transfer.pass(&*from).await.unwrap();
    run(&from, 11);
    let begun = get(&from, id(5)).await.record;
    complete(&from, id(5), Grant::from_parts(begun.owner, begun.fence));
    let pass = transfer.pass(&*from).await.unwrap();
    assert_eq!((pass.records, pass.changed, pass.in_progress), (11, 2, 2));
    assert_eq!(transfer.pass(&*from).await.unwrap().changed, 0);
    transfer.finish(&*from).await.unwrap();
    assert_eq!((get(&to, id(5)).await.phase(), get(&to, id(11)).await.phase()), (Phase::Done, Phase::Done));
}

#[tokio::test]
async fn only_one_of_the_two_stores_grants_claims() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let mut transfer = begin(&from, &to).await.unwrap();
    let refused = to.apply(id(20), claim()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Moved);
    assert!(refused.to_string().contains("being filled"), "{refused}");

    let moved = TransferState::Moved { run: transfer.run(), to: to.address() };
    assert!(from.change_state(&TransferState::Open, &moved).await.unwrap());
    assert!(!from.change_state(&TransferState::Open, &moved).await.unwrap(), "it has another state by now");
    let refused = from.apply(id(20), claim()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Moved);
    let held = get(&from, id(4)).await.record;
    let grant = Grant::from_parts(held.owner, held.fence);
    assert_eq!(from.apply(id(4), Command::Begin(grant)).await.unwrap_err().kind(), ErrorKind::Moved);
    assert!(
        matches!(from.apply(id(1), claim()).await, Ok(Ruling::Replay { .. })),
        "stored answers are given"
    );
    assert!(matches!(from.apply(id(4), claim()).await, Ok(Ruling::Busy { .. })));
    assert!(matches!(from.apply(id(4), Command::Release(grant)).await, Ok(Ruling::Accepted { .. })));
    let mark = MarkId::of_session(b"session");
    assert_eq!(from.raise_mark(mark, 1).await.unwrap_err().kind(), ErrorKind::Moved);

    transfer.pass(&*from).await.unwrap();
    transfer.finish(&*from).await.unwrap();
    assert!(matches!(to.apply(id(20), claim()).await, Ok(Ruling::Won(_))));
}

#[tokio::test]
async fn a_copy_that_was_killed_is_repeated_and_the_first_can_do_no_more_harm() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let mut first = begin(&from, &to).await.unwrap();
    first.pass(&*from).await.unwrap();
    run(&from, 11);
    let mut second = begin(&from, &to).await.unwrap();
    second.pass(&*from).await.unwrap();
    let late = first.pass(&*from).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Moved);
    second.finish(&*from).await.unwrap();
    assert_eq!(first.finish(&*from).await.unwrap_err().kind(), ErrorKind::Moved);
    assert_eq!(get(&to, id(11)).await.phase(), Phase::Done);
}

#[tokio::test]
async fn a_copy_back_replaces_what_the_first_store_had() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let mut there = begin(&from, &to).await.unwrap();
    let moved = TransferState::Moved { run: there.run(), to: to.address() };
    from.change_state(&TransferState::Open, &moved).await.unwrap();
    there.pass(&*from).await.unwrap();
    there.finish(&*from).await.unwrap();
    // A late owner completes on the old store; the new one runs another key and forgets one.
    let begun = get(&from, id(10)).await.record;
    complete(&from, id(10), Grant::from_parts(begun.owner, begun.fence));
    run(&to, 11);
    accept(&to, id(1), &Command::Forget(Force::No));

    let mut back = begin(&to, &from).await.unwrap();
    back.pass(&*to).await.unwrap();
    back.finish(&*to).await.unwrap();
    assert_eq!(get(&from, id(11)).await.phase(), Phase::Done);
    assert_eq!(get(&from, id(1)).await.phase(), Phase::Vacant);
    assert_eq!(get(&from, id(10)).await.phase(), Phase::Done, "the end of a claim is not undone");
    assert!(matches!(from.apply(id(20), claim()).await, Ok(Ruling::Won(_))));
}

#[tokio::test]
async fn a_new_store_with_a_later_claim_is_refused() {
    let ((from, clock), (to, _)) = (store(HOUR), store(48 * HOUR));
    fill(&from, &clock);
    let mut transfer = begin(&from, &to).await.unwrap();
    run(&to, 1);
    let refused = transfer.pass(&*from).await.unwrap_err();
    assert!(refused.to_string().contains("has later records"), "{refused}");
}

#[tokio::test]
async fn what_does_not_fit_together_is_refused() {
    let refusal = async |from: &Arc<MemoryStore>, to: &Arc<MemoryStore>| {
        let error = begin(from, to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Setup, "{error}");
        error.to_string()
    };
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    let refused = refusal(&from, &to).await;
    assert!(refused.contains("has no records"), "{refused}");
    fill(&from, &clock);
    let refused = refusal(&from, &from).await;
    assert!(refused.contains("to itself"), "{refused}");

    let (used, _) = store(Duration::ZERO);
    run(&used, 99);
    let refused = refusal(&from, &used).await;
    assert!(refused.contains("has records already"), "{refused}");

    from.secret(Secret::random()).await.unwrap();
    let (foreign, _) = store(Duration::ZERO);
    foreign.secret(Secret::random()).await.unwrap();
    let refused = refusal(&from, &foreign).await;
    assert!(refused.contains("another secret"), "{refused}");
    assert_eq!(foreign.state().await.unwrap(), TransferState::Open, "nothing was changed");

    let (other, other_clock) = store(Duration::ZERO);
    fill(&other, &other_clock);
    let secret = from.stored_secret().await.unwrap().unwrap();
    other.secret(secret).await.unwrap();
    begin(&other, &to).await.unwrap();
    let refused = refusal(&from, &to).await;
    assert!(refused.contains("filled in part from"), "{refused}");
}

#[tokio::test]
async fn a_configured_secret_counts_like_a_stored_one() {
    let (ours, theirs) = (Secret::random(), Secret::random());
    let cases = [
        ([Some(&ours), Some(&ours)], None, true),
        ([Some(&ours), Some(&theirs)], None, false),
        ([Some(&ours), None], Some(&theirs), false),
        ([Some(&ours), None], Some(&ours), true),
        ([Some(&ours), None], None, false),
        ([None, Some(&ours)], None, false),
        ([None, None], Some(&theirs), false),
        ([None, None], None, false),
    ];
    for (configured, stored, fits) in cases {
        let ((from, _), (to, _)) = (store(Duration::ZERO), store(Duration::ZERO));
        run(&from, 1);
        if let Some(stored) = stored {
            to.secret(stored.clone()).await.unwrap();
        }
        let begun = Transfer::begin(&*from, to, configured.map(|secret| secret.cloned())).await;
        assert_eq!(begun.is_ok(), fits, "{begun:?}");
    }
}

#[tokio::test]
async fn a_new_store_that_was_used_stays_closed() {
    let ((from, clock), (to, _)) = (store(HOUR), store(48 * HOUR));
    fill(&from, &clock);
    let mut transfer = begin(&from, &to).await.unwrap();
    transfer.pass(&*from).await.unwrap();
    run(&to, 99);
    let differs = transfer.finish(&*from).await.unwrap_err();
    assert!(
        differs.to_string().contains("0 records are different, 0 are missing, 1 are only there"),
        "{differs}"
    );
    assert!(matches!(to.state().await.unwrap(), TransferState::Filling { .. }));
}

#[test]
fn a_record_that_knows_more_stays() {
    let (store, _) = store(HOUR);
    let steps = [win(&store, id(1), &claim()), win(&store, id(2), &claim_in(Mode::Marked, Begin::WithClaim))];
    let record = |number| {
        let shard = store.scan(Scan { phase: None, after: None, limit: 10 });
        let page = crate::block_on::block_on(shard).expect("memory does not fail");
        page.items.into_iter().find(|item| item.id == id(number)).expect("it is there").record
    };
    let claimed = record(1);
    let begun = Record { state: State::Begun, ..claimed.clone() };
    let vacant = Record { state: State::Vacant, ..claimed.clone() };
    let later = Record { fence: record(2).fence.max(Fence::new(claimed.fence.get() + 1)), ..claimed.clone() };
    let order = [&claimed, &begun, &vacant, &later];
    for (at, one) in order.iter().enumerate() {
        for (number, other) in order.iter().enumerate() {
            assert_eq!(is_ahead(one, other), at > number, "{at} and {number}");
        }
    }
    assert_eq!(steps.len(), 2);
}

/// Cause: a pass after the removal of a stub does not see the key at all. Consequence: the new store kept the outcome of
/// a forgotten key. Fix: records that the last pass did not find are removed.
#[tokio::test]
async fn a_key_that_was_forgotten_and_swept_between_passes_is_forgotten_on_the_new_store() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    run(&from, 11);
    let mut transfer = begin(&from, &to).await.unwrap();
    transfer.pass(&*from).await.unwrap();
    let fence = get(&from, id(11)).await.record.fence;
    accept(&from, id(11), &Command::Forget(Force::No));
    let stub_expires = Duration::from_secs(3601);
    clock.advance(stub_expires);
    while from.sweep(100).await.unwrap().removed > 0 {}
    assert!(from.get(id(11)).await.unwrap().is_none(), "the sweep removed the stub");

    transfer.pass(&*from).await.unwrap();
    transfer.finish(&*from).await.unwrap();
    assert_eq!(get(&to, id(11)).await.phase(), Phase::Vacant);
    assert!(win(&to, id(11), &claim()).grant.fence() > fence);
    assert_eq!(get(&to, id(1)).await.phase(), Phase::Done, "other keys are not touched");
}

/// A store that has fewer records without a reason lost them: their keys must not run again on the new store.
#[tokio::test]
async fn records_that_the_old_store_lost_are_not_taken_for_forgotten_ones() {
    let ((from, clock), (to, _)) = (store(HOUR), store(Duration::ZERO));
    fill(&from, &clock);
    let mut transfer = begin(&from, &to).await.unwrap();
    transfer.pass(&*from).await.unwrap();
    let (emptied, _) = store(HOUR);
    run(&emptied, 1);
    transfer.pass(&*emptied).await.unwrap();
    let refused = transfer.finish(&*emptied).await.unwrap_err();
    assert!(refused.to_string().contains("lost records during the copy"), "{refused}");
    assert_eq!(get(&to, id(9)).await.phase(), Phase::Bound);
    assert!(matches!(to.state().await.unwrap(), TransferState::Filling { .. }));
}
