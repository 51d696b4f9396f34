//! Clients that send new keys and retry old ones through any of the gateways, until each has an answer.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel};

const CLIENTS: usize = 8;

/// The gateways that clients know at present.
#[derive(Clone)]
pub(super) struct Gateways(Arc<RwLock<Vec<String>>>);

impl Gateways {
    pub(super) fn new<'a>(servers: impl IntoIterator<Item = &'a Semel>) -> Self {
        let gateways = Self(Arc::default());
        gateways.replace(servers);
        gateways
    }

    pub(super) fn replace<'a>(&self, servers: impl IntoIterator<Item = &'a Semel>) {
        let urls = servers.into_iter().map(|server| server.gateway_url().replace("http://", ""));
        *self.0.write() = urls.collect();
    }

    fn one(&self, number: usize) -> String {
        let all = self.0.read();
        all[number % all.len()].clone()
    }
}

/// A client with a connection that it keeps.
struct Client {
    gateways: Gateways,
    number: usize,
    open: Option<(String, BufReader<TcpStream>)>,
}

struct Reply {
    status: u16,
    is_replay: bool,
    body: String,
}

impl Client {
    fn new(gateways: &Gateways, number: usize) -> Self {
        Self { gateways: gateways.clone(), number, open: None }
    }

    /// Sends until there is an answer that is not "try again".
    fn send(&mut self, key: &str) -> Reply {
        let mut pause = Duration::from_millis(10);
        wait::for_some("an answer", PATIENCE * 15, || {
            let answered = self.try_send(key);
            if let Ok(reply) = answered.as_ref()
                && !matches!(reply.status, 503 | 429)
            {
                return Ok(answered.ok());
            }
            // Another gateway next time.
            self.open = None;
            self.number = self.number.wrapping_add(1);
            pause = (pause * 2).min(Duration::from_millis(200));
            std::thread::park_timeout(pause);
            Ok(None)
        })
        .unwrap_or_else(|_| panic!("{key} got no answer"))
    }

    fn try_send(&mut self, key: &str) -> std::io::Result<Reply> {
        let at = self.gateways.one(self.number);
        if self.open.as_ref().is_none_or(|(open, _)| *open != at) {
            let stream = TcpStream::connect(&at)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            self.open = Some((at.clone(), BufReader::new(stream)));
        }
        let Some((_, connection)) = &mut self.open else { unreachable!("it was opened") };
        let request = format!(
            "POST /pay HTTP/1.1\r\nhost: {at}\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        connection.get_mut().write_all(request.as_bytes())?;
        let reply = read(connection);
        if reply.is_err() {
            self.open = None;
        }
        reply
    }
}

fn read(connection: &mut BufReader<TcpStream>) -> std::io::Result<Reply> {
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let (mut length, mut is_replay) = (0, false);
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(cut());
        }
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().map_err(|_| cut())?,
            "idempotent-replayed" => is_replay = value.trim() == "true",
            _ => {}
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Ok(Reply { status, is_replay, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Everything that was asked, and the first answer to each.
#[derive(Default)]
struct Ledger {
    answers: Mutex<HashMap<String, String>>,
    next: AtomicUsize,
    is_over: AtomicBool,
}

pub(super) struct Clients {
    gateways: Gateways,
    ledger: Arc<Ledger>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Clients {
    pub(super) fn start(gateways: &Gateways) -> Self {
        Self { gateways: gateways.clone(), ledger: Arc::default(), running: Mutex::default() }
    }

    /// Makes this many keys.
    pub(super) fn fill(&self, count: usize) {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (gateways, ledger) = (self.gateways.clone(), Arc::clone(&self.ledger));
                std::thread::spawn(move || {
                    let mut client = Client::new(&gateways, number);
                    while ledger.next.load(Ordering::Relaxed) < count {
                        ledger.use_new_key(&mut client);
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    }

    /// New keys and retries, until [`end_traffic`](Self::end_traffic).
    pub(super) fn begin_traffic(&self) {
        for number in 0..CLIENTS {
            let (gateways, ledger) = (self.gateways.clone(), Arc::clone(&self.ledger));
            self.running.lock().push(std::thread::spawn(move || {
                let mut client = Client::new(&gateways, number);
                let mut turn = number;
                while !ledger.is_over.load(Ordering::Relaxed) {
                    turn = turn.wrapping_mul(31).wrapping_add(17);
                    if turn.is_multiple_of(3) {
                        ledger.use_new_key(&mut client);
                    } else {
                        let known = ledger.next.load(Ordering::Relaxed);
                        ledger.retry(&mut client, &key(turn % known.max(1)));
                    }
                }
            }));
        }
    }

    /// Waits until every client has had answers.
    pub(super) fn go_on_for_a_while(&self) {
        let before = self.ledger.next.load(Ordering::Relaxed);
        let more = || self.ledger.next.load(Ordering::Relaxed) >= before + 10 * CLIENTS;
        wait::until("clients go on with the new servers", PATIENCE, more).unwrap();
    }

    pub(super) fn end_traffic(&self) {
        self.ledger.is_over.store(true, Ordering::Relaxed);
        for client in self.running.lock().drain(..) {
            client.join().unwrap();
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.ledger.answers.lock().keys().cloned().collect()
    }

    pub(super) fn answered(&self) -> usize {
        let (keys, answers) = (self.ledger.next.load(Ordering::Relaxed), self.ledger.answers.lock().len());
        assert_eq!(keys, answers, "every key has an answer");
        answers
    }

    /// Retries every key; returns how many were answered from the record.
    pub(super) fn replay_all(&self) -> usize {
        let keys = Arc::new(self.keys());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (gateways, ledger) = (self.gateways.clone(), Arc::clone(&self.ledger));
                let keys = Arc::clone(&keys);
                std::thread::spawn(move || {
                    let mut client = Client::new(&gateways, number);
                    let mine = keys.iter().skip(number).step_by(CLIENTS);
                    mine.filter(|key| ledger.retry(&mut client, key).is_replay).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    }
}

impl Ledger {
    fn use_new_key(&self, client: &mut Client) {
        let key = key(self.next.fetch_add(1, Ordering::Relaxed));
        self.retry(client, &key);
    }

    /// Sends a key and compares its answer with the first one.
    fn retry(&self, client: &mut Client, key: &str) -> Reply {
        let reply = client.send(key);
        assert_eq!(reply.status, 201, "{key}: {}", reply.body);
        let mut answers = self.answers.lock();
        let first = answers.entry(key.to_owned()).or_insert_with(|| reply.body.clone());
        assert_eq!(*first, reply.body, "{key}");
        reply
    }
}

fn key(number: usize) -> String {
    format!("key-{number}")
}
