//! A crowd that abuses resets, slow bodies, half-open connections and descriptors, all at once, while an honest client works.
//!
//! In full form: `./scripts/prove abuse`, with 1,000 clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kit::{Semel, Upstream};

/// What an abusive client does.
#[derive(Clone, Copy, Debug)]
enum Abuse {
    /// Opens HTTP/2 streams and resets them.
    Resets,
    /// Announces a large body and sends a byte now and then.
    SlowBody,
    /// Sends a part of a head, and nothing more.
    HalfHead,
    /// Connects and sends nothing.
    Silence,
}

const ABUSES: [Abuse; 4] = [Abuse::Resets, Abuse::SlowBody, Abuse::HalfHead, Abuse::Silence];

struct Size {
    clients: usize,
    descriptors: usize,
    duration: Duration,
}

/// A keyed request on a stream of HTTP/2, and its reset: below the number of resets that closes a connection.
fn resets() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1..40_u32).step_by(2) {
        // :method POST, :scheme http, :path /, :authority a, idempotency-key kN
        let mut block = b"\x83\x86\x84\x41\x01a\x40\x0fidempotency-key".to_vec();
        let key = format!("reset-{stream}-{}", rand_text());
        block.push(u8::try_from(key.len()).unwrap());
        block.extend(key.bytes());
        bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 5]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(block);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(8_u32.to_be_bytes());
    }
    bytes
}

fn rand_text() -> String {
    format!("{:016x}", rand::random::<u64>())
}

#[expect(clippy::disallowed_methods, reason = "clients act in real time")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "clients act in real time")]
fn now() -> Instant {
    Instant::now()
}

/// One connection of an abusive client, driven from outside so that many share a thread.
struct Client {
    abuse: Abuse,
    stream: Option<TcpStream>,
}

impl Client {
    fn step(&mut self, at: &str) {
        let Some(stream) = &mut self.stream else {
            self.stream = connect(at);
            if let Some(stream) = &mut self.stream {
                let first = match self.abuse {
                    Abuse::Resets => resets(),
                    Abuse::SlowBody => format!(
                        "POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: slow-{}\r\nContent-Length: 60000\r\n\r\n",
                        rand_text()
                    )
                    .into_bytes(),
                    Abuse::HalfHead => b"POST /orders HTTP/1.1\r\nHost: a\r\nX-Half".to_vec(),
                    Abuse::Silence => Vec::new(),
                };
                let _ = stream.write_all(&first);
            }
            return;
        };
        let mut scratch = [0; 4096];
        let open = match stream.read(&mut scratch) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        };
        let open = open && !matches!(self.abuse, Abuse::SlowBody if stream.write(b"x").is_err());
        // A connection that was reset by the server, or has done its damage, is opened again.
        if !open || matches!(self.abuse, Abuse::Resets) {
            self.stream = None;
        }
    }
}

fn connect(at: &str) -> Option<TcpStream> {
    let address = at.parse().expect("an address");
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

#[test]
fn an_honest_client_works_through_abuse_of_every_kind() {
    let size = if std::env::var_os("SEMEL_PROVE").is_some() {
        Size { clients: 1_000, descriptors: 1_024, duration: Duration::from_secs(60) }
    } else {
        Size { clients: 120, descriptors: 160, duration: Duration::from_secs(6) }
    };
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let args = ["--store", &store, "--upstream", &upstream.url(), "--scope", "single-tenant"];
    let semel = Semel::with_descriptors(size.descriptors, &args);
    let at = semel.gateway_url().strip_prefix("http://").unwrap().to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicUsize::new(0));
    let crowd: Vec<_> = (0..4)
        .map(|thread| {
            let (at, stop, steps) = (at.clone(), Arc::clone(&stop), Arc::clone(&steps));
            let mut clients: Vec<Client> = (0..size.clients / 4)
                .map(|number| Client { abuse: ABUSES[(thread + number) % ABUSES.len()], stream: None })
                .collect();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for client in &mut clients {
                        client.step(&at);
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    pause(Duration::from_millis(100));
                }
            })
        })
        .collect();
    let (mut sent, mut served, mut healthy) = (0_u32, 0_u32, 0_u32);
    let until = now() + size.duration;
    while now() < until {
        sent += 1;
        let key = format!("honest-{sent}");
        // As clients do: a call that got no answer, or was told to come back, is sent again with the same key.
        let ok = (0..5).any(|attempt| {
            pause(Duration::from_millis(200 * attempt));
            let answer = semel.gateway().with("idempotency-key", &key).try_send("POST", "/orders", "{}");
            answer.is_ok_and(|answer| answer.status == 201)
        });
        served += u32::from(ok);
        assert!(upstream.calls(&key) <= 1, "{key} had two effects");
        healthy +=
            u32::from(semel.admin().try_send("GET", "/healthz", "").is_ok_and(|answer| answer.status == 200));
        pause(Duration::from_millis(20));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in crowd {
        thread.join().unwrap();
    }
    let rate = f64::from(served) / f64::from(sent) * 100.0;
    println!(
        "{} abusive clients ({} steps): {served} of {sent} honest calls served, {rate:.2} %; healthy {healthy} of {sent} times",
        size.clients,
        steps.load(Ordering::Relaxed)
    );
    assert!(rate >= 99.0, "only {rate:.2} % of honest calls were served");
    assert_eq!(healthy, sent, "the admin side is always there");
}
