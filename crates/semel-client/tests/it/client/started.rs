//! Whether a request that was started on a kept connection is sent again: our pool, and hyper-util's for comparison.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use semel_client::client::{Client, Request, Sent};
use tokio::time::Instant;

/// Larger than a socket takes at once, so that a close can fall into the body.
const BODY: usize = 1 << 20;

/// When the server closes a kept connection, counted from its first answer.
#[derive(Clone, Copy, Debug)]
enum Close {
    /// Without waiting for the next request.
    After(Duration),
    /// When this many bytes of the next request have arrived.
    AtByte(usize),
    /// When all of it has arrived.
    AtEnd,
}

/// Answers the first request of every connection, and closes the connection at a moment after that.
struct ClosingServer {
    port: u16,
    /// How often the path of each request arrived.
    arrived: Arc<Mutex<HashMap<String, usize>>>,
}

impl ClosingServer {
    fn start(close_at: fn(usize) -> Close) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let arrived = Arc::new(Mutex::new(HashMap::new()));
        let seen = Arc::clone(&arrived);
        std::thread::spawn(move || {
            for (number, socket) in listener.incoming().enumerate() {
                let (seen, close) = (Arc::clone(&seen), close_at(number));
                // A connection that breaks is what this is about.
                std::thread::spawn(move || serve(&socket.unwrap(), close, &seen).unwrap_or_default());
            }
        });
        Self { port, arrived }
    }

    fn arrivals(&self, path: &str) -> usize {
        self.arrived.lock().unwrap().get(path).copied().unwrap_or(0)
    }
}

fn serve(mut socket: &TcpStream, close: Close, seen: &Mutex<HashMap<String, usize>>) -> std::io::Result<()> {
    read_request(socket, usize::MAX, seen)?;
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    match close {
        // Spins: a sleep cannot be as short as the gap between two requests.
        Close::After(delay) => {
            let start = Instant::now();
            while start.elapsed() < delay {
                std::hint::spin_loop();
            }
            // What arrived until now counts.
            socket.set_nonblocking(true)?;
            read_request(socket, usize::MAX, seen)
        }
        Close::AtByte(limit) => read_request(socket, limit, seen),
        Close::AtEnd => read_request(socket, usize::MAX, seen),
    }
}

/// Reads a request, or the first `limit` bytes of it.
fn read_request(
    mut socket: &TcpStream,
    limit: usize,
    seen: &Mutex<HashMap<String, usize>>,
) -> std::io::Result<()> {
    let (mut bytes, mut counted, mut buffer) = (Vec::new(), false, vec![0; 64 << 10]);
    loop {
        let room = buffer.len().min(limit - bytes.len());
        let read = socket.read(&mut buffer[..room])?;
        bytes.extend_from_slice(&buffer[..read]);
        if !counted && let Some(path) = bytes.split(|byte| *byte == b' ').nth(1).filter(|_| bytes.len() > 40)
        {
            counted = true;
            *seen.lock().unwrap().entry(String::from_utf8_lossy(path).into_owned()).or_default() += 1;
        }
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if read == 0 || bytes.len() >= limit || head.is_some_and(|head| bytes.len() >= head + 4 + BODY) {
            return Ok(());
        }
    }
}

/// How one request ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Answered,
    NotSent,
    Unknown,
}

/// Moments before, in and after the second request of a connection.
fn close_at(connection: usize) -> Close {
    match connection % 8 {
        0 => Close::AtByte(60),
        1 => Close::AtByte(500),
        2 => Close::AtByte(BODY / 2),
        3 => Close::AtEnd,
        _ => Close::After(Duration::from_micros(connection as u64 % 97 * 5)),
    }
}

/// Lets a new client of `connect` send two requests a round, the second on the kept connection if that is still open. Counts how
/// the second ended: answered, not sent, unknown. No request may arrive twice.
async fn count_ends<S: AsyncFnMut(String) -> End>(rounds: usize, connect: impl Fn(u16) -> S) -> [usize; 3] {
    let server = ClosingServer::start(close_at);
    let mut ends = [0; 3];
    for round in 0..rounds {
        let mut send = connect(server.port);
        for part in ["first", "second"] {
            let path = format!("/{part}/{round:08}/to-see-it-in-a-part-of-the-head");
            let end = send(path.clone()).await;
            let arrivals = server.arrivals(&path);
            match end {
                End::Answered => assert_eq!(arrivals, 1, "{path}"),
                End::NotSent => assert_eq!(arrivals, 0, "{path}"),
                End::Unknown => assert!(arrivals <= 1, "{path} arrived {arrivals} times"),
            }
            if part == "second" {
                ends[end as usize] += 1;
            }
        }
    }
    let arrived = server.arrived.lock().unwrap();
    assert!(arrived.values().all(|times| *times == 1), "a request arrived again later");
    ends
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_request_is_sent_once() {
    let ends = count_ends(1_000, |port| {
        let client = Client::builder(&format!("http://127.0.0.1:{port}")).unwrap().build().unwrap();
        async move |path| {
            let request = Request::post(path).bytes(vec![b'x'; BODY]).key("derived-key-1").unwrap();
            match client.send_once(&request).await {
                Sent::Answered(_) => End::Answered,
                Sent::NotSent(_) => End::NotSent,
                Sent::Unknown(_) => End::Unknown,
            }
        }
    });
    let [answered, _, unknown] = ends.await;
    assert!(answered > 0 && unknown >= 500, "{answered} answered, {unknown} unknown");
}

/// The reasons for a pool of our own are others: see `pool.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_of_hyper_util_sends_a_started_request_once_too() {
    let ends = count_ends(1_000, |port| {
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        async move |path| {
            let request = http::Request::post(format!("http://127.0.0.1:{port}{path}"));
            let request = request.body(Full::new(Bytes::from(vec![b'x'; BODY]))).unwrap();
            // Its errors do not tell a request that was handed back from one that was started.
            client.request(request).await.map_or(End::Unknown, |_| End::Answered)
        }
    });
    let [answered, _, unknown] = ends.await;
    assert!(answered > 0 && unknown >= 500, "{answered} answered, {unknown} unknown");
}
