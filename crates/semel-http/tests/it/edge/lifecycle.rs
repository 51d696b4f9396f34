//! Connections: how long they live, and what ends with them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use semel_http::edge::{self, DisconnectPolicy, DrainResult, EdgeOptions};
use semel_http::proxy::ProxyOptions;
use tokio::io::AsyncWriteExt as _;
use tower_service::Service;

use crate::edge_kit::{Gateway, Step, Upstream, eventually, ok, send, small, status};

const GET: &str = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

fn slow() -> Vec<Step> {
    [vec![Step::Pause(Duration::from_millis(150))], ok()].concat()
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    for _ in 0..50 {
        client.send(GET).await;
        assert_eq!(status(&client.until("ok").await), 200);
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|seen| seen.connection == 0), "upstream connections are kept too");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let upstream = Upstream::start(|seen| {
        let path = seen.request_line().split(' ').nth(1).unwrap().to_owned();
        vec![Step::Send(
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len()).into_bytes(),
        )]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    let all: String = (10..60).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.send(all).await;
    for n in 10..60 {
        let answer = client.until(&format!("/{n}")).await;
        assert!(answer.ends_with(&format!("\r\n\r\n/{n}")), "{answer}");
    }
}

// half_close
#[tokio::test]
async fn half_close() {
    let upstream = Upstream::start(|_| slow()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send(GET).await;
    client.stream.shutdown().await.unwrap();
    let answer = client.rest().await;
    assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
}

// Where nobody wants the work of clients that are gone, it is dropped.
#[tokio::test]
async fn work_of_a_departed_client_can_be_dropped() {
    /// Never answers; says when it was begun, and when it was given up.
    #[derive(Clone, Default)]
    struct Waits(Arc<(AtomicUsize, AtomicUsize)>);

    struct Begun(Waits);

    impl Drop for Begun {
        fn drop(&mut self) {
            self.0.0.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Service<Request<edge::RequestBody>> for Waits {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<edge::RequestBody>) -> Self::Future {
            let begun = Begun(self.clone());
            self.0.0.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(begun);
                Ok(Response::default())
            })
        }
    }

    let waits = Waits::default();
    let begun = || waits.0.0.load(Ordering::SeqCst) == 1;
    let gateway =
        Gateway::of(waits.clone(), edge::EdgeOptions { on_disconnect: DisconnectPolicy::Drop, ..small() })
            .await;
    let mut client = gateway.connect().await;
    client.send(GET).await;
    eventually("the call", begun).await;
    assert_eq!(waits.0.1.load(Ordering::SeqCst), 0);
    drop(client);
    eventually("its end", || waits.0.1.load(Ordering::SeqCst) == 1).await;
}

// disconnect_mid_effect
#[tokio::test]
async fn a_client_that_leaves_does_not_cut_the_upstream_off() {
    let upstream = Upstream::start(|_| slow()).await;
    let gateway = Gateway::before(&upstream).await;
    for reset in [false, true] {
        let before = upstream.seen().len();
        let mut client = gateway.connect().await;
        client.send(GET).await;
        eventually("it is in progress", || upstream.seen().len() > before).await;
        if reset {
            // Closing with zero linger sends a reset.
            client.stream.set_zero_linger().unwrap();
        }
        drop(client);
        // The connection to the upstream was not cut: it serves the next request, after the first answer.
        assert_eq!(
            status(&gateway.ask("GET /y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await),
            200
        );
    }
}

// sigterm_drain
#[tokio::test]
async fn drain_lets_requests_finish() {
    let upstream = Upstream::start(|_| slow()).await;
    let mut gateway = Gateway::before(&upstream).await;
    let mut busy = Vec::new();
    for _ in 0..20 {
        let mut client = gateway.connect().await;
        client.send(GET).await;
        busy.push(client);
    }
    let mut idle = gateway.connect().await;
    let mut half = gateway.connect().await;
    half.send("GET /x HT").await;
    eventually("all are in progress", || upstream.seen().len() == 20).await;
    let address = gateway.address;
    gateway.tell_to_stop();
    for client in &mut busy {
        let answer = client.rest().await;
        assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    assert_eq!(idle.rest().await, "");
    assert_eq!(half.rest().await, "");
    assert_eq!(gateway.stopped().await, DrainResult::Clean);
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "it still accepts");
}

// sigterm_drain: a tunnel is cut with the rest.
#[tokio::test]
async fn a_forced_drain_cuts_tunnels() {
    let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let upstream = Upstream::start(move |_| vec![send(switched), Step::Echo]).await;
    let mut options = small();
    options.drain = Duration::from_millis(200);
    let mut gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut client = gateway.connect().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    client.send("hello").await;
    client.until("hello").await;
    gateway.tell_to_stop();
    client.send("still there").await;
    client.until("still there").await;
    assert_eq!(gateway.stopped().await, DrainResult::Forced(1));
    assert_eq!(client.rest().await, "");
}

// sigterm_drain
#[tokio::test]
async fn drain_ends_at_its_limit() {
    let upstream = Upstream::start(|_| vec![Step::Pause(Duration::from_secs(60))]).await;
    let mut options = small();
    options.drain = Duration::from_millis(200);
    let mut gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut client = gateway.connect().await;
    client.send(GET).await;
    eventually("it is in progress", || upstream.seen().len() == 1).await;
    gateway.tell_to_stop();
    assert_eq!(gateway.stopped().await, DrainResult::Forced(1));
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let upstream = Upstream::start(|_| ok()).await;
    let mut options = small();
    options.timeouts.idle = Duration::from_millis(200);
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut silent = gateway.connect().await;
    assert_eq!(silent.rest().await, "");
    let mut client = gateway.connect().await;
    client.send(GET).await;
    client.until("ok").await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn idleness_does_not_end_a_request_that_takes_long() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_millis(600))], ok()].concat()).await;
    let mut options = small();
    options.timeouts.idle = Duration::from_millis(100);
    options.timeouts.head = Duration::from_millis(100);
    options.timeouts.body = Duration::from_millis(100);
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut client = gateway.connect().await;
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").await;
    assert_eq!(status(&client.until("ok").await), 200);
}

