//! The one connection that all calls share, opened anew when it breaks.

use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};

use super::address::{Address, Timeouts, Wire};
use super::error::{self, Sent};
use super::script::Script;
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;
use crate::time::instant;

/// Who finds the server gone does not knock again at once: a thousand callers would.
const KNOCK_AGAIN: Duration = Duration::from_millis(50);

/// Holds the connection.
pub(super) struct Link {
    address: Address,
    timeouts: Timeouts,
    open: Mutex<Open>,
    /// Held by whoever opens. Never by a caller's own task, which may stop at any time.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Open {
    wire: Option<Wire>,
    /// Counts connections, so that a late error of an old one does not close the new one.
    number: u64,
    failed: Option<(Instant, ErrorKind, String)>,
}

/// A connection, and which it is.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) wire: Wire,
    pub(super) number: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    pub(super) fn new(address: Address, timeouts: Timeouts) -> Self {
        Self { address, timeouts, open: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The connection, if there is one.
    pub(super) fn at_hand(&self) -> Option<Numbered> {
        let open = self.open.lock();
        open.wire.as_ref().map(|wire| Numbered { wire: wire.clone(), number: open.number })
    }

    /// The connection, opened if there is none. Whatever fails here was never sent.
    pub(super) async fn wire(&self) -> Result<Numbered, Error> {
        if let Some(numbered) = self.at_hand() {
            return Ok(numbered);
        }
        let _one = self.opening.lock().await;
        if let Some(numbered) = self.at_hand() {
            return Ok(numbered);
        }
        if let Some((when, kind, message)) = &self.open.lock().failed
            && instant().saturating_duration_since(*when) < KNOCK_AGAIN
        {
            return Err(Error::new(*kind, message.clone()));
        }
        let limit = self.timeouts.connect;
        let opened = match tokio::time::timeout(limit, self.address.open(self.timeouts, None)).await {
            Ok(opened) => opened.map_err(|error| error::of(error, Sent::Read)),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the Redis server took no connection within {limit:?}"),
            )),
        };
        let mut open = self.open.lock();
        match opened {
            Ok(wire) => {
                open.number += 1;
                open.failed = None;
                open.wire = Some(wire.clone());
                Ok(Numbered { wire, number: open.number })
            }
            Err(error) => {
                open.failed = Some((instant(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Gives a broken connection up. The next call opens another.
    pub(super) fn give_up(&self, number: u64) {
        let mut open = self.open.lock();
        if open.number == number {
            open.wire = None;
        }
    }

    /// Sends one command.
    pub(super) async fn query(&self, command: &Cmd, sent: Sent) -> Result<Value, Error> {
        self.query_on(&mut self.wire().await?, command, sent).await
    }

    /// Sends one command over this connection.
    pub(super) async fn query_on(
        &self,
        numbered: &mut Numbered,
        command: &Cmd,
        sent: Sent,
    ) -> Result<Value, Error> {
        numbered.wire.query(command).await.map_err(|error| self.failed(error, numbered.number, sent))
    }

    /// Calls a script by its name; by its text where the server does not know it (noscript).
    pub(super) async fn call(
        &self,
        numbered: &mut Numbered,
        script: &Script,
        key: &[u8],
        arguments: &[Vec<u8>],
        sent: Sent,
    ) -> Result<Value, Error> {
        let arguments = || arguments.iter().map(Vec::as_slice);
        let answer = match numbered.wire.query(&script.by_sha(&[key], arguments())).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                numbered.wire.query(&script.by_text(&[key], arguments())).await
            }
            answer => answer,
        };
        answer.map_err(|error| self.failed(error, numbered.number, sent))
    }

    /// What an error means; it also closes the connection where that is broken.
    pub(super) fn failed(&self, error: RedisError, number: u64, sent: Sent) -> Error {
        if error::needs_new_connection(&error) {
            self.give_up(number);
        }
        error::of(error, sent)
    }
}
