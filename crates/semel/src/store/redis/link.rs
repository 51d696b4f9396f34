//! The one connection that all calls share, reopened when it breaks.

use std::time::{Duration, Instant};

use redis::aio::ConnectionLike as _;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use super::address::{RedisAddress, SharedConnection, Timeouts};
use super::error::{self, CallReach};
use super::script::{Dialect, Script};
use crate::outage::{ProbeFailure, Reach, Timing};
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;
use crate::time::instant;

/// The pause before the next attempt to connect, so that many callers do not try at once.
const KNOCK_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Link {
    pub(super) address: RedisAddress,
    pub(super) timeouts: Timeouts,
    open: Mutex<Open>,
    /// Held while opening. Never by a caller's own task, which may stop at any time.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Open {
    wire: Option<SharedConnection>,
    /// Counts connections, so that a late error of an old one does not close the new one.
    number: u64,
    failed: Option<(Instant, ErrorKind, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct NumberedConnection {
    pub(super) wire: SharedConnection,
    pub(super) number: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    pub(super) fn new(address: RedisAddress, timeouts: Timeouts) -> Self {
        Self { address, timeouts, open: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// The current connection, if there is one.
    pub(super) fn open_connection(&self) -> Option<NumberedConnection> {
        let open = self.open.lock();
        open.wire.as_ref().map(|wire| NumberedConnection { wire: wire.clone(), number: open.number })
    }

    /// The connection, opened if there is none. A failure here means that nothing was sent.
    pub(super) async fn connection(&self) -> Result<NumberedConnection, Error> {
        if let Some(numbered) = self.open_connection() {
            return Ok(numbered);
        }
        let _one = self.opening.lock().await;
        if let Some(numbered) = self.open_connection() {
            return Ok(numbered);
        }
        if let Some((when, kind, message)) = &self.open.lock().failed
            && instant().saturating_duration_since(*when) < KNOCK_AGAIN
        {
            return Err(Error::new(*kind, message.clone()));
        }
        let limit = self.timeouts.connect;
        let opened = match tokio::time::timeout(limit, self.address.open(self.timeouts, None)).await {
            Ok(opened) => opened.map_err(|error| error::of(error, CallReach::Read)),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the Redis server accepted no connection within {} ms", limit.as_millis()),
            )),
        };
        let mut open = self.open.lock();
        match opened {
            Ok(wire) => {
                open.number += 1;
                open.failed = None;
                open.wire = Some(wire.clone());
                Ok(NumberedConnection { wire, number: open.number })
            }
            Err(error) => {
                open.failed = Some((instant(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// When an outage is known. Calls have the client's own timeouts, and a refused connection shows immediately.
    pub(super) fn timing(&self) -> Timing {
        let probe = self.timeouts.connect + self.timeouts.response;
        Timing { slow: probe, probe, grace: Duration::ZERO }
    }

    /// The meaning of a failed probe. In a cluster other shards may answer, so calls are still sent.
    pub(super) fn probe_failure(&self, error: &Error) -> ProbeFailure {
        let answers = error::is_reply(error) || self.address.dialect() == Dialect::Cluster;
        let reach = if answers { Reach::Refusing } else { Reach::Unreachable };
        ProbeFailure { reach, message: error.to_string() }
    }

    /// Opens a connection of its own and sends one command.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        let read = |error| error::of(error, CallReach::Read);
        let mut wire = self.address.open(self.timeouts, None).await.map_err(read)?;
        wire.query(&redis::cmd("PING")).await.map(drop).map_err(read)
    }

    /// Closes a broken connection. The next call opens another.
    pub(super) fn give_up(&self, number: u64) {
        let mut open = self.open.lock();
        if open.number == number {
            open.wire = None;
        }
    }

    pub(super) async fn query(&self, command: &Cmd, sent: CallReach) -> Result<Value, Error> {
        self.query_on(&mut self.connection().await?, command, sent).await
    }

    /// Sends one command over this connection.
    pub(super) async fn query_on(
        &self,
        numbered: &mut NumberedConnection,
        command: &Cmd,
        sent: CallReach,
    ) -> Result<Value, Error> {
        numbered.wire.query(command).await.map_err(|error| self.failed(error, numbered.number, sent))
    }

    /// Sends one command over this connection, and a read after it: on one server in the same packet, on a cluster
    /// after the command's answer.
    pub(super) async fn query_then(
        &self,
        numbered: &mut NumberedConnection,
        command: Cmd,
        then: Option<&Cmd>,
        sent: CallReach,
    ) -> Result<(Value, Option<ReadReply>), Error> {
        let answers = in_order(&mut numbered.wire, command, then).await;
        self.answered(answers, numbered.number, sent)
    }

    /// Interprets the answers of [`query_then`](Self::query_then).
    fn answered(
        &self,
        answers: InOrder,
        number: u64,
        sent: CallReach,
    ) -> Result<(Value, Option<ReadReply>), Error> {
        let (answer, then) = answers.map_err(|error| self.failed(error, number, sent))?;
        Ok((answer, then.map(|then| self.read(then, number))))
    }

    pub(super) fn read(&self, answer: RedisResult<Value>, number: u64) -> ReadReply {
        answer.map_err(|error| self.failed(error, number, CallReach::Read))
    }

    /// Calls a script by its SHA-1, or by its text if the server does not have it.
    pub(super) async fn call(
        &self,
        numbered: &mut NumberedConnection,
        script: &Script,
        key: &[u8],
        arguments: &[Vec<u8>],
        sent: CallReach,
    ) -> Result<Value, Error> {
        self.call_then(numbered, script, key, arguments, None, sent).await.map(|(answer, _)| answer)
    }

    /// As `call`, with another command [after it](Self::query_then).
    pub(super) async fn call_then(
        &self,
        numbered: &mut NumberedConnection,
        script: &Script,
        key: &[u8],
        arguments: &[Vec<u8>],
        then: Option<&Cmd>,
        sent: CallReach,
    ) -> Result<(Value, Option<ReadReply>), Error> {
        let arguments = || arguments.iter().map(Vec::as_slice);
        let answers = match in_order(&mut numbered.wire, script.by_sha(&[key], arguments()), then).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                in_order(&mut numbered.wire, script.by_text(&[key], arguments()), then).await
            }
            answers => answers,
        };
        self.answered(answers, numbered.number, sent)
    }

    /// Translates an error, and closes a broken connection.
    pub(super) fn failed(&self, error: RedisError, number: u64, sent: CallReach) -> Error {
        if error::needs_new_connection(&error) {
            self.give_up(number);
        }
        error::of(error, sent)
    }
}

/// The answer to the read after a command. The command was executed, whatever the result of the read.
pub(super) type ReadReply = Result<Value, Error>;

type InOrder = RedisResult<(Value, Option<RedisResult<Value>>)>;

async fn in_order(wire: &mut SharedConnection, command: Cmd, then: Option<&Cmd>) -> InOrder {
    let Some(then) = then else { return wire.query(&command).await.map(|answer| (answer, None)) };
    match wire {
        SharedConnection::One(connection) => {
            let mut both = Pipeline::with_capacity(2);
            both.add_command(command).add_command(then.clone());
            let answers = connection.req_packed_commands(&both, 0, 2).await?;
            let mut answers = answers.into_iter().map(Value::extract_error);
            let missing = || Err((redis::ErrorKind::UnexpectedReturnType, "an answer is missing").into());
            let mut next = || answers.next().unwrap_or_else(missing);
            Ok((next()?, Some(next())))
        }
        SharedConnection::Cluster(_) => {
            let answer = wire.query(&command).await?;
            Ok((answer, Some(wire.query(then).await)))
        }
    }
}
