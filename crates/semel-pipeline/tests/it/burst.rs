//! The burst buffer and the gate.

mod buffer;
mod gate;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel::secret::Secret;
use semel::store::RedisClient;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::buffer::Buffer;
use semel_pipeline::event::{Dedupe, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};

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
