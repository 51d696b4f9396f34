//! The loop over a fake ledger. The tests of real ledgers are in `tests/it`.

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::secret::Secret;
use semel_client::retry::{Destinations, Limits, Retry};

use self::fake::Fake;
use super::{Silent, Stopped, Worker, WorkerSettings};
use crate::delivery::{AttemptClass, Settle};
use crate::letter::Cause;
use crate::target::{DeliveryOutcome, EventTypes, Handler, Policy, TargetRegistry, Targets};

const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> WorkerSettings {
    WorkerSettings { name: "w".into(), lease: Duration::from_secs(30), in_all: 64 }
}

fn quick() -> Policy {
    Policy { retry: Retry::default().base(Duration::from_millis(1)), ..Policy::default() }
}

fn targets(handler: Handler, policy: Policy, limits: Limits) -> Targets {
    let destinations = Destinations::new(limits);
    Targets::new().with("t", Arc::new(handler), EventTypes::all(), policy, &destinations).unwrap()
}

fn start(ledger: &Arc<Fake>, targets: Targets) -> Worker {
    start_with(ledger, targets, settings().lease)
}

fn start_with(ledger: &Arc<Fake>, targets: Targets, lease: Duration) -> Worker {
    let secret = Arc::new(Secret::from_bytes([1; 32]));
    let ledger = Arc::clone(ledger) as Arc<dyn crate::ledger::Working>;
    let settings = WorkerSettings { lease, ..settings() };
    Worker::start(ledger, TargetRegistry::new(targets), secret, settings, Arc::new(Silent)).unwrap()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

#[tokio::test]
async fn what_is_due_is_delivered_and_written() {
    let ledger = Arc::new(Fake::default());
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let handler = Handler::new(move |call| {
        seen.lock().push(call.key().to_string());
        async { DeliveryOutcome::done() }
    });
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add("t", 100);
    until("all are done", || ledger.count(|settle| matches!(settle, Settle::Done(_))) == 100).await;
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
    let mut keys = keys.lock().clone();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 100);
    assert!(ledger.settle_calls() <= 100);
}

// Takes and settlements are batched while the ledger is busy.
#[tokio::test]
async fn a_slow_ledger_gets_few_large_calls() {
    let ledger = Arc::new(Fake::slow(Duration::from_millis(5)));
    let worker =
        start(&ledger, targets(Handler::new(async |_| DeliveryOutcome::done()), quick(), Limits::default()));
    ledger.add("t", 1_000);
    until("all are done", || ledger.settled() == 1_000).await;
    assert!(ledger.settle_calls() < 300, "{} calls", ledger.settle_calls());
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}

// Ambiguous settlements are repeated; the work is not.
#[tokio::test]
async fn an_unknown_settlement_is_repeated_not_the_work() {
    let ledger = Arc::new(Fake::default());
    ledger.fail_settles(3);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = Handler::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { DeliveryOutcome::done() }
    });
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add("t", 1);
    until("it is written", || ledger.settled() == 1).await;
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_panic_is_an_attempt_of_which_nobody_knows() {
    let ledger = Arc::new(Fake::default());
    let handler = Handler::new(async |call| {
        assert!(call.work().attempt > 1, "on purpose");
        DeliveryOutcome::done()
    });
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add("t", 1);
    let unknown =
        |settle: &Settle| matches!(settle, Settle::Retry(ending, _) if ending.class == AttemptClass::Unknown);
    until("it is tried again and done", || {
        ledger.count(unknown) == 1 && ledger.count(|settle| matches!(settle, Settle::Done(_))) == 1
    })
    .await;
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}

#[tokio::test]
async fn what_takes_too_long_is_cut_and_tried_again() {
    let ledger = Arc::new(Fake::default());
    let handler = Handler::new(async |call| {
        if call.work().attempt == 1 {
            std::future::pending::<()>().await;
        }
        DeliveryOutcome::done()
    });
    let policy = Policy { timeout: Duration::from_millis(50), ..quick() };
    let worker = start(&ledger, targets(handler, policy, Limits::default()));
    ledger.add("t", 1);
    until("it is done", || ledger.count(|settle| matches!(settle, Settle::Done(_))) == 1).await;
    drop(worker);
}

