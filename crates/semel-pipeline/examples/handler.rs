//! Events delivered to a function of the program's own: `cargo run -p semel-pipeline --example handler`.
//!
//! The target fails at first. The delivery is made again with the same key, so whatever the handler does under that key
//! happens once.

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel::store::EmbeddedStore;
use semel::time::{Clock as _, SystemClock};
use semel_client::retry::{Destinations, Retry};
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::{DeliveryFilter, EmbeddedLedger, Intake as _, Page, Reading as _};
use semel_pipeline::publish::Publication;
use semel_pipeline::target::{
    DeliveryCall, DeliveryOutcome, EventTypes, Handler, Policy, TargetRegistry, Targets,
};
use semel_pipeline::worker::{Silent, Worker, WorkerSettings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = Arc::new(EmbeddedStore::open(folder.path().join("data"))?);
    let ledger = Arc::new(EmbeddedLedger::open(store).await?);
    let secret = Arc::new(Secret::random());

    let crm = Handler::new(async |call: DeliveryCall| {
        let (attempt, key) = (call.work().attempt, call.key());
        println!("attempt {attempt} of {}: {:?} under {key:?}", call.event_type(), call.payload());
        if attempt < 3 { DeliveryOutcome::retry("the CRM is busy") } else { DeliveryOutcome::done() }
    });
    let policy = Policy { retry: Retry::default().base(Duration::from_millis(20)), ..Policy::default() };
    let orders = EventTypes::new(&["order.*"])?;
    let targets = Targets::new().with("crm", Arc::new(crm), orders, policy, &Destinations::default())?;
    let registry = TargetRegistry::new(targets);
    let worker = Worker::start(
        Arc::clone(&ledger) as _,
        registry.clone(),
        Arc::clone(&secret),
        WorkerSettings::default(),
        Arc::new(Silent),
    )?;

    // Twice, as a producer that heard no answer would: it is the same event.
    for _ in 0..2 {
        let paid = Publication::new("order.paid", "order-17", r#"{"cents": 1200}"#);
        let event = paid.into_event(&secret, &registry.current(), SystemClock.now())?;
        println!("{:?}", ledger.accept(vec![event]).await?);
    }
    let done = DeliveryFilter { states: vec![DeliveryState::Done], ..DeliveryFilter::default() };
    while ledger.deliveries(done.clone(), Page { after: None, limit: 1 }).await?.items.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{:?}", worker.stop(Duration::from_secs(5)).await);
    Ok(())
}
