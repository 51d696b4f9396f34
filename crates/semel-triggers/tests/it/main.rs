//! The burst buffer and the gate.

mod buffer;
mod drain;
mod gate;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::Engine;
use semel::secret::Secret;
use semel::store::{EmbeddedStore, RedisClient, RedisStore};
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{Dedupe, Event, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{AuditLine, EmbeddedLedger, EventFilter, Ledger, Page};
use semel_testbed::Redis;
use semel_triggers::buffer::{Buffer, PutOutcome};
use semel_triggers::drainer::{DrainPace, Drainer};
use semel_triggers::gate::{Gate, GateMode, Limit};
use semel_triggers::trigger::{Burst, RunRequest, Triggers};

/// Buffers a run whose ledger was read now.
async fn put(buffer: &Arc<Buffer>, run: &NewEvent) -> PutOutcome {
    loop {
        let put = buffer.put(run, buffer.read_time(&run.tenant)).await.expect("Redis answers");
        if put != PutOutcome::Late {
            return put;
        }
    }
}

/// A buffer for a thousand runs of a tenant.
fn buffer_at(url: &str) -> Arc<Buffer> {
    let client = RedisClient::builder(url).build().expect("the URL is good");
    Arc::new(Buffer::new(client, "semel:burst", 1000))
}

/// A run of a tenant, with this key where there is one.
fn run(tenant: &str, key: Option<&str>, payload: &'static str, lifetime: Option<Duration>) -> NewEvent {
    let secret = Secret::from_bytes([3; 32]);
    let dedupe = key.map(|key| {
        Dedupe::of_run(&secret, ("p", tenant, "crm"), key, payload.as_bytes(), lifetime)
            .expect("the key is good")
    });
    NewEvent {
        id: EventId::new(EventKind::Run, SystemClock.now()),
        tenant: tenant.to_owned(),
        event_type: "crm".to_owned(),
        dedupe,
        payload: Bytes::from_static(payload.as_bytes()),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        order_key: None,
        origin: Origin::Api { principal: "p".to_owned() },
        targets: vec!["crm".to_owned()],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    }
}

/// Triggers over a ledger in a folder, with claims, gate and buffer on a Redis.
struct Deployment {
    triggers: Arc<Triggers>,
    ledger: Arc<dyn Ledger>,
    buffer: Arc<Buffer>,
    /// Removed at the end.
    _folder: tempfile::TempDir,
}

impl Deployment {
    /// `limit`: how much passes the gate.
    async fn new(redis: &Redis, limit: Limit) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = EmbeddedStore::open(folder.path().join("data")).expect("a store");
        let ledger: Arc<dyn Ledger> =
            Arc::new(EmbeddedLedger::open(Arc::new(store)).await.expect("a ledger"));
        let (triggers, buffer) = triggers(redis, &ledger, limit).await;
        Self { triggers, ledger, buffer, _folder: folder }
    }

    fn drainer(&self) -> Drainer {
        Drainer::new(Arc::clone(&self.buffer), Arc::clone(&self.ledger), DrainPace::default(), Arc::default())
    }

    /// Drains until nothing is buffered.
    async fn drain(&self) {
        let drainer = self.drainer();
        while !self.buffer.tenants().await.expect("Redis answers").is_empty() {
            drainer.turn().await.expect("it drains");
        }
    }

    /// All runs in the ledger.
    async fn runs(&self) -> Vec<Event> {
        let mut all = Vec::new();
        let mut page = Page { after: None, limit: 500 };
        loop {
            let part = self.ledger.events(EventFilter::default(), page).await.expect("it lists");
            all.extend(part.items);
            match part.next {
                Some(next) => page = Page { after: Some(next), limit: 500 },
                None => return all,
            }
        }
    }
}

/// Triggers as one process has them.
async fn triggers(redis: &Redis, ledger: &Arc<dyn Ledger>, limit: Limit) -> (Arc<Triggers>, Arc<Buffer>) {
    triggers_at(redis, &redis.url(), ledger, limit).await
}

/// The same, with another address for the buffer and the gate.
async fn triggers_at(
    redis: &Redis,
    buffer: &str,
    ledger: &Arc<dyn Ledger>,
    limit: Limit,
) -> (Arc<Triggers>, Arc<Buffer>) {
    let secret = Secret::from_bytes([3; 32]);
    let store = RedisStore::builder(&redis.url()).connect().await.expect("a store");
    let claims = Engine::builder(store).secret(secret.clone()).build().expect("an engine");
    let buffer = buffer_at(buffer);
    let gate = Arc::new(Gate::new(Arc::clone(&buffer), GateMode::On, limit, None));
    let burst = Burst { claims, buffer: Arc::clone(&buffer), gate };
    let triggers = Triggers::new(Arc::clone(ledger), Arc::new(secret), Some(burst));
    (Arc::new(triggers), buffer)
}

/// Nothing passes: everything is buffered.
const SHUT: Limit = Limit { threshold: 0, window: Duration::from_secs(1), hold: Duration::from_secs(1) };

/// Everything passes.
const WIDE: Limit =
    Limit { threshold: u32::MAX, window: Duration::from_secs(1), hold: Duration::from_secs(1) };

fn request(tenant: &str, key: Option<&str>, payload: &'static str) -> RunRequest {
    RunRequest {
        principal: "p".to_owned(),
        tenant: tenant.to_owned(),
        key: key.map(str::to_owned),
        ..RunRequest::json("crm", payload)
    }
}

fn audit_line() -> AuditLine {
    AuditLine {
        who: "tester".to_owned(),
        action: "test".to_owned(),
        subject: "run".to_owned(),
        reason: "because".to_owned(),
    }
}
