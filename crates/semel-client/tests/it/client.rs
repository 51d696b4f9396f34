//! The client against real sockets: what it sends, what it repeats, and what it says of what it does not know.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod answers;
mod fates;
mod logs;
mod look_up;
mod retries;
mod server;
mod started;
mod status;
mod tls;

use std::time::Duration;

use semel_client::client::{Client, ClientBuilder, Request};
use semel_client::retry::Retry;

use self::server::Server;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Retries that do not keep a test waiting.
fn brisk() -> Retry {
    Retry::default().base(ms(5)).timeout(ms(400)).deadline(Duration::from_secs(20))
}

fn builder(server: &Server) -> ClientBuilder {
    Client::builder(&server.url()).unwrap().retry(brisk()).timeout(ms(400))
}

fn client(server: &Server) -> Client {
    builder(server).build().unwrap()
}

fn keyed() -> Request {
    Request::post("/v1/charges").bytes("{}").key("derived-key-1").unwrap()
}

fn bare() -> Request {
    Request::post("/v1/charges").bytes("{}")
}
