//! A gateway in this process, an upstream that writes down what reaches it, and a client that says exactly what it is
//! told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::edge::{self, ClientTimeouts, DrainResult, EdgeOptions};
use semel_http::layer::Guarded;
use semel_http::proxy::{self, Proxy};
use semel_http::{BoxError, Guard, RoutePolicy, Scope};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower_service::Service;

/// Nothing in these tests takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

// === the upstream ===

/// A request as it reached the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The head, without its last empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
    /// Which connection it came on, from 0.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn request_line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    /// Every value of a header.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

/// What the upstream does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Sends back whatever comes, from here on.
    Echo,
    /// Closes the connection.
    Close,
}

pub(crate) fn ok() -> Vec<Step> {
    vec![send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")]
}

pub(crate) fn send(bytes: impl AsRef<[u8]>) -> Step {
    Step::Send(bytes.as_ref().to_vec())
}

type Act = Arc<dyn Fn(&Seen) -> Vec<Step> + Send + Sync>;

/// A small server that counts.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Heads that began, whether or not their body came.
    begun: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Upstream {
    pub(crate) async fn start(act: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, begun) = (Arc::default(), Arc::default());
        let act: Act = Arc::new(act);
        let (log, count) = (Arc::clone(&seen), Arc::clone(&begun));
        let task = tokio::spawn(async move {
            let mut number = 0;
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(
                    stream,
                    number,
                    Arc::clone(&log),
                    Arc::clone(&count),
                    Arc::clone(&act),
                ));
                number += 1;
            }
        });
        Self { address, seen, begun, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Whole requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// How many whole requests so far.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().len()
    }

    /// Whole requests after the first `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<Seen> {
        self.seen.lock()[count..].to_vec()
    }

    /// Heads so far.
    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(
    mut stream: TcpStream,
    connection: usize,
    seen: Arc<Mutex<Vec<Seen>>>,
    begun: Arc<AtomicUsize>,
    act: Act,
) {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer, connection, &begun).await {
        let steps = act(&request);
        seen.lock().push(request);
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Echo => {
                    let (mut read, mut write) = stream.split();
                    let _ = write.write_all(&buffer).await;
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    return;
                }
                Step::Close => return,
            }
        }
    }
}

async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    connection: usize,
    begun: &AtomicUsize,
) -> Option<Seen> {
    let head = take_until(stream, buffer, b"\r\n\r\n").await?;
    begun.fetch_add(1, Ordering::SeqCst);
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut seen = Seen { head, body: Vec::new(), trailers: String::new(), connection };
    if seen.values("transfer-encoding") == ["chunked"] {
        loop {
            let line = String::from_utf8(take_until(stream, buffer, b"\r\n").await?).ok()?;
            let size = usize::from_str_radix(line.split(';').next()?, 16).ok()?;
            if size == 0 {
                break;
            }
            seen.body.extend(take(stream, buffer, size).await?);
            take(stream, buffer, 2).await?;
        }
        loop {
            let line = take_until(stream, buffer, b"\r\n").await?;
            if line.is_empty() {
                break;
            }
            seen.trailers += &format!("{}\n", String::from_utf8_lossy(&line));
        }
    } else if let [length] = seen.values("content-length")[..] {
        let length = length.parse().ok()?;
        seen.body = take(stream, buffer, length).await?;
    }
    Some(seen)
}

async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(buffer.drain(..length).collect())
}

async fn take_until(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|window| window == end) {
            let mut taken: Vec<u8> = buffer.drain(..at + end.len()).collect();
            taken.truncate(at);
            return Some(taken);
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

// === the gateway ===

/// Limits that a test reaches quickly.
pub(crate) fn small() -> EdgeOptions {
    let mut options = EdgeOptions { drain: Duration::from_secs(5), ..EdgeOptions::default() };
    options.limits.body_bytes = 256 * 1024;
    options.timeouts = ClientTimeouts {
        head: Duration::from_millis(300),
        body: Duration::from_millis(300),
        body_rate: 64 * 1024,
        idle: Duration::from_secs(5),
        write: Duration::from_secs(5),
        linger: Duration::from_millis(300),
    };
    options
}

/// A listener with a proxy behind it.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<DrainResult>,
}