// While the breaker is open nothing is taken, and no attempt is used.
#[tokio::test]
async fn an_open_breaker_burns_no_attempts() {
    let ledger = Arc::new(Fake::default());
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = Handler::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { DeliveryOutcome::retry("down") }
    });
    let limits = Limits { rest: Duration::from_secs(3_600), failure_calls: 10, ..Limits::default() };
    let policy = Policy { concurrency: 4, ..quick() };
    let worker = start(&ledger, targets(handler, policy, limits));
    ledger.add("t", 500);
    until("the breaker is open", || calls.load(Ordering::SeqCst) >= 10).await;
    until("nothing is in hand", || worker.in_hand() == 0).await;
    let (calls_then, taken_then) = (calls.load(Ordering::SeqCst), ledger.taken());
    assert!(calls_then < 10 + 2 * 4, "{calls_then}");
    ledger.add("t", 100);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(calls.load(Ordering::SeqCst), calls_then);
    assert_eq!(ledger.taken(), taken_then);
    drop(worker);
}

// The breaker opens in the middle of a round. The delivery waits, and then makes the rest of that round and the next
// one: waiting uses up nothing.
#[tokio::test]
async fn an_open_breaker_uses_up_no_round() {
    let ledger = Arc::new(Fake::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let handler = Handler::new(move |call| {
        told.lock().push((call.work().attempt, call.max_attempts()));
        async { DeliveryOutcome::retry("down") }
    });
    // It opens with the second call, and every failed probe opens it again.
    let pause = Duration::from_millis(20);
    let limits = Limits { failure_calls: 2, rest: pause, longest_rest: pause, ..Limits::default() };
    let policy = Policy { schedule: vec![pause], ..quick() };
    let worker = start(&ledger, targets(handler, policy, limits));
    ledger.add("t", 1);
    let exhausted = |settle: &Settle| matches!(settle, Settle::Bury(_, Cause::Exhausted));
    until("both rounds have failed", || ledger.count(exhausted) == 1).await;
    assert_eq!(*seen.lock(), [1, 2, 3, 4, 5, 6].map(|attempt| (attempt, 6)));
    let between = |settle: &Settle| matches!(settle, Settle::Retry(_, delay) if *delay >= pause);
    assert_eq!(ledger.count(between), 1, "one pause between two rounds");
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}

#[tokio::test]
async fn no_more_than_its_concurrency_is_under_way() {
    let ledger = Arc::new(Fake::default());
    let running = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let counted = Arc::clone(&running);
    let handler = Handler::new(move |_| {
        let counted = Arc::clone(&counted);
        async move {
            let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
            counted.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            counted.0.fetch_sub(1, Ordering::SeqCst);
            DeliveryOutcome::done()
        }
    });
    let worker = start(&ledger, targets(handler, Policy { concurrency: 3, ..quick() }, Limits::default()));
    ledger.add("t", 60);
    until("all are done", || ledger.settled() == 60).await;
    assert_eq!(running.1.load(Ordering::SeqCst), 3);
    drop(worker);
}

// Sent deliveries end, and nothing more is taken.
#[tokio::test]
async fn a_stop_waits_for_what_was_sent() {
    let ledger = Arc::new(Fake::default());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let handler = Handler::new(move |_| {
        let gate = Arc::clone(&closed);
        async move {
            let _open = gate.acquire().await;
            DeliveryOutcome::done()
        }
    });
    let worker = start(&ledger, targets(handler, Policy { concurrency: 2, ..quick() }, Limits::default()));
    ledger.add("t", 10);
    until("two are in progress", || worker.in_hand() == 2).await;
    let stopping = tokio::spawn(worker.stop(PATIENCE));
    tokio::task::yield_now().await;
    gate.add_permits(100);
    assert_eq!(stopping.await.unwrap(), Stopped::Drained);
    assert_eq!((ledger.settled(), ledger.waiting()), (2, 8));
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let ledger = Arc::new(Fake::default());
    let handler = Handler::new(async |_| std::future::pending::<DeliveryOutcome>().await);
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add("t", 1);
    until("it is in progress", || worker.in_hand() == 1).await;
    assert_eq!(worker.stop(Duration::from_millis(20)).await, Stopped::Left(1));
}

// A delivery whose workers crashed repeatedly becomes a dead letter without being sent.
#[tokio::test]
async fn poison_and_what_expired_are_never_sent() {
    let ledger = Arc::new(Fake::default());
    let handler = Handler::new(async |_| panic!("it is not to be sent"));
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add_with("t", |work| work.crashes = 5);
    ledger.add_with("t", |work| work.expired = true);
    let buried = |cause| ledger.count(|settle| matches!(settle, Settle::Bury(_, found) if *found == cause));
    until("both are set aside", || buried(Cause::Poison) == 1 && buried(Cause::Expired) == 1).await;
    drop(worker);
}

// Heartbeats continue while every thread of the runtime is busy.
#[test]
fn a_busy_runtime_does_not_lose_leases() {
    let ledger = Arc::new(Fake::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = Arc::clone(&ledger);
    let handler = Handler::new(move |_| {
        let seen = Arc::clone(&seen);
        async move {
            // Blocks the only thread until the lease was renewed twice, or too long has passed.
            let _ = semel_testbed::wait::until("two renewals", PATIENCE, || seen.renewals() >= 2);
            DeliveryOutcome::done()
        }
    });
    runtime.block_on(async {
        let lease = WorkerSettings { lease: Duration::from_millis(300), ..settings() };
        let registry = TargetRegistry::new(targets(handler, quick(), Limits::default()));
        let secret = Arc::new(Secret::from_bytes([1; 32]));
        let working = Arc::clone(&ledger) as Arc<dyn crate::ledger::Working>;
        let worker = Worker::start(working, registry, secret, lease, Arc::new(Silent)).unwrap();
        ledger.add("t", 1);
        until("it is done", || ledger.settled() == 1).await;
        assert!(ledger.renewals() >= 2);
        drop(worker);
    });
}

// The worker pauses between a take and its answer. Another worker has the delivery when it continues: it sends
// nothing.
#[tokio::test]
async fn what_comes_after_its_lease_is_not_sent() {
    let ledger = Arc::new(Fake::default());
    let sent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&sent);
    let handler = Handler::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { DeliveryOutcome::done() }
    });
    let lease = Duration::from_millis(200);
    let worker = start_with(&ledger, targets(handler, quick(), Limits::default()), lease);
    ledger.hold_answers();
    let taken = tokio::time::Instant::now();
    ledger.add("t", 3);
    until("they are taken", || ledger.taken() == 3).await;
    ledger.lose_all();
    tokio::time::sleep_until(taken + lease + Duration::from_millis(50)).await;
    ledger.release_answers();
    until("they are given up", || ledger.settle_calls() > 0 && worker.in_hand() == 0).await;
    assert_eq!(sent.load(Ordering::SeqCst), 0);
    assert_eq!((ledger.settled(), ledger.waiting()), (0, 0), "nothing is written of what is another's");
}

