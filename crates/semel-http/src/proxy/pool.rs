//! Connections to one upstream, kept and reused.
//!
//! The pool is our own because of one rule: **nothing is sent twice.** A request is put on another connection only where
//! the first one hands it back untouched, which it does when it was found closed before the first byte. Everything
//! later is the caller's to judge.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::Error;
use super::options::Options;
use super::stream::{Connector, Spoken, Stream};
use super::upstream::Upstream;
use crate::Body;
use crate::edge::TlsError;
use crate::edge::timer::Timer;

type Sender1 = http1::SendRequest<Body>;
type Sender2 = http2::SendRequest<Body>;

/// The connections to one upstream.
pub(super) struct Pool {
    pub(super) upstream: Upstream,
    pub(super) options: Options,
    connector: Connector,
    /// Unused HTTP/1 connections, the last used one last: the ones at the front grow old and go.
    idle: Mutex<Vec<Idle>>,
    /// The HTTP/2 connection, shared by all.
    shared: Mutex<Option<Sender2>>,
    /// Held while a connection is made that may become the shared one, so that a burst makes one and not many.
    connecting: tokio::sync::Mutex<()>,
    /// Learned from the last handshake, where it was not known before.
    speaks_http1: AtomicBool,
    /// Whether a task looks after the unused connections.
    watched: AtomicBool,
}

struct Idle {
    line: Line,
    since: Instant,
}

/// An HTTP/1 connection.
pub(super) struct Line {
    sender: Sender1,
    drive: Drive,
    /// Waits for answers. Stays with the connection, so that a request need not arm one of its own.
    silence: Timer,
}

/// Who makes a connection move.
enum Drive {
    /// Whoever waits for its answer. Saves two changes of task with every request.
    Waiter(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// A task of its own, since something large was sent: an upstream may answer before it has read everything, and then
    /// both ways must move whether or not the answer is being read.
    Task,
    /// Nobody any more.
    Ended,
}

/// Larger bodies make a connection move in a task of its own.
const SMALL: u64 = 16 * 1024;

impl Drive {
    /// Moves the connection along. True where it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        match self {
            Self::Waiter(connection) => {
                if connection.as_mut().poll(context).is_ready() {
                    *self = Self::Ended;
                }
            }
            Self::Task | Self::Ended => {}
        }
        matches!(self, Self::Ended)
    }

    /// Polls what the connection brings. Where it only moves by this very task, it must not wake it besides: that would
    /// be one more round for nothing with every message.
    fn quietly<T>(&self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        match self {
            Self::Waiter(_) => poll(&mut Context::from_waker(Waker::noop())),
            Self::Task | Self::Ended => poll(context),
        }
    }

    /// Gives the connection a task of its own.
    fn detach(&mut self) {
        if let Self::Waiter(connection) = std::mem::replace(self, Self::Task) {
            tokio::spawn(connection);
        }
    }
}

/// A connection for one request.
pub(super) enum Ride {
    /// It has served before.
    Reused(Line),
    Fresh(Line),
    Shared(Sender2),
}

impl Pool {
    pub(super) fn new(upstream: Upstream, options: Options) -> Result<Self, TlsError> {
        let connector = Connector::new(&upstream, &options)?;
        Ok(Self {
            speaks_http1: AtomicBool::new(connector.known() == Some(Spoken::Http1)),
            connector,
            upstream,
            options,
            idle: Mutex::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            watched: AtomicBool::new(false),
        })
    }

    /// A connection that is open, or a new one.
    pub(super) async fn ride(&self) -> Result<Ride, Error> {
        if let Some(ride) = self.shared().or_else(|| self.unused()) {
            return Ok(ride);
        }
        if self.speaks_http1.load(Ordering::Acquire) {
            // Boxed, and so is the other: a rare way must not make every request's future large.
            return Box::pin(self.connect()).await;
        }
        Box::pin(self.connect_in_turn()).await
    }

    async fn connect_in_turn(&self) -> Result<Ride, Error> {
        let _turn = self.connecting.lock().await;
        match self.shared() {
            Some(ride) => Ok(ride),
            None => self.connect().await,
        }
    }

    fn shared(&self) -> Option<Ride> {
        if self.connector.known() == Some(Spoken::Http1) {
            return None;
        }
        let mut shared = self.shared.lock();
        if shared.as_ref().is_some_and(Sender2::is_closed) {
            *shared = None;
        }
        shared.clone().map(Ride::Shared)
    }

    fn unused(&self) -> Option<Ride> {
        let mut idle = self.idle.lock();
        while let Some(Idle { line, since }) = idle.pop() {
            if since.elapsed() > self.options.idle {
                // All others are older still.
                idle.clear();
                return None;
            }
            if !line.sender.is_closed() {
                return Some(Ride::Reused(line));
            }
        }
        None
    }

    pub(super) fn unused_now(&self) -> usize {
        self.idle.lock().len()
    }

    async fn connect(&self) -> Result<Ride, Error> {
        let open = async {
            let (stream, spoken) = self.connector.connect(&self.upstream).await?;
            self.speaks_http1.store(spoken == Spoken::Http1, Ordering::Release);
            match spoken {
                Spoken::Http1 => {
                    let (sender, drive) = open_http1(stream).await?;
                    Ok(Ride::Fresh(Line { sender, drive, silence: Timer::default() }))
                }
                Spoken::Http2 => {
                    let sender = open_http2(stream, &self.options).await?;
                    *self.shared.lock() = Some(sender.clone());
                    Ok(Ride::Shared(sender))
                }
            }
        };
        tokio::time::timeout(self.options.connect, open).await.unwrap_or(Err(Error::ConnectTimeout))
    }