impl Gateway {
    /// Before `upstream`, with limits that a test reaches quickly.
    pub(crate) async fn before(upstream: &Upstream) -> Self {
        Self::with(&upstream.url(), small(), proxy::ProxyOptions::default()).await
    }

    pub(crate) async fn with(upstream: &str, edge: EdgeOptions, proxy: proxy::ProxyOptions) -> Self {
        Self::of(Proxy::new(upstream.parse().unwrap(), proxy).unwrap(), edge).await
    }

    /// With a guard between listener and proxy, on the memory store.
    pub(crate) async fn guarded(upstream: &str, route: Option<RoutePolicy>) -> Self {
        let options = proxy::ProxyOptions { read: Duration::from_secs(2), ..proxy::ProxyOptions::default() };
        let proxy = Proxy::new(upstream.parse().unwrap(), options).unwrap();
        let engine = Engine::builder(MemoryStore::new()).build().unwrap();
        let guard = Guard::builder(engine).scope(Scope::SingleTenant);
        let guard = route.into_iter().fold(guard, |guard, route| guard.route(route)).build().unwrap();
        let options = EdgeOptions { shortcut: Some(Arc::new(guard.clone())), ..small() };
        Self::of(Guarded::new(guard, proxy), options).await
    }

    pub(crate) async fn of<S, B>(service: S, edge: EdgeOptions) -> Self
    where
        S: Service<Request<edge::RequestBody>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError> + Send,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(edge::serve(listener, service, edge, async {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), task }
    }

    pub(crate) async fn connect(&self) -> Raw<TcpStream> {
        Raw::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends all of `bytes` on a new connection and reads to its end.
    pub(crate) async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.rest().await
    }

    /// Tells it to stop, without waiting.
    pub(crate) fn tell_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) async fn stopped(self) -> DrainResult {
        tokio::time::timeout(DEADLINE, self.task).await.expect("the listener ends").unwrap()
    }
}

// === the client ===

/// A connection on which every byte is the test's own.
pub(crate) struct Raw<S> {
    pub(crate) stream: S,
    pub(crate) unread: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Raw<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, unread: Vec::new() }
    }

    /// Sends; that the other side has closed already is no failure of the test.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
        let _ = self.stream.flush().await;
    }

    /// Everything until the other side closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.unread);
        let read = self.stream.read_to_end(&mut bytes);
        // A reset after the answer is an end too.
        let _ = tokio::time::timeout(DEADLINE, read).await.expect("the connection is closed");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads until `end` was read, inclusively.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        let read = async {
            loop {
                let found = self.unread.windows(end.len()).position(|window| window == end.as_bytes());
                if let Some(at) = found {
                    return String::from_utf8_lossy(&self.unread.drain(..at + end.len()).collect::<Vec<_>>())
                        .into_owned();
                }
                let count = self.stream.read_buf(&mut self.unread).await.unwrap_or(0);
                assert!(count > 0, "closed before {end:?}; had {:?}", String::from_utf8_lossy(&self.unread));
            }
        };
        tokio::time::timeout(DEADLINE, read).await.unwrap_or_else(|_| panic!("{end:?} comes"))
    }
}

/// The status of an answer; 0 where there is none. Every refusal of the listener must have an id that a customer can quote.
pub(crate) fn status(answer: &str) -> u16 {
    let rest = answer.strip_prefix("HTTP/1.1 ").or_else(|| answer.strip_prefix("HTTP/1.0 "));
    let status = rest.and_then(|rest| rest.get(..3)).map_or(0, |code| code.parse().unwrap());
    // The guard's problems have titles of their own.
    let title = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    if title.is_some_and(|title| answer.contains(&format!("\"title\":\"{title}\""))) {
        let ids = answer.split("\r\n").filter_map(|line| line.strip_prefix("x-request-id: "));
        assert_eq!(ids.filter(|id| !id.is_empty()).count(), 1, "an id to quote: {answer}");
    }
    status
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}