// As above, but no other worker has taken it: it is given back without an attempt, and then made.
#[tokio::test]
async fn what_is_given_up_and_nobody_took_is_made_later() {
    let ledger = Arc::new(Fake::default());
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&attempts);
    let handler = Handler::new(move |call| {
        seen.lock().push(call.work().attempt);
        async { DeliveryOutcome::done() }
    });
    let lease = Duration::from_millis(200);
    let worker = start_with(&ledger, targets(handler, quick(), Limits::default()), lease);
    ledger.hold_answers();
    let taken = tokio::time::Instant::now();
    ledger.add("t", 1);
    until("it is taken", || ledger.taken() == 1).await;
    tokio::time::sleep_until(taken + lease + Duration::from_millis(50)).await;
    ledger.release_answers();
    until("it is done", || ledger.count(|settle| matches!(settle, Settle::Done(_))) == 1).await;
    assert_eq!(ledger.count(|settle| matches!(settle, Settle::Defer(_))), 1);
    assert_eq!(*attempts.lock(), [1], "what was not sent is no attempt");
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}

// A handler that waits checks the lease again before it acts: a heartbeat has learnt that another worker has the
// delivery.
#[tokio::test]
async fn a_handler_is_told_when_its_lease_is_lost() {
    let ledger = Arc::new(Fake::default());
    let lost = Arc::clone(&ledger);
    let handler = Handler::new(move |call| {
        let lost = Arc::clone(&lost);
        async move {
            assert!(call.may_send() && !call.time_left().is_zero());
            lost.lose_all();
            until("the lease is lost", || !call.may_send()).await;
            assert_eq!(call.time_left(), Duration::ZERO);
            DeliveryOutcome::given_up()
        }
    });
    let lease = Duration::from_millis(300);
    let worker = start_with(&ledger, targets(handler, quick(), Limits::default()), lease);
    ledger.add("t", 1);
    until("it is given up", || ledger.settle_calls() == 1 && worker.in_hand() == 0).await;
    assert_eq!((ledger.settled(), ledger.taken()), (0, 1));
}

