//! A shop that knows nothing of idempotency: every order is made, and has a number of its own.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

pub(super) struct Shop {
    at: SocketAddr,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    orders: usize,
    /// Orders made, by who asked and the key; those that are meant to be repeated are not counted.
    by_key: HashMap<String, usize>,
    /// Keys whose flaky call has failed once.
    failed: HashMap<String, usize>,
}

impl Shop {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let book: Arc<Mutex<Book>> = Arc::default();
        let of_thread = Arc::clone(&book);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let book = Arc::clone(&of_thread);
                std::thread::spawn(move || while answer(&stream, &book).is_some() {});
            }
        });
        Self { at, book }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Keys with more than two orders: one is right, and one more after its retention is a new one.
    pub(super) fn repeated(&self) -> Vec<String> {
        let book = self.book.lock();
        book.by_key
            .iter()
            .filter(|(_, orders)| **orders > 2)
            .map(|(key, orders)| format!("{key}: {orders}"))
            .collect()
    }
}

fn answer(mut stream: &TcpStream, book: &Mutex<Book>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length, mut key, mut who) = (String::new(), 0, String::new(), String::new());
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "idempotency-key" => value.trim().clone_into(&mut key),
            "authorization" => value.trim().clone_into(&mut who),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let key = format!("{who} {}", key.trim_matches('"'));
    let (status, body) = {
        let mut book = book.lock();
        let flaky = path == "/flaky" && {
            let failures = book.failed.entry(key.clone()).or_default();
            *failures += 1;
            *failures == 1
        };
        if flaky {
            ("500 Internal Server Error", "{\"code\": \"oops\"}".to_owned())
        } else if String::from_utf8_lossy(&body).contains("invalid") {
            ("422 Unprocessable Content", "{\"code\": \"invalid_order\"}".to_owned())
        } else if path.starts_with("/.well-known/") {
            ("404 Not Found", "{}".to_owned())
        } else {
            book.orders += 1;
            *book.by_key.entry(key).or_default() += 1;
            ("201 Created", format!("{{\"id\": \"order-{}\"}}", book.orders))
        }
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).ok()
}
