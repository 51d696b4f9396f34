//! HTTP/1.1 messages with a length, read whole.

use std::io::{BufRead, Read as _};
use std::net::TcpStream;

/// A request or an answer, as it came.
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    head: usize,
}

impl Message {
    /// Reads one. None: the other side has closed, or sent something else.
    pub(super) fn read(from: &mut impl BufRead) -> Option<Self> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            from.read_until(b'\n', &mut bytes).ok().filter(|read| *read > 0)?;
            if &bytes[before..] == b"\r\n" {
                break;
            }
        }
        let mut message = Self { head: bytes.len(), bytes };
        let length = message.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
        from.take(length).read_to_end(&mut message.bytes).ok()?;
        (message.bytes.len() as u64 == message.head as u64 + length).then_some(message)
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        std::str::from_utf8(&self.bytes[..self.head]).unwrap_or_default().split("\r\n")
    }

    /// The words of the first line.
    pub(super) fn start(&self) -> Vec<&str> {
        self.lines().next().unwrap_or_default().split(' ').collect()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The logical call that a request belongs to: the order that the application names somewhere in the body.
    pub(super) fn order(&self) -> Option<String> {
        let body = String::from_utf8_lossy(&self.bytes[self.head..]).into_owned();
        let name = &body[body.find("order-")?..];
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
        Some(name[..end].to_owned())
    }
}

/// An answer.
pub(super) fn answer(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// What a balancer or a web server says when nobody is there: not what the API's clients expect as a body.
pub(super) fn unavailable() -> Vec<u8> {
    answer("503 Service Unavailable", "text/html", "<html><h1>503 Service Unavailable</h1></html>")
}

/// Serves every connection in a thread of its own.
pub(super) fn serve<S: Send + Sync + 'static>(
    shared: &std::sync::Arc<S>,
    each: fn(&S, &TcpStream),
) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let shared = std::sync::Arc::clone(shared);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let shared = std::sync::Arc::clone(&shared);
            std::thread::spawn(move || each(&shared, &stream));
        }
    });
    url
}
