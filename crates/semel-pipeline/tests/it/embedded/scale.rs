//! What a worker does costs the same however much is in the ledger.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use semel::store::EmbeddedStore;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::delivery::{AttemptClass, Ending, Settle};
use semel_pipeline::event::{NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{EmbeddedLedger, Intake as _, Take, Working as _};

fn event(tenant: &str, order_key: Option<&str>, delay: Duration) -> NewEvent {
    NewEvent {
        id: EventId::new(EventKind::Event, SystemClock.now()),
        tenant: tenant.to_owned(),
        event_type: "t".to_owned(),
        dedupe: None,
        payload: "{}".into(),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        order_key: order_key.map(str::to_owned),
        origin: Origin::Outbox,
        targets: vec!["crm".to_owned()],
        delay,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

/// CPU of this process.
fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).expect("time is spent forwards");
    Duration::new(seconds, u32::try_from(spent.tv_nsec).expect("nanoseconds of a second"))
}

/// CPU of taking and settling one delivery, with this number of each sort in the ledger that cannot be taken or wait.
async fn cost(rows: usize) -> Duration {
    let folder = super::folder();
    let store = Arc::new(EmbeddedStore::open(folder.path()).expect("the store can be opened"));
    let ledger = EmbeddedLedger::open(store).await.expect("the ledger can be opened");
    let hour = Duration::from_secs(3_600);
    let sorts: [&dyn Fn(usize) -> NewEvent; 4] = [
        // Behind one of their order key; not due; of many tenants and not due; of one tenant and due.
        &|_| event("ordered", Some("k"), Duration::ZERO),
        &|_| event("later", None, hour),
        &|number| event(&format!("tenant-{number}"), None, hour),
        &|_| event("backlog", None, Duration::ZERO),
    ];
    for sort in sorts {
        for from in (0..rows).step_by(1_000) {
            let events = (from..rows.min(from + 1_000)).map(sort).collect();
            ledger.accept(events).await.expect("they are accepted");
        }
    }
    let take =
        Take { worker: "w".to_owned(), targets: vec![("crm".to_owned(), 100)], limit: 20, lease: hour };
    let ending = Ending {
        class: AttemptClass::Success,
        status: None,
        error: String::new(),
        excerpt: String::new(),
        retry_after: None,
    };
    let mut rounds = Vec::new();
    for _ in 0..10 {
        let before = cpu();
        let taken = ledger.take(take.clone()).await.expect("work can be taken");
        assert_eq!(taken.len(), 20);
        let done = taken.into_iter().map(|work| (work.holding, Settle::Done(ending.clone()))).collect();
        ledger.settle(done).await.expect("they can be settled");
        rounds.push((cpu() - before) / 20);
    }
    rounds.sort();
    rounds[rounds.len() / 2]
}

#[tokio::test]
async fn a_full_ledger_is_as_fast_as_an_empty_one() {
    let full = std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0");
    let rows = if full { 250_000 } else { 8_000 };
    let (small, large) = (cost(300).await, cost(rows).await);
    println!("{small:?} with {} rows, {large:?} with {} rows", 300 * 4, rows * 4);
    // Trees grow a level, caches miss; a scan would cost hundreds of times as much.
    assert!(large < small * 5, "{small:?} with {} rows, {large:?} with {}", 300 * 4, rows * 4);
}
