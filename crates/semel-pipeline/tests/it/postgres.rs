//! The PostgreSQL ledger against the contract, over two handles, on a server of its own for each case.

mod bounded;
mod faults;
mod heartbeat;
mod many;
mod outbox;
mod pooler;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::delivery::{AttemptClass, Ending};
use semel_pipeline::event::{NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{Error, ErrorKind, Ledger, PostgresLedger, Take};
use semel_pipeline::testkit::contract::{LedgerContext, agrees_with_the_model};
use semel_testbed::Postgres;

pub(crate) async fn open(url: &str) -> PostgresLedger {
    PostgresLedger::open(url).await.unwrap_or_else(|error| panic!("the ledger can be opened: {error}"))
}

/// How much a test does: `short` in the normal run, `full` where `SEMEL_PROVE` is set.
fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") { full } else { short }
}

async fn fresh() -> LedgerContext {
    let server = Arc::new(Postgres::start().expect("a PostgreSQL server can be started"));
    let ledger = Arc::new(open(&server.url()).await);
    let peer = Arc::new(open(&server.url()).await);
    LedgerContext::new(ledger).peer(peer).reopen(move || {
        let server = Arc::clone(&server);
        async move { Arc::new(open(&server.url()).await) as Arc<dyn Ledger> }
    })
}

semel_pipeline::ledger_tests!(fresh);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_random_sequences_agree_with_the_model() {
    let context = fresh().await;
    for seed in (5_000..).take(rounds(2, 20)) {
        agrees_with_the_model(&context, seed, 100).await;
    }
}

/// An event without a key, for this target and tenant.
fn event(target: &str, tenant: &str) -> NewEvent {
    NewEvent {
        id: EventId::new(EventKind::Event, SystemClock.now()),
        tenant: tenant.to_owned(),
        event_type: "order.paid".to_owned(),
        dedupe: None,
        payload: Bytes::from_static(b"{}"),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        order_key: None,
        origin: Origin::Api { principal: "test".to_owned() },
        targets: vec![target.to_owned()],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

fn ask(worker: &str, target: &str, limit: u32, lease: Duration) -> Take {
    Take { worker: worker.to_owned(), targets: vec![(target.to_owned(), limit)], limit, lease }
}

fn success() -> Ending {
    Ending {
        class: AttemptClass::Success,
        status: Some(200),
        error: String::new(),
        excerpt: String::new(),
        retry_after: None,
    }
}

/// Repeats a call as long as its fate is unknown or nobody answers, as every caller may.
async fn insist<T, F: Future<Output = Result<T, Error>>>(mut call: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(Error::Store(error)) if error.is_retryable() || error.kind() == ErrorKind::Setup => {
                assert!(tokio::time::Instant::now() < deadline, "the server does not come back: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("a call that may be repeated failed for good: {error}"),
        }
    }
}