// Deliveries that were in progress when a process crashed twice are sent alone: the next crash is their own. Until
// its turn a suspect is given back, which is written before anything else is sent; between two turns the others have
// theirs.
#[tokio::test]
async fn suspects_are_sent_alone() {
    let ledger = Arc::new(Fake::default());
    let in_flight = Arc::new(AtomicU32::new(0));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (counted, told, of_handler) = (Arc::clone(&in_flight), Arc::clone(&seen), Arc::clone(&ledger));
    let handler = Handler::new(move |call| {
        let (counted, told, ledger) = (Arc::clone(&counted), Arc::clone(&told), Arc::clone(&of_handler));
        async move {
            let crashes = call.work().crashes;
            let beside = counted.fetch_add(1, Ordering::SeqCst);
            // The deliveries that the ledger would count as crashed if the process ended now.
            let held = ledger.held_by(|work| work.crashes >= 2);
            tokio::time::sleep(Duration::from_millis(5)).await;
            let joined = counted.fetch_sub(1, Ordering::SeqCst) - 1;
            told.lock().push((crashes, beside.max(joined), held));
            DeliveryOutcome::done()
        }
    });
    let policy = Policy { concurrency: 8, ..quick() };
    let worker = start(&ledger, targets(handler, policy, Limits::default()));
    let crashes = [0, 2, 0, 1, 3, 0, 4, 1, 2, 0, 0, 0];
    for crashes in crashes {
        ledger.push_with("t", |work| work.crashes = crashes);
    }
    ledger.wake();
    until("all are done", || ledger.count(|settle| matches!(settle, Settle::Done(_))) == crashes.len()).await;
    let seen = seen.lock().clone();
    for (crashes, beside, held) in &seen {
        if *crashes >= 2 {
            assert_eq!((*beside, *held), (0, 1), "it is alone: {seen:?}");
        } else {
            assert_eq!(*held, 0, "none of them is beside the others: {seen:?}");
        }
    }
    assert!(seen.iter().any(|(_, beside, _)| *beside > 2), "the others go side by side: {seen:?}");
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}

// A stop does not wait for the turn of a suspect.
#[tokio::test]
async fn a_stop_leaves_suspects_to_others() {
    let ledger = Arc::new(Fake::default());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let handler = Handler::new(move |call| {
        let gate = Arc::clone(&closed);
        async move {
            assert!(call.work().crashes < 2, "it is not its turn");
            let _open = gate.acquire().await;
            DeliveryOutcome::done()
        }
    });
    let worker = start(&ledger, targets(handler, quick(), Limits::default()));
    ledger.add("t", 1);
    until("one is in progress", || worker.in_hand() == 1).await;
    ledger.add_with("t", |work| work.crashes = 2);
    until("the suspect is given back", || ledger.count(|settle| matches!(settle, Settle::Defer(_))) == 1)
        .await;
    let stopping = tokio::spawn(worker.stop(PATIENCE));
    tokio::task::yield_now().await;
    gate.add_permits(1);
    assert_eq!(stopping.await.unwrap(), Stopped::Drained);
    assert_eq!((ledger.waiting(), ledger.held()), (1, 0));
}