    fn keep(self: &Arc<Self>, line: Line) {
        if line.sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.idle.lock();
        // The oldest goes where it has been unused for too long, or there are too many.
        if idle.len() >= self.options.idle_connections
            || idle.first().is_some_and(|oldest| now - oldest.since > self.options.idle)
        {
            idle.remove(0);
        }
        idle.push(Idle { line, since: now });
        self.watch_unused();
    }
}

/// How often unused connections are looked at.
const LOOK: Duration = Duration::from_secs(1);

impl Pool {
    /// Looks after unused connections in a task of its own, as long as there are some: those that the upstream has
    /// closed, or that have been unused for too long, are closed here too.
    fn watch_unused(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(pool) = pool.upgrade() else { return };
                let mut idle = pool.idle.lock();
                idle.retain_mut(|Idle { line, since }| {
                    let ended = line.drive.poll(&mut Context::from_waker(Waker::noop()));
                    !ended && !line.sender.is_closed() && since.elapsed() <= pool.options.idle
                });
                if idle.is_empty() {
                    // Under the lock of the list: whoever adds to it now starts the next watch.
                    pool.watched.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }
}

async fn open_http1(stream: Stream) -> Result<(Sender1, Drive), Error> {
    let handshake = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| Error::Handshake(error.into()))?;
    let connection = async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "upstream connection ended");
        }
    };
    Ok((sender, Drive::Waiter(Box::pin(connection))))
}

async fn open_http2(stream: Stream, options: &Options) -> Result<Sender2, Error> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(options.idle).keep_alive_timeout(options.connect);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| Error::Handshake(error.into()))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "upstream connection ended");
        }
    });
    Ok(sender)
}

/// How sending ended without an answer.
pub(super) enum Unsent {
    /// The connection was closed before a byte went out; the request is whole.
    Back(Box<Request<Body>>),
    Failed(hyper::Error),
    /// No answer in time.
    Late,
}

impl From<TrySendError<Request<Body>>> for Unsent {
    fn from(mut error: TrySendError<Request<Body>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Back(Box::new(request)),
            None => Self::Failed(error.into_error()),
        }
    }
}

impl Ride {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Whether another connection may do better, should this one be found closed.
    pub(super) fn was_used(&self) -> bool {
        !matches!(self, Self::Fresh(_))
    }

    /// Sends a request and waits for the head of the answer, as long as the upstream may be silent and at most until
    /// `deadline`. The loan is of a connection that serves one at a time.
    pub(super) async fn send(
        self,
        request: Box<Request<Body>>,
        pool: &Arc<Pool>,
        deadline: Option<Instant>,
    ) -> Result<(Response<Incoming>, Option<Loan>), Unsent> {
        let limit = pool.options.read;
        match self {
            Self::Reused(mut line) | Self::Fresh(mut line) => {
                if request.body().size_hint().upper().is_none_or(|length| length > SMALL) {
                    line.drive.detach();
                }
                // It may still be putting the last answer away, or have been closed since.
                if poll_fn(|context| line.poll_ready(context)).await.is_err() {
                    return Err(Unsent::Back(request));
                }
                let Line { sender, drive, silence } = &mut line;
                let answer = pin!(sender.try_send_request(*request));
                let response = in_time(answer, drive, silence, limit, deadline).await?;
                Ok((response, Some(Loan { line, pool: Arc::clone(pool) })))
            }
            Self::Shared(mut sender) => {
                if sender.ready().await.is_err() {
                    return Err(Unsent::Back(request));
                }
                let mut silence = Timer::default();
                let mut answer = Box::pin(sender.try_send_request(*request));
                Ok((in_time(answer.as_mut(), &mut Drive::Task, &mut silence, limit, deadline).await?, None))
            }
        }
    }
}

fn in_time(
    mut answer: Pin<&mut impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>>>,
    drive: &mut Drive,
    silence: &mut Timer,
    limit: Duration,
    deadline: Option<Instant>,
) -> impl Future<Output = Result<Response<Incoming>, Unsent>> {
    poll_fn(move |context| {
        drive.poll(context);
        match drive.quietly(context, |context| answer.as_mut().poll(context)) {
            Poll::Ready(answered) => {
                silence.clear();
                Poll::Ready(answered.map_err(Unsent::from))
            }
            Poll::Pending if silence.overdue_or_past(context, limit, deadline) => {
                Poll::Ready(Err(Unsent::Late))
            }
            Poll::Pending => Poll::Pending,
        }
    })
}

impl Line {
    /// Whether it can take a request. Looks at the connection first: nobody has while it was unused.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        // Without this task's waker at first: the request that is about to be handed over would wake it for nothing.
        if self.drive.poll(&mut Context::from_waker(Waker::noop())) {
            return Poll::Ready(Err(()));
        }
        if self.sender.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.drive.poll(context) {
            return Poll::Ready(Err(()));
        }
        self.sender.poll_ready(context).map_err(drop)
    }
}

/// A connection that is busy with one answer.
pub(super) struct Loan {
    line: Line,
    pool: Arc<Pool>,
}

impl Loan {
    /// Polls the answer's body, moving the connection along where that is the waiter's part.
    pub(super) fn poll_body(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let drive = &mut self.line.drive;
        let at_hand = drive.quietly(context, |context| Pin::new(&mut *body).poll_frame(context));
        if at_hand.is_ready() {
            return at_hand;
        }
        drive.poll(context);
        drive.quietly(context, |context| Pin::new(body).poll_frame(context))
    }

    /// The connection is a tunnel now, and moves by itself.
    pub(super) fn let_go(mut self) {
        self.line.drive.detach();
    }

    /// The answer was read to its end.
    pub(super) fn give_back(self) {
        self.pool.keep(self.line);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({})", self.pool.upstream)
    }
}
