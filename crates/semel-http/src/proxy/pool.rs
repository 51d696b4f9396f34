//! Reusable connections to one upstream.
//!
//! This is our own pool because of one rule: **nothing is sent twice.** A request goes to another connection only if the first one
//! returns it untouched, because it was closed before the first byte. The caller handles every later failure. hyper-util's pool keeps
//! that rule too, but polls each connection in a task of its own, which costs two task switches a request, and does not limit open
//! connections.

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
use super::options::ProxyOptions;
use super::stream::{Connector, SpokenVersion, UpstreamStream};
use super::upstream::Upstream;
use crate::Body;
use crate::edge::TlsError;
use crate::edge::timer::Timer;

type Sender1 = http1::SendRequest<Body>;
type Sender2 = http2::SendRequest<Body>;

/// The connections to one upstream.
pub(super) struct Pool {
    pub(super) upstream: Upstream,
    pub(super) options: ProxyOptions,
    connector: Connector,
    /// Idle HTTP/1 connections, the most recently used one last. Those at the front age and are closed.
    idle: Mutex<Vec<Idle>>,
    /// The HTTP/2 connection, shared by all requests.
    shared: Mutex<Option<Sender2>>,
    /// Held while a connection is opened that may become the shared one, so that a burst opens only one.
    connecting: tokio::sync::Mutex<()>,
    /// Learned from the last handshake, if it is not configured.
    speaks_http1: AtomicBool,
    /// True while a task watches the idle connections.
    watched: AtomicBool,
}

struct Idle {
    line: Http1Connection,
    since: Instant,
}

/// An HTTP/1 connection.
pub(super) struct Http1Connection {
    sender: Sender1,
    drive: Drive,
    /// Measures the wait for answers. Stays with the connection, so that a request need not arm its own timer.
    silence: Timer,
}

/// What polls a connection.
enum Drive {
    /// The task that waits for the answer. This saves two task switches per request.
    Waiter(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// A task of its own, used after a large body was sent: an upstream may answer before it has read the whole body, and then both
    /// directions must progress whether or not the answer is being read.
    Task,
    /// Nothing; the connection has ended.
    Ended,
}

/// With a larger body, the connection is polled in a task of its own.
const SMALL: u64 = 16 * 1024;

impl Drive {
    /// Polls the connection. True if it has ended.
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

    /// Polls an answer of the connection. If this task also drives the connection, the poll must not wake it again: that would cost an
    /// extra round for every message.
    fn quietly<T>(&self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        match self {
            Self::Waiter(_) => poll(&mut Context::from_waker(Waker::noop())),
            Self::Task | Self::Ended => poll(context),
        }
    }

    /// Moves the connection to a task of its own.
    fn detach(&mut self) {
        if let Self::Waiter(connection) = std::mem::replace(self, Self::Task) {
            tokio::spawn(connection);
        }
    }
}

/// A connection for one request.
pub(super) enum UpstreamConnection {
    /// It was used before.
    Reused(Http1Connection),
    Fresh(Http1Connection),
    Shared(Sender2),
}

impl Pool {
    pub(super) fn new(upstream: Upstream, options: ProxyOptions) -> Result<Self, TlsError> {
        let connector = Connector::new(&upstream, &options)?;
        Ok(Self {
            speaks_http1: AtomicBool::new(connector.known() == Some(SpokenVersion::Http1)),
            connector,
            upstream,
            options,
            idle: Mutex::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            watched: AtomicBool::new(false),
        })
    }

    /// An open connection, or a new one.
    pub(super) async fn acquire(&self) -> Result<UpstreamConnection, Error> {
        if let Some(connection) = self.shared().or_else(|| self.unused()) {
            return Ok(connection);
        }
        if self.speaks_http1.load(Ordering::Acquire) {
            // Boxed, like the other one: a rare path must not enlarge the future of every request.
            return Box::pin(self.connect()).await;
        }
        Box::pin(self.connect_in_turn()).await
    }

