//! Counting fakes of the APIs: every request they execute is an effect with an id of its own.

use std::collections::HashMap;
use std::io::{BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use semel_testbed::wait;

use super::wire::{self, Message};
use super::world::{Fault, World};
use crate::kit::PATIENCE;

/// Which API it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Stripe,
    Svix,
    Increase,
    GoCardless,
}

/// What it does with idempotency keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Nothing: two requests are two effects.
    Ignored,
    /// A known key is not executed again.
    Honoured,
}

/// A fake API.
pub(super) struct Fake {
    api: Api,
    keys: Keys,
    world: Arc<World>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The ids of what was made, by logical call: the witness.
    effects: HashMap<String, Vec<String>>,
    /// The keys that requests carried, by logical call.
    keys: HashMap<String, Vec<String>>,
    made_under: HashMap<String, String>,
    made: usize,
}

/// What became of a request.
enum Executed {
    Made(String),
    /// An earlier request with the key made this.
    Known(String),
}

impl Fake {
    /// Starts it, and gives its address too.
    pub(super) fn start(api: Api, keys: Keys, world: &Arc<World>) -> (Arc<Self>, String) {
        let fake = Arc::new(Self { api, keys, world: Arc::clone(world), seen: Mutex::default() });
        let url = wire::serve(&fake, |fake, gateway| {
            let mut requests = BufReader::new(gateway);
            while let Some(request) = Message::read(&mut requests) {
                if fake.answer(gateway, &request).is_none() {
                    break;
                }
            }
            // The gateway may be gone already.
            let _ = gateway.shutdown(Shutdown::Both);
        });
        (fake, url)
    }

    /// The ids of what a logical call made.
    pub(super) fn effects(&self, order: &str) -> Vec<String> {
        self.seen.lock().effects.get(order).cloned().unwrap_or_default()
    }

    /// The keys that came with a logical call.
    pub(super) fn keys(&self, order: &str) -> Vec<String> {
        self.seen.lock().keys.get(order).cloned().unwrap_or_default()
    }

    fn answer(&self, mut gateway: &TcpStream, request: &Message) -> Option<()> {
        if request.start().first() == Some(&"GET") {
            let path = request.start().get(1).copied()?.to_owned();
            let id = path.rsplit('/').next()?;
            return gateway.write_all(&self.api.created(id, "")).ok();
        }
        let order = request.order()?;
        if self.world.happens(&order, &[Fault::UpstreamUnavailable]).is_some() {
            return gateway.write_all(&wire::unavailable()).ok();
        }
        let executed = self.execute(&order, request.header("idempotency-key").unwrap_or_default());
        match self.world.happens(&order, &[Fault::UpstreamLate, Fault::UpstreamCut, Fault::GatewayKilled]) {
            Some(Fault::UpstreamLate) => {
                wait::until("the client comes back", PATIENCE, || self.world.attempts(&order).len() > 1)
                    .ok()?;
            }
            Some(Fault::GatewayKilled) => {
                self.world.gateway.restart();
                return None;
            }
            Some(_) => return None,
            None => {}
        }
        let answer = match (executed, self.api) {
            (Executed::Known(id), Api::GoCardless) => conflict(&id),
            (Executed::Made(id) | Executed::Known(id), api) => api.created(&id, &order),
        };
        gateway.write_all(&answer).ok()
    }

    fn execute(&self, order: &str, key: &str) -> Executed {
        let mut seen = self.seen.lock();
        seen.keys.entry(order.to_owned()).or_default().push(key.to_owned());
        if let (Keys::Honoured, Some(id)) = (self.keys, seen.made_under.get(key)) {
            return Executed::Known(id.clone());
        }
        seen.made += 1;
        let id = format!("{}{:06}", self.api.prefix(), seen.made);
        seen.made_under.insert(key.to_owned(), id.clone());
        seen.effects.entry(order.to_owned()).or_default().push(id.clone());
        Executed::Made(id)
    }
}

impl Api {
    fn prefix(self) -> &'static str {
        match self {
            Self::Stripe => "pi_",
            Self::Svix => "app_",
            Self::Increase => "account_transfer_",
            Self::GoCardless => "PM",
        }
    }

    fn created(self, id: &str, order: &str) -> Vec<u8> {
        let (status, body) = match self {
            Self::Stripe => (
                "200 OK",
                format!(
                    r#"{{"id": "{id}", "object": "payment_intent", "amount": 1200, "currency": "eur", "metadata": {{"order": "{order}"}}}}"#
                ),
            ),
            Self::Svix => (
                "201 Created",
                format!(
                    r#"{{"id": "{id}", "name": "{order}", "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z", "metadata": {{}}}}"#
                ),
            ),
            Self::Increase => (
                "200 OK",
                format!(
                    r#"{{"id": "{id}", "type": "account_transfer", "amount": 1200, "description": "{order}", "status": "complete"}}"#
                ),
            ),
            Self::GoCardless => (
                "201 Created",
                format!(
                    r#"{{"payments": {{"id": "{id}", "amount": 1200, "currency": "GBP", "status": "pending_submission"}}}}"#
                ),
            ),
        };
        wire::answer(status, "application/json", &body)
    }
}

/// How GoCardless says that a key was used: its client then gets what the first request made.
fn conflict(id: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"error": {{"type": "invalid_state", "code": 409, "message": "A resource has already been created with this idempotency key", "errors": [{{"reason": "idempotent_creation_conflict", "message": "A resource has already been created with this idempotency key", "links": {{"conflicting_resource_id": "{id}"}}}}]}}}}"#
    );
    wire::answer("409 Conflict", "application/json", &body)
}
