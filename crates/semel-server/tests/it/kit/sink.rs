//! A target that counts: what it was sent, under which key, and what it answered. It can be stopped and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A target of the test's.
pub(crate) struct Sink {
    at: SocketAddr,
    shared: Arc<Shared>,
    running: Option<Running>,
}

struct Running {
    stop: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    status: AtomicU16,
    /// What it refuses for good, by a word in the body.
    refused: Mutex<Option<String>>,
    /// What the next calls are answered with, the last one first.
    in_turn: Mutex<Vec<u16>>,
    /// How long it takes, in ms.
    slow: AtomicU64,
    now: AtomicUsize,
    most: AtomicUsize,
    seen: Mutex<Vec<Delivered>>,
}

/// A delivery as the target saw it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    /// What it was answered with.
    pub(crate) status: u16,
    /// When it had come.
    pub(crate) at: Instant,
}

impl Delivered {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key")
    }
}

impl Sink {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { status: AtomicU16::new(200), ..Shared::default() });
        let mut sink = Self { at, shared, running: None };
        sink.run(listener);
        sink
    }

    fn run(&mut self, listener: TcpListener) {
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (shared, stopping, open) =
            (Arc::clone(&self.shared), Arc::clone(&stop), Arc::clone(&connections));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                open.lock().push(stream.try_clone().expect("a second handle"));
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || while answer(&stream, &shared).is_some() {});
            }
        });
        self.running = Some(Running { stop, connections, thread });
    }

    /// Stops it: it does not listen, and open connections are cut.
    pub(crate) fn stop(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.at));
        running.thread.join().expect("it ends");
        for connection in running.connections.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Starts it again, at the same address.
    pub(crate) fn restart(&mut self) {
        let listener = TcpListener::bind(self.at).expect("its port is free");
        self.run(listener);
    }

    /// Answers with this status from now on.
    pub(crate) fn answer_with(&self, status: u16) {
        self.shared.status.store(status, Ordering::SeqCst);
    }

    /// Answers the next calls with these, one after the other, and then as always.
    pub(crate) fn answer_in_turn(&self, statuses: impl DoubleEndedIterator<Item = u16>) {
        *self.shared.in_turn.lock() = statuses.rev().collect();
    }

    /// Refuses for good what has this word in its body.
    pub(crate) fn refuse(&self, word: &str) {
        *self.shared.refused.lock() = Some(word.to_owned());
    }

    /// Takes this time for every request from now on.
    pub(crate) fn be_slow(&self, by: Duration) {
        self.shared.slow.store(u64::try_from(by.as_millis()).expect("it is short"), Ordering::SeqCst);
    }

    /// How many it had in hand at once, at most, since the last question.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.at)
    }

    /// Everything it was sent, in order.
    pub(crate) fn seen(&self) -> Vec<Delivered> {
        self.shared.seen.lock().clone()
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        self.shared.seen.lock().len()
    }

    /// The keys under which it took something.
    pub(crate) fn effects(&self) -> BTreeSet<String> {
        let seen = self.shared.seen.lock();
        seen.iter().filter(|one| one.status < 300).map(|one| one.key().to_owned()).collect()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answer(stream: &TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut headers) = (String::new(), BTreeMap::new());
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let at = Instant::now();
    let now = shared.now.fetch_add(1, Ordering::SeqCst) + 1;
    shared.most.fetch_max(now, Ordering::SeqCst);
    let slow = shared.slow.load(Ordering::SeqCst);
    if slow > 0 {
        #[expect(clippy::disallowed_methods, reason = "a slow target takes real time")]
        std::thread::sleep(Duration::from_millis(slow));
    }
    let refused = shared.refused.lock().as_ref().is_some_and(|word| body.contains(word));
    let in_turn = shared.in_turn.lock().pop();
    let status = if refused { 422 } else { in_turn.unwrap_or(shared.status.load(Ordering::SeqCst)) };
    shared.now.fetch_sub(1, Ordering::SeqCst);
    shared.seen.lock().push(Delivered { path, headers, body, status, at });
    let text = format!("HTTP/1.1 {status} x\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello");
    (&mut &*stream).write_all(text.as_bytes()).ok()
}
