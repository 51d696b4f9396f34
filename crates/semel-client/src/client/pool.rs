//! Connections to one service, kept and reused.
//!
//! The one rule: **nothing is sent twice.** A request goes to another connection only where the first one hands it back
//! untouched, which it does when it was found closed before the first byte.
//!
//! hyper-util's client keeps that rule too (`tests/it/client/started.rs` shows it for both). It is not used here because its errors do
//! not tell a request that was not sent from one in doubt, it does not say which connection a request takes before the first byte, so
//! that no [`SendGate`] could stop it, and it limits neither open connections nor the requests that need a fresh one.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::builder::ClientBuildError;
use super::control::{SendControl, SendGate, StoppedRequest};
use super::error::Lost;
use super::stream::{Dialing, ServiceConnector};
use super::{Response, Sent};
use crate::connect::BaseUrl;

pub(super) type ClientMessage = http::Request<Full<Bytes>>;

#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    pub(super) connect: Duration,
    pub(super) idle: Duration,
    pub(super) idle_connections: usize,
    pub(super) connections: usize,
    pub(super) body: usize,
}

pub(super) struct ServicePool {
    pub(super) address: BaseUrl,
    connector: ServiceConnector,
    limits: PoolLimits,
    /// Unused connections, the last used one last: the ones at the front grow old and go.
    idle: Mutex<Vec<IdleConnection>>,
    /// One for every connection there may be, those that are unused included.
    room: Arc<Semaphore>,
}

struct IdleConnection {
    line: PooledLine,
    since: Instant,
}

/// A connection, with its place in the pool.
struct PooledLine {
    sender: SendRequest<Full<Bytes>>,
    gate: Arc<SendGate>,
    _room: OwnedSemaphorePermit,
}

/// Which connections a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionChoice {
    Any,
    /// Only one that was made for it.
    Fresh,
}

/// How much of an answer has to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart {
    Whole,
    /// The status is there already. The rest is read as far as it comes, so that the connection can be used again.
    Status,
}

/// What came of handing a request to a connection.
enum Handed {
    Answered(http::Response<Incoming>),
    Back(ClientMessage),
    Cut(hyper::Error),
}

impl ServicePool {
    pub(super) fn new(
        address: BaseUrl,
        dialing: &Dialing,
        limits: PoolLimits,
    ) -> Result<Self, ClientBuildError> {
        let connector = ServiceConnector::new(&address, dialing)?;
        let room = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
        Ok(Self { address, connector, limits, idle: Mutex::default(), room })
    }

    /// Sends a request once and reads its answer, all of it until `until`. Under a control only the status of a success
    /// counts.
    pub(super) async fn exchange(
        &self,
        mut message: ClientMessage,
        begun: Instant,
        until: Instant,
        choice: ConnectionChoice,
        control: Option<Arc<dyn SendControl>>,
    ) -> Sent {
        let control = control.as_ref();
        let may_send = || control.is_none_or(|control| control.may_send());
        loop {
            let used = if choice == ConnectionChoice::Fresh { None } else { self.unused() };
            let was_used = used.is_some();
            let mut line = match used {
                Some(line) => line,
                None => match self.connect(until).await {
                    Ok(line) => line,
                    Err(lost) => return Sent::NotSent(lost),
                },
            };
            if !may_send() {
                self.keep(line);
                return Sent::NotSent(Lost::Stopped);
            }
            line.gate.guard(control);
            // From here on a byte may be out, and only the connection itself can say that none was.
            let Ok(handed) = timeout_at(until, hand(&mut line, message)).await else {
                return Sent::Unknown(Lost::Timeout);
            };
            if let (Handed::Back(_) | Handed::Cut(_), Some(stopped)) = (&handed, line.gate.stopped()) {
                return match stopped {
                    StoppedRequest::Unsent => Sent::NotSent(Lost::Stopped),
                    StoppedRequest::Midway => Sent::Unknown(Lost::Stopped),
                };
            }
            match handed {
                Handed::Answered(answer) => {
                    let status = answer.status();
                    if let Some(control) = control {
                        control.answered(status);
                    }
                    let wanted = if control.is_some() && status.is_success() {
                        AnswerPart::Status
                    } else {
                        AnswerPart::Whole
                    };
                    return self.read(line, answer, wanted, begun, until).await;
                }
                Handed::Back(back) if was_used => message = back,
                Handed::Back(_) => return Sent::NotSent(Lost::Closed),
                Handed::Cut(error) => return Sent::Unknown(Lost::Cut(error)),
            }
        }
    }

