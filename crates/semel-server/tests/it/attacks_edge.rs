//! Attacks on the gateway, each as a test that carries its name.

mod accounts;
mod concurrency;
mod memory;
mod paths;
mod proxied_headers;
mod tunnels;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::kit::{PATIENCE, Semel};

/// A gateway with these settings of `[gateway]`, then these tables. The folder holds its config file.
fn gateway(upstream: &str, settings: &str, tables: &str) -> (tempfile::TempDir, Semel) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n{settings}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n{tables}\n"
    );
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[]);
    (folder, semel)
}

/// An upstream that keeps the head of every request, answers with 200, and switches to any protocol that it is asked for. Then it
/// sends back what it reads.
struct Recorder {
    at: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let heads = Arc::clone(&of_thread);
                std::thread::spawn(move || record(&stream, &heads));
            }
        });
        Self { at, heads }
    }

    fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// The heads so far, in small letters.
    fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }
}

fn record(stream: &TcpStream, heads: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            if line.trim_end().is_empty() {
                break;
            }
            head.push_str(&line.to_ascii_lowercase());
        }
        let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let length = value("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
        let upgrade = value("upgrade:").map(str::to_owned);
        heads.lock().push(head);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut writer = stream;
        if let Some(protocol) = upgrade {
            let switched = format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"
            );
            writer.write_all(switched.as_bytes()).ok()?;
            std::io::copy(&mut reader, &mut writer).ok()?;
            return None;
        }
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").ok()?;
    }
}

/// A connection to the gateway on which bytes are sent as they are.
fn connect(semel: &Semel) -> TcpStream {
    let at = semel.gateway_url().strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends these bytes and gives the status of the answer.
fn status_of(semel: &Semel, request: &str) -> u16 {
    let mut stream = connect(semel);
    stream.write_all(request.as_bytes()).unwrap();
    read_status(&stream)
}

fn read_status(stream: &TcpStream) -> u16 {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap_or_else(|| panic!("a status in {line:?}")).parse().unwrap()
}
