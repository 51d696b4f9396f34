//! The layer before axum, over real connections, as a client sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use semel::Engine;
use semel::store::MemoryStore;
use semel_http::{Guard, SemelLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::kit::eventually;

#[derive(Clone)]
struct Server {
    address: std::net::SocketAddr,
    effects: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

async fn serve() -> Server {
    let (effects, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(Semaphore::new(0));
    let (of_effects, of_finished, of_gate) = (Arc::clone(&effects), Arc::clone(&finished), Arc::clone(&gate));
    let charge = move |body: String| {
        let number = of_effects.fetch_add(1, Ordering::SeqCst) + 1;
        let (gate, finished) = (Arc::clone(&of_gate), Arc::clone(&of_finished));
        async move {
            gate.acquire().await.unwrap().forget();
            finished.fetch_add(1, Ordering::SeqCst);
            format!("charged {number} for {body}")
        }
    };
    let engine = Engine::builder(MemoryStore::new()).build().unwrap();
    let layer = SemelLayer::new(Guard::builder(engine).build().unwrap());
    let app = Router::new().route("/charge", post(charge)).route("/", get(|| async { "hello" })).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Server { address, effects, finished, gate }
}

impl Server {
    async fn connect(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(&self, text: &str) -> String {
        let mut stream = self.connect(text).await;
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().unwrap();
        answer
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }
}

fn charge(key: &str) -> String {
    format!(
        "POST /charge HTTP/1.1\r\nhost: a\r\nauthorization: a\r\nidempotency-key: {key}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n12"
    )
}

#[tokio::test]
async fn over_a_connection() {
    let server = serve().await;
    server.gate.add_permits(10);
    let first = server.ask(&charge("k")).await;
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with("charged 1 for 12"), "{first}");
    assert!(!first.contains("idempotent-replayed"));
    let again = server.ask(&charge("k")).await;
    assert!(again.contains("idempotent-replayed: true") && again.ends_with("charged 1 for 12"), "{again}");
    let hello = server.ask("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(hello.ends_with("hello") && !hello.contains("idempot"), "{hello}");
    let well_known =
        server.ask("GET /.well-known/idempotency HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(well_known.contains("\"replay_ttl_seconds\":86400"), "{well_known}");
    assert_eq!(server.effects(), 1);
}

/// How a client goes away.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    Fin,
    Reset,
    HalfClose,
}

// Disconnect_mid_effect, half_close: the effect and its record finish, the retry replays.
#[tokio::test]
async fn a_client_that_leaves_changes_nothing() {
    for leaving in [Leaving::Fin, Leaving::Reset, Leaving::HalfClose] {
        let server = serve().await;
        let mut client = server.connect(&charge("k")).await;
        eventually("the effect runs", || server.effects() == 1).await;
        match leaving {
            Leaving::Fin => drop(client),
            Leaving::Reset => {
                client.set_zero_linger().unwrap();
                drop(client);
            }
            Leaving::HalfClose => client.shutdown().await.unwrap(),
        }
        // Long enough for the server to notice, on any machine: its connection task has nothing else to do.
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.gate.add_permits(1);
        eventually("the effect finishes", || server.finished.load(Ordering::SeqCst) == 1).await;
        let retry = server.ask(&charge("k")).await;
        assert!(
            retry.contains("idempotent-replayed: true") && retry.ends_with("charged 1 for 12"),
            "{leaving:?}: {retry}"
        );
        assert_eq!(server.effects(), 1, "{leaving:?}");
    }
}