    async fn read(
        &self,
        line: PooledLine,
        answer: http::Response<Incoming>,
        wanted: AnswerPart,
        begun: Instant,
        until: Instant,
    ) -> Sent {
        let (head, mut incoming) = answer.into_parts();
        let mut body = BytesMut::new();
        let mut truncated = false;
        loop {
            match timeout_at(until, incoming.frame()).await {
                Err(_) | Ok(Some(Err(_))) if wanted == AnswerPart::Status => {
                    truncated = true;
                    break;
                }
                Err(_) => return Sent::Unknown(Lost::Timeout),
                Ok(Some(Err(error))) => return Sent::Unknown(Lost::Cut(error)),
                Ok(None) => break,
                Ok(Some(Ok(frame))) => {
                    let Some(data) = frame.data_ref() else { continue };
                    let room = self.limits.body - body.len();
                    body.extend_from_slice(&data[..data.len().min(room)]);
                    if data.len() > room {
                        truncated = true;
                        break;
                    }
                }
            }
        }
        // What was not read to its end, or told that it was the wrong connection, is not used again.
        if !truncated && head.status != StatusCode::MISDIRECTED_REQUEST {
            self.keep(line);
        }
        Sent::Answered(Response {
            status: head.status,
            headers: head.headers,
            body: body.freeze(),
            truncated,
            latency: begun.elapsed(),
        })
    }

    fn unused(&self) -> Option<PooledLine> {
        let mut idle = self.idle.lock();
        while let Some(IdleConnection { line, since }) = idle.pop() {
            if since.elapsed() > self.limits.idle {
                // All others are older still.
                idle.clear();
                return None;
            }
            if !line.sender.is_closed() {
                return Some(line);
            }
        }
        None
    }

    async fn connect(&self, until: Instant) -> Result<PooledLine, Lost> {
        let until = until.min(Instant::now() + self.limits.connect);
        let opening = async {
            let room = match Arc::clone(&self.room).try_acquire_owned() {
                Ok(room) => room,
                Err(_) => {
                    // Unused connections that nobody may take are not worth waiting for.
                    self.idle.lock().clear();
                    Arc::clone(&self.room).acquire_owned().await.map_err(|_| Lost::Closed)?
                }
            };
            let gate = Arc::new(SendGate::default());
            let stream = self.connector.connect(&self.address, &gate).await?;
            let handshake = http1::handshake(TokioIo::new(stream)).await;
            let (sender, connection) = handshake.map_err(|_| Lost::Closed)?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(target: "semel", %error, "a connection of the client ended");
                }
            });
            Ok(PooledLine { sender, gate, _room: room })
        };
        timeout_at(until, opening).await.unwrap_or(Err(Lost::Timeout))
    }

    fn keep(&self, line: PooledLine) {
        line.gate.guard(None);
        if line.sender.is_closed() || self.limits.idle_connections == 0 {
            return;
        }
        let mut idle = self.idle.lock();
        // The oldest goes where it has been unused for too long, or there are too many.
        if idle.len() >= self.limits.idle_connections
            || idle.first().is_some_and(|oldest| oldest.since.elapsed() > self.limits.idle)
        {
            idle.remove(0);
        }
        idle.push(IdleConnection { line, since: Instant::now() });
    }
}

async fn hand(line: &mut PooledLine, message: ClientMessage) -> Handed {
    // It may still be putting the last answer away, or have been closed since.
    if line.sender.ready().await.is_err() {
        return Handed::Back(message);
    }
    match line.sender.try_send_request(message).await {
        Ok(answer) => Handed::Answered(answer),
        Err(mut error) => match error.take_message() {
            Some(message) => Handed::Back(message),
            None => Handed::Cut(error.into_error()),
        },
    }
}
