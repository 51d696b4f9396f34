//! Requests of which only the status matters, and that may be stopped until their last byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use semel_client::client::{Client, Lost, Request, SendControl, Sent};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::keyed;

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends this many requests and reads the status.
#[derive(Default)]
struct Control {
    passes: AtomicUsize,
    asked: AtomicUsize,
    status: parking_lot::Mutex<Option<StatusCode>>,
    heard: Notify,
}

impl Control {
    fn passing(times: usize) -> Arc<Self> {
        Arc::new(Self { passes: AtomicUsize::new(times), ..Self::default() })
    }

    fn stop(&self) {
        self.passes.store(0, Ordering::SeqCst);
    }
}

impl SendControl for Control {
    fn may_send(&self) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let pass = |left: usize| left.checked_sub(1);
        self.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, pass).is_ok()
    }

    fn answered(&self, status: StatusCode) {
        *self.status.lock() = Some(status);
        self.heard.notify_one();
    }
}

async fn listener() -> (TcpListener, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::builder(&url).unwrap().timeout(Duration::from_millis(600)).body_limit(1024);
    (listener, client.build().unwrap())
}

async fn read_request(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"{}") {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "a whole request");
    }
}

/// What a target does after the first bytes of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Silence,
    Close,
    Reset,
}

/// Sends one request to a target that answers with these bytes; it goes on only when the client has the status, where it
/// got one.
async fn ask(answer: &str, then: Then, status: Option<u16>) -> Sent {
    let (listener, client) = listener().await;
    let control = Control::passing(usize::MAX);
    let target = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        if status.is_some() && then == Then::Reset {
            control.heard.notified().await;
        }
        match then {
            Then::Silence => std::future::pending::<()>().await,
            Then::Close => drop(stream),
            Then::Reset => {
                stream.set_zero_linger().unwrap();
                drop(stream);
            }
        }
        std::future::pending::<()>().await;
    };
    let request = keyed();
    let sent = tokio::select! {
        sent = client.send_for_status(&request, Arc::clone(&control) as Arc<dyn SendControl>) => sent,
        () = target => unreachable!("it waits for ever"),
    };
    assert_eq!(control.status.lock().map(|status| status.as_u16()), status, "{answer:?}");
    sent
}

// A target took a delivery once it said so. What comes after the status can be late, missing or wrong.
#[tokio::test]
async fn a_success_is_one_whatever_becomes_of_its_body() {
    let long = format!("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{}", "x".repeat(5000));
    let cases = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", Then::Silence),
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234", Then::Silence),
        ("HTTP/1.1 201 Created\r\ncontent-length: 10\r\n\r\n01234", Then::Close),
        ("HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\n01234", Then::Reset),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n", Then::Close),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01", Then::Reset),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n01234", Then::Silence),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n", Then::Silence),
        ("HTTP/1.1 299 Odd\r\n\r\nuntil it ends", Then::Silence),
        (long.as_str(), Then::Silence),
    ];
    for (answer, then) in cases {
        let status = answer[9..12].parse().unwrap();
        let sent = ask(answer, then, Some(status)).await;
        let Sent::Answered(response) = &sent else { panic!("{answer:?}, {then:?}: {sent:?}") };
        assert_eq!((response.status.as_u16(), response.truncated), (status, true), "{answer:?}, {then:?}");
    }
    // One that comes whole is whole, also where it says that it is what it is not.
    let zipped = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\n01234";
    let sent = ask(zipped, Then::Silence, Some(200)).await;
    assert!(matches!(&sent, Sent::Answered(response) if !response.truncated), "{sent:?}");
}

// What is no success may say in its body what to do; without it nobody knows. And without a status there is none.
#[tokio::test]
async fn anything_else_has_to_come_whole() {
    for (answer, then) in [
        ("HTTP/1.1 503 Busy\r\ncontent-length: 10\r\n\r\n01234", Then::Silence),
        ("HTTP/1.1 422 No\r\ncontent-length: 10\r\n\r\n01234", Then::Close),
        ("HTTP/1.1 302 Elsewhere\r\ncontent-length: 10\r\n\r\n", Then::Reset),
    ] {
        let status = answer[9..12].parse().unwrap();
        let sent = ask(answer, then, Some(status)).await;
        assert!(matches!(sent, Sent::Unknown(Lost::Cut(_) | Lost::Timeout)), "{answer:?}: {sent:?}");
    }
    for answer in ["", "HTTP/1.1 200 O", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n", "200 OK\r\n\r\n"] {
        let sent = ask(answer, Then::Close, None).await;
        assert!(matches!(sent, Sent::Unknown(Lost::Cut(_))), "{answer:?}: {sent:?}");
    }
}

// The connection of a body that did not come whole is not used again; another one is.
#[tokio::test]
async fn the_next_request_gets_a_connection_of_its_own() {
    let (listener, client) = listener().await;
    let target = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        read_request(&mut first).await;
        first.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234").await.unwrap();
        let (mut second, _) = listener.accept().await.unwrap();
        read_request(&mut second).await;
        second.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
        // The second connection was read to its end, and serves again.
        read_request(&mut second).await;
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        std::future::pending::<()>().await;
    });
    for status in [200, 204, 200] {
        let sent = client.send_for_status(&keyed(), Control::passing(usize::MAX)).await;
        assert!(matches!(&sent, Sent::Answered(response) if response.status == status), "{status}: {sent:?}");
    }
    target.abort();
}

// Refused before the connection is used, and refused when its task comes to write: no byte goes out.
#[tokio::test]
async fn a_request_that_is_stopped_in_time_is_not_sent() {
    for passes in [0, 1] {
        let (listener, client) = listener().await;
        let control = Control::passing(passes);
        let sent = client.send_for_status(&keyed(), Arc::clone(&control) as Arc<dyn SendControl>).await;
        assert!(matches!(sent, Sent::NotSent(Lost::Stopped)), "{passes}: {sent:?}");
        assert_eq!(control.asked.load(Ordering::SeqCst), passes + 1);
        let (mut stream, _) = listener.accept().await.unwrap();
        if passes == 0 {
            // The connection is good, and the next request takes it.
            let served = async {
                read_request(&mut stream).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            };
            let request = keyed();
            let (sent, ()) = tokio::join!(client.send_once(&request), served);
            assert!(matches!(sent, Sent::Answered(_)), "{sent:?}");
        } else {
            let mut bytes = Vec::new();
            let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap();
            assert!(bytes.is_empty(), "{ended:?}");
        }
    }
}

// A large body waits for its receiver. Stopped meanwhile, the rest of it stays here, and no whole request arrives.
#[tokio::test]
async fn a_request_that_is_stopped_midway_does_not_arrive() {
    const LARGE: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::builder(&url).unwrap().timeout(PATIENCE).build().unwrap();
    let control = Control::passing(usize::MAX);
    let request = Request::post("/").bytes(vec![b'x'; LARGE]).key("k").unwrap();
    let target = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // The sender has filled the socket when nothing more is asked.
        let asked = || control.asked.load(Ordering::SeqCst);
        let mut last = 0;
        while asked() != last || last < 2 {
            last = asked();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        control.stop();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes.len()
    };
    let sending = client.send_for_status(&request, Arc::clone(&control) as Arc<dyn SendControl>);
    let (sent, received) = tokio::join!(sending, target);
    assert!(matches!(sent, Sent::Unknown(Lost::Stopped)), "{sent:?}");
    assert!((1..LARGE).contains(&received), "{received}");
}
