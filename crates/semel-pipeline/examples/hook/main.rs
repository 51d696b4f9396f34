//! A target to try deliveries with: prints what it is sent, and acts once for each `Idempotency-Key`.
//!
//! ```sh
//! cargo run -p semel-pipeline --example hook -- 127.0.0.1:9001
//! ```

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

fn main() -> std::io::Result<()> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9001".to_owned());
    let listener = TcpListener::bind(&at)?;
    println!("a target listens at http://{}/", listener.local_addr()?);
    let known: Arc<Mutex<HashSet<String>>> = Arc::default();
    for stream in listener.incoming() {
        let (stream, known) = (stream?, Arc::clone(&known));
        std::thread::spawn(move || while answer(&stream, &known).is_ok() {});
    }
    Ok(())
}

/// Answers one request of a connection.
fn answer(stream: &TcpStream, known: &Mutex<HashSet<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut key, mut kind, mut length) = (String::new(), String::new(), 0);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => value.clone_into(&mut key),
            "semel-event-type" => value.clone_into(&mut kind),
            "content-length" => length = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let new = known.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
    let what = if new { "acts" } else { "knows it already" };
    println!("{what}: {kind} {} (key {:.8})", String::from_utf8_lossy(&body), key);
    (&mut &*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}
