//! Attacks that pile something up: calls at the upstream, bytes in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::capacity::{Capacity, CapacityLimits};
use semel_http::layer::Guarded;
use semel_http::{Body, Guard, Scope};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower_service::Service;

use crate::edge_kit::{Gateway, eventually, small};

type Answering =
    std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, std::convert::Infallible>> + Send>>;

/// Answers once it is told to, and counts the calls until then.
#[derive(Clone)]
struct Slow {
    open: watch::Receiver<bool>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for Slow {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Answering {
        let Self { mut open, now, most } = self.clone();
        Box::pin(async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = open.wait_for(|open| *open).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Response::new(Body::from("done")))
        })
    }
}

fn guard(capacity: &Capacity, limits: CapacityLimits) -> Guard {
    let engine = Engine::builder(MemoryStore::new()).build().unwrap();
    Guard::builder(engine).scope(Scope::SingleTenant).capacity(capacity.clone(), limits).build().unwrap()
}

/// Streams that are reset leave their effects behind, so the limit on streams does not bound the calls.
#[tokio::test]
async fn http2_resets_do_not_pile_up_calls() {
    let (open, opened) = watch::channel(false);
    let slow = Slow { open: opened, now: Arc::default(), most: Arc::default() };
    let capacity = Capacity::new();
    let limits = CapacityLimits { calls: 40, calls_per_upstream: 25, ..CapacityLimits::default() };
    let gateway = Gateway::of(Guarded::new(guard(&capacity, limits), slow.clone()), small()).await;
    for connection in 0..2 {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let (sender, connected) = h2::client::handshake(stream).await.unwrap();
        let task = tokio::spawn(connected);
        let mut sender = sender.ready().await.unwrap();
        for stream in 0..100 {
            let key = format!("{connection}-{stream}");
            let request = Request::post("http://a/x").header("idempotency-key", key).body(()).unwrap();
            let (answer, mut sending) = sender.send_request(request, true).unwrap();
            // Long enough for the request to be claimed and called.
            let _ = tokio::time::timeout(Duration::from_millis(3), answer).await;
            sending.send_reset(h2::Reason::CANCEL);
            sender = sender.ready().await.unwrap();
        }
        task.abort();
    }
    eventually("calls in flight", || slow.now.load(Ordering::SeqCst) == 25).await;
    assert_eq!(capacity.calls_in_flight(), 25, "they outlive their streams, and count");
    open.send(true).unwrap();
    eventually("the end of all calls", || capacity.calls_in_flight() == 0).await;
    assert_eq!(slow.most.load(Ordering::SeqCst), 25);
    assert!(capacity.calls_refused()[1].1 > 100, "{:?}", capacity.calls_refused());
}

/// The room of a body comes back however its request ends: answered, reset, cut, too large, or late.
#[tokio::test]
async fn bodies_give_their_room_back_however_they_end() {
    let (_open, opened) = watch::channel(true);
    let slow = Slow { open: opened, now: Arc::default(), most: Arc::default() };
    let capacity = Capacity::new();
    let limits = CapacityLimits { buffered_bytes: 64 << 10, ..CapacityLimits::default() };
    let mut options = small();
    options.timeouts.body = Duration::from_secs(2);
    let gateway = Gateway::of(Guarded::new(guard(&capacity, limits), slow), options).await;
    let head = |key: &str, length: usize| {
        format!("POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n")
    };
    let held = |bytes: u64| {
        let capacity = capacity.clone();
        async move { eventually("bytes", || capacity.buffered_bytes() == bytes).await }
    };
    // Cut by the client.
    let mut cut = gateway.connect().await;
    cut.send(head("cut", 40_000)).await;
    cut.send(vec![b'x'; 30_000]).await;
    held(30_000).await;
    drop(cut);
    held(0).await;
    // Reset by an HTTP/2 client.
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let request = Request::post("http://a/x").header("idempotency-key", "reset").body(()).unwrap();
    let (answer, mut sending) = sender.send_request(request, false).unwrap();
    sending.send_data(Bytes::from(vec![b'x'; 20_000]), false).unwrap();
    held(20_000).await;
    sending.send_reset(h2::Reason::CANCEL);
    drop(answer);
    held(0).await;
    // Too slow: the listener's timeout ends first.
    let mut slow = gateway.connect().await;
    slow.send(head("slow", 40_000)).await;
    slow.send(vec![b'x'; 10_000]).await;
    assert!(slow.rest().await.starts_with("HTTP/1.1 408"));
    held(0).await;
    // Larger than all the room there is: never taken.
    let large = gateway.ask(format!("{}{}", head("large", 70_000), "x".repeat(70_000))).await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    held(0).await;
    // Whole, in single bytes: they take no more than their length.
    let mut whole = gateway.connect().await;
    whole
        .send("POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: w\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    whole.send("1\r\nx\r\n".repeat(3_000)).await;
    held(3_000).await;
    whole.send("0\r\n\r\n").await;
    assert!(whole.rest().await.contains("done"));
    held(0).await;
    assert_eq!(capacity.bodies_refused(), 0);
}