    async fn connect_in_turn(&self) -> Result<UpstreamConnection, Error> {
        let _turn = self.connecting.lock().await;
        match self.shared() {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    fn shared(&self) -> Option<UpstreamConnection> {
        if self.connector.known() == Some(SpokenVersion::Http1) {
            return None;
        }
        let mut shared = self.shared.lock();
        if shared.as_ref().is_some_and(Sender2::is_closed) {
            *shared = None;
        }
        shared.clone().map(UpstreamConnection::Shared)
    }

    fn unused(&self) -> Option<UpstreamConnection> {
        let mut idle = self.idle.lock();
        while let Some(Idle { line, since }) = idle.pop() {
            if since.elapsed() > self.options.idle {
                // All others are older.
                idle.clear();
                return None;
            }
            if !line.sender.is_closed() {
                return Some(UpstreamConnection::Reused(line));
            }
        }
        None
    }

    pub(super) fn unused_now(&self) -> usize {
        self.idle.lock().len()
    }

    async fn connect(&self) -> Result<UpstreamConnection, Error> {
        let open = async {
            let (stream, spoken) = self.connector.connect(&self.upstream).await?;
            self.speaks_http1.store(spoken == SpokenVersion::Http1, Ordering::Release);
            match spoken {
                SpokenVersion::Http1 => {
                    let (sender, drive) = open_http1(stream).await?;
                    Ok(UpstreamConnection::Fresh(Http1Connection {
                        sender,
                        drive,
                        silence: Timer::default(),
                    }))
                }
                SpokenVersion::Http2 => {
                    let sender = open_http2(stream, &self.options).await?;
                    *self.shared.lock() = Some(sender.clone());
                    Ok(UpstreamConnection::Shared(sender))
                }
            }
        };
        tokio::time::timeout(self.options.connect, open).await.unwrap_or(Err(Error::ConnectTimeout))
    }

    fn keep(self: &Arc<Self>, line: Http1Connection) {
        if line.sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.idle.lock();
        // Closes the oldest connection if it has been idle for too long, or if there are too many.
        if idle.len() >= self.options.idle_connections
            || idle.first().is_some_and(|oldest| now - oldest.since > self.options.idle)
        {
            idle.remove(0);
        }
        idle.push(Idle { line, since: now });
        self.watch_unused();
    }
}

/// How often idle connections are checked.
const LOOK: Duration = Duration::from_secs(1);

impl Pool {
    /// Watches idle connections in a task of its own while there are some. Closes those that the upstream has closed or that have been
    /// idle for too long.
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
                    // Under the lock of the list: the next connection that is added starts a new watch.
                    pool.watched.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }
}

async fn open_http1(stream: UpstreamStream) -> Result<(Sender1, Drive), Error> {
    let handshake = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| Error::Handshake(error.into()))?;
    let connection = async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "upstream connection ended");
        }
    };
    Ok((sender, Drive::Waiter(Box::pin(connection))))
}

async fn open_http2(stream: UpstreamStream, options: &ProxyOptions) -> Result<Sender2, Error> {
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

/// Why sending ended without an answer.
pub(super) enum Unsent {
    /// The connection was closed before a byte was sent; the request is intact.
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

impl UpstreamConnection {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// True if another connection may work, should this one be closed.
    pub(super) fn was_used(&self) -> bool {
        !matches!(self, Self::Fresh(_))
    }

    /// Sends a request and waits for the head of the answer, up to the read timeout and at most until `deadline`. The loan is for a
    /// connection that serves one request at a time.
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
                // It may still be finishing the last answer, or may have been closed since.
                if poll_fn(|context| line.poll_ready(context)).await.is_err() {
                    return Err(Unsent::Back(request));
                }
                let Http1Connection { sender, drive, silence } = &mut line;
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

impl Http1Connection {
    /// Ready if it can take a request. Polls the connection first, because nothing polls an idle connection.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        // Without this task's waker at first: the request that follows would wake it for nothing.
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

/// A connection that is in use for one answer.
pub(super) struct Loan {
    line: Http1Connection,
    pool: Arc<Pool>,
}

impl Loan {
    /// Polls the answer's body, and the connection if the waiter drives it.
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

    /// Gives the connection up to a tunnel.
    pub(super) fn let_go(mut self) {
        self.line.drive.detach();
    }

    /// Returns the connection after the answer was read completely.
    pub(super) fn give_back(self) {
        self.pool.keep(self.line);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({})", self.pool.upstream)
    }
}
