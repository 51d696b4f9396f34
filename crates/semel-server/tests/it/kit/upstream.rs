//! A counting API: every request is an effect.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Counts what it was asked to do, by idempotency key.
pub(crate) struct Upstream {
    at: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The `traceparent` of the last request.
    traceparent: Mutex<String>,
    /// Its `x-request-id`.
    request_id: Mutex<String>,
    calls: Mutex<HashMap<String, usize>>,
    /// Requests to `/slow` wait until it is open.
    open: Mutex<bool>,
    opened: Condvar,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || while answer(&stream, &shared).is_some() {});
            }
        });
        Self { at, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// How often it was called with this key.
    pub(crate) fn calls(&self, key: &str) -> usize {
        self.shared.calls.lock().get(key).copied().unwrap_or_default()
    }

    /// The `traceparent` of the last request that had one.
    pub(crate) fn traceparent(&self) -> String {
        self.shared.traceparent.lock().clone()
    }

    /// The `x-request-id` of the last request that had one.
    pub(crate) fn request_id(&self) -> String {
        self.shared.request_id.lock().clone()
    }

    /// How often it was called at all.
    pub(crate) fn total(&self) -> usize {
        self.shared.calls.lock().values().sum()
    }

    /// With how many keys it was called.
    pub(crate) fn keys(&self) -> usize {
        self.shared.calls.lock().len()
    }

    /// Makes requests to `/slow` wait again.
    pub(crate) fn close(&self) {
        *self.shared.open.lock() = false;
    }

    /// Lets requests to `/slow` go on.
    pub(crate) fn open(&self) {
        *self.shared.open.lock() = true;
        self.shared.opened.notify_all();
    }
}

/// The size of an answer to `/large`: more than the buffers of a connection hold.
pub(crate) const LARGE: usize = 24 << 20;

fn answer(stream: &TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length, mut key) = (String::new(), 0, String::new());
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "idempotency-key" => value.trim().clone_into(&mut key),
            "x-request-id" => value.trim().clone_into(&mut shared.request_id.lock()),
            "traceparent" => value.trim().clone_into(&mut shared.traceparent.lock()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    if path.starts_with("/by-key/") {
        // A probe is no effect. What was asked by this key has happened, or it would not be asked for.
        return write(stream, "201 Created", "{\"found\": true}");
    }
    let number = {
        let mut calls = shared.calls.lock();
        let count = calls.entry(key).or_default();
        *count += 1;
        *count
    };
    if path.starts_with("/lost") {
        // The call was counted, and its answer never comes.
        return None;
    }
    if path == "/named" {
        let body = format!("{{\"call\": {number}}}");
        let answer = "HTTP/1.1 201 Created\r\nx-request-id: upstream-1\r\ncontent-length";
        let mut stream = stream;
        return stream.write_all(format!("{answer}: {}\r\n\r\n{body}", body.len()).as_bytes()).ok();
    }
    if path == "/v1/orders" {
        return write(stream, "201 Created", &format!("{{\"id\": \"ch_{number}\"}}"));
    }
    if path == "/large" {
        let fill = "x".repeat(LARGE);
        return write(stream, "201 Created", &format!("{{\"call\": {number}, \"fill\": \"{fill}\"}}"));
    }
    if path == "/slow" {
        let mut open = shared.open.lock();
        while !*open {
            if shared.opened.wait_for(&mut open, Duration::from_secs(60)).timed_out() {
                return None;
            }
        }
    }
    write(stream, "201 Created", &format!("{{\"call\": {number}}}"))
}

fn write(mut stream: &TcpStream, status: &str, body: &str) -> Option<()> {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).ok()
}