/// A gateway that takes this many connections and has all the time in the world for each.
async fn with_slots(connections: u32, upstream: &Upstream) -> Gateway {
    Gateway::with(&upstream.url(), slots(connections), ProxyOptions::default()).await
}

fn slots(connections: u32) -> EdgeOptions {
    let mut options = small();
    options.limits.connections = connections;
    options.timeouts.idle = Duration::from_secs(60);
    options.timeouts.head = Duration::from_secs(60);
    options.timeouts.body = Duration::from_secs(60);
    options
}

#[tokio::test]
async fn at_the_limit_a_new_connection_waits_for_calls_in_progress() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_millis(600))], ok()].concat()).await;
    let gateway = with_slots(2, &upstream).await;
    let mut busy = [gateway.connect().await, gateway.connect().await];
    for client in &mut busy {
        client.send(GET).await;
    }
    eventually("both calls are at the upstream", || upstream.seen().len() == 2).await;
    let mut next = gateway.connect().await;
    next.send(GET).await;
    // Nothing was cut for the new one, and it has its turn once a call has ended.
    assert_eq!(status(&next.until("ok").await), 200);
    let mut answers = Vec::new();
    for client in &mut busy {
        answers.push(status(&client.until("ok").await));
    }
    assert_eq!(answers, [200, 200]);
}

#[tokio::test]
async fn at_the_limit_the_connection_that_is_idle_longest_makes_room() {
    let upstream = Upstream::start(|_| ok()).await;
    let options = slots(2);
    let closed = Arc::clone(&options.closed_at_limit);
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut first = gateway.connect().await;
    first.send(GET).await;
    first.until("ok").await;
    let mut second = gateway.connect().await;
    second.send(GET).await;
    second.until("ok").await;
    let mut third = gateway.connect().await;
    third.send(GET).await;
    third.until("ok").await;
    assert_eq!(first.rest().await, "", "closed");
    assert_eq!(closed.load(Ordering::Relaxed), 1, "counted");
    second.send(GET).await;
    assert_eq!(status(&second.until("ok").await), 200, "still open");
}

#[tokio::test]
async fn clients_that_send_nothing_or_a_little_do_not_keep_others_out() {
    let unfinished = [
        "",
        "GET /x HTTP/1.1\r\nHost: a\r\nX-Half",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\nx",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    for start in unfinished {
        let upstream = Upstream::start(|_| ok()).await;
        let gateway = with_slots(2, &upstream).await;
        let mut slow = [gateway.connect().await, gateway.connect().await];
        for client in &mut slow {
            client.send(start).await;
        }
        for _ in 0..3 {
            let mut honest = gateway.connect().await;
            honest.send(GET).await;
            assert_eq!(status(&honest.until("ok").await), 200, "{start:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut() {
    let body = vec![b'x'; 16 * 1024 * 1024];
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = [head.as_bytes(), &body].concat();
    let upstream = Upstream::start(move |_| vec![Step::Send(answer.clone())]).await;
    let mut options = small();
    options.timeouts.write = Duration::from_millis(200);
    options.limits.connections = 1;
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut client = gateway.connect().await;
    client.send(GET).await;
    // The only place is free again once the first client was cut.
    let mut next = gateway.connect().await;
    next.send("get bad\r\n\r\n").await;
    assert_eq!(status(&next.rest().await), 400);
    drop(client);
}

// oversize
#[tokio::test]
async fn heads_that_never_end_take_little_memory() {
    let upstream = Upstream::start(|_| ok()).await;
    let mut options = small();
    options.timeouts.head = Duration::from_secs(30);
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let before = resident();
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut client = gateway.connect().await;
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n").await;
        for _ in 0..30 {
            client.send(format!("X-A: {}\r\n", "a".repeat(1_000))).await;
        }
        clients.push(client);
    }
    // Each holds 30 KB of a head; what hyper and tokio keep for a connection comes on top.
    let grown = resident().saturating_sub(before);
    assert!(grown < 200 * 120 * 1024, "{grown} bytes for 200 clients");
    for client in &mut clients {
        client.send(format!("X-B: {}\r\n\r\n", "b".repeat(40_000))).await;
    }
    for client in &mut clients {
        assert_eq!(status(&client.rest().await), 431);
    }
    assert_eq!(upstream.begun(), 0);
}

/// Bytes of memory this process has in use.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
