//! A server that does as it is told, connection by connection.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What to do with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answer with this text and wait for the next.
    Say(String),
    /// Answer with this text, or nothing, and close.
    Cut(String),
    /// Answer after a while.
    Late(Duration, String),
    /// Answer, and close some time after it.
    Leave(String),
    /// Never answer.
    Silence,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (header, value) = line.split_once(':')?;
            header.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

pub(crate) struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Acts by the number of the request, from 0.
    pub(crate) async fn start(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, act) = (Arc::clone(&seen), Arc::new(act));
        let task = tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(converse(stream, connection, Arc::clone(&kept), Arc::clone(&act)));
            }
        });
        Self { port, seen, task }
    }

    /// Does these one after the other, then goes on with the last.
    pub(crate) async fn script(acts: impl IntoIterator<Item = Act>) -> Self {
        let acts: Vec<Act> = acts.into_iter().collect();
        Self::start(move |number| acts[number.min(acts.len() - 1)].clone()).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().len()
    }
}

async fn converse(
    mut stream: TcpStream,
    connection: usize,
    kept: Arc<Mutex<Vec<Seen>>>,
    act: Arc<impl Fn(usize) -> Act + Send + Sync + 'static>,
) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read(&mut stream, &mut buffer).await {
        let number = {
            let mut kept = kept.lock();
            kept.push(Seen { head, body, connection });
            kept.len() - 1
        };
        match act(number) {
            Act::Say(text) => drop(stream.write_all(text.as_bytes()).await),
            Act::Cut(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                return;
            }
            Act::Late(length, text) => {
                tokio::time::sleep(length).await;
                let _ = stream.write_all(text.as_bytes()).await;
            }
            Act::Leave(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                let _ = stream.shutdown().await;
                return;
            }
            Act::Silence => std::future::pending().await,
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.unwrap_or(0);
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, buffer.drain(..length).collect()))
}

/// An answer with these lines of header and this body.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> String {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Whatever\r\n{lines}content-length: {}\r\n\r\n{body}", body.len())
}

pub(crate) fn say(status: u16, headers: &[(&str, &str)], body: &str) -> Act {
    Act::Say(answer(status, headers, body))
}

pub(crate) fn ok() -> Act {
    say(200, &[("content-type", "application/json")], r#"{"id":"ch_1"}"#)
}
