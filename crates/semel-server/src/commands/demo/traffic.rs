//! Unreliable clients: they retry, double-click, mix up keys, and disconnect.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::tally::{RequestResult, Tally};
use crate::client::{AdminClient, Request, Response};

/// Number of clients.
const CLIENTS: usize = 4;

/// The actions of a client, as often as they are listed here.
const HABITS: [Habit; 8] = [
    Habit::Charge,
    Habit::Charge,
    Habit::Charge,
    Habit::Retry,
    Habit::Retry,
    Habit::Double,
    Habit::Mix,
    Habit::HangUp,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// A new payment.
    Charge,
    /// The client lost the answer and sends the request twice more.
    Retry,
    /// Three concurrent requests.
    Double,
    /// A used key with another amount.
    Mix,
    /// A slow payment; the client disconnects and retries later.
    HangUp,
}

/// Starts the clients; they end when `stop` becomes true.
pub(super) fn start(
    gateway: &str,
    tally: &Arc<Tally>,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    (0..CLIENTS)
        .map(|number| {
            let customer = Customer {
                gateway: gateway.to_owned(),
                client: AdminClient::own(gateway)?,
                name: format!("customer-{number}"),
                orders: 0,
                tally: Arc::clone(tally),
            };
            Ok(tokio::spawn(customer.live(stop.clone())))
        })
        .collect()
}

struct Customer {
    gateway: String,
    client: AdminClient,
    name: String,
    orders: usize,
    tally: Arc<Tally>,
}

impl Customer {
    async fn live(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let habit = HABITS[rand::random_range(0..HABITS.len())];
            self.act(habit).await;
            let pause = Duration::from_millis(rand::random_range(40..160));
            // A slow pace, so that people can read the output.
            if tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await.is_ok() {
                return;
            }
        }
    }

    async fn act(&mut self, habit: Habit) {
        self.orders += 1;
        let key = format!("{}-order-{}", self.name, self.orders);
        let amount = rand::random_range(100..100_000_u64);
        let body = format!("{{\"amount\": {amount}}}");
        match habit {
            Habit::Charge => self.send(&key, &body).await,
            Habit::Retry => {
                for _ in 0..3 {
                    self.send(&key, &body).await;
                }
            }
            Habit::Double => self.at_once(&key, &body).await,
            Habit::Mix => {
                self.send(&key, &body).await;
                self.send(&key, &format!("{{\"amount\": {}}}", amount + 1)).await;
            }
            Habit::HangUp => {
                let slow = format!("{{\"amount\": {amount}, \"slow\": \"600ms\"}}");
                let given_up = tokio::time::timeout(Duration::from_millis(150), self.send(&key, &slow)).await;
                if given_up.is_err() {
                    self.tally.add(RequestResult::Gone);
                }
                // It waits for the effect, which continues without its first caller.
                self.send(&key, &slow).await;
            }
        }
    }

    async fn send(&mut self, key: &str, body: &str) {
        let seen = send(&self.client, &self.name, key, body).await;
        self.tally.add(seen);
    }

    /// Sends the same request three times concurrently, on separate connections.
    async fn at_once(&mut self, key: &str, body: &str) {
        let mut sends = JoinSet::new();
        for _ in 0..3 {
            let Ok(client) = AdminClient::own(&self.gateway) else { return };
            let (name, key, body) = (self.name.clone(), key.to_owned(), body.to_owned());
            sends.spawn(async move { send(&client, &name, &key, &body).await });
        }
        while let Some(sent) = sends.join_next().await {
            self.tally.add(sent.unwrap_or(RequestResult::Wrong));
        }
    }
}

async fn send(client: &AdminClient, name: &str, key: &str, body: &str) -> RequestResult {
    let Ok(who) = HeaderValue::try_from(format!("Bearer {name}")) else { return RequestResult::Wrong };
    let json = HeaderValue::from_static("application/json");
    let request = Request::post("/v1/charges").bytes(body.to_owned());
    let request = request.header(header::AUTHORIZATION, who).header(header::CONTENT_TYPE, json);
    let Ok(request) = request.key(key) else { return RequestResult::Wrong };
    match client.send(&request).await {
        Ok(response) => seen(&response),
        Err(_) => RequestResult::Wrong,
    }
}

fn seen(response: &Response) -> RequestResult {
    let replayed = response.headers.get("idempotent-replayed").is_some_and(|value| value == "true");
    match response.status {
        StatusCode::CREATED if replayed => RequestResult::Replayed,
        StatusCode::CREATED => RequestResult::First,
        StatusCode::UNPROCESSABLE_ENTITY => RequestResult::Conflict,
        _ => RequestResult::Wrong,
    }
}
